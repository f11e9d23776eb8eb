"""How an answer is held against what was expected: exactly, normalised, as a set, by a pattern, as a call of a tool.

Every way counts what was said too much: who names all values of the text is not right. An answer is right where it
names all that was expected and nothing else that could have been; ``set`` gives a part of the score to a part.
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvscope.quality.denials import affirmed, says_no
from kvscope.quality.named import all_named, symbols
from kvscope.quality.numbers_said import numbers_said, without_numbers
from kvscope.quality.task import Question

# Beside a long number, shorter ones are no rivals of it: "1." before an answer, "in 2 lines".
_LONG_NUMBER_DIGITS, _SHORT_NUMBER_DIGITS = 4, 3
_LARGEST_IN_WORDS = 99
_QUOTES = "\"'“”‘’«»「」『』`*"
_LONGEST_LEAD_IN = 80
_FENCE = re.compile(r"^[ \t]*```\w*[ \t]*$", re.MULTILINE)
_LINE_MARK = re.compile(r"^\s*(?:>\s?|[-*+•]\s)+")
_DOTS = re.compile(r"^[\"“']?\.{3}\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """``value``: 1.0 right, 0.0 wrong, between them a part. ``names_something``: the answer holds anything that could
    be held against what was expected. ``facts``: what was seen, for the record (precision, recall, also_named ...)."""

    value: float
    names_something: bool
    facts: Mapping[str, Any] = field(default_factory=dict)


def scored(question: Question, answer: str) -> Score:
    """By the question's ``scoring``; ``tool_call`` is read in ``quality.tool_call_said``."""
    if question.scoring == "exact":
        return _exactly(question, answer)
    if question.scoring == "regex":
        return _by_pattern(question, answer)
    return _named(question, answer)


def _named(question: Question, answer: str) -> Score:
    """Which of the values are named, and which others. Normalised: all of the expected and no other. Set: precision
    times recall, so that naming everything scores its precision."""
    numbers = [_as_number(value) for value in question.expected]
    if not any(map(says_no, (*question.expected, question.text))):
        answer = affirmed(answer, is_count=all(numbers))
    if all(numbers):
        right, other = _numbers_named(numbers, question.text, answer)
    else:
        right, other = list(all_named(question.expected, answer)), list(all_named(question.rivals, answer))
    recall = len(right) / len(question.expected) if question.expected else 0.0
    precision = len(right) / (len(right) + len(other)) if right or other else 0.0
    facts: dict[str, Any] = {"also_named": other} if other else {}
    if len(question.expected) > 1 or other:
        facts |= {"precision": precision, "recall": recall}
    value = precision * recall
    if question.scoring != "set":
        value = float(value == 1.0)
    return Score(value=value, names_something=bool(right or other), facts=facts)


def _as_number(value: str) -> str:
    """A value that is a number and nothing else, as ``numbers_said`` has it; otherwise empty."""
    said, beside = numbers_said(value), without_numbers(value)
    is_alone = not symbols(beside) and not any(letter.isalnum() for letter in beside)
    return said[0] if len(said) == 1 and is_alone else ""


def _numbers_named(wanted: list[str], asked: str, answer: str) -> tuple[list[str], list[str]]:
    """Any number counts, not only those of the text: a wrong digit is a wrong answer. The question's own numbers, said
    again, do not."""
    is_small = all(value.isdigit() and int(value) <= _LARGEST_IN_WORDS for value in wanted)
    least_digits = _SHORT_NUMBER_DIGITS if all(len(value) >= _LONG_NUMBER_DIGITS for value in wanted) else 1
    own = set(numbers_said(asked))
    said = [number for number in numbers_said(answer, in_words=is_small) if len(number) >= least_digits]
    right = [number for number in said if number in wanted]
    return right, [number for number in said if number not in wanted and number not in own]


def _exactly(question: Question, answer: str) -> Score:
    """Word for word, letter for letter; blanks count as one, and quotation marks around it, a full stop at its end and
    a short "Here it is:" before it are no part of it, nor are a fence, the mark of a block quote or of a list, and dots
    before it. The beginning of the sentence may be said again. An answer
    that holds the text among others is wrong, and its facts say so (also_said)."""
    wanted = _bare(question.expected[0])
    given = _bare(question.evidence[0].removesuffix(question.expected[0])) if question.evidence else ""
    said = _bare(answer)
    lead_in, colon, rest = answer.partition(":")
    candidates = [said, *([_bare(rest)] if colon and len(lead_in) <= _LONGEST_LEAD_IN else [])]
    if given:
        candidates += [_bare(text.removeprefix(given)) for text in candidates if text.startswith(given)]
    is_right = wanted in candidates
    # What it would be right to go on with: an answer that was cut in it is no wrong one.
    begins_right = any(text and wanted.startswith(text) for text in candidates) or (given + " " + wanted).startswith(
        said
    )
    facts = {"also_said": True} if wanted in said and not is_right else {}
    return Score(value=float(is_right), names_something=is_right or not begins_right, facts=facts)


def _bare(text: str) -> str:
    lines = _FENCE.sub("", text).splitlines()
    unmarked = " ".join(_LINE_MARK.sub("", line) for line in lines)
    joined = _DOTS.sub("", " ".join(unicodedata.normalize("NFKC", unmarked).split()))
    return joined.strip(_QUOTES + " ").removesuffix(".").strip(_QUOTES + " ")


def _by_pattern(question: Question, answer: str) -> Score:
    """Every pattern of ``expected`` is found, and none of ``rivals``; patterns as Python's ``re`` has them."""
    plain = unicodedata.normalize("NFKC", answer)
    right = [pattern for pattern in question.expected if re.search(pattern, plain)]
    other = [pattern for pattern in question.rivals if re.search(pattern, plain)]
    is_right = len(right) == len(question.expected) and not other
    return Score(
        value=float(is_right),
        names_something=bool(right or other),
        facts={"also_named": other} if other else {},
    )
