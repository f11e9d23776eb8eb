"""Each check raises a doubt when it should, and only then."""

from typing import Any

import pytest
from study_rows import KIB, answered, attempt, design_row, mark, memory, prediction, request_row, trial_row

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.attribute import attribute
from kvscope.analysis.checks import Check, run_checks
from kvscope.analysis.failures import group_failures
from kvscope.analysis.limit import context_limit
from kvscope.analysis.price import token_price
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
    # What to do follows the most frequent failure: its outcome, and the hint that was recorded with it.
    assert (found.passed, found.values) == (False, {"failed": 1, "total": 7, "outcome": "timed_out", "hint": None})


def test_few_repeats() -> None:
    assert checks(*complete(repeats=2))["repeats"].values["fewest"] == 2
    assert checks(*complete(repeats=2))["repeats"].passed is False


def test_levels_never_begun_are_not_few_repeats_but_not_run() -> None:
    found = checks(*(one(512, r, **memory()) for r in range(3)))
    assert found["repeats"].passed is True
    assert found["not_run"].values == {"count": 1, "trials": 3}


def test_a_level_of_which_every_trial_failed_is_no_want_of_repeats() -> None:
    refused = [one(2048, r, trial={"outcome": "refused"}) for r in range(3)]
    found = checks(*(one(512, r, **memory()) for r in range(3)), *refused)
    assert found["repeats"].passed is True
    assert found["failures"].values == {"failed": 3, "total": 6, "outcome": "refused", "hint": None}
    assert "repeats" not in checks(*refused)


def test_the_release_check_needs_no_repeats() -> None:
    design = design_row("release")
    found = run_checks([(design, [attempt(trial_row(design, 8192), design=design, **answered())])], {})
    assert "repeats" not in {c.slug for c in found}


def test_our_count_against_the_servers_over_all_requests() -> None:
    rows = (
        request_row(0, prompt=30, role="warmup", prompt_tokens_server=31, prompt_tokens_ours_from="files"),
        request_row(1, prompt_tokens_server=121),
        request_row(2, prompt_tokens_server=None),
        request_row(3, prompt_tokens_ours=None),
        request_row(4, prompt_tokens_server=50, error_slug="truncated-input"),
    )
    found = checks(one(requests=rows))["own_counts"]
    assert found.passed is False
    # 31 - 30 and 121 - 100; what was cut is another check's.
    assert found.values == {"wrong": 2, "total": 2, "unknown": 1, "by_files": 1, "fewest": 1, "most": 21}
    assert found.evidence == (one().key,)
    assert checks(one())["own_counts"].passed is True
    silent = one(requests=(request_row(prompt_tokens_server=None),))
    assert checks(silent)["own_counts"].passed is None
    assert "own_counts" not in checks(one(requests=()))


def test_a_cut_prompt_is_shown_where_trust_is_asked_for() -> None:
    cut = one(
        512,
        3,
        trial={"outcome": "truncated_input", "error_slug": "truncated-input"},
        requests=(
            request_row(1, prompt=2500, prompt_tokens_server=1026, error_slug="truncated-input"),
            request_row(2, prompt=9000, prompt_tokens_server=1026, error_slug="truncated-input"),
        ),
    )
    found = checks(one(), cut)["stuck_count"]  # both to the same number
    assert found.passed is False
    assert found.values == {"cut": 2, "total": 3, "ours": 9000, "server": 1026}
    assert found.evidence == (cut.key,)
    assert checks(one())["cut_prompts"].passed is True
    once = one(512, 3, requests=(request_row(1, prompt=2500, prompt_tokens_server=1026, error_slug="truncated-input"),))
    assert checks(one(), once)["cut_prompts"].values == {"cut": 1, "total": 2, "ours": 2500, "server": 1026}


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
    # 500, 500, 500 and 600 ms: by a fifth; but the line through them may be level, so that a change is not claimed.
    found = checks(*complete(one(512, 3, **answered(ttft_s=0.6))))["drift_unclear"]
    assert found.passed is False
    assert found.values["share"] == pytest.approx(0.2)


@pytest.mark.parametrize(("late", "passed"), [(5, True), (6, False)])
def test_late_samples(late: int, passed: bool) -> None:
    samples = tuple(
        SampleRow(quantity="anon_bytes", at_s=n / 50, value_bytes=1, late_s=0.021 if n < late else 0.02)
        for n in range(100)
    )
    assert checks(*complete(one(512, 3, samples=samples)))["late_samples"].passed is passed


def sampled(late: int, missed: int, **more: Any) -> Attempt:
    samples = tuple(
        SampleRow(quantity=quantity, at_s=n / 50, value_bytes=1, late_s=0.021 if n < late else 0.0)
        for n in range(90)
        for quantity in ("anon_bytes", "file_bytes")
    )
    return one(512, 3, samples=samples, trial={"client": {"samples_missed": missed}}, **more)


