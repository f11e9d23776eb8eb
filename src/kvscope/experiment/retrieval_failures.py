"""Why a question on documents was not answered right: every failure has one of these reasons, and only one."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

from kvscope.experiment.retrieval_prompts import AskedPrompt
from kvscope.experiment.retrieval_ways import Way
from kvscope.quality.reading import ReadAnswer
from kvscope.quality.retrieval.questions import AskedQuestion

NOT_GIVEN = "not_given"  # nothing was given: what is right then is a guess, or known without documents
NOT_RETRIEVED = "not_retrieved"  # the evidence was not among the passages
BURIED = "buried"  # the evidence was there, and another value of what was given was named
PARTLY = "partly_right"  # what was asked for was named, but not all of it, or another value beside it
NOT_USED = "retrieved_not_used"  # the evidence was there, and neither its value nor another of the text was named
NO_ANSWER = "no_answer"  # nothing came that could be read
CUT = "cut"  # the prompt did not reach the model whole
CUT_ANSWER = "cut_answer"  # the answer ran into its limit before it could be read
MAYBE_CUT = "maybe_cut"  # the evidence was sent; whether the prompt reached the model whole is not known
FAILED = "failed"  # the request ended in an error
UNKNOWN_PLACE = "evidence_unknown"  # where the evidence stands is not known, so what was missing is not either
FAILURES = (
    NOT_GIVEN,
    NOT_RETRIEVED,
    BURIED,
    PARTLY,
    NOT_USED,
    NO_ANSWER,
    CUT,
    CUT_ANSWER,
    MAYBE_CUT,
    FAILED,
    UNKNOWN_PLACE,
)

# Of what could not be read nothing more is said.
_UNREAD = {"truncated_input": CUT, "cut_output": CUT_ANSWER, "failed": FAILED, "no_answer": NO_ANSWER}
_NUMBER = re.compile(r"\d[\d,.:-]*")


def failure_of(read: ReadAnswer, way: Way, prompt: AskedPrompt, others: Sequence[AskedQuestion]) -> str | None:
    """Why an answer is not right, by what it was read as; None where it is, or where no right answer is known.
    ``others``: all questions of the study, whose answers are what a wrong one may name."""
    if read.reading in ("right", "unscored"):
        return None
    if read.reading in _UNREAD:
        return _UNREAD[read.reading]
    if way.gives == "nothing":
        return NOT_GIVEN
    if prompt.has_evidence is None:
        return UNKNOWN_PLACE
    if not prompt.has_evidence:
        return NOT_RETRIEVED
    if read.facts.get("recall"):
        return PARTLY
    return BURIED if named_rivals(prompt, read.answer or "", others) else NOT_USED


def named_rivals(prompt: AskedPrompt, answer: str, others: Sequence[AskedQuestion]) -> tuple[str, ...]:
    """What ``answer`` names of the given text that is not the evidence: answers of other questions, and numbers where a
    number was asked for. What the question itself says, or the evidence, is none."""
    said, own = _plain(answer), _plain(" ".join((prompt.question.text, *prompt.question.expected, *prompt.evidence)))
    given = _plain_given(prompt.given)
    found = [value for each in others for value in each.expected]
    if any(_NUMBER.search(value) for value in prompt.question.expected):
        found += [number.rstrip(".,:-") for number in _NUMBER.findall(answer)]
    return tuple(dict.fromkeys(value for value in found if _stands_in(value, said, given) and not _in(value, own)))


def standing_in(values: Iterable[str], text: str) -> tuple[str, ...]:
    """Those of the values that stand in a text, each once. The text is made plain once for all of them."""
    plain = _plain(text)
    return tuple(dict.fromkeys(value for value in values if _in(value, plain)))


def _stands_in(value: str, *texts: str) -> bool:
    return all(_in(value, text) for text in texts)


def _in(value: str, text: str) -> bool:
    """Whether a value stands in a plain text as a whole word or number (of Hangul, with what may be added behind)."""
    plain = _plain(value)
    if not plain or plain not in text:  # a long text is looked through quickly
        return False
    end = "" if "가" <= plain[-1] <= "힣" else r"(?![a-z0-9])"
    return re.search(rf"(?<![a-z0-9]){re.escape(plain)}{end}", text) is not None


@lru_cache(maxsize=2)  # the documents are long, and the same at every question
def _plain_given(text: str) -> str:
    return _plain(text)


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).casefold().strip()


def counted(failures: Iterable[str]) -> dict[str, int]:
    """How often each reason is there, in the order of FAILURES."""
    all_of_them = list(failures)
    return {name: all_of_them.count(name) for name in FAILURES if name in all_of_them}
