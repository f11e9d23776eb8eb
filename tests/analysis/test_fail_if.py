"""The condition of a build that shall break: read as it is written, judged by the interval."""

import pytest

from kvscope.analysis.compare_metrics import METRICS
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


def test_a_value_is_judged_by_the_values_of_b_alone() -> None:
    assert judge(condition("ttft > 5"), [1000.0], [6.0, 6.0, 6.0], is_paired=False).state == FAILED
    assert judge(condition("ttft > 7"), [1000.0], [6.0, 6.0, 6.0], is_paired=False).state == PASSED


def test_one_repeat_has_no_interval_and_decides_by_its_value() -> None:
    assert judge(condition("memory_peak > +5%"), [100.0], [106.0], is_paired=False).state == FAILED
    assert judge(condition("memory_peak > +5%"), [100.0], [104.0], is_paired=False).state == PASSED


def test_what_was_not_measured_never_passes() -> None:
    assert judge(condition("memory_peak > +5%"), [], [], is_paired=False).state == NOT_MEASURED
