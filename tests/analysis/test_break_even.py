"""The break-even of whole document and passages, held against sums done by hand and against its own definition."""

from dataclasses import replace
from math import inf, sqrt
from random import Random
from statistics import fmean, stdev

import pytest

from kvscope.analysis.break_even import (
    Costs,
    Read,
    ReadingLaw,
    break_even,
    equal_size,
    equal_tokens,
    least_quotient,
    measured_break_even,
    quotient_limits,
    reading_law,
)
from kvscope.analysis.fit import t_quantile

LAW = ReadingLaw(fixed_s=0.05, per_token_s=0.002, per_pair_s=2e-7, num=9)


def total(costs: Costs, questions: int) -> tuple[float, float]:
    """What N questions cost both ways, added up question by question."""
    whole = costs.cold + sum(costs.warm for _ in range(questions - 1))
    return whole, sum(costs.each for _ in range(questions))


def test_by_hand() -> None:
    # 10 s once and 1 s a question against 4 s a question: 10 + 1·(N − 1) = 4·N at N = 3, 12 s both ways.
    costs = Costs(cold=10, warm=1, each=4)
    assert break_even(costs) == 3
    assert total(costs, 3) == (12, 12)


@pytest.mark.parametrize("costs", [Costs(cold=7.0, warm=0.063, each=1.11), Costs(cold=32.9, warm=0.108, each=1.02)])
def test_before_it_passages_are_cheaper_and_behind_it_the_whole(costs: Costs) -> None:
    questions = break_even(costs)
    for number in range(1, 60):
        whole, passages = total(costs, number)
        assert (whole < passages) == (number > questions)


def test_passages_that_cost_no_more_than_a_later_question_are_never_caught_up_with() -> None:
    assert break_even(Costs(cold=5, warm=1, each=1)) == inf
    assert break_even(Costs(cold=5, warm=1, each=0.5)) == inf
    assert measured_break_even([Costs(cold=5, warm=1, each=0.5)] * 3).value is None


def test_a_whole_document_as_short_as_passages_is_cheaper_at_once() -> None:
    assert break_even(Costs(cold=1, warm=0.1, each=1)) == 1


def test_at_the_limits_the_difference_is_exactly_so_many_standard_errors() -> None:
    pairs = [(9.0, 1.0), (10.5, 1.2), (9.7, 0.9), (11.0, 1.15)]
    width = t_quantile(3)
    limits = quotient_limits(pairs, width)
    assert limits is not None
    for limit in limits:
        rest = [x - limit * y for x, y in pairs]
        assert abs(fmean(rest)) / (stdev(rest) / sqrt(len(rest))) == pytest.approx(width, rel=1e-9)


def test_a_cost_that_is_not_told_from_nothing_bounds_no_quotient() -> None:
    assert quotient_limits([(9.0, 1.0), (10.0, -0.9), (9.5, 0.4)], t_quantile(2)) is None
    found = measured_break_even([Costs(cold=10, warm=1, each=each) for each in (2.0, 0.9, 1.4)])
    assert found.value is not None
    assert not found.has_interval


def test_one_repeat_has_no_interval_and_the_same_repeats_have_none_of_width() -> None:
    assert not measured_break_even([Costs(cold=10, warm=1, each=4)]).has_interval
    found = measured_break_even([Costs(cold=10, warm=1, each=4)] * 3)
    assert (found.low, found.high) == (pytest.approx(3), pytest.approx(3))


def test_the_law_is_found_again_from_what_it_says() -> None:
    reads = [Read(start=s, tokens=n, seconds=LAW.seconds(s, n)) for s, n in [(0, 30), (0, 2000), (1980, 20), (30, 300)]]
    found = reading_law(reads)
    assert found is not None
    assert found.fixed_s == pytest.approx(LAW.fixed_s)
    assert found.per_token_s == pytest.approx(LAW.per_token_s)
    assert found.per_pair_s == pytest.approx(LAW.per_pair_s)


def test_two_kinds_of_requests_give_a_straight_law_and_one_kind_none() -> None:
    found = reading_law([Read(start=0, tokens=100, seconds=0.3), Read(start=0, tokens=1000, seconds=2.1)])
    assert found is not None
    assert (found.fixed_s, found.per_token_s, found.per_pair_s) == (pytest.approx(0.1), pytest.approx(0.002), 0)
    assert reading_law([Read(start=0, tokens=100, seconds=0.3)] * 5) is None
    assert reading_law([]) is None


def test_no_part_of_a_law_is_below_nothing() -> None:
    points = [(100, 0.5), (500, 1.4), (1000, 2.0), (2000, 2.9)]
    found = reading_law([Read(start=0, tokens=n, seconds=s) for n, s in points])
    assert found is not None
    assert found.per_pair_s == 0  # the waits rise ever more slowly
    # Then it is the straight law of least shares of error: both sums of error by what each part adds are 0.
    errors = [(found.seconds(0, n) - s) / s for n, s in points]
    assert sum(error / s for error, (_, s) in zip(errors, points, strict=True)) == pytest.approx(0, abs=1e-9)
    assert sum(error * n / s for error, (n, s) in zip(errors, points, strict=True)) == pytest.approx(0, abs=1e-6)


