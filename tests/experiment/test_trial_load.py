"""A trial with several requests at once, on the fake engine: every number is worked out here from the law's.

The law: a first token after 1 s, each later one after 0.5 s, whatever the length; with k requests in slots all takes
1 + 0.5 (k − 1) times as long. So one request of three tokens takes 2 s alone and 3 s beside another one.
"""

import itertools
from dataclasses import replace

import pytest

from kvscope.engine.base import EngineReport, Load, LoadAnswer, LoadResult
from kvscope.engine.fake import FakeEngine, VirtualClock
from kvscope.errors import ContextOverflow, EngineDied, KvscopeError, OutOfMemory, RateLimited, ServerError, UsageError
from kvscope.experiment.design import Condition, Trial
from kvscope.experiment.request_counts import Expected
from kvscope.experiment.trial import run_trial
from kvscope.experiment.trial_load import arrival_seed, standing_error
from kvscope.record.export import export_requests, export_row
from kvscope.record.metrics import LoadMetrics, metrics_of
from kvscope.record.rows import DesignRow, RequestRow, RunRow, TrialResult, TrialRow
from kvscope.scenario import SettingValue

LAW: dict[str, SettingValue] = {
    "n_ctx": 4096,
    "n_ubatch": 64,
    "compute_bytes": 64_000,
    "load_s": 0.0,
    "ttft_s": 1.0,
    "ttft_s_per_token": 0.0,
    "itl_s": 0.5,
    "slowdown_per_request": 0.5,
}
ROW = TrialRow(
    trial_id="t",
    attempt=1,
    design_id="d",
    run_id="r",
    role="measured",
    levels={},
    level=2,
    repeat=0,
    block=0,
    position=0,
    started_at="2026-01-01T00:00:00.000+00:00",
    settings={},
)


def run(
    clock: VirtualClock | None = None,
    engine: FakeEngine | None = None,
    law: dict[str, SettingValue] | None = None,
    block: int = 0,
    expected: Expected | None = None,
    **condition: object,
) -> TrialResult:
    clock = clock or VirtualClock()
    made = engine or FakeEngine(settings={**LAW, **(law or {})}, clock=clock)
    values: dict[str, object] = {"settings": {}, "prompt_tokens": 60, "output_tokens": 3, "concurrency": 2}
    point = Condition(**{**values, **condition})  # type: ignore[arg-type]  # keyword by keyword, as each test needs
    trial = Trial(trial_id="t", role="measured", levels={}, level=2, repeat=0, block=block, position=0, condition=point)
    return run_trial(lambda: made, trial, ROW, seed=3, expected=expected, now=clock.now, sleep=clock.sleep)


def measured(result: TrialResult) -> list[RequestRow]:
    return [request for request in result.requests if request.role == "measured"]


def load_of(result: TrialResult) -> LoadMetrics:
    found = metrics_of(result).load
    assert found is not None
    return found


def slugs(result: TrialResult) -> list[str]:
    return [warning.slug for warning in result.warnings]


def begin_s(result: TrialResult) -> float:
    return min(request.sent_at_s for request in measured(result))


# --- every request is a row, and its moments are the law's ----------------------------------------------------------


def test_eight_requests_of_two_streams_in_two_slots() -> None:
    result = run(law={"n_parallel": 2})
    rows = measured(result)
    assert result.trial.outcome == "ok"
    assert len(rows) == 8  # none were asked for: four for each stream, and at least eight
    assert [row.stream for row in rows] == [0, 1] * 4
    # Two at a time, each pair 3 s.
    assert [row.sent_at_s - begin_s(result) for row in rows] == pytest.approx([0, 0, 3, 3, 6, 6, 9, 9])
    assert [row.completed_s for row in rows] == pytest.approx([3.0] * 8)
    assert [row.prompt_tokens_server for row in rows] == [60] * 8
    assert all(row.due_s is None for row in rows)
    assert metrics_of(result).ttft_s == pytest.approx(1.5)
    assert load_of(result).load_wall_s == pytest.approx(12.0)
    assert load_of(result).output_tokens_per_s_all == pytest.approx(24 / 12)
    assert metrics_of(result).decode_tokens_per_s == pytest.approx(1 / 0.75)


