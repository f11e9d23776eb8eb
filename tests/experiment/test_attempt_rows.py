"""What an attempt's rows say of each other, by answers as a hand-written server sent them in a review."""

from dataclasses import replace

import pytest

from kvscope.engine.base import ClientHealth, Generation, TokenEvent
from kvscope.experiment.attempt_rows import AttemptRows
from kvscope.record.rows import RequestRow


def added(
    num_pieces: int,
    *,
    first_s: float = 0.5,
    apart_s: float = 0.02,
    role: str = "measured",
    stream: int | None = None,
    **changes: object,
) -> AttemptRows:
    """The rows of one answer of ``num_pieces`` to a request of 8 tokens."""
    sent = RequestRow(
        index=0,
        role=role,
        stream=stream,
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
    events = tuple(TokenEvent(at_s=first_s + apart_s * number, text=" w") for number in range(num_pieces))
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


def judged(*answers: AttemptRows) -> list[str]:
    """Slugs of the warnings of an attempt with these answers."""
    rows = AttemptRows()
    for index, answer in enumerate(answers):
        rows.requests += [replace(row, index=index) for row in answer.requests]
        rows.tokens += [replace(token, request_index=index) for token in answer.tokens]
    rows.judge_counts()
    return [warning.slug for warning in rows.warnings]


def test_pieces_that_came_together_are_told_of_the_attempt() -> None:
    assert judged(added(8, apart_s=0.0)) == ["tokens-together"]
    assert judged(added(8)) == []
    # 7 of 16 pieces; of 80, where nine others came one by one, fewer than one in ten.
    assert judged(added(8), added(8, apart_s=0.0)) == ["tokens-together"]
    assert judged(*(added(8) for _ in range(9)), added(8, apart_s=0.0)) == []
    assert judged(added(8), added(8, apart_s=0.0, role="warmup")) == []


def test_pieces_of_several_tokens_are_told() -> None:
    assert judged(added(3)) == ["several-tokens-a-piece"]  # 8 tokens by the server's count
    assert judged(added(7)) == []  # the last one may have had no text
    assert judged(added(3, output_tokens=None)) == []


@pytest.mark.parametrize("first_s", [0.0, -0.05])
def test_an_answer_that_began_before_its_request_was_sent_is_told(first_s: float) -> None:
    assert [warning.slug for warning in added(8, first_s=first_s).warnings] == ["answered-too-soon"]
    assert added(8, first_s=first_s, role="warmup").warnings == []


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


KEPT_UP = ClientHealth(loop_lag_p99_s=0.001, loop_lag_max_s=0.002, cpu_share=0.1, coalesced_fraction=0.0)
HELD_UP = ClientHealth(
    loop_lag_p99_s=0.3, loop_lag_max_s=0.3, cpu_share=0.05, limited_by=("its event loop stood still for 300 ms",)
)


class TestTheClientsHealth:
    def test_it_is_in_the_row_of_the_request_and_in_the_attempt(self) -> None:
        rows = added(8, health=KEPT_UP)
        stated = {"loop_lag_p99_s": 0.001, "loop_lag_max_s": 0.002, "cpu_share": 0.1, "coalesced_fraction": 0.0}
        assert rows.requests[0].client == {**stated, "num_resent": 0}
        assert rows.client["client_limited"] is False
        assert rows.client["loop_lag_p99_s"] == 0.001
        assert rows.warnings == []

    def test_a_limit_that_was_passed_is_told_with_what_to_do(self) -> None:
        rows = added(8, health=HELD_UP)
        assert [warning.slug for warning in rows.warnings] == ["client-limited"]
        assert "its event loop stood still for 300 ms" in rows.warnings[0].message
        assert "processor of its own" in rows.warnings[0].hint
        assert rows.client["client_limited"] is True
        assert rows.requests[0].client["limited_by"] == ["its event loop stood still for 300 ms"]

    def test_of_several_requests_the_worst_counts(self) -> None:
        rows = added(8, health=HELD_UP)
        rows.note_health(KEPT_UP)
        assert rows.client["client_limited"] is True
        assert (rows.client["loop_lag_p99_s"], rows.client["cpu_share"]) == (0.3, 0.1)

    def test_a_request_alone_is_sent_when_its_last_byte_was(self) -> None:
        """It was begun at 0 s; connecting and sending took a second. Of a load the moment is that already."""
        health = replace(KEPT_UP, send_to_wire_s=1.0)
        assert added(8, health=health).requests[0].sent_at_s == 1.0
        assert added(8, health=health, stream=0).requests[0].sent_at_s == 0.0

    def test_what_was_sent_once_more_is_counted_and_told(self) -> None:
        rows = added(8, health=replace(KEPT_UP, num_resent=1))
        rows.note_health(replace(KEPT_UP, num_resent=2))
        rows.note_health(KEPT_UP)
        assert rows.client["num_resent"] == 3
        assert [warning.slug for warning in rows.warnings] == ["request-resent"]

    def test_every_limit_that_was_passed_is_kept(self) -> None:
        rows = added(8, health=HELD_UP)
        rows.note_health(replace(HELD_UP, limited_by=("it took 95 % of a processor",)))
        assert rows.client["limited_by"] == ["its event loop stood still for 300 ms", "it took 95 % of a processor"]

    def test_what_was_not_measured_is_not_known(self) -> None:
        for health in (None, ClientHealth()):
            rows = added(8, health=health)
            assert rows.requests[0].client == {}
            assert "client_limited" not in rows.client
            rows.note_health(ClientHealth())
            assert "client_limited" not in rows.client

    def test_one_request_of_a_load_says_nothing_of_the_attempt(self) -> None:
        """Its load does, as a whole."""
        rows = added(8, health=HELD_UP, stream=2)
        assert rows.requests[0].client["loop_lag_p99_s"] == 0.3
        assert "client_limited" not in rows.client
        assert rows.warnings == []

    def test_a_warm_up_says_nothing_of_the_attempt(self) -> None:
        assert added(8, health=HELD_UP, role="warmup").warnings == []
