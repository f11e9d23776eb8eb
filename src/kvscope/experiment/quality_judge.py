"""A judge model in place of the strict reading: only where one was named, on any server that speaks OpenAI's interface.

It is sent the question, the right answer and the given one, never the document. What it said is in the row's facts,
beside what the strict reading would have been.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvscope.engine.base import ChatRequest, Engine
from kvscope.engine.registry import EngineChoice
from kvscope.errors import KvscopeError
from kvscope.experiment.attempt_rows import AttemptRows
from kvscope.experiment.quality_asked import QualityAsked
from kvscope.experiment.quality_rows import AskedItem
from kvscope.experiment.retrieval_answers import said
from kvscope.prompt.conversation import Message
from kvscope.quality.judge import judged
from kvscope.quality.markers import MARKER_TASK
from kvscope.quality.reading import ReadAnswer
from kvscope.record.rows import AnswerRow

# The environment variable with the judge's key, where its server asks for one.
JUDGE_KEY = "KVSCOPE_JUDGE_KEY"
# Room to think before the one word.
_MOST_TOKENS = 1024


def judged_rows(
    answers: Sequence[AnswerRow], items: Sequence[AskedItem], asked: QualityAsked, rows: AttemptRows
) -> list[AnswerRow]:
    """The answers as the judge reads them; as they were read strictly, all of them, where it cannot be asked, with a
    warning. ``items``: what the answers are to, in the same order."""
    if asked.judge is None:
        return list(answers)
    key = JUDGE_KEY if os.environ.get(JUDGE_KEY) else None
    choice = EngineChoice(name="openai", url=asked.judge, served_model=asked.judge_model, api_key_env=key)
    try:
        engine = choice.create(None, {})
        try:
            engine.launch()
            name = _name(engine.load().effective, asked)
            return [_judged(answer, item, engine, name) for answer, item in zip(answers, items, strict=True)]
        finally:
            engine.stop()
    except KvscopeError as error:
        rows.warn(
            "quality-judge-failed",
            f"The judge could not be asked: {error.message}",
            "The answers are read strictly instead. Look at its address (--quality-judge), its model and its key "
            f"({JUDGE_KEY}).",
        )
        return list(answers)


def _name(effective: Mapping[str, object], asked: QualityAsked) -> str:
    return asked.judge_model or str(effective.get("served_model") or asked.judge)


def _judged(row: AnswerRow, item: AskedItem, engine: Engine, judge: str) -> AnswerRow:
    if row.task == MARKER_TASK or row.is_twin:  # codes, and guesses: there is nothing to be judged
        return row

    def ask(prompt: str) -> str:
        request = ChatRequest(
            messages=(Message(role="user", content=prompt),), max_output_tokens=_MOST_TOKENS, ignore_end=False
        )
        return said(engine.generate(request)).content

    read = ReadAnswer(reading=row.reading, score=row.score, answer=row.answer, facts=row.facts)
    found = judged(item.question, read, ask, judge=judge)
    return replace(row, reading=found.reading, score=found.score, facts=dict(found.facts))