def test_one_slot_lets_the_second_wait_and_the_wait_is_stated() -> None:
    result = run(law={"n_parallel": 1}, requests=4)
    # In turn, 2 s each: the first waits for nothing, the others for the one before: sent at 0, 0, 2, 4.
    assert [row.sent_at_s - begin_s(result) for row in measured(result)] == pytest.approx([0, 0, 2, 4])
    assert [row.completed_s for row in measured(result)] == pytest.approx([2.0, 4.0, 4.0, 4.0])
    # First tokens after 1, 3, 3, 3 s; the engine itself spent 1 s on each prompt.
    assert metrics_of(result).ttft_s == pytest.approx(3.0)
    assert load_of(result).ttft_max_s == pytest.approx(3.0)
    assert load_of(result).queue_wait_s == pytest.approx(2.0)
    assert "more-than-slots" in slugs(result)


def test_slots_enough_are_not_warned_of() -> None:
    assert slugs(run(law={"n_parallel": 2})) == []


def test_an_open_loop_says_when_each_was_due() -> None:
    result = run(law={"n_parallel": 4}, concurrency=1, arrival="constant", rate_per_s=0.25, requests=3)
    rows = measured(result)
    assert [row.due_s and row.due_s - begin_s(result) for row in rows] == pytest.approx([0.0, 4.0, 8.0])
    assert [row.completed_s for row in rows] == pytest.approx([2.0] * 3)  # each is over before the next is due
    assert result.trial.client["concurrency"] is None
    assert result.trial.client["rate_per_s"] == 0.25


@pytest.mark.parametrize("arrival", ["closed", "constant"])
def test_requests_are_sent_and_due_from_the_moment_the_load_itself_began(
    monkeypatch: pytest.MonkeyPatch, arrival: str
) -> None:
    """Requests are made ready before, and answers read after: of a load that ended at 12 s of the trial and began 4 s
    before, the first request was sent at 8 s, whatever the moment at which the engine was told to send it."""
    clock = VirtualClock()
    ended_s: list[float] = []

    class Sender(FakeEngine):
        def generate_many(self, load: Load) -> LoadResult:
            clock.sleep(0.5)  # makes them ready
            result = super().generate_many(load)
            ended_s.append(clock.now())
            return replace(result, begin_s=1000.0)

    monkeypatch.setattr("kvscope.experiment.trial_load.perf_counter", lambda: 1004.0)
    rate = None if arrival == "closed" else 0.25
    engine = Sender(settings={**LAW, "n_parallel": 2}, clock=clock)
    started_s = clock.now()
    concurrency = 2 if arrival == "closed" else 1
    result = run(clock, engine, concurrency=concurrency, arrival=arrival, rate_per_s=rate, requests=2)
    assert begin_s(result) == pytest.approx(ended_s[-1] - started_s - 4.0)
    assert measured(result)[0].due_s == (None if rate is None else pytest.approx(begin_s(result)))


def gaps(block: int, rate_per_s: float) -> list[float]:
    result = run(
        law={"n_parallel": 4}, block=block, concurrency=1, arrival="poisson", rate_per_s=rate_per_s, requests=5
    )
    dues = [row.due_s or 0.0 for row in measured(result)]
    return [(after - before) * rate_per_s for before, after in itertools.pairwise(dues)]


def test_random_arrivals_are_drawn_anew_for_each_block_and_are_alike_at_all_its_levels() -> None:
    assert gaps(0, 2.0) == pytest.approx(gaps(0, 4.0))
    assert gaps(0, 2.0) == pytest.approx(gaps(0, 2.0))
    drawn = [tuple(gaps(block, 2.0)) for block in range(4)]
    assert len(set(drawn)) == 4


