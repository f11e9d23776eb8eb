"""Markers: a code word at the head, in the middle and at the tail of a document, and questions that ask for each.

Where a server cuts a prompt it cuts one of its parts: who answers for the others, and never for that one, was not sent
the whole. The questions are items of their own (task ``markers``) and count for no ability.
"""

from kvscope.quality.korean import with_particle
from kvscope.quality.task import Document, Question

MARKER_TASK = "markers"
PARTS = ("head", "middle", "tail")
# The sentence up to its code word and behind it, and the question. No two are alike: small models, asked for the first
# of three marks told in the same words, name the last.
_TOLD = {
    "en": (
        ("The old banner shows the word", ".", "Which word does the old banner show?"),
        ("The bronze bell is engraved with the word", ".", "With which word is the bronze bell engraved?"),
        ("The sailors call their boat by the word", ".", "By which word do the sailors call their boat?"),
    ),
    "ko": (
        ("낡은 깃발에 그려진 낱말은 ‘", "{particle}.", "낡은 깃발에 그려진 낱말은 무엇입니까?"),
        ("청동 종에 새겨진 낱말은 ‘", "{particle}.", "청동 종에 새겨진 낱말은 무엇입니까?"),
        ("뱃사람들이 배를 부르는 낱말은 ‘", "{particle}.", "뱃사람들이 배를 부르는 낱말은 무엇입니까?"),
    ),
}
_ALONE = {"en": "Answer with that word alone.", "ko": "그 낱말만 답하십시오."}


def marker_sentence(part: int, word: str, language: str) -> str:
    """The sentence that holds a code word; ``part``: 0 head, 1 middle, 2 tail."""
    before, behind, _ = _TOLD[language][part]
    if language == "ko":
        return before + word + behind.format(particle="’" + with_particle(word, "이다").removeprefix(word))
    return f"{before} {word}{behind}"


def marker_questions(document: Document) -> tuple[Question, ...]:
    """One question for each marker of a document, its item named "…/marker-head", "-middle", "-tail". Empty where the
    document has none."""
    return tuple(_question(document, part, word) for part, word in enumerate(document.markers))


def _question(document: Document, part: int, word: str) -> Question:
    sentence = marker_sentence(part, word, document.language)
    cue, _, question = _TOLD[document.language][part]
    return Question(
        item=f"{document.name}/marker-{PARTS[part]}",
        text=f"{question} {_ALONE[document.language]}",
        cue=cue,
        expected=(word,),
        rivals=tuple(other for other in document.markers if other != word),
        scoring="normalised",
        chance=1 / len(document.markers),
        evidence=(sentence,),
        depth_percent=100 * document.text.index(sentence) / len(document.text),
        max_output_tokens=64,
    )
