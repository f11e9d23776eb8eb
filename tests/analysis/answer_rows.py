"""Answers as rows, made of known chances: what the panel should find in them is known."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from kvscope.record.rows import AnswerRow

RightAt = Callable[[float], float]


def answer(
    item: str,
    *,
    is_right: bool = True,
    reading: str | None = None,
    document: str = "d0",
    task: str = "keys",
    chance: float = 0.0,
    is_twin: bool = False,
    depth: float | None = 50.0,
    tokens: int | None = 1000,
    evidence: bool | None = True,
    language: str = "en",
) -> AnswerRow:
    """One row; ``reading`` where it is neither right nor wrong."""
    read = reading or ("right" if is_right else "wrong")
    return AnswerRow(
        index=0,
        task=task,
        item=item,
        document=document,
        language=language,
        reading=read,
        score={"right": 1.0, "wrong": 0.0}.get(read),
        chance=chance,
        is_twin=is_twin,
        depth_percent=depth,
        document_tokens=tokens,
        evidence_in_prompt=evidence and not is_twin,
        expected=f"value of {item}",
    )


def answers(
    documents: int,
    items: int,
    right: float | RightAt,
    *,
    seed: int = 0,
    twin_right: float | None = 0.0,
    chance: float = 0.0,
    tokens: int = 1000,
    task: str = "keys",
    language: str = "en",
) -> list[AnswerRow]:
    """``items`` questions on each of ``documents``, at random depths, right with a probability that may depend on the
    depth in percent; and the same on their twins (None: no twins)."""
    random = Random(seed)
    rows = []
    for number in range(documents):
        for index in range(items):
            depth = 100 * random.random()
            is_right = random.random() < (right(depth) if callable(right) else right)
            rows.append(_row(number, index, is_right, depth, tokens, chance, task, language))
    if twin_right is not None:
        for number in range(documents):
            for index in range(items):
                is_right = random.random() < twin_right
                rows.append(_row(number, index, is_right, None, tokens, chance, task, language, is_twin=True))
    return rows


def _row(
    number: int,
    index: int,
    is_right: bool,
    depth: float | None,
    tokens: int,
    chance: float,
    task: str,
    language: str,
    *,
    is_twin: bool = False,
) -> AnswerRow:
    return answer(
        f"{task}-{language}-{tokens}-{number}/{index}",
        is_right=is_right,
        document=f"{task}-{language}-{tokens}-{number}",
        depth=depth,
        tokens=tokens,
        chance=chance,
        is_twin=is_twin,
        task=task,
        language=language,
    )


def turned(rows: Sequence[AnswerRow], *, lost: float, gained: float, seed: int = 0) -> list[AnswerRow]:
    """The same items at another level: so many of the right ones wrong, so many of the wrong ones right."""
    random = Random(seed)
    changed = []
    for row in rows:
        is_right = row.reading == "right"
        if random.random() < (lost if is_right else gained):
            is_right = not is_right
        changed.append(replace(row, reading="right" if is_right else "wrong", score=float(is_right)))
    return changed
