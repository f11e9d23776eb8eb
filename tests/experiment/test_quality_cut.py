"""What says that a prompt was cut, where no count does: seldom said of a weak model, reliably of a cut prompt."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kvscope.experiment.attempt_rows import AttemptRows
from kvscope.experiment.quality_cut import lost_end, without_lost_end
from kvscope.quality.markers import PARTS
from kvscope.record.rows import QUALITY, AnswerRow, RequestRow

# Shares found at the head, in the middle and at the tail. The first was seen of SmolLM2 135M on prompts sent whole.
WEAK = [(0.86, 0.79, 0.5), (0.4, 0.7, 0.9), (0.5, 0.5, 0.5), (0.9, 0.6, 0.3), (0.1, 0.1, 0.1), (1.0, 1.0, 0.5)]
TRIALS = 600


def answer(item: str, document: str, depth: float, is_right: bool, **more: Any) -> AnswerRow:
    fields: dict[str, Any] = {"reading": "right" if is_right else "wrong", "score": float(is_right), **more}
    return AnswerRow(
        index=0,
        task="markers" if "/marker-" in item else "keys",
        item=item,
        document=document,
        language="en",
        depth_percent=depth,
        document_tokens=500,
        chance=1 / 3,
        **fields,
    )


def asked(found: Callable[[float], float], documents: int, random: Random, *, items: int = 5) -> list[AnswerRow]:
    """The marks of the first eight documents and some facts of each, every one found with the share of its depth."""
    rows = []
    for number in range(documents):
        name = f"d{number}"
        if number < 8:
            rows += [
                answer(f"{name}/marker-{part}", name, depth, random.random() < found(depth))
                for part, depth in zip(PARTS, (0.0, 50.0, 97.0), strict=True)
            ]
        for index in range(items):
            depth = 100 * random.random()
            rows.append(answer(f"{name}/{index}", name, depth, random.random() < found(depth)))
    return rows


def sure(rows: list[AnswerRow]) -> bool:
    lost = lost_end(rows)
    return lost is not None and lost.is_sure


@pytest.mark.parametrize("found", WEAK, ids=str)
@pytest.mark.parametrize("documents", [2, 3, 5, 10])
def test_a_weak_model_is_no_cut(found: tuple[float, float, float], documents: int) -> None:
    """Less than 1 % of trials: within three standard errors, of 600 at most 13 are."""
    random = Random(f"{found}{documents}")
    items = (0, 5)[documents % 2]  # also by marks alone

    def by_third(depth: float) -> float:
        return found[min(2, int(depth * 3 / 100))]

    alarms = sum(sure(asked(by_third, documents, random, items=items)) for _ in range(TRIALS))
    assert alarms <= TRIALS * 0.01 + 3 * (TRIALS * 0.01 * 0.99) ** 0.5


@pytest.mark.parametrize("end", ["head", "tail"])
@pytest.mark.parametrize("arrives", [0.3, 0.5, 0.7])
def test_a_cut_is_found(end: str, arrives: float) -> None:
    """Ten documents of which a part arrives, and a model that finds nine of ten facts there."""
    random = Random(f"{end}{arrives}")

    def found(depth: float) -> float:
        from_lost_end = depth if end == "head" else 100 - depth
        return 0.9 if from_lost_end > 100 * (1 - arrives) else 0.0

    seen = [lost_end(asked(found, 10, random)) for _ in range(200)]
    assert sum(lost is not None and lost.is_sure and lost.end == end for lost in seen) > 190


def test_only_what_was_read_as_wrong_was_not_found() -> None:
    """Marks whose answers were cut, empty or failed say nothing of the prompt."""
    for reading in ("cut_output", "no_answer", "failed"):
        rows = [
            answer(f"d{number}/marker-{part}", f"d{number}", 0.0, True)
            if part != "tail"
            else answer(f"d{number}/marker-{part}", f"d{number}", 97.0, False, reading=reading, score=None)
            for number in range(8)
            for part in PARTS
        ]
        assert lost_end(rows) is None


def marks(lost: str, documents: int) -> list[AnswerRow]:
    return [
        answer(f"d{number}/marker-{part}", f"d{number}", depth, part != lost)
        for number in range(documents)
        for part, depth in zip(PARTS, (0.0, 50.0, 97.0), strict=True)
    ]


def attempt(ours: int | None, server: int | None, stated_as: str | None) -> AttemptRows:
    rows = AttemptRows(limit_tokens=None)
    rows.requests.append(
        RequestRow(
            index=0,
            role=QUALITY,
            sent_at_s=0.0,
            completed_s=1.0,
            prompt_tokens_asked=None,
            prompt_tokens_ours=ours,
            prompt_tokens_server=server,
            prompt_tokens_server_from=stated_as,
            cached_tokens=None,
            output_tokens_limit=64,
            output_tokens=3,
            finish_reason="stop",
        )
    )
    return rows


@pytest.mark.parametrize(
    ("engine", "stated_as"),
    [("llama.cpp", "usage.prompt_tokens"), ("openai", "timings: prompt_n + cache_n"), ("ollama", "prompt_eval_count")],
)
def test_counts_of_what_was_read_say_that_nothing_was_cut(engine: str, stated_as: str) -> None:
    """Then a lost end is the model's own, and its answers are wrong."""
    read, rows = marks("head", 8), attempt(500, 500, stated_as)
    told = without_lost_end(read, rows, engine=engine)
    assert [row.reading for row in told] == [row.reading for row in read]
    assert all(row.facts["prompt_whole"] is True for row in told)
    assert rows.warnings == []


@pytest.mark.parametrize("server", [None, 500])
def test_without_such_counts_a_sure_loss_is_no_wrong_answer(server: int | None) -> None:
    rows = attempt(500, server, server and "usage.prompt_tokens")  # type: ignore[arg-type]
    read = without_lost_end(marks("head", 8), rows, engine="openai")
    assert {row.reading for row in read} == {"truncated_input"}
    assert {row.score for row in read} == {None}
    assert [warning.slug for warning in rows.warnings] == ["quality-cut-by-markers"]


def test_too_few_marks_are_a_doubt_and_no_reading() -> None:
    read, rows = marks("tail", 3), attempt(500, None, None)
    assert without_lost_end(read, rows, engine="openai") == read
    assert [warning.slug for warning in rows.warnings] == ["quality-maybe-cut"]
    assert lost_end(marks("tail", 1)) is None
