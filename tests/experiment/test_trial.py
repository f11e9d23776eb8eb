"""One trial: what it warns of, what it calls the outcome, in which order it does things. The engine is the fake
one, which obeys known laws, changed in one point by each test."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kvscope.engine.base import ChatRequest, Generation
from kvscope.engine.fake import FakeEngine, FakeMemory, VirtualClock
from kvscope.errors import EngineDied
from kvscope.experiment.cache_state import begin_uncached
from kvscope.experiment.design import Condition, Trial
from kvscope.experiment.own_count import OwnCount, OwnCounter
from kvscope.experiment.request_counts import Expected
from kvscope.experiment.trial import run_trial
from kvscope.probe.base import Sample
from kvscope.probe.sampler import Sampler
from kvscope.prompt.conversation import Message
from kvscope.prompt.exact_length.source_text import SourceText
from kvscope.record.metrics import metrics_of
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


def run(engine: FakeEngine, clock: VirtualClock, expected: Expected | None = None, **condition: object) -> TrialResult:
    values: dict[str, object] = {"settings": {}, "prompt_tokens": 200, "output_tokens": 8}
    point = Condition(**{**values, **condition})  # type: ignore[arg-type]  # keyword by keyword, as each test needs
    trial = Trial(trial_id="t", role="measured", levels={}, level=200, repeat=0, block=0, position=0, condition=point)
    return run_trial(lambda: engine, trial, ROW, seed=3, expected=expected, now=clock.now, sleep=clock.sleep)


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
        ({"prompt_tokens": 120}, "truncated_input", []),
        ({"prompt_tokens": 199}, "truncated_input", []),
        ({"prompt_tokens": None}, "ok", []),
        ({"cached_tokens": 30}, "ok", ["cache-not-cleared"]),
        ({"cached_tokens": None}, "ok", []),
        ({"output_tokens": 5, "finish_reason": "stop"}, "stopped_early", ["output-count-mismatch"]),
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


def test_a_cut_prompt_keeps_its_numbers_and_says_what_happened(clock: VirtualClock) -> None:
    result = run(Changed(clock, prompt_tokens=120), clock)
    assert (result.trial.outcome, result.trial.error_slug) == ("truncated_input", "truncated-input")
    assert result.trial.error_message is not None
    assert "120 of 200" in result.trial.error_message
    assert result.trial.error_hint is not None
    assert "n_ctx" in result.trial.error_hint
    cut = result.requests[-1]
    assert (cut.error_slug, cut.prompt_tokens_ours, cut.prompt_tokens_server) == ("truncated-input", 200, 120)
    assert result.requests[0].error_slug is None  # the warm-up was read whole
    assert cut.is_answered
    assert cut.output_tokens == 8
    metrics = metrics_of(result)
    assert metrics.ttft_s is not None
    assert metrics.memory_peak_bytes is not None


def test_half_the_window_is_named(clock: VirtualClock) -> None:
    # What is read of 4,090 tokens is 4 + (4096 - 4) / 2 = 2,050. The limit itself is checked before sending, so it is
    # tried anyway.
    changed = Changed(clock, prompt_tokens=2050)
    result = run(changed, clock, Expected(try_anyway=True), prompt_tokens=4090)
    assert result.trial.outcome == "truncated_input"
    assert "half of its window of 4,096" in str(result.trial.error_message)


class ServerAdds(FakeEngine):
    """A server whose answers count more than was sent, warm-ups included."""

    def __init__(self, clock: VirtualClock, more: int) -> None:
        super().__init__(settings={}, clock=clock)
        self.more = more

    def generate(self, request: ChatRequest) -> Generation:
        answer = super().generate(request)
        return replace(answer, prompt_tokens=(answer.prompt_tokens or 0) + self.more)


class CountsWords(OwnCounter):
    """Our own count as the fake engine's, beginning with so many BOS."""

    def __init__(self, leading_bos: int) -> None:
        super().__init__("unused")
        self.leading_bos = leading_bos

    def count(self, requests: Sequence[ChatRequest]) -> list[OwnCount | None]:
        engine = FakeEngine(settings={})
        return [
            OwnCount(
                tokens=engine.count_prompt_tokens(request.messages), counted_by="files", leading_bos=self.leading_bos
            )
            for request in requests
        ]


def test_a_second_bos_is_named_where_our_ids_begin_with_one(clock: VirtualClock) -> None:
    result = run(ServerAdds(clock, 1), clock, Expected(counter=CountsWords(1)))
    assert (result.trial.outcome, slugs(result)) == ("ok", ["doubled-bos"])
    result = run(ServerAdds(clock, 1), clock, Expected(counter=CountsWords(0)))
    assert (result.trial.outcome, slugs(result)) == ("ok", ["token-count-mismatch"])


def test_what_a_servers_template_adds_is_a_doubt_and_no_cut(clock: VirtualClock) -> None:
    result = run(ServerAdds(clock, 21), clock)
    assert (result.trial.outcome, slugs(result)) == ("ok", ["token-count-mismatch"])
    assert "+21" in result.warnings[0].message
    assert "system prompt" in result.warnings[0].hint


def test_the_row_says_who_counted(clock: VirtualClock) -> None:
    by_engine = run(Changed(clock), clock).requests
    assert {row.prompt_tokens_ours_from for row in by_engine} == {"engine"}
    by_files = run(Changed(clock), clock, Expected(counter=CountsWords(1))).requests
    assert {row.prompt_tokens_ours_from for row in by_files} == {"files"}
    assert [row.prompt_tokens_ours for row in by_files] == [row.prompt_tokens_ours for row in by_engine] == [7, 200]
    assert {row.prompt_tokens_server_from for row in by_files} == {"usage.prompt_tokens"}


