"""Markers: a code word at the head, in the middle and at the tail of a document, and questions that ask for each.

Where a server cuts a prompt it cuts one of its parts: who answers for the others, and never for that one, was not sent
the whole. The questions are items of their own (task ``markers``) and count for no ability.
"""

from kvscope.quality.korean import with_particle
from kvscope.quality.task import Document, Question

MARKER_TASK = "markers"
PARTS = ("head", "middle", "tail")
# The sentence up to its code word and behind it, and the question. No two are alike: small models, asked for the first
# of three marks told in the same words, name the last. Which stand where goes round with the documents: a wording that
# a model cannot answer is then of no place, and the next document begins otherwise.
_TOLD = {
    "en": (
        ("The old banner shows the word", ".", "Which word does the old banner show?"),
        ("The bronze bell is engraved with the word", ".", "With which word is the bronze bell engraved?"),
        ("The sailors call their boat by the word", ".", "By which word do the sailors call their boat?"),
        ("On the oak door is carved the word", ".", "Which word is carved on the oak door?"),
        ("Behind the mirror is written the word", ".", "Which word is written behind the mirror?"),
        ("Every evening the parrot says the word", ".", "Which word does the parrot say every evening?"),
    ),
    "ko": (
        ("낡은 깃발에 그려진 낱말은 ‘", "{particle}.", "낡은 깃발에 그려진 낱말은 무엇입니까?"),
        ("청동 종에 새겨진 낱말은 ‘", "{particle}.", "청동 종에 새겨진 낱말은 무엇입니까?"),
        ("뱃사람들이 배를 부르는 낱말은 ‘", "{particle}.", "뱃사람들이 배를 부르는 낱말은 무엇입니까?"),
        ("참나무 문에 파인 낱말은 ‘", "{particle}.", "참나무 문에 파인 낱말은 무엇입니까?"),
        ("거울 뒤에 적힌 낱말은 ‘", "{particle}.", "거울 뒤에 적힌 낱말은 무엇입니까?"),
        ("저녁마다 앵무새가 하는 낱말은 ‘", "{particle}.", "저녁마다 앵무새가 하는 낱말은 무엇입니까?"),
    ),
}
_ALONE = {"en": "Answer with that word alone.", "ko": "그 낱말만 답하십시오."}


def marker_wordings(number: int, language: str) -> tuple[int, ...]:
    """Which wording stands at the head, in the middle and at the tail of a document of this number."""
    return tuple((number + part) % len(_TOLD[language]) for part in range(len(PARTS)))


def marker_sentence(wording: int, word: str, language: str) -> str:
    """The sentence that holds a code word, in one of the wordings."""
    before, behind, _ = _TOLD[language][wording]
    if language == "ko":
        return before + word + behind.format(particle="’" + with_particle(word, "이다").removeprefix(word))
    return f"{before} {word}{behind}"


def marker_asked(wording: int, language: str) -> tuple[str, str]:
    """The question for the code word told in this wording, and the beginning of its answer."""
    cue, _, question = _TOLD[language][wording]
    return f"{question} {_ALONE[language]}", cue


def marker_questions(document: Document) -> tuple[Question, ...]:
    """One question for each marker of a document, its item named "…/marker-head", "-middle", "-tail". Empty where the
    document has none."""
    return tuple(_question(document, part, word) for part, word in enumerate(document.markers))


def _question(document: Document, part: int, word: str) -> Question:
    told = [marker_sentence(wording, word, document.language) for wording in range(len(_TOLD[document.language]))]
    wording = next(number for number, sentence in enumerate(told) if sentence in document.text)
    text, cue = marker_asked(wording, document.language)
    return Question(
        item=f"{document.name}/marker-{PARTS[part]}",
        text=text,
        cue=cue,
        expected=(word,),
        rivals=tuple(other for other in document.markers if other != word),
        scoring="normalised",
        chance=1 / len(document.markers),
        evidence=(told[wording],),
        depth_percent=100 * document.text.index(told[wording]) / len(document.text),
        max_output_tokens=64,
    )