@pytest.mark.parametrize(("late", "missed", "passed"), [(0, 4, True), (2, 3, False), (0, 5, False)])
def test_readings_that_never_came(late: int, missed: int, passed: bool) -> None:
    # 90 readings of two quantities each. 0 + 4 of 94 are 4.3 %; 2 + 3 of 93 and 5 of 95 are more than 5 %.
    found = checks(*complete(sampled(late, missed)))["late_samples"]
    assert found.passed is passed
    assert (found.values["late"], found.values["missed"], found.values["total"]) == (late + missed, missed, 90 + missed)


@pytest.mark.parametrize("slug", ["late-samples", "samples-stopped"])
def test_sampling_that_its_trial_doubts(slug: str) -> None:
    warned = sampled(0, 0, warnings=(WarningRow(slug=slug, message="m", hint="h"),))
    found = checks(*complete(warned))["late_samples"]
    assert (found.passed, found.evidence) == (False, (warned.key,))


def test_the_trial_with_the_most_late_readings_is_told_beside_all() -> None:
    # 10 of 90 late in one trial, none of 90 in another: 11.1 % where the limit is 5 %, and 5.6 % of both.
    found = checks(*complete(sampled(10, 0), sampled(0, 0)))["late_samples"]
    assert found.values["worst_share"] == pytest.approx(10 / 90)
    assert found.values["share"] == pytest.approx(10 / 180)


def test_sampling_that_stopped_before_its_first_reading() -> None:
    stopped = one(512, 3, warnings=(WarningRow(slug="samples-stopped", message="m", hint="h"),))
    found = checks(*complete(stopped))["late_samples"]
    assert (found.passed, found.values["stopped"], found.values["share"]) == (False, 1, None)


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
    assert groups[0].known_by is None


def test_the_line_that_decided_goes_before_any_other_that_names_trouble() -> None:
    evidence = {"known_by": "message", "log_line": "failed to allocate buffer of size 4096"}
    refused = {"outcome": "out_of_memory", "error_slug": "out-of-memory", "evidence": evidence,
               "engine_log_tail": "error: something earlier\nfailed to allocate buffer of size 4096"}  # fmt: skip
    (group,) = group_failures([one(512, 0, trial=refused)])
    assert (group.known_by, group.first_line) == ("message", "failed to allocate buffer of size 4096")


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


def windowed(n_ctx: int = 8192) -> dict[str, Any]:
    """Gemma 3 270M: 15 layers with a window of 512 and 3 without, each 1 head × 256 wide × 2 B for keys and as much for
    values: 1,024 B a token and layer. Beyond the window 3 × 1,024 = 3,072 B a token, before it 18 × 1,024 = 18,432."""
    predicted = prediction(n_ctx)

    def layer(index: int) -> dict[str, Any]:
        is_full = index % 6 == 5
        cells = n_ctx if is_full else min(n_ctx, 1024)
        tensor = {"shape": [1, 1, cells, 256], "dtype": "float16", "bytes": cells * 512}
        kind = "full_attention" if is_full else "sliding_window"
        return {"index": index, "kind": kind, "cache_bytes": cells * 1024,
                "tensors": [{"name": "keys", **tensor}, {"name": "values", **tensor}]}  # fmt: skip

    predicted["layers"] = [layer(n) for n in range(18)]
    predicted["growth"] = {"bytes_per_token": 18_432, "knees": [{"tokens": 512, "why": "sliding window full"}]}
    predicted["model"]["trained_context_tokens"] = 32_768
    return predicted


def test_the_price_of_a_token_beyond_the_windows() -> None:
    price = token_price(windowed())
    assert price is not None
    assert (price.first_bytes, price.beyond_bytes, price.knee_tokens) == (18_432, 3_072, 512)
    assert price.bytes_at(512) == 512 * 18_432
    assert price.bytes_at(2048) == 512 * 18_432 + 1_536 * 3_072
    # Whatever length the trial asked for, the law is the same.
    beyond = windowed()
    beyond["growth"]["bytes_per_token"] = 3_072
    assert token_price(beyond) == price


def test_a_price_without_windows_and_without_layers() -> None:
    price = token_price(prediction())
    assert price is not None
    assert (price.first_bytes, price.beyond_bytes, price.knee_tokens) == (23_040, 23_040, None)
    assert token_price(None) is None
    assert token_price({"growth": {"bytes_per_token": None}}) is None


def test_windows_do_not_count_beyond_their_length() -> None:
    # 340 MiB free beside the rest. The windowed layers hold 15 × 1,024 cells × 1,024 B = 15 MiB, so 325 MiB are left
    # for 3,072 B a token: 110,933 tokens. At 18,432 B a token it would be 19,342.
    price = token_price(windowed())
    assert price is not None
    assert price.tokens_in(340 * 2**20) == 325 * 2**20 // 3_072 == 110_933
    assert price.tokens_in(100 * 18_432) == 100
    assert price.tokens_in(-1) == 0
    # Room for 600 tokens at the first price, but not for the windows as the engine reserves them: 512 are sure.
    assert price.tokens_in(600 * 18_432) == 512


