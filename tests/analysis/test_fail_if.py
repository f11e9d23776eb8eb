"""The condition of a build that shall break: read as it is written, judged by the interval."""

import random

import pytest

from kvscope.analysis.compare_metrics import METRICS
from kvscope.analysis.effects import STOPPED
from kvscope.analysis.fail_if import FAILED, NOT_MEASURED, PASSED, UNDECIDED, FailIf, judge, parse_fail_if
from kvscope.errors import UnknownName, UsageError


@pytest.mark.parametrize(
    ("text", "metric", "kind", "threshold"),
    [
        ("memory_peak > +5%", "memory_peak_bytes", "share", 0.05),
        ("memory_peak_bytes>5%", "memory_peak_bytes", "share", 0.05),
        ("memory_peak_device > +10MiB", "memory_peak_bytes_device", "amount", 10 * 1024**2),
        ("ttft > +20ms", "ttft_s", "amount", 0.02),
        ("ttft >= 0.5s", "ttft_s", "value", 0.5),
        ("decode_tokens < -10 %", "decode_tokens_per_s", "share", -0.1),
        ("decode_tokens_per_s < 40", "decode_tokens_per_s", "value", 40.0),
        ("ttft_max > +5%", "ttft_max_s", "share", 0.05),
        ("output_tokens_per_s_all < -5%", "output_tokens_per_s_all", "share", -0.05),
        ("load_wall > 1s", "load_wall_s", "value", 1.0),
        ("queue_wait > 5ms", "queue_wait_s", "value", 0.005),
        ("output_tokens < 10", "output_tokens", "value", 10.0),
        ("kv_cache_bytes_engine > 1KiB", "kv_cache_bytes_engine", "value", 1024.0),
    ],
)
def test_a_condition_is_read(text: str, metric: str, kind: str, threshold: float) -> None:
    found = parse_fail_if(text, METRICS)
    assert (found.metric, found.kind) == (metric, kind)
    assert found.threshold == pytest.approx(threshold, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["", "memory_peak", "ttft > fast", "ttft == 5", "ttft > 5MiB", "memory_peak > 5 ms", "> 5"]
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_fail_if(text, METRICS)
    assert caught.value.hint


def test_an_unknown_metric_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        parse_fail_if("memory_peek > +5%", METRICS)
    assert "memory_peak" in str(caught.value.hint)


def condition(text: str) -> FailIf:
    return parse_fail_if(text, METRICS)


def test_certain_either_way_and_undecided_between() -> None:
    base = [100.0, 101.0, 99.0, 100.0]
    up = [110.0, 111.0, 109.0, 110.0]  # each 10 % and 10 more than its pair, without spread
    assert judge(condition("ttft > +5%"), base, up, is_paired=True).state == FAILED
    assert judge(condition("ttft > +15%"), base, up, is_paired=True).state == PASSED
    assert judge(condition("ttft < +15%"), base, up, is_paired=True).state == FAILED
    # Differences of 0, 10, 0, 10: mean 5, standard error 10/√3/2 = 2.89; t(3) is above 3 at any usual level, so the
    # interval reaches from below 0 to above 10.
    mixed = [100.0, 111.0, 99.0, 110.0]
    assert judge(condition("ttft > +5%"), base, mixed, is_paired=True).state == UNDECIDED


def test_a_change_at_the_threshold_counts_with_equals_alone() -> None:
    # 110 is 100 + 10 exactly.
    base, up = [100.0, 100.0], [110.0, 110.0]
    assert judge(condition("ttft >= +10"), base, up, is_paired=True).state == FAILED
    assert judge(condition("ttft > +10"), base, up, is_paired=True).state == PASSED


def test_rounding_is_no_change() -> None:
    """0.1 + 0.2 is not 0.3 in binary, by 5 parts in 10¹⁷."""
    assert judge(condition("ttft > +0%"), [0.3, 0.3], [0.1 + 0.2, 0.1 + 0.2], is_paired=True).state == PASSED
    assert judge(condition("ttft > +0%"), [0.3, 0.3], [0.1 + 0.2, 0.1 + 0.2], is_paired=False).state == PASSED
    assert judge(condition("ttft >= +0%"), [0.1 + 0.2] * 2, [0.3, 0.3], is_paired=True).state == FAILED


# Differences of 0.7, 0.9, 1, 1.1, 1.3: mean 1, standard deviation √0.05 = 0.2236, standard error 0.1, so t = 10 − 10·x
# for a threshold of x. t(4) at the error of 3.5 % is 3.13, of 3.5 % ÷ 10 6.20, and of 2.5 % ÷ 1 3.50 (tables).
BASE, RAISED = [10.0] * 5, [10.7, 10.9, 11.0, 11.1, 11.3]


def test_many_places_need_more_to_be_certain() -> None:
    # x = 0.5: t is 5, between 3.13 and 6.20.
    assert judge(condition("ttft > +0.5"), BASE, RAISED, is_paired=True).state == FAILED
    assert judge(condition("ttft > +0.5"), BASE, RAISED, is_paired=True, num_places=10).state == UNDECIDED
    assert judge(condition("ttft > 10.5"), BASE, RAISED, is_paired=True, num_places=10).state == UNDECIDED


def test_a_design_that_stopped_when_narrow_needs_more_to_be_certain() -> None:
    # x = 0.67: t is 3.3, between 3.13 and 3.50.
    assert judge(condition("ttft > +0.67"), BASE, RAISED, is_paired=True).state == FAILED
    assert judge(condition("ttft > +0.67"), BASE, RAISED, is_paired=True, rates=STOPPED).state == UNDECIDED


def test_the_low_bound_is_of_the_wide_interval() -> None:
    # x = 0.7: t is 3, above t(4) at 5 % (2.78), below that at 3.5 %.
    assert judge(condition("ttft > +0.7"), BASE, RAISED, is_paired=True).state == UNDECIDED


def test_sets_of_one_size_are_no_pairs() -> None:
    """Each is 1 more than its pair, with a noise of 10 that both have: certain of pairs, of two sets not at all."""
    before, after = [10.0, 20.0, 30.0, 40.0], [11.0, 21.0, 31.0, 41.0]
    assert judge(condition("ttft > +0.5"), before, after, is_paired=True).state == FAILED
    assert judge(condition("ttft > +0.5"), before, after, is_paired=False).state == UNDECIDED


@pytest.mark.parametrize("places", [1, 3, 10])
def test_of_studies_in_which_nothing_changed_few_break_a_build_however_many_places(places: int) -> None:
    rnd, studies, broken = random.Random(7), 400, 0
    for _ in range(studies):
        sides = [[[rnd.gauss(100, 5) for _ in range(5)] for _ in range(2)] for _ in range(places)]
        found = [judge(condition("ttft > +0%"), *pair, is_paired=False, num_places=places) for pair in sides]
        broken += any(verdict.state == FAILED for verdict in found)
    assert broken <= 0.05 * studies


def test_a_value_is_judged_by_the_values_of_b_alone() -> None:
    assert judge(condition("ttft > 5"), [1000.0], [6.0, 6.0, 6.0], is_paired=False).state == FAILED
    assert judge(condition("ttft > 7"), [1000.0], [6.0, 6.0, 6.0], is_paired=False).state == PASSED


def test_one_repeat_has_no_interval_and_decides_by_its_value() -> None:
    assert judge(condition("memory_peak > +5%"), [100.0], [106.0], is_paired=False).state == FAILED
    assert judge(condition("memory_peak > +5%"), [100.0], [104.0], is_paired=False).state == PASSED


def test_what_was_not_measured_never_passes() -> None:
    assert judge(condition("memory_peak > +5%"), [], [], is_paired=False).state == NOT_MEASURED
