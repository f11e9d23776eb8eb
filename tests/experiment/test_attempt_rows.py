"""What an attempt's rows say of each other, by answers as a hand-written server sent them in a review."""

import pytest

from kvscope.engine.base import Generation, TokenEvent
from kvscope.experiment.attempt_rows import AttemptRows
from kvscope.record.rows import RequestRow


def added(num_pieces: int, *, apart_s: float = 0.02, **changes: object) -> AttemptRows:
    """The rows of one answer of ``num_pieces`` to a request of 8 tokens."""
    sent = RequestRow(
        index=0,
        role="measured",
        sent_at_s=0.0,
        completed_s=None,
        prompt_tokens_asked=40,
        prompt_tokens_ours=40,
        prompt_tokens_server=None,
        cached_tokens=None,
        output_tokens_limit=8,
        output_tokens=None,
        finish_reason=None,
    )
    values = {"prompt_tokens": 40, "cached_tokens": None, "output_tokens": 8, "finish_reason": "length", **changes}
    events = tuple(TokenEvent(at_s=0.5 + apart_s * number, text=" w") for number in range(num_pieces))
    rows = AttemptRows()
    answer = Generation(events=events, reads=(), completed_s=1.0, **values)  # type: ignore[arg-type]
    rows.add_answer(sent, answer, reuse_prefix=False)
    return rows


@pytest.mark.parametrize("stated", [1, 4, 80])
def test_a_count_that_the_pieces_contradict_is_told_and_does_not_decide_the_outcome(stated: int) -> None:
    rows = added(8, output_tokens=stated)
    assert [warning.slug for warning in rows.warnings] == ["output-count-mismatch"]
    assert f"states {stated} output tokens. 8 pieces came, and 8 tokens were asked" in rows.warnings[0].message
    assert rows.ending().outcome == "ok"
    assert added(8, output_tokens=stated, finish_reason="stop").ending().outcome == "stopped_early"


def test_fewer_pieces_than_tokens_are_no_contradiction() -> None:
    rows = added(3)
    assert rows.warnings == []
    assert rows.ending().outcome == "ok"
    assert added(3, output_tokens=3).ending().outcome == "stopped_early"


def test_thinking_that_was_not_sent_is_told() -> None:
    rows = added(4, reasoning_tokens=4)
    assert [warning.slug for warning in rows.warnings] == ["hidden-reasoning"]
    assert "4 of 8 output tokens as thinking" in rows.warnings[0].message
    assert rows.requests[0].engine_timings == {"reasoning_tokens": 4}
    nothing = added(0, reasoning_tokens=8)
    assert [warning.slug for warning in nothing.warnings] == ["hidden-reasoning"]
    assert [warning.slug for warning in added(0).warnings] == ["output-not-sent"]


def test_pieces_that_came_together_are_told() -> None:
    assert [warning.slug for warning in added(8, apart_s=0.0).warnings] == ["tokens-together"]


@pytest.mark.parametrize(
    ("asked", "stated", "is_other"),
    [
        ("gpt-4o", "gpt-4o", False),
        ("gpt-4o", "gpt-4o-2024-08-06", False),  # as OpenAI answers
        ("openai/gpt-4o", "gpt-4o", False),
        ("/models/a.gguf", "a.gguf", False),
        ("tiny", "tiny:latest", False),
        ("tiny:latest", "tiny", False),
        ("gpt-4o", None, False),
        ("gpt-4o", "gpt-4o-mini", True),
        ("llama-3", "llama-3-70b", True),
        ("large", "small", True),
    ],
)
def test_an_answer_of_another_model_is_told(asked: str, stated: str | None, is_other: bool) -> None:
    rows = AttemptRows(effective={"served_model": asked})
    rows._judge_model(stated)
    assert [warning.slug for warning in rows.warnings] == ["another-model-answered"] * is_other
    assert added(8, model="another").warnings == []  # an engine that says nothing of what it was asked for
