"""The steps of a release within a trial: which are taken, in which order, and when none is."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from kvscope.engine.fake import FakeEngine, VirtualClock
from kvscope.errors import EngineStartFailed
from kvscope.experiment.design import Condition, Trial
from kvscope.experiment.designs import DESIGNS, design_kind
from kvscope.experiment.trial import run_trial
from kvscope.record.rows import TrialResult, TrialRow
from kvscope.scenario import SettingValue

ROW = TrialRow(
    trial_id="t", attempt=1, design_id="d", run_id="r", role="measured", levels={}, level=16, repeat=0, block=0,
    position=0, started_at="2026-01-01T00:00:00.000+00:00", settings={},
)  # fmt: skip


class Clearing(FakeEngine):
    """A fake engine that can drop its copies of old prompts, as llama.cpp erases its slots."""

    capabilities = replace(FakeEngine.capabilities, can_clear_cache=True)

    def __init__(self, settings: Mapping[str, SettingValue], clock: VirtualClock) -> None:
        super().__init__(settings=settings, clock=clock)
        self.done: list[str] = []
        self.active = 0
        self.counters: dict[str, float] = {}
        self.reason: str | None = None

    def active_requests(self) -> int | None:
        return self.active

    def statistics(self) -> Mapping[str, float]:
        return self.counters

    def clear_cache(self) -> str | None:
        self.done.append("clear_cache")
        if self.reason is None:
            self.memory.copies = []
        return self.reason

    def unload(self) -> None:
        self.done.append("unload")
        super().unload()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def engine(clock: VirtualClock) -> Clearing:
    return Clearing({"cache_ram_mib": 64}, clock)


def run(engine: FakeEngine, clock: VirtualClock, *, requests: int = 1, same_again: int = 0) -> TrialResult:
    point = Condition(
        settings={}, prompt_tokens=200, output_tokens=8, reuse_prefix=True, requests=requests, same_again=same_again
    )
    trial = Trial(trial_id="t", role="measured", levels={}, level=16, repeat=0, block=0, position=0, condition=point)
    return run_trial(lambda: engine, trial, ROW, seed=3, now=clock.now, sleep=clock.sleep)


def test_what_is_kept_is_dropped_before_the_model(engine: Clearing, clock: VirtualClock) -> None:
    result = run(engine, clock, requests=2)
    assert engine.done == ["clear_cache", "unload"]
    held = {mark.phase: mark.anon_bytes for mark in result.marks}
    assert list(held)[-3:] == ["after_request", "cache_cleared", "unloaded"]
    # Three copies (one of the warm-up), each of its prompt's and output's tokens, came back at the first step.
    tokens = sum((r.prompt_tokens_server or 0) + (r.output_tokens or 0) for r in result.requests)
    assert held["after_request"] - held["cache_cleared"] == 23_040 * tokens
    assert {m.phase for m in result.maps} >= {"cache_cleared", "unloaded"}
    stated = [r.printed_mib for r in result.reported if r.phase == "cache_cleared"]
    assert [float(mib) for mib in stated] == [0.0]


def test_nothing_is_taken_from_an_engine_that_is_in_use(engine: Clearing, clock: VirtualClock) -> None:
    engine.active = 2
    result = run(engine, clock)
    assert engine.done == []
    assert [m.phase for m in result.marks][-1] == "after_request"
    assert [w.slug for w in result.warnings] == ["requests-active"]
    assert "2 requests" in result.warnings[0].message
    assert result.marks[-1].active_requests == 2


def test_a_step_that_cannot_be_done_is_a_doubt_and_the_next_is_taken(engine: Clearing, clock: VirtualClock) -> None:
    engine.reason = "The server was started without slots."
    result = run(engine, clock)
    assert engine.done == ["clear_cache", "unload"]
    assert [m.phase for m in result.marks][-2:] == ["after_request", "unloaded"]
    assert "started without slots" in result.warnings[0].message


def test_the_last_text_is_sent_again(engine: Clearing, clock: VirtualClock) -> None:
    result = run(engine, clock, requests=2, same_again=2)
    assert [r.role for r in result.requests] == ["warmup", "measured", "measured", "same_again", "same_again"]
    last = result.requests[2]
    assert last.prompt_tokens_server is not None
    for again in result.requests[3:]:
        assert again.prompt_tokens_server == last.prompt_tokens_server
        # Every word of it, and so all but what the fake template adds: 4 tokens for the message and 2 to open.
        assert again.cached_tokens == last.prompt_tokens_server - 6
    marks = [m for m in result.marks if m.phase == "after_request"]
    assert [m.request_index for m in marks] == [1, 2, 3, 4]
    # Mappings are read once, after the last of them.
    assert {m.request_index for m in result.maps if m.phase == "after_request"} == {4}


def test_what_varies_depends_on_whether_the_engine_keeps_copies() -> None:
    assert design_kind("release") is DESIGNS["release"]
    assert design_kind("release", "llama.cpp").factor == "cache_ram_mib"
    assert design_kind("release", "llama.cpp", is_attached=True).factor == "prompt_tokens"
    for name in ("transformers", "vllm", "ollama", "openai", "sglang"):
        assert design_kind("release", name).factor == "prompt_tokens"
    assert design_kind("input_length", "vllm").factor == "prompt_tokens"
    assert DESIGNS["release"].default_condition.same_again == 3


def test_a_cache_that_was_emptied_is_a_step_though_copies_stay(engine: Clearing, clock: VirtualClock) -> None:
    engine.reason = "The slots are erased. The host prompt cache stays (9.00 MiB)."
    engine.counters = {"kv_cache_used_tokens": 0.0}
    result = run(engine, clock, requests=2)
    held = {mark.phase: mark.anon_bytes for mark in result.marks}
    assert held["cache_cleared"] == held["after_request"]
    (stated,) = [r.printed_mib for r in result.reported if r.phase == "cache_cleared"]
    assert float(stated) > 0
    assert result.warnings == ()


@pytest.mark.parametrize("owns", [False, True])
def test_a_model_that_is_not_ours_to_unload_spoils_no_trial(engine: Clearing, clock: VirtualClock, owns: bool) -> None:
    def refused() -> None:
        raise EngineStartFailed("Another program uses the model.", hint="Wait for it.")

    engine.capabilities = replace(Clearing.capabilities, owns_process=owns)
    engine.unload = refused  # type: ignore[method-assign]
    result = run(engine, clock)
    assert [m.phase for m in result.marks][-1] == "cache_cleared"
    # Of an engine of our own it is a failure: it should have been able to.
    assert (result.trial.outcome == "ok") is not owns
    assert ("not-unloaded" in [w.slug for w in result.warnings]) is not owns
