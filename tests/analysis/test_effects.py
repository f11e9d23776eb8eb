"""Effects worked out by hand: the paired difference, its share of the baseline, Welch's, and what may be called one."""

from math import exp, log
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_ind
from study_rows import answered, attempt, design_row, trial_row

from kvscope.analysis.effects import FIXED, STOPPED, paired_effect, unpaired_effect
from kvscope.analysis.levels import level_rows

# Five blocks; the third was slow for both. Differences 1, 2, 3, 2, 2: mean 2, standard deviation √(2/4) = 0.70711.
PAIRS = [(10.0, 11.0), (10.0, 12.0), (40.0, 43.0), (10.0, 12.0), (10.0, 12.0)]


def test_the_paired_difference_worked_out_by_hand() -> None:
    found = paired_effect("ttft_s", PAIRS)
    # t(4) = 2.7764: half width 2.7764 × 0.70711 / √5 = 0.87799.
    assert (found.baseline, found.changed, found.difference.value) == (16, 18, 2)
    assert found.difference.low == pytest.approx(2 - 0.87799, abs=1e-4)
    assert found.difference.high == pytest.approx(2 + 0.87799, abs=1e-4)
    assert (found.method, found.num_pairs, found.verdict) == ("paired_t", 5, "more")
    assert found.spread == pytest.approx(0.70711, abs=1e-5)
    assert found.half_width == pytest.approx(0.87799, abs=1e-4)
    assert found.would_have_been_seen == pytest.approx(2.87799, abs=1e-4)


def test_the_share_worked_out_by_hand() -> None:
    # Ratios 1.1, 1.2 and 1.32 × 1.1 / 1.1 …: their logarithms 0.09531, 0.18232, 0.26236 have the mean 0.18000 and the
    # standard deviation 0.08355; t(2) = 4.3027, half width 4.3027 × 0.08355 / √3 = 0.20756.
    found = paired_effect("ttft_s", [(10, 11), (20, 24), (5, 6.5)]).relative
    assert found.value == pytest.approx(exp(0.18000) - 1, abs=1e-4)
    assert found.low == pytest.approx(exp(0.18000 - 0.20756) - 1, abs=1e-4)
    assert found.high == pytest.approx(exp(0.18000 + 0.20756) - 1, abs=1e-4)


def test_a_slow_block_does_not_widen_the_share() -> None:
    # Everything takes four times as long in one block: c = 1.2 b in each, so the share is 20 %, without any doubt.
    found = paired_effect("ttft_s", [(b, 1.2 * b) for b in (1.0, 1.0, 4.0, 1.0)])
    assert found.relative.value == pytest.approx(0.2)
    # As exactly as the clock: 1 µs of 1.75 s.
    assert found.relative.low == pytest.approx(0.2, abs=2e-6)
    assert found.relative.high == pytest.approx(0.2, abs=2e-6)
    assert found.half_width is not None
    assert found.half_width > 0.3  # of the difference in seconds


def test_a_ratio_that_could_be_anything_has_no_interval() -> None:
    # Two logarithms of ±4.6 with t(1) = 12.7: up to e⁵⁸ times as much.
    found = paired_effect("x", [(1.0, 100.0), (100.0, 1.0)]).relative
    assert found.value == pytest.approx(0.0)
    assert not found.has_interval
    assert found.reason is not None
    assert found.reason.slug == "any_ratio"


def test_what_is_not_above_zero_gives_no_share() -> None:
    for found in (paired_effect("x", [(0.0, 2.0), (1.0, 2.0)]), unpaired_effect("x", [0.0, 1.0], [2.0, 2.0])):
        assert found.relative.value is None
        assert found.relative.reason is not None
        assert found.relative.reason.slug == "not_above_zero"
        assert found.difference.value == 1.5
    assert paired_effect("x", []).relative.value is None


