"""A judge model, only where the user names one: it is asked for one word, and what it said is recorded."""

import re
from collections.abc import Callable
from typing import Any

from kvscope.quality.answer_text import without_thinking
from kvscope.quality.reading import ReadAnswer
from kvscope.quality.task import Question

# A verdict: what the judge answered to a prompt.
Ask = Callable[[str], str]

_PROMPT = """A question was put about a text, and a right answer to it is known. Judge the given answer.

Question: {question}
Right answer: {expected}
Given answer: {answer}

Does the given answer say the same as the right answer, and nothing that contradicts it?
Say one word: right or wrong."""
_MOST_WORDS = 6
_RIGHT = re.compile(r"\b(?:right|correct|yes)\b|(?<![가-힣])(?:정답|맞[음다아는습]|옳)")
_WRONG = re.compile(r"\b(?:wrong|incorrect|no)\b|(?<![가-힣])(?:오답|틀[림리린립렸])")
_DENIES = re.compile(r"\bnot\b|n['’]t\b|아니|아닙|않")
# "Right, because ...": the verdict comes first, and set apart.
_FIRST_WORD = re.compile(r"\A\W*(\w+)\W*?[.,:;!—–\n-]")


def judged(question: Question, read: ReadAnswer, ask: Ask, *, judge: str) -> ReadAnswer:
    """The reading by a judge's verdict in place of the strict one, which stays in the facts as ``strict_score``.

    ``ask`` puts a prompt to the judge; ``judge`` is its name, recorded with what it said. An answer that cannot be
    judged (no answer, cut, failed) stays as it is and the judge is not asked. A verdict that is no single clear word is
    not scored: ``failed``, with the verdict in the facts."""
    if read.reading not in ("right", "wrong") or read.answer is None:
        return read
    verdict = ask(_PROMPT.format(question=question.text, expected="; ".join(question.expected), answer=read.answer))
    facts: dict[str, Any] = {**read.facts, "judge": judge, "verdict": verdict[:200], "strict_score": read.score}
    is_right = _verdict(verdict)
    if is_right is None:
        return ReadAnswer(reading="failed", score=None, answer=read.answer, facts=facts)
    return ReadAnswer(reading="right" if is_right else "wrong", score=float(is_right), answer=read.answer, facts=facts)


def _verdict(text: str) -> bool | None:
    """By the only kind of verdict word in a few words, or by a first word set apart by a mark; None where there is
    none, or both kinds, or a "not"."""
    answer = without_thinking(text)[0].casefold()
    says_right, says_wrong = bool(_RIGHT.search(answer)), bool(_WRONG.search(answer))
    first = _FIRST_WORD.match(answer)
    is_first = first is not None and bool(_RIGHT.match(first[1]) or _WRONG.match(first[1]))
    is_short = len(re.findall(r"\w+", answer)) <= _MOST_WORDS
    if says_right == says_wrong or _DENIES.search(answer) or not (is_first or is_short):
        return None
    return says_right
