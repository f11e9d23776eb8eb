"""Against what an answer on documents is read: the answers of the study's other questions that stand in the documents,
the same ones whatever was given, so that no way is read more strictly than another."""

import re

from kvscope.experiment.retrieval_asked import RetrievalAsked
from kvscope.experiment.retrieval_failures import standing_in

# Words that say yes, and words that say no: read by which comes first, since "yes, there is no rule" says yes.
_SAYS = (("yes", "yeah", "예", "네"), ("no", "nope", "아니요", "아니오", "아뇨"))
_BEHIND = r"(?:입니다|이다|요)?(?![가-힣\w])"


def standing_answers(asked: RetrievalAsked) -> tuple[str, ...]:
    """The answers of all questions that stand in any of the documents. Yes and no are none of them: they say nothing
    of another question."""
    values = dict.fromkeys(value for each in asked.questions for value in each.expected if polarity(value) is None)
    return standing_in(values, "\n\n".join(document.text for document in asked.documents))


def polarity(value: str) -> int | None:
    """0 for a yes, 1 for a no, None for anything else."""
    plain = value.casefold().strip(" .,!\n\t")
    return next((number for number, words in enumerate(_SAYS) if plain in words), None)


def polarity_patterns(says: int) -> tuple[str, str]:
    """Patterns of an answer whose first yes or no is this one, and of one whose first is the other."""
    return _first_of(says), _first_of(1 - says)


def _first_of(says: int) -> str:
    wanted, either = _word(_SAYS[says]), _word(_SAYS[0] + _SAYS[1])
    return rf"(?is)\A(?:(?!{either}).)*{wanted}"


def _word(words: tuple[str, ...]) -> str:
    return rf"(?<![가-힣\w])(?:{'|'.join(map(re.escape, words))}){_BEHIND}"