def test_arrivals_of_neighbouring_seeds_have_no_block_in_common() -> None:
    assert len({arrival_seed(seed, block) for seed in range(10) for block in range(10)}) == 100


def test_one_request_is_one_request() -> None:
    assert len(measured(run(law={"n_parallel": 4}, concurrency=1, as_load=True, requests=1))) == 1


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_pool_that_is_too_small_for_all_slots_is_warmed_up_as_far_as_it_holds(concurrency: int) -> None:
    class Shared(FakeEngine):
        """Four slots that share 512 tokens: each may hold all of them, all together no more."""

        def load(self) -> EngineReport:
            return replace(super().load(), slots=(512,) * 4, effective={"n_ctx": 512})

        def generate_many(self, load: Load) -> LoadResult:
            result = super().generate_many(load)
            held = sum(
                self.count_prompt_tokens(request.messages) + request.max_output_tokens
                for request in load.requests[: load.concurrency]
            )
            if held <= 512:
                return result
            error = ContextOverflow("full")
            failed = tuple(replace(answer, generation=None, error=error) for answer in result.answers)
            return replace(result, answers=failed)

    result = run(
        engine=Shared(settings={**LAW, "n_parallel": 4, "n_ctx": 2048}, clock=(clock := VirtualClock())),
        clock=clock,
        prompt_tokens=200,
        output_tokens=16,
        concurrency=concurrency,
        as_load=True,
    )
    assert result.trial.outcome == "ok"
    assert sum(request.role == "warmup" for request in result.requests) == 5


def test_one_stream_as_a_load_is_measured_in_the_same_way() -> None:
    result = run(law={"n_parallel": 4}, concurrency=1, as_load=True)
    assert [row.stream for row in measured(result)] == [0] * 8
    assert metrics_of(result).ttft_s == pytest.approx(1.0)
    assert load_of(result).output_tokens_per_s_all == pytest.approx(3 / 2)


def test_percentiles_of_a_few_requests_are_not_made_up() -> None:
    assert load_of(run(law={"n_parallel": 2})).ttft_p99_s is None
    many = load_of(run(law={"n_parallel": 2}, requests=100))
    assert many.ttft_p99_s == pytest.approx(1.5)
    assert many.ttft_p50_s == pytest.approx(1.5)


# --- prompts --------------------------------------------------------------------------------------------------------


def test_all_prompts_differ_from_the_first_word_on() -> None:
    sent: list[str] = []

    class Noting(FakeEngine):
        def generate_many(self, load: Load) -> LoadResult:
            sent.extend(request.messages[0].content for request in load.requests)
            return super().generate_many(load)

    clock = VirtualClock()
    result = run(clock, Noting(settings={**LAW, "n_parallel": 2}, clock=clock), reuse_prefix=True)
    assert len({text.split()[0] for text in sent}) == len(sent) == 1 + 2 + 8  # one, and one in each slot, before
    assert {row.cached_tokens for row in measured(result)} == {0}


def test_a_shared_beginning_is_computed_once_in_each_slot_and_then_reused() -> None:
    result = run(law={"n_parallel": 2}, shared_prefix_tokens=40, reuse_prefix=True)
    # The fake template's own six tokens are reused by nobody: 40 − 4 − 2 words are left.
    assert [row.cached_tokens for row in measured(result)] == [0, 0, *[34] * 6]
    assert load_of(result).load_cached_tokens == 6 * 34
    assert load_of(result).load_prompt_tokens == 8 * 60
    assert "shared-prefix-not-exact" in slugs(result)  # no ids of the fake engine are known


# --- memory ---------------------------------------------------------------------------------------------------------


def test_memory_is_read_before_and_after_and_stays_as_it_was() -> None:
    result = run(law={"n_parallel": 4}, concurrency=4)
    held = {mark.phase: mark.anon_bytes for mark in result.marks}
    # The warm-up has filled a whole microbatch, so the load touches nothing new.
    assert held["before_request"] == held["after_request"] == held["loaded"] + 64_000
    assert [mark.request_index for mark in result.marks if mark.phase == "after_request"] == [len(result.requests) - 1]
    assert metrics_of(result).memory_peak_bytes == held["after_request"]