def test_of_all_laws_without_a_part_below_nothing_it_is_the_nearest() -> None:
    reads = [Read(start=0, tokens=n, seconds=s) for n, s in [(30, 0.2), (300, 0.35), (1200, 4.0), (1210, 3.1)]]

    def error(law: ReadingLaw) -> float:
        return sum((law.seconds(read.start, read.tokens) / read.seconds - 1) ** 2 for read in reads)

    found = reading_law(reads)
    assert found is not None
    for part in ("fixed_s", "per_token_s", "per_pair_s"):
        for by in (-1e-3, -1e-5, -1e-8, 1e-8, 1e-5, 1e-3):
            other = replace(found, **{part: max(0.0, getattr(found, part) + by)})
            assert error(other) >= error(found) - 1e-12


def test_parts_that_requests_cannot_tell_apart_are_left_out() -> None:
    # As many tokens each time, behind others: one part cannot be for the request and another for its tokens.
    found = reading_law([Read(start=0, tokens=100, seconds=0.3), Read(start=900, tokens=100, seconds=0.48)])
    assert found is not None
    # 100 a + 10,000 b = 0.3 and 100 a + 190,000 b = 0.48: b = 1e-6, a = 0.0029.
    assert (found.fixed_s, found.per_token_s, found.per_pair_s) == (0, pytest.approx(0.0029), pytest.approx(1e-6))


def test_a_break_even_by_the_law_is_that_of_its_costs() -> None:
    # Cold: 0.05 + 4 + 0.8 = 4.85. Warm, 20 behind 1,980: 0.05 + 0.04 + 2e-7·(2000² − 1980²) = 0.10592.
    # Passages of 300: 0.05 + 0.6 + 0.018 = 0.668.
    costs = LAW.costs(whole_tokens=2000, warm_tokens=20, each_tokens=300)
    assert costs.cold == pytest.approx(4.85)
    assert costs.warm == pytest.approx(0.10592)
    assert costs.each == pytest.approx(0.668)
    assert break_even(costs) == pytest.approx((4.85 - 0.10592) / (0.668 - 0.10592))


def test_equal_tokens_by_hand() -> None:
    # 10 questions of 300 tokens are 3,000; nine later ones of 10 leave 2,910 for the document.
    assert equal_tokens(10, warm_tokens=10, each_tokens=300) == 2910
    assert equal_tokens(1, warm_tokens=10, each_tokens=300) == 300


@pytest.mark.parametrize("questions", [1, 10, 100])
def test_up_to_the_equal_size_the_whole_is_quicker_and_beyond_it_not(questions: int) -> None:
    size = equal_size(LAW, questions, warm_tokens=20, each_tokens=300)
    assert size is not None
    for tokens, is_quicker in ((int(size), True), (int(size) + 2, False)):
        costs = LAW.costs(whole_tokens=tokens, warm_tokens=min(20, tokens), each_tokens=300)
        whole, passages = total(costs, questions)
        assert (whole <= passages + 1e-9) is is_quicker


def test_a_law_without_a_cost_of_tokens_knows_no_such_size() -> None:
    assert (
        equal_size(ReadingLaw(fixed_s=1, per_token_s=0, per_pair_s=0, num=2), 3, warm_tokens=2, each_tokens=9) is None
    )


def noisy(seed: int, *, warm: float, each: float) -> list[Costs]:
    """Thirty repeats with a standard deviation of 50 ms."""
    random = Random(seed)
    return [
        Costs(cold=1 + random.gauss(0, 0.05), warm=warm + random.gauss(0, 0.05), each=each + random.gauss(0, 0.05))
        for _ in range(30)
    ]


def test_what_the_repeats_do_not_tell_is_neither_a_number_nor_none() -> None:
    # 5 ms more a question under a noise of 50: the true break-even is 0.9 ÷ 0.005 = 180, and no thirty repeats tell it.
    for seed in range(6):
        found = measured_break_even(noisy(seed, warm=0.100, each=0.105))
        assert found.reason is not None
        assert found.reason.slug == "each_not_told"
        assert found.high is None
        assert found.low is not None
        assert 1 < found.low < 180


def test_where_passages_surely_cost_less_there_is_none_and_one_repeat_does_not_tell() -> None:
    found = measured_break_even(noisy(0, warm=0.4, each=0.1))
    assert (found.value, found.low, found.reason) == (None, None, None)
    once = measured_break_even(noisy(0, warm=0.4, each=0.1)[:1])
    assert once.value is None
    assert once.reason is not None
    assert once.reason.slug == "one_repeat"


def test_what_it_is_beyond_is_so_many_standard_errors_away() -> None:
    pairs = [(each.cold - each.warm, each.each - each.warm) for each in noisy(1, warm=0.100, each=0.105)]
    width = t_quantile(len(pairs) - 1)
    least = least_quotient(pairs, width)
    assert least is not None
    rest = [x - least * y for x, y in pairs]
    assert abs(fmean(rest)) / (stdev(rest) / sqrt(len(rest))) == pytest.approx(width, rel=1e-9)
    assert fmean(rest) > 0  # every smaller number above 0 is farther away
    assert least_quotient([(-x, y) for x, y in pairs], width) is None


def test_no_number_of_questions_is_below_one() -> None:
    assert break_even(Costs(cold=0.28, warm=0.30, each=2.0)) == 1
    found = measured_break_even([Costs(cold=cold, warm=0.3, each=2.0) for cold in (0.28, 0.3, 0.29)])
    assert (found.value, found.low, found.high) == (1, 1, 1)
    assert equal_tokens(10, warm_tokens=2000, each_tokens=300) == 0