class CountsMore(CountsWords):
    """Another model's files, by which everything has three tokens more."""

    def count(self, requests: Sequence[ChatRequest]) -> list[OwnCount | None]:
        return [None if own is None else replace(own, tokens=own.tokens + 3) for own in super().count(requests)]


def test_files_that_count_otherwise_than_a_running_server_are_left_aside_and_that_is_told(clock: VirtualClock) -> None:
    engine = Changed(clock)
    engine.capabilities = replace(engine.capabilities, owns_process=False)
    result = run(engine, clock, Expected(counter=CountsMore(1)))
    assert result.trial.outcome == "ok"
    assert "files-count-otherwise" in slugs(result)
    stated = int(re.findall(r"counts (\d+) tokens", result.warnings[0].message)[0])
    assert f"the model's files have {stated + 3}:" in result.warnings[0].message
    assert result.requests[-1].prompt_tokens_ours_from == "engine"
    assert "files-count-otherwise" not in slugs(run(engine, clock, Expected(counter=CountsWords(1))))


def test_what_does_not_fit_is_not_sent(clock: VirtualClock) -> None:
    engine = Changed(clock)  # its context holds 4,096
    result = run(engine, clock, prompt_tokens=4090, output_tokens=8)
    assert (result.trial.outcome, result.trial.error_slug) == ("context_overflow", "prompt-does-not-fit")
    for number in ("4,090", "8", "4,098", "4,096", "n_ctx"):
        assert number in str(result.trial.error_message)
    assert len(engine.asked) == 1  # the warm-up
    assert result.requests[-1].prompt_tokens_ours == 4090
    assert result.requests[-1].prompt_tokens_server is None
    sent = Changed(clock)
    assert run(sent, clock, Expected(try_anyway=True), prompt_tokens=4090, output_tokens=8).trial.outcome != "internal"
    assert len(sent.asked) == 2
    # To the last token it fits.
    assert run(Changed(clock), clock, prompt_tokens=4088, output_tokens=8).trial.outcome == "ok"


def test_the_limit_is_kept_with_where_it_was_read_and_held_against_the_predicted(clock: VirtualClock) -> None:
    result = run(Changed(clock), clock, Expected(limit_tokens=4096))
    assert slugs(result) == []
    assert result.effective["context_limit_tokens"] == 4096
    assert result.effective["context_limit_from"] == "the law: n_ctx"
    result = run(Changed(clock), clock, Expected(limit_tokens=8192))
    assert slugs(result) == ["context-limit-mismatch"]
    assert "8,192" in result.warnings[0].message
    assert "4,096" in result.warnings[0].message


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


def test_prompts_too_short_for_their_key_sentence_are_a_doubt_unless_it_was_asked_for(clock: VirtualClock) -> None:
    result = run(Changed(clock), clock, prompt_tokens=15, requests=2)
    assert slugs(result).count("no-key-sentence") == 1
    assert result.trial.outcome == "ok"
    refused = run(Changed(clock), clock, prompt_tokens=15, key_percent=50.0)
    assert (refused.trial.outcome, refused.trial.error_slug) == (
        "invalid_settings",
        "prompt-length-unreachable",
    )


def test_prompts_are_made_of_the_text_that_the_condition_holds(clock: VirtualClock) -> None:
    source = SourceText(language="en", sentences=("Plum jam.",), key_sentence="The tin is blue.", sha256="", name="own")
    engine = Changed(clock)
    run(engine, clock, text=source, key_percent=100.0)
    text = engine.asked[1].messages[0].content
    assert "(2) Plum jam. (3) Plum jam." in text
    assert "The tin is blue.\n\nNow" in text


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
        self.streams[0].missed, self.streams[0].error = missed, error
        return samples

    monkeypatch.setattr(Sampler, "stop", stopped)
    result = run(Changed(clock), clock)
    assert slugs(result) == warned
    assert result.trial.client["samples_missed"] == missed


@pytest.mark.parametrize(("late_s", "warned"), [(0.02, []), (0.021, ["late-samples"])])
def test_readings_that_come_late_are_said(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, late_s: float, warned: list[str]
) -> None:
    stop = Sampler.stop
    one = Sample(probe="p", quantity="anon_bytes", at_s=0.5, value_bytes=1, late_s=late_s)

    def stopped(self: Sampler) -> Sequence[Sample]:
        stop(self)
        return [one]

    monkeypatch.setattr(Sampler, "stop", stopped)
    assert slugs(run(Changed(clock), clock)) == warned


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


@pytest.mark.parametrize(
    ("owned", "clears", "state"),
    [
        (True, True, "fresh process"),
        (False, True, "cleared"),
        (False, False, "not cleared"),
        (False, None, "not cleared"),
    ],
)
def test_a_row_says_what_the_engine_could_hold_when_it_began(owned: bool, clears: bool | None, state: str) -> None:
    asked: list[str] = []

    class Clearing(FakeEngine):
        capabilities = replace(FakeEngine.capabilities, owns_process=owned, can_clear_cache=clears is not None)

        def clear_cache(self) -> str | None:
            asked.append("clear")
            return None if clears else "It is busy."

    assert begin_uncached(Clearing(settings={})) == state
    assert len(asked) == (0 if owned or clears is None else 1)