def test_the_warm_up_is_recorded_as_such_and_counts_in_nothing() -> None:
    result = run(law={"n_parallel": 4}, concurrency=2)
    warm = [request for request in result.requests if request.role == "warmup"]
    assert len(warm) == 1 + 4  # one alone, and one in each slot
    assert len(measured(result)) == 8
    assert max(row.sent_at_s for row in warm) < begin_s(result)


# --- failures -------------------------------------------------------------------------------------------------------


class Failing(FakeEngine):
    """Some requests of the measured load end with errors."""

    def __init__(self, clock: VirtualClock, errors: dict[int, KvscopeError | BaseException]) -> None:
        super().__init__(settings={**LAW, "n_parallel": 2}, clock=clock)
        self.errors = errors
        self.loads = 0

    def generate_many(self, load: Load) -> LoadResult:
        result = super().generate_many(load)
        self.loads += 1
        if self.loads <= 2:  # the warm-up
            return result
        return replace(result, answers=tuple(self._changed(answer) for answer in result.answers))

    def _changed(self, answer: LoadAnswer) -> LoadAnswer:
        error = self.errors.get(answer.index)
        if error is None:
            return answer
        if not isinstance(error, KvscopeError):
            raise error
        return replace(answer, generation=None, error=error)


def failing(errors: dict[int, KvscopeError | BaseException]) -> TrialResult:
    clock = VirtualClock()
    return run(clock, Failing(clock, errors))


def test_one_overflow_among_eight_is_the_outcome_and_the_others_numbers_are_kept() -> None:
    result = failing({5: ContextOverflow("The prompt is too long.", hint="Shorten it.")})
    assert (result.trial.outcome, result.trial.error_slug) == ("context_overflow", "context-overflow")
    rows = measured(result)
    assert [row.error_slug for row in rows] == [None] * 5 + ["context-overflow"] + [None] * 2
    assert [row.completed_s for row in rows if row.error_slug is None] == pytest.approx([3.0] * 7)
    assert load_of(result).failed == 1
    assert metrics_of(result).ttft_s == pytest.approx(1.5)
    warning = next(w for w in result.warnings if w.slug == "requests-failed")
    assert warning.message == "1 of 8 requests of the load failed: 1 × context-overflow."
    assert "after_request" in [mark.phase for mark in result.marks]  # memory is read all the same


def test_refusals_for_being_too_many_are_told_and_counted() -> None:
    busy = {index: RateLimited("Too many requests.", hint="Send fewer.") for index in (2, 3, 7)}
    broken = {4: ServerError("It broke.", hint="See its log.")}
    result = failing({**busy, **broken})
    assert result.trial.outcome == "rate_limited"
    message = next(w.message for w in result.warnings if w.slug == "requests-failed")
    assert message == "4 of 8 requests of the load failed: 3 × rate-limited, 1 × server-error."


def test_an_engine_that_dies_in_the_middle_ends_those_under_way() -> None:
    result = run(law={"n_parallel": 2, "die_at_request": 3 + 3})  # three of the warm-up before
    assert result.trial.outcome == "engine_died"
    assert [row.error_slug for row in measured(result)] == [None] * 2 + ["engine-died"] * 6
    assert [row.completed_s for row in measured(result)][:2] == pytest.approx([3.0] * 2)
    assert "after_request" not in [mark.phase for mark in result.marks]


def test_an_engine_that_dies_in_the_warm_up() -> None:
    result = run(law={"n_parallel": 2, "die_at_request": 1})
    assert result.trial.outcome == "engine_died"
    assert measured(result) == []


def test_ctrl_c_ends_all() -> None:
    result = failing({3: KeyboardInterrupt()})
    assert result.trial.outcome == "interrupted"
    assert measured(result) == []


