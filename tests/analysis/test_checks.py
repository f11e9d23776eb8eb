"""Each check raises a doubt when it should, and only then."""

from typing import Any

import pytest
from study_rows import KIB, answered, attempt, design_row, mark, memory, request_row, trial_row

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.attribute import attribute
from kvscope.analysis.checks import Check, run_checks
from kvscope.analysis.failures import group_failures
from kvscope.analysis.limit import context_limit
from kvscope.record.rows import SampleRow, WarningRow


def one(level: int = 512, repeat: int = 0, *, trial: dict[str, Any] | None = None, **rows: Any) -> Attempt:
    design = design_row()
    return attempt(trial_row(design, level, repeat, **(trial or {})), design=design, **{**answered(), **rows})


def checks(*attempts: Attempt, **design: Any) -> dict[str, Check]:
    identities = {a.key: i for a in attempts if (i := attribute(a.result, a.prediction, "loaded")) is not None}
    return {c.slug: c for c in run_checks([(design_row(**design), attempts)], identities)}


def complete(*changed: Attempt, repeats: int = 3) -> tuple[Attempt, ...]:
    return (*(one(level, r, **memory()) for level in (512, 2048) for r in range(repeats)), *changed)


def test_a_clean_record_raises_no_doubt() -> None:
    found = checks(*complete())
    assert {slug: c.passed for slug, c in found.items() if c.passed is not True} == {}
    assert {"repeats", "unexplained", "token_counts", "spread", "drift", "coalesced", "swap", "others"} <= set(found)


def test_failures() -> None:
    found = checks(*complete(one(512, 3, trial={"outcome": "timed_out"})))["failures"]
    assert (found.passed, found.values) == (False, {"failed": 1, "total": 7})


def test_few_repeats() -> None:
    assert checks(*complete(repeats=2))["repeats"].values["fewest"] == 2
    assert checks(*complete(repeats=2))["repeats"].passed is False


def test_levels_never_begun_are_not_few_repeats_but_not_run() -> None:
    found = checks(*(one(512, r, **memory()) for r in range(3)))
    assert found["repeats"].passed is True
    assert found["not_run"].values == {"count": 1}


def test_the_release_check_needs_no_repeats() -> None:
    design = design_row("release")
    found = run_checks([(design, [attempt(trial_row(design, 8192), design=design, **answered())])], {})
    assert "repeats" not in {c.slug for c in found}


def test_a_count_that_the_server_does_not_share() -> None:
    wrong = one(512, 3, requests=(request_row(prompt_tokens_server=99),))
    found = checks(*complete(wrong))["token_counts"]
    assert (found.passed, found.evidence) == (False, (wrong.key,))


def test_a_count_that_the_server_does_not_state_is_not_agreement() -> None:
    silent = [one(512, r, requests=(request_row(prompt_tokens_server=None),)) for r in range(3)]
    assert checks(*silent)["token_counts"].passed is None


def test_reuse_where_it_was_turned_off() -> None:
    reused = one(512, 3, requests=(request_row(cached_tokens=24),))
    assert checks(*complete(reused))["cached_tokens"].passed is False


def test_noisy_repeats() -> None:
    # 0.5, 0.5, 0.5 and 0.8: mean 0.575, standard deviation 0.15, 26 %.
    found = checks(*complete(one(512, 3, **answered(ttft_s=0.8))))["spread"]
    assert found.passed is False
    assert found.values["share"] == pytest.approx(0.15 / 0.575)


def test_drift_between_the_first_and_the_last_baseline() -> None:
    found = checks(*complete(one(512, 3, **answered(ttft_s=0.6))))["drift"]
    assert found.passed is False
    assert found.values["share"] == pytest.approx(0.2)


@pytest.mark.parametrize(("late", "passed"), [(5, True), (6, False)])
def test_late_samples(late: int, passed: bool) -> None:
    samples = tuple(
        SampleRow(quantity="anon_bytes", at_s=n / 50, value_bytes=1, late_s=0.021 if n < late else 0.02)
        for n in range(100)
    )
    assert checks(*complete(one(512, 3, samples=samples)))["late_samples"].passed is passed


