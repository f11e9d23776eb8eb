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
_MOST_WORDS = 4
_RIGHT, _WRONG = ("right", "correct", "yes", "맞음", "정답"), ("wrong", "incorrect", "no", "틀림", "오답")


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
    """By the only verdict word in a few; None where there is none, or both, or "not", or a speech."""
    words = re.findall(r"\w+", without_thinking(text)[0].casefold())
    says_right, says_wrong = bool({*words} & {*_RIGHT}), bool({*words} & {*_WRONG})
    if len(words) > _MOST_WORDS or "not" in words or says_right == says_wrong:
        return None
    return says_right
