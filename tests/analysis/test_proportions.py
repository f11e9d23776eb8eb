"""Shares and differences of shares, held against scipy, against published intervals, and against the score test worked
out numerically from the likelihood."""

import math

import pytest
from scipy import stats
from scipy.optimize import brentq, minimize_scalar

from kvscope.analysis.proportions import (
    clustered_share,
    mcnemar,
    paired_counts,
    share_clustering,
    tango_limits,
    unpaired_difference,
    wilson,
)


@pytest.mark.parametrize(("right", "num"), [(0, 10), (3, 10), (10, 10), (28, 30), (77, 200), (1, 1)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_wilson_is_scipys(right: int, num: int, confidence: float) -> None:
    theirs = stats.binomtest(right, num).proportion_ci(confidence, method="wilson")
    ours = wilson(right, num, confidence=confidence)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert ours.value == right / num


def test_of_nothing_there_is_no_share() -> None:
    assert wilson(0, 0).value is None
    assert clustered_share([]).value is None
    assert paired_counts([]).difference().value is None


def test_all_right_includes_all_and_none_right_includes_none() -> None:
    assert wilson(30, 30).high == 1.0
    assert wilson(0, 30).low == 0.0


@pytest.mark.parametrize(("losses", "gains"), [(0, 0), (1, 0), (5, 0), (10, 2), (3, 3), (40, 21), (2, 9)])
def test_mcnemar_is_the_exact_binomial_test(losses: int, gains: int) -> None:
    theirs = stats.binomtest(losses, losses + gains).pvalue if losses + gains else 1.0
    assert mcnemar(losses, gains) == pytest.approx(theirs, rel=1e-9)


def _score_by_likelihood(gains: float, losses: float, num: float, difference: float) -> float:
    """The score statistic of p12 − p21 = difference, its nuisance parameter found by maximising the likelihood."""

    def minus_log(losing: float) -> float:
        both = 1 - 2 * losing - difference
        terms = ((gains, losing + difference), (losses, losing), (num - gains - losses, both))
        return -sum(count * math.log(max(share, 1e-300)) for count, share in terms if count)

    low, high = max(0.0, -difference), (1 - difference) / 2
    losing = minimize_scalar(minus_log, bounds=(low, high), method="bounded", options={"xatol": 1e-13}).x
    return (gains - losses - num * difference) / math.sqrt(num * (2 * losing + difference * (1 - difference)))


@pytest.mark.parametrize(("gains", "losses", "num"), [(12, 2, 50), (1, 0, 44), (3, 9, 30), (5, 5, 200), (20, 60, 400)])
def test_tango_solves_the_score_equation_of_the_likelihood(gains: int, losses: int, num: int) -> None:
    width = 1.959963984540054
    value = (gains - losses) / num
    low = brentq(lambda d: _score_by_likelihood(gains, losses, num, d) - width, -0.999, value - 1e-9)
    high = brentq(lambda d: _score_by_likelihood(gains, losses, num, d) + width, value + 1e-9, 0.999)
    assert tango_limits(gains, losses, num, width) == pytest.approx((low, high), abs=2e-4)


def test_tango_as_published() -> None:
    """Fagerland, Lydersen and Laake 2014: airway hyper-responsiveness of 21 patients, 1 and 7 of whom changed."""
    assert tango_limits(1, 7, 21, 1.959963984540054) == pytest.approx((-0.517, -0.026), abs=5e-4)


def test_no_differing_item_is_worked_out_by_hand() -> None:
    """With no gain and no loss the score of d is √(n d ÷ (1 − d)), so the limit is w² ÷ (n + w²)."""
    width = 2.0
    assert tango_limits(0, 0, 96, width) == pytest.approx((-0.04, 0.04), abs=1e-9)


def test_newcombe_unpaired_as_published() -> None:
    """Newcombe 1998 (Statistics in Medicine 17:873), method 10: 56/70 − 48/80 and 9/10 − 3/10."""

    def items(right: int, num: int) -> list[list[float]]:
        return [[1.0 if index < right else 0.0] for index in range(num)]

    first = unpaired_difference(items(48, 80), items(56, 70))
    second = unpaired_difference(items(3, 10), items(9, 10))
    assert (first.low, first.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert (second.low, second.high) == pytest.approx((0.1705, 0.8090), abs=5e-5)


def test_items_that_agree_by_document_count_as_one_item_each() -> None:
    """Half of 20 documents all right, half all wrong, five items each: the variance is that of 20 items (times 20 ÷ 19,
    capped at 20 items), and the quantile is Student's of 19 degrees."""
    documents = [[1.0] * 5] * 10 + [[0.0] * 5] * 10
    found = share_clustering(documents)
    assert found.design_effect == pytest.approx(5.0)
    assert found.items == pytest.approx(20)
    width = stats.t.ppf(0.975, 19)
    half = width / (1 + width**2 / 20) * math.sqrt(0.25 / 20 + width**2 / (4 * 400))
    share = clustered_share(documents)
    assert (share.low, share.high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-9)


def test_one_item_per_document_is_plain_wilson() -> None:
    documents = [[1.0]] * 8 + [[0.0]] * 2
    plain = wilson(8, 10)
    clustered = clustered_share(documents)
    assert (clustered.low, clustered.high) == (plain.low, plain.high)


def test_until_the_scatter_can_be_seen_documents_hang_together_by_assumption() -> None:
    """Ten documents of five items, all right: 1 + 4 × 0.3 = 2.2 times the variance of independent items."""
    found = share_clustering([[1.0] * 5] * 10)
    assert found.design_effect == pytest.approx(2.2)
    alone, together = wilson(50, 50).low, clustered_share([[1.0] * 5] * 10).low
    assert alone is not None
    assert together is not None
    assert together < alone - 0.1


def test_several_items_of_one_document_have_no_interval() -> None:
    share = clustered_share([[1.0, 0.0, 1.0]])
    assert share.value == pytest.approx(2 / 3)
    assert not share.has_interval
    assert share.reason is not None
    assert share.reason.slug == "one_document"
    assert not paired_counts([[0.0, -1.0]]).difference().has_interval


def test_an_item_of_several_answers_is_one_item_and_half_a_loss_is_half_a_loss() -> None:
    counts = paired_counts([[-0.5], [0.0], [1.0], [0.0]])
    assert (counts.losses, counts.gains) == (0.5, 1.0)
    assert counts.difference().value == pytest.approx(0.125)
    assert counts.clustering.num_items == 4
