"""Least squares and Student's t against published tables, a worked example and known laws."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.analysis.fit import fit_line, fit_quadratic, mean, mean_difference, scaled, t_quantile


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.706), (2, 4.303), (5, 2.571), (10, 2.228), (30, 2.042)])
def test_t_as_in_every_printed_table(degrees: int, quantile: float) -> None:
    assert t_quantile(degrees) == pytest.approx(quantile, abs=5e-4)


def test_a_mean_worked_out_by_hand() -> None:
    # 2, 4, 6: mean 4, standard deviation 2, half width 4.3027 × 2 / √3 = 4.9683.
    found = mean([2, 4, 6])
    assert (found.value, found.num) == (4, 3)
    assert found.low == pytest.approx(4 - 4.9683, abs=1e-4)
    assert found.high == pytest.approx(4 + 4.9683, abs=1e-4)
    assert found.reason is None


def test_what_cannot_be_negative_has_no_interval_below_zero() -> None:
    assert mean([2, 4, 6], floor=0.0).low == 0.0
    assert mean([100, 101, 102], floor=0.0).low == pytest.approx(101 - 4.3027 / 3**0.5, abs=1e-3)


def test_few_repeats_are_said() -> None:
    assert (found := mean([1, 3])).has_interval
    assert found.reason is not None
    assert found.reason.slug == "few_repeats"
    alone = mean([1.0])
    assert (alone.value, alone.has_interval) == (1.0, False)
    assert alone.reason is not None
    assert alone.reason.slug == "one_repeat"
    assert mean([]).value is None


def test_a_difference_is_paired() -> None:
    # Blocks differ by far more than the change does; the pairs do not: 1, 1, 1.
    found = mean_difference([(10, 11), (20, 21), (30, 31)])
    assert (found.value, found.low, found.high) == (1, 1, 1)


def test_a_line_worked_out_by_hand() -> None:
    # x 1 2 3 4, y 2 4 5 4. Means 2.5 and 3.75; Sxx = 5; Sxy = 2.625 + (-0.125) + 0.625 + 0.375 = 3.5; slope 0.7.
    # Intercept 2. Errors -0.7, 0.6, 0.9, -0.8: squares 0.49 + 0.36 + 0.81 + 0.64 = 2.3.
    # Standard error √(2.3 / 2 / 5) = 0.47958; half width 4.3027 × 0.47958 = 2.0635.
    line = fit_line([(1, 2), (2, 4), (3, 5), (4, 4)])
    assert line.slope.value == pytest.approx(0.7)
    assert line.intercept == pytest.approx(2)
    assert line.slope.low == pytest.approx(0.7 - 2.0635, abs=1e-4)
    assert line.slope.high == pytest.approx(0.7 + 2.0635, abs=1e-4)
    assert line.at(10) == pytest.approx(9)
    assert line.num_levels == 4


def test_no_slope_from_one_level_and_no_interval_from_two_points() -> None:
    one = fit_line([(5, 1), (5, 2), (5, 3)])
    assert one.slope.value is None
    assert one.slope.reason is not None
    assert one.slope.reason.slug == "one_level"
    assert one.at(5) is None
    two = fit_line([(1, 1), (2, 3)])
    assert two.slope.value == 2
    assert not two.slope.has_interval
    assert fit_line([]).slope.value is None


def test_a_bend_needs_three_levels() -> None:
    assert fit_line([(1, 1), (1, 2), (2, 3), (2, 4)]).bend.value is None


_levels = st.lists(st.integers(1, 100_000), min_size=3, max_size=8, unique=True)


@settings(deadline=None)  # a busy machine is no failure
@given(_levels, st.integers(-1000, 1000), st.integers(-10_000, 10_000))
def test_a_known_line_comes_back(xs: list[int], slope: int, intercept: int) -> None:
    line = fit_line([(x, intercept + slope * x) for x in xs])
    size = max(abs(intercept), abs(slope) * max(xs), 1)
    assert line.slope.value == pytest.approx(slope, abs=1e-9 * size)
    assert line.bend.value == pytest.approx(0, abs=1e-6 * size / max(abs(x - y) for x in xs for y in xs) ** 2)


@settings(deadline=None)  # a busy machine is no failure
@given(_levels, st.floats(1e-6, 1e-3))
def test_a_known_parabola_comes_back_in_the_bend(xs: list[int], bend: float) -> None:
    assert fit_line([(x, 3 + 0.5 * x + bend * x * x) for x in xs]).bend.value == pytest.approx(bend, rel=1e-4)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    # 2,000 experiments of 4 levels × 3 repeats; the standard error of the share is √(0.95 × 0.05 / 2,000) = 0.5 %.
    noise = random.Random(7)
    held = 0
    for _ in range(2000):
        points = [(x, 5 + 3 * x + noise.gauss(0, 2)) for x in (1, 2, 4, 8) for _ in range(3)]
        held += fit_line(points).slope.contains(3)
    assert 0.935 < held / 2000 < 0.965


def test_other_units() -> None:
    found = scaled(mean([2, 4, 6]), 1000)
    assert found.value == 4000
    assert found.low is not None
    assert found.low == pytest.approx(-968.3, abs=0.1)
    assert scaled(mean([]), 1000).value is None


def test_a_parabola_worked_out_by_hand() -> None:
    # Block 0: 1 + 2x + 3x² at 1, 2, 3 is 6, 17, 34. Block 1: 2 + 4x + 3x² is 9, 22, 41. Three points lie on one
    # parabola, so each block gives its own back; over the two blocks: 1.5, 3 and 3. The standard deviation of 2 and 4
    # is √2, so the linear part's half width is 12.7062 × √2 / √2 = 12.7062.
    found = fit_quadratic([(0, 1, 6), (0, 2, 17), (0, 3, 34), (1, 1, 9), (1, 2, 22), (1, 3, 41)])
    assert found.intercept.value == pytest.approx(1.5)
    assert found.linear.value == pytest.approx(3)
    assert found.linear.low == pytest.approx(3 - 12.7062, abs=1e-4)
    assert found.quadratic.value == pytest.approx(3)
    assert found.quadratic.high == pytest.approx(3, abs=1e-9)
    assert found.num == 2
    assert found.at(10) == pytest.approx(1.5 + 30 + 300)


def test_a_parabola_needs_three_lengths_in_a_block() -> None:
    two = fit_quadratic([(0, 1, 6), (0, 2, 17), (1, 3, 34)])
    assert (two.quadratic.value, two.num, two.at(1)) == (None, 0, None)
    assert two.quadratic.reason is not None
    assert two.quadratic.reason.slug == "two_levels"
    assert fit_quadratic([]).linear.value is None
    # A block that lost one of its lengths is left out; the whole one counts, alone without an interval.
    one = fit_quadratic([(0, 1, 6), (0, 2, 17), (0, 3, 34), (1, 1, 9), (1, 2, 22)])
    assert (one.num, one.linear.has_interval) == (1, False)
    assert one.linear.value == pytest.approx(2)


@settings(deadline=None)  # a busy machine is no failure
@given(st.floats(0.001, 1), st.floats(1e-6, 1e-3), st.floats(0, 1e-7), st.floats(0.5, 2))
def test_a_known_law_comes_back_from_blocks_of_any_speed(
    start: float, linear: float, square: float, slow: float
) -> None:
    lengths = (128, 512, 2048, 8192)
    points = [(b, x, s * (start + linear * x + square * x * x)) for b, s in enumerate((1.0, slow)) for x in lengths]
    found, mean_speed = fit_quadratic(points), (1 + slow) / 2
    size = start + linear * 8192 + square * 8192**2
    assert found.intercept.value == pytest.approx(mean_speed * start, abs=1e-8 * size)
    assert found.linear.value == pytest.approx(mean_speed * linear, abs=1e-8 * size / 128)
    assert found.quadratic.value == pytest.approx(mean_speed * square, abs=1e-8 * size / 128**2)


def test_its_intervals_hold_the_truth_as_often_as_they_say() -> None:
    # 2,000 studies of five blocks and four lengths; the noise is 5 % of each time, and blocks differ by 10 %. A line or
    # parabola through all points at once, whose errors are taken to be equal, holds the intercept far less often.
    noise = random.Random(11)
    truth = (0.05, 2e-4, 4e-8)
    held = [0, 0, 0]
    for _ in range(2000):
        points = []
        for block in range(5):
            slow = noise.gauss(1, 0.1)
            for x in (128, 512, 2048, 8192):
                y = truth[0] + truth[1] * x + truth[2] * x * x
                points.append((block, x, slow * y * noise.gauss(1, 0.05)))
        found = fit_quadratic(points)
        for n, (part, true) in enumerate(zip((found.intercept, found.linear, found.quadratic), truth, strict=True)):
            held[n] += part.contains(true)
    # Two standard errors of 0.5 % each to 93 and 97 %.
    assert all(0.93 <= count / 2000 <= 0.97 for count in held), held
