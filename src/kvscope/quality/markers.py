"""Markers: a code word at the head, in the middle and at the tail of a document, and questions that ask for each.

Where a server cuts a prompt it cuts one of its parts: who answers for the others, and never for that one, was not sent
the whole. The questions are items of their own (task ``markers``) and count for no ability.
"""

from kvscope.quality.korean import with_particle
from kvscope.quality.task import Document, Question

MARKER_TASK = "markers"
PARTS = ("head", "middle", "tail")
_EN = ("first", "middle", "last")
_KO = ("첫", "가운데", "마지막")


def marker_sentence(part: int, word: str, language: str) -> str:
    """The sentence that holds a code word; ``part``: 0 head, 1 middle, 2 tail."""
    if language == "ko":
        return f"이 글의 {_KO[part]} 표시는 ‘{word}’{with_particle(word, '이라').removeprefix(word)}는 낱말이다."
    return f"The {_EN[part]} mark of this text is the word {word}."


def marker_questions(document: Document) -> tuple[Question, ...]:
    """One question for each marker of a document, its item named "…/marker-head", "-middle", "-tail". Empty where the
    document has none."""
    return tuple(_question(document, part, word) for part, word in enumerate(document.markers))


def _question(document: Document, part: int, word: str) -> Question:
    sentence = marker_sentence(part, word, document.language)
    if document.language == "ko":
        text = f"이 글의 {_KO[part]} 표시는 어떤 낱말입니까? 그 낱말만 답하십시오."
        cue = f"이 글의 {_KO[part]} 표시는"
    else:
        text = f"Which word is the {_EN[part]} mark of this text? Answer with that word alone."
        cue = f"The {_EN[part]} mark of this text is the word"
    return Question(
        item=f"{document.name}/marker-{PARTS[part]}",
        text=text,
        cue=cue,
        expected=(word,),
        rivals=tuple(other for other in document.markers if other != word),
        scoring="normalised",
        chance=1 / len(document.markers),
        evidence=(sentence,),
        depth_percent=100 * document.text.index(sentence) / len(document.text),
        max_output_tokens=64,
    )