def test_tokens_that_arrived_together() -> None:
    together = one(512, 3, **answered(tpot_s=0.0))
    assert checks(*complete(together))["coalesced"].passed is False


def test_swap() -> None:
    swapped = one(512, 3, marks=(mark("loaded", 1000, swap_bytes=4096),))
    found = checks(*complete(swapped))["swap"]
    assert (found.passed, found.values["most_bytes"]) == (False, 4096)


@pytest.mark.parametrize(("moved_kib", "passed"), [(512 * 1024, True), (512 * 1024 + 1, False)])
def test_other_programs(moved_kib: int, passed: bool) -> None:
    other = one(512, 3, marks=(mark("launched", 1, machine_available_bytes=4 * 2**30 - moved_kib * KIB),))
    assert checks(*complete(other))["others"].passed is passed


def test_more_than_a_tenth_unexplained() -> None:
    rows = memory()
    marks = tuple(mark("loaded", 81_480 + 30_000, 109_320) if m.phase == "loaded" else m for m in rows["marks"])
    found = checks(one(512, 0, marks=marks, maps=rows["maps"]))["unexplained"]
    # Grown: 73,080 + 30,000 of its own and 94,320 of the file; 30,000 of it in no mapping.
    assert found.passed is False
    assert found.values["share"] == pytest.approx(30_000 / 197_400, rel=1e-3)


def test_nothing_attributed_is_not_checked() -> None:
    assert checks(one())["unexplained"].passed is None


def test_unfinished_grids_and_warnings() -> None:
    warned = one(512, 3, warnings=(WarningRow(slug="noisy-machine", message="Busy.", hint="Wait."),))
    found = checks(*complete(warned, one(512, 4, trial={"outcome": None})), is_grid=True)
    assert found["unfinished"].values == {"count": 1}
    assert found["grids"].passed is False
    assert found["warning"].values["warning"] == "noisy-machine"


def test_an_empty_study_passes_no_check() -> None:
    assert {c.slug for c in run_checks([], {})} == {"unexplained"}


def test_failures_are_grouped_by_their_cause() -> None:
    died = {"outcome": "engine_died", "error_slug": "engine-died", "error_message": "It ended.",
            "engine_log_tail": "loading model\nggml_abort: error: no memory\nbye"}  # fmt: skip
    groups = group_failures(
        [
            one(512, 0),
            one(512, 1, trial=died),
            one(512, 2, trial={"outcome": "timed_out", "error_slug": "timed-out"}),
            one(512, 3, trial=died),
            one(512, 4, trial={"outcome": None}),
            one(512, 5, trial={**died, "role": "warmup"}),
        ]
    )
    assert [(g.outcome, len(g.attempts)) for g in groups] == [("engine_died", 3), ("timed_out", 1)]
    assert groups[0].first_line == "ggml_abort: error: no memory"
    assert groups[1].first_line is None


def test_how_far_this_machine_goes() -> None:
    found = one(**memory())
    loaded = attribute(found.result, found.prediction, "loaded")
    limit = context_limit(found, loaded)
    assert limit is not None
    # 4 GiB free; grown 73,080 + 94,320 KiB, of it 46,080 KiB the cache: 121,320 KiB are there whatever the context.
    assert limit.fixed_bytes == 121_320 * KIB
    assert limit.memory_tokens == (4 * 2**30 - 121_320 * KIB) // 23_040
    assert (limit.tokens, limit.binds) == (8192, "trained")


def test_a_machine_that_is_smaller_than_the_models_training() -> None:
    rows = memory()
    small = mark("launched", 8_400, 15_000, machine_available_bytes=200_000 * KIB)
    marks = tuple(small if m.phase == "launched" else m for m in rows["marks"])
    found = one(marks=marks, maps=rows["maps"])
    limit = context_limit(found, attribute(found.result, found.prediction, "loaded"))
    assert limit is not None
    assert (limit.binds, limit.tokens) == ("memory", 78_680 * KIB // 23_040)


def test_a_limit_that_nothing_tells() -> None:
    assert context_limit(attempt(predicted={"schema": "kvscope.prediction/1"}), None) is None