def test_a_bug_is_internal_and_not_lost() -> None:
    result = failing({3: ZeroDivisionError("a bug")})
    assert (result.trial.outcome, result.trial.error_slug) == ("internal", "internal")


def test_a_prompt_that_does_not_fit_is_not_sent() -> None:
    result = run(law={"n_parallel": 2, "n_ctx": 120})  # 60 tokens a slot, and three of output
    assert result.trial.outcome == "context_overflow"
    assert measured(result) == []


def test_which_error_stands_for_a_load() -> None:
    died, memory = EngineDied("It died.", hint="-"), OutOfMemory("No room.", hint="-")
    first, second = ContextOverflow("Long.", hint="-"), RateLimited("Busy.", hint="-")
    assert standing_error([first, second]) is first
    assert standing_error([first, died, second]) is died
    assert standing_error([first, died, memory]) is memory


def test_an_engine_that_answers_one_at_a_time_says_so() -> None:
    class OneAtATime(FakeEngine):
        def generate_many(self, load: Load) -> LoadResult:
            raise UsageError("It answers one request at a time.", hint="Use another.")

    clock = VirtualClock()
    result = run(clock, OneAtATime(settings=LAW, clock=clock))
    assert (result.trial.outcome, result.trial.error_slug) == ("invalid_settings", "usage")


# --- the exported table ---------------------------------------------------------------------------------------------

DESIGN = DesignRow(
    design_id="d",
    name="concurrency",
    version=1,
    question="?",
    factor="concurrency",
    levels=(1, 2),
    baseline_level=1,
    held={},
    confounders=(),
    is_grid=False,
    repeats=1,
    seed=3,
    model_name="m",
    model_source="s",
    model_fingerprint="f",
    engine="fake",
    engine_version="1",
    engine_build="fake",
    settings={},
    machine_id="machine",
    created_at="2026-01-01T00:00:00.000+00:00",
)
RUN = RunRow(
    run_id="r",
    started_at="2026-01-01T00:00:00.000+00:00",
    kvscope_version="0",
    command="test",
    machine_id="machine",
    machine={},
)


def test_the_row_of_a_load() -> None:
    row = export_row(run(law={"n_parallel": 2}), DESIGN, RUN, None)
    assert {name: row[name] for name in ("arrival", "rate_per_s", "concurrency", "requests", "load_failed")} == {
        "arrival": "closed",
        "rate_per_s": None,
        "concurrency": 2,
        "requests": 8,
        "load_failed": 0,
    }
    assert row["load_wall_s"] == pytest.approx(12.0)
    assert row["output_tokens_per_s_all"] == pytest.approx(2.0)
    assert (row["ttft_p50_s"], row["ttft_p99_s"]) == (pytest.approx(1.5), None)


def test_each_request_is_a_row_with_its_stream() -> None:
    rows = export_requests(run(law={"n_parallel": 2}), DESIGN)
    assert [row["stream"] for row in rows if row["role"] == "measured"] == [0, 1] * 4
    assert all(row["outcome"] == "ok" for row in rows if row["role"] == "measured")


def test_of_requests_that_failed_each_says_how() -> None:
    result = failing({5: ContextOverflow("Long.", hint="-"), 6: RateLimited("Busy.", hint="-")})
    rows = [row for row in export_requests(result, DESIGN) if row["role"] == "measured"]
    assert [row["error_slug"] for row in rows[4:]] == [None, "context-overflow", "rate-limited", None]
    assert [row["outcome"] for row in rows[4:]] == ["ok", "context_overflow", "rate_limited", "ok"]


def test_one_request_at_a_time_has_no_numbers_of_a_load() -> None:
    row = export_row(run(concurrency=1), DESIGN, RUN, None)
    assert {row[name] for name in ("arrival", "load_failed", "load_wall_s", "ttft_p50_s", "queue_wait_s")} == {None}