def test_welch_as_scipy_has_it() -> None:
    before, after = [10.1, 9.8, 10.4, 10.0], [10.9, 11.6, 10.2, 11.8, 11.1, 12.0]
    found = unpaired_effect("ttft_s", before, after)
    known = ttest_ind(after, before, equal_var=False).confidence_interval(0.95)
    assert found.difference.value == pytest.approx(fmean(after) - fmean(before))
    assert (found.difference.low, found.difference.high) == (pytest.approx(known.low), pytest.approx(known.high))
    assert (found.method, found.num_pairs) == ("welch_t", 0)
    logs = ttest_ind([log(x) for x in after], [log(x) for x in before], equal_var=False).confidence_interval(0.95)
    assert found.relative.low == pytest.approx(exp(logs.low) - 1)
    assert found.relative.high == pytest.approx(exp(logs.high) - 1)


def test_too_little_gives_no_interval_and_no_verdict() -> None:
    for found in (
        paired_effect("x", []),
        paired_effect("x", [(1.0, 2.0)]),
        unpaired_effect("x", [1.0], [2.0, 3.0]),
        unpaired_effect("x", [], [2.0]),
    ):
        assert (found.method, found.verdict, found.is_known, found.is_seen) == ("none", "unknown", False, False)
        assert found.half_width is None
        assert found.would_have_been_seen is None
        assert found.repeats_needed(1.0) is None
    assert paired_effect("x", [(1.0, 2.0)]).difference.value == 1.0


def test_the_same_in_every_pair() -> None:
    same = paired_effect("memory_loaded_bytes", [(1_000_000, 1_000_000)] * 5)
    # Each reading is of whole pages: a difference of a page could be there.
    assert (same.verdict, same.is_same, same.would_have_been_seen) == ("no_difference_seen", True, 4096.0)
    saved = paired_effect("memory_loaded_bytes", [(1_000_000, 600_000)] * 5)
    assert (saved.verdict, saved.is_same) == ("less", False)
    assert (saved.difference.low, saved.difference.high) == (-404_096, -395_904)
    # Less than a page is not told by any number of repeats. The noise of rounding is 4096 × 0.40825 = 1672 B: two
    # repeats reach 12.706 × 1672 ÷ √2 = 15,024 B to either side, three 4.3027 × 1672 ÷ √3 = 4,154 B.
    assert (saved.repeats_needed(1.0), saved.repeats_needed(4_200), saved.repeats_needed(16_000)) == (None, 3, 2)


def test_a_page_more_in_both_of_two_pairs_is_no_difference() -> None:
    # From a real run of two repeats: one page less each time, before any request was sent.
    found = paired_effect("memory_loaded_bytes", [(73_445_376, 73_441_280), (73_449_472, 73_445_376)])
    assert (found.verdict, found.is_same) == ("no_difference_seen", True)
    assert found.difference.contains(0.0)


@pytest.mark.parametrize(
    ("metric", "step", "large"),
    [("memory_after_bytes", 4096, 400_000), ("ttft_s", 1e-6, 1e-3), ("tpot_s", 1e-16, 1e-3), ("load_s", 0.0, 1e-3)],
)
def test_what_is_below_the_resolution_is_never_called(metric: str, step: float, large: float) -> None:
    base = 0.05 if metric.endswith("_s") else 1_000_000
    for found in (
        paired_effect(metric, [(base, base + step)] * 2),
        unpaired_effect(metric, [base] * 2, [base + step] * 2),
    ):
        assert not found.is_seen
    for found in (
        paired_effect(metric, [(base, base + large)] * 2),
        unpaired_effect(metric, [base] * 2, [base + large] * 2),
    ):
        assert found.verdict == "more"


def test_counts_are_whole_so_that_one_token_less_each_time_is_told_by_more_than_two() -> None:
    assert not paired_effect("cached_tokens", [(64, 63)] * 2).is_seen
    assert paired_effect("cached_tokens", [(64, 63)] * 5).verdict == "less"


def test_what_is_called_a_difference_holds_for_all_levels_together() -> None:
    # Mean 2, standard error 0.31623: t = 6.32. Alone at 3.5 %: t(4) = 3.1355. Among 40 levels at 0.0875 % each: 8.9154.
    assert paired_effect("x", PAIRS).is_seen
    many = paired_effect("x", PAIRS, num_levels=40)
    assert many.difference == paired_effect("x", PAIRS).difference  # its own interval stays one of 95 %
    assert many.verdict == "no_difference_seen"
    assert many.together.high == pytest.approx(2 + 8.9154 * 0.70711 / 5**0.5, rel=1e-4)