def test_a_sliding_window_model_is_bound_by_its_training() -> None:
    rows = memory()
    start = mark("launched", 8_400, 15_000, machine_available_bytes=(340 * 1024 + 121_320) * KIB)
    marks = tuple(start if m.phase == "launched" else m for m in rows["marks"])
    found = attempt(predicted=windowed(), marks=marks, maps=rows["maps"])
    identity = attribute(found.result, prediction(), "loaded")
    limit = context_limit(found, identity)
    assert limit is not None
    assert limit.fixed_bytes == 121_320 * KIB
    assert (limit.tokens, limit.binds, limit.memory_tokens) == (32_768, "trained", 110_933)


def test_memory_that_is_not_known_is_not_said_to_hold_more() -> None:
    limit = context_limit(attempt(), None)
    assert limit is not None
    assert (limit.tokens, limit.binds) == (8192, "trained_only")


def test_a_limit_that_nothing_tells() -> None:
    assert context_limit(attempt(predicted={"schema": "kvscope.prediction/1"}), None) is None


def baselines(*times_s: float) -> tuple[Attempt, ...]:
    """The baseline at these times, ten trials apart, in the order in which they were run."""
    return tuple(one(512, n, trial={"position": 10 * n}, **answered(ttft_s=time)) for n, time in enumerate(times_s))


def test_a_slow_drift_below_the_limit_is_a_doubt_where_it_is_sure() -> None:
    # 500, 510, 520, 530, 540 ms: 8 % from first to last, and exactly on a line: 40 ms of a mean of 520.
    found = checks(*baselines(0.50, 0.51, 0.52, 0.53, 0.54))["drift"]
    assert found.passed is False
    assert found.values["share"] == pytest.approx(0.08)
    assert found.values["trend_share"] == pytest.approx(0.04 / 0.52)
    assert found.values["low_share"] == pytest.approx(0.04 / 0.52)
    assert found.values["count"] == 5


def test_noise_is_no_drift() -> None:
    # The line through 500, 540, 500, 540, 500 is level, and its interval is wide.
    found = checks(*baselines(0.50, 0.54, 0.50, 0.54, 0.50))["drift"]
    assert found.passed is True
    low, high = found.values["low_share"], found.values["high_share"]
    assert isinstance(low, float)
    assert isinstance(high, float)
    assert low < 0 < high


def test_a_sure_drift_too_small_to_matter_is_none() -> None:
    assert checks(*baselines(0.500, 0.501, 0.502, 0.503, 0.504))["drift"].passed is True


def test_two_baselines_have_no_interval_so_that_a_change_is_doubted_and_not_claimed() -> None:
    found = checks(*baselines(0.5, 0.6))
    assert "drift" not in found
    assert found["drift_unclear"].passed is False
    assert found["drift_unclear"].values["low_share"] is None


def test_a_servers_memory_that_grows_is_looked_for_too() -> None:
    grown = [
        one(512, n, trial={"position": 10 * n}, marks=(mark("after_request", kib),), **answered(ttft_s=0.5))
        for n, kib in enumerate((67_000, 84_000, 103_000, 119_000, 137_000))
    ]
    found = checks(*grown)["memory_drift"]
    assert found.passed is False
    assert found.values["share"] == pytest.approx(70 / 67)
    assert checks(*complete())["memory_drift"].passed is True


def test_precision_that_was_asked_for_and_not_reached() -> None:
    told = {"until": {"share": 0.05, "metric": "ttft_s", "most_repeats": 7}}
    wobbles = (0.0, 0.4, 0.0, 0.4, 0.0, 0.4, 0.0)
    rough = [one(level, r, **answered(ttft_s=0.5 + (w if level > 512 else 0)))
             for r, w in enumerate(wobbles) for level in (512, 2048)]  # fmt: skip
    found = checks(*rough, definition=told)["precision"]
    assert found.passed is False
    assert found.values["asked_share"] == 0.05
    assert found.values["blocks"] == found.values["most"] == 7
    # Standard deviation of 0, 0.4, 0, 0.4, 0, 0.4, 0: 0.21381; t(6) at 96 % is 2.6122: 0.2111 s, 42.2 % of 0.5.
    assert found.values["share"] == pytest.approx(0.4222, abs=1e-3)
    smooth = [one(level, r, **answered(ttft_s=0.5)) for r in range(7) for level in (512, 2048)]
    assert checks(*smooth, definition=told)["precision"].passed is True
    assert "precision" not in checks(*smooth)


def test_few_repeats_of_an_interrupted_run_name_the_command_that_goes_on() -> None:
    begun = [one(512, r) for r in range(2)]
    found = checks(*begun)["repeats"]
    assert found.passed is False
    assert found.values["command"] == begun[0].run.command
    assert checks(*complete(one(512, 3)))["repeats"].values["command"] is None
