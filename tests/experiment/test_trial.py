"""One trial: what it warns of, what it calls the outcome, in which order it does things. The engine is the fake
one, which obeys known laws, changed in one point by each test."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kvscope.engine.base import ChatRequest, Generation
from kvscope.engine.fake import FakeEngine, FakeMemory, VirtualClock
from kvscope.errors import EngineDied
from kvscope.experiment.design import Condition, Trial
from kvscope.experiment.trial import run_trial
from kvscope.probe.sampler import Sampler
from kvscope.prompt.conversation import Message
from kvscope.record.rows import TrialResult, TrialRow

ROW = TrialRow(
    trial_id="t",
    attempt=1,
    design_id="d",
    run_id="r",
    role="measured",
    levels={},
    level=200,
    repeat=0,
    block=0,
    position=0,
    started_at="2026-01-01T00:00:00.000+00:00",
    settings={},
)


def run(engine: FakeEngine, clock: VirtualClock, **condition: object) -> TrialResult:
    values: dict[str, object] = {"settings": {}, "prompt_tokens": 200, "output_tokens": 8}
    point = Condition(**{**values, **condition})  # type: ignore[arg-type]  # keyword by keyword, as each test needs
    trial = Trial(trial_id="t", role="measured", levels={}, level=200, repeat=0, block=0, position=0, condition=point)
    return run_trial(lambda: engine, trial, ROW, seed=3, now=clock.now, sleep=clock.sleep)


def slugs(result: TrialResult) -> list[str]:
    return [warning.slug for warning in result.warnings]


class Changed(FakeEngine):
    """Answers as the law says, with some fields of the answer changed."""

    def __init__(self, clock: VirtualClock, **changes: object) -> None:
        super().__init__(settings={}, clock=clock)
        self.changes = changes
        self.asked: list[ChatRequest] = []

    def generate(self, request: ChatRequest) -> Generation:
        self.asked.append(request)
        answer = super().generate(request)
        return answer if len(self.asked) == 1 else replace(answer, **self.changes)  # type: ignore[arg-type]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def test_a_plain_trial_leaves_everything_and_no_doubt(clock: VirtualClock) -> None:
    result = run(Changed(clock), clock)
    assert result.trial.outcome == "ok"
    assert slugs(result) == []
    assert [mark.phase for mark in result.marks] == [
        "launched",
        "loaded",
        "before_request",
        "after_request",
        "unloaded",
    ]
    assert {m.phase for m in result.maps} == {"launched", "loaded", "after_request", "unloaded"}
    assert result.occupants
    assert result.reported
    assert result.trial.client["samples_missed"] >= 0


@pytest.mark.parametrize(
    ("changes", "outcome", "warned"),
    [
        ({"prompt_tokens": 201}, "ok", ["token-count-mismatch"]),
        ({"prompt_tokens": 120}, "truncated_input", ["token-count-mismatch"]),
        ({"prompt_tokens": None}, "ok", []),
        ({"cached_tokens": 30}, "ok", ["cache-not-cleared"]),
        ({"cached_tokens": None}, "ok", []),
        ({"output_tokens": 5, "finish_reason": "stop"}, "stopped_early", []),
        ({"output_tokens": None}, "ok", []),
    ],
    ids=str,
)
def test_what_the_server_says_is_held_against_what_was_asked(
    clock: VirtualClock, changes: dict[str, object], outcome: str, warned: list[str]
) -> None:
    result = run(Changed(clock, **changes), clock)
    assert result.trial.outcome == outcome
    assert slugs(result) == warned
    for name, value in changes.items():
        assert getattr(result.requests[-1], "prompt_tokens_server" if name == "prompt_tokens" else name) == value


def test_reuse_that_was_allowed_is_no_doubt(clock: VirtualClock) -> None:
    assert slugs(run(Changed(clock, cached_tokens=30), clock, reuse_prefix=True)) == []


def test_requests_of_one_trial_are_all_different(clock: VirtualClock) -> None:
    engine = Changed(clock)
    run(engine, clock, requests=4)
    texts = [request.messages[0].content for request in engine.asked[1:]]
    # Different from the first character on, so that no reuse of a prefix helps.
    assert len({text[0] for text in texts}) == len(texts) == 4
    again = Changed(clock)
    run(again, clock, requests=4)
    assert [request.messages[0].content for request in again.asked[1:]] == texts


def test_swap_is_a_doubt(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    read = FakeMemory.read

    def swapping(self: FakeMemory) -> Mapping[str, int]:
        return {**read(self), "swap_bytes": 4096}

    monkeypatch.setattr(FakeMemory, "read", swapping)
    result = run(Changed(clock), clock)
    assert slugs(result) == ["swap-active"]
    assert {mark.swap_bytes for mark in result.marks} == {4096}


def test_the_peak_counter_starts_anew_before_the_measured_request(clock: VirtualClock) -> None:
    class Loud(Changed):
        """Holds much more while it loads than later."""

        def load(self):  # type: ignore[no-untyped-def]  # as the class it extends
            report = super().load()
            self.memory.peak_bytes = 10**12
            return report

    result = run(Loud(clock), clock)
    by_phase = {mark.phase: mark.peak_bytes for mark in result.marks}
    assert by_phase["loaded"] == 10**12
    assert by_phase["before_request"] is not None
    assert by_phase["before_request"] < 10**12


def test_a_peak_that_cannot_be_set_back_is_a_doubt(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeMemory, "reset_peak", lambda self: "not allowed here")
    assert slugs(run(Changed(clock), clock)) == ["peak-not-reset"]


@pytest.mark.parametrize(
    ("missed", "error", "warned"),
    [(0, None, []), (10_000, None, ["late-samples"]), (0, EngineDied("gone"), ["samples-stopped"])],
)
def test_readings_that_are_missing_are_said(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, missed: int, error: Exception | None, warned: list[str]
) -> None:
    stop = Sampler.stop

    def stopped(self: Sampler) -> Sequence[object]:
        samples = stop(self)
        self.missed, self.error = missed, error
        return samples

    monkeypatch.setattr(Sampler, "stop", stopped)
    result = run(Changed(clock), clock)
    assert slugs(result) == warned
    assert result.trial.client["samples_missed"] == missed


def test_memory_is_left_to_settle_before_it_is_read(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    # Pages trickle in for 0.2 s after the load; a reading before that would miss them.
    read = FakeMemory.read
    loaded_at: list[float] = []

    def trickling(self: FakeMemory) -> Mapping[str, int]:
        held = dict(read(self))
        if self.loaded:
            loaded_at.append(clock.now())
            missing = max(0.0, 0.2 - (clock.now() - loaded_at[0]))
            held["anon_bytes"] -= int(missing * 50 * 1024**2)
        return held

    monkeypatch.setattr(FakeMemory, "read", trickling)
    engine = Changed(clock)
    result = run(engine, clock)
    loaded = next(mark for mark in result.marks if mark.phase == "loaded")
    assert loaded.anon_bytes == engine.law.loaded_bytes()


def test_a_failure_keeps_the_engines_last_words(clock: VirtualClock) -> None:
    engine = FakeEngine(settings={"die_at_request": 2}, clock=clock)
    result = run(engine, clock)
    assert result.trial.outcome == "engine_died"
    assert "loaded, n_ctx" in (result.trial.engine_log_tail or "")
    assert "EngineDied" in (result.trial.traceback or "")
    assert [request.error_slug for request in result.requests] == [None, "engine-died"]


def test_prompts_are_counted_before_memory_is_marked(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    # Counting makes the engine work and its memory move: none of it may fall between the marks of the request.
    order: list[str] = []
    read = FakeMemory.read

    def watched(self: FakeMemory) -> Mapping[str, int]:
        order.append("read")
        return read(self)

    class Watched(Changed):
        def count_prompt_tokens(self, messages: Sequence[Message], *more: Any) -> int:
            order.append("count")
            return super().count_prompt_tokens(messages, *more)

        def generate(self, request: ChatRequest) -> Generation:
            order.append("ask")
            answer = super().generate(request)  # counts once more, for itself
            order.append("answered")
            return answer

    monkeypatch.setattr(FakeMemory, "read", watched)
    assert run(Watched(clock), clock).trial.outcome == "ok"
    first = order.index("ask")
    assert "count" in order[:first]
    between = [
        word for number, word in enumerate(order) if number > first and word == "count" and order[number - 1] != "ask"
    ]
    assert between == []