def test_repeats_needed_by_hand() -> None:
    # Half width 0.5 with a standard deviation of 0.70711: n = 10 has 2.2622 × 0.70711 / √10 = 0.50584, n = 11 has
    # 2.2281 × 0.70711 / √11 = 0.47504.
    assert paired_effect("x", PAIRS).repeats_needed(0.5) == 11
    assert paired_effect("x", PAIRS).repeats_needed(0.0) is None
    assert (FIXED.interval, STOPPED.interval) == (0.05, 0.04)


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=2, max_size=12))
def test_turned_round_it_is_the_same_effect_with_the_other_sign(pairs: list[tuple[float, float]]) -> None:
    there, back = paired_effect("x", pairs), paired_effect("x", [(c, b) for b, c in pairs])
    assert there.difference.value == pytest.approx(-(back.difference.value or 0.0))
    assert there.difference.low == pytest.approx(-(back.difference.high or 0.0))
    assert there.half_width == back.half_width
    assert there.relative.has_interval == back.relative.has_interval
    assert (1 + (there.relative.low or 0.0)) * (1 + (back.relative.high or 0.0)) == pytest.approx(1, rel=1e-6)
    assert there.is_seen == back.is_seen


def test_attempts_of_another_design_are_never_paired_with_these() -> None:
    here, elsewhere = design_row("context_limit"), design_row("context_limit", design_id="other-machine")
    found = [attempt(trial_row(here, 512, b), design=here, **answered(ttft_s=0.5)) for b in range(3)]
    found += [attempt(trial_row(elsewhere, 2048, b), design=elsewhere, **answered(ttft_s=0.7)) for b in range(3)]
    row = level_rows(here, found)[1]
    assert (row.num_measured, row.effects["ttft_s"].num_pairs) == (0, 0)


def test_warm_ups_and_failures_are_in_no_effect_and_failures_are_counted() -> None:
    design = design_row("context_limit")
    found = []
    for block in range(3):
        found.append(attempt(trial_row(design, 512, block), design=design, **answered(ttft_s=0.5)))
        found.append(attempt(trial_row(design, 2048, block), design=design, **answered(ttft_s=0.6)))
    for role, outcome, block in (("warmup", "ok", 1), ("measured", "timed_out", 3)):
        trial = trial_row(design, 2048, block, trial_id=f"{role}{block}", role=role, outcome=outcome)
        found.append(attempt(trial, design=design, **answered(ttft_s=99.0)))
    row = level_rows(design, found)[1]
    assert row.effects["ttft_s"].difference.value == pytest.approx(0.1)
    assert (row.effects["ttft_s"].num_pairs, row.num_measured, row.num_failed) == (3, 3, 1)


def test_what_rounding_left_is_no_difference_even_in_one_pair() -> None:
    # The same step of 20 ms, summed in another order over 64 and over 256 tokens.
    effect = paired_effect("tpot_s", [(0.02, 0.02 - 9.71e-17)])
    assert effect.difference.value == 0.0
    assert effect.relative.value == 0.0


def test_what_is_shown_as_a_share_has_the_sign_of_its_difference() -> None:
    """1 → 1.3 and 3 → 2.6: 0.05 less on average, 2.5 % of the baseline's 2; the ratios 1.3 and 0.8667 have the
    geometric mean 1.0614, which is 6 % *more*."""
    found = paired_effect("ttft_s", [(1.0, 1.3), (3.0, 2.6)])
    assert found.relative.value == pytest.approx(0.0614, abs=1e-4)
    assert found.share.value == pytest.approx(-0.025)
    assert found.difference.low is not None
    assert found.share.low == pytest.approx(found.difference.low / 2)
    assert paired_effect("memory_released_bytes", [(0.0, 5e6), (0.0, 6e6)]).share.value is None
