"""Slopes, differences and means, each with its 95 % interval, or the reason why there is none.

Ordinary least squares and Student's t. The only number taken from outside is t's quantile (scipy).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

from kvscope.analysis.notes import Note, note

CONFIDENCE = 0.95
# Below this many repeats an interval is given, and said to rest on few.
FEW_REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with its 95 % interval. ``low`` and ``high`` are None, and ``reason`` says why, where the data cannot
    give an interval; ``value`` is None where they cannot give a value either."""

    value: float | None
    low: float | None = None
    high: float | None = None
    num: int = 0
    reason: Note | None = None

    @property
    def has_interval(self) -> bool:
        return self.low is not None and self.high is not None

    def contains(self, value: float) -> bool:
        """Whether the interval covers ``value``; False where there is no interval."""
        return self.low is not None and self.high is not None and self.low <= value <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """y = intercept + slope · x, by least squares. ``bend`` is the coefficient of x² of the parabola through the same
    points: above zero where y grows faster than x. ``intercept_high``: the upper end of the intercept's interval."""

    intercept: float | None
    slope: Estimate
    bend: Estimate
    num_points: int
    num_levels: int
    intercept_high: float | None = None

    def at(self, x: float) -> float | None:
        if self.intercept is None or self.slope.value is None:
            return None
        return self.intercept + self.slope.value * x


@dataclass(frozen=True, slots=True, kw_only=True)
class Parabola:
    """y = intercept + linear · x + quadratic · x², each with its interval. ``num``: how many blocks it rests on;
    ``blocks``: the three coefficients of each."""

    intercept: Estimate
    linear: Estimate
    quadratic: Estimate
    num: int
    confidence: float = CONFIDENCE
    blocks: tuple[tuple[float, float, float], ...] = ()

    def estimate_at(self, x: float) -> Estimate:
        """y at x with its interval: of each block's own parabola, over the blocks."""
        return mean(
            [start + linear * x + square * x * x for start, linear, square in self.blocks], confidence=self.confidence
        )

    def at(self, x: float) -> float | None:
        """y at x; None where nothing was fitted."""
        parts = (self.intercept.value, self.linear.value, self.quadratic.value)
        if parts[0] is None or parts[1] is None or parts[2] is None:
            return None
        return parts[0] + parts[1] * x + parts[2] * x * x


@functools.cache
def t_quantile(degrees: float, confidence: float = CONFIDENCE) -> float:
    """Two-sided quantile of Student's t, 95 % unless told otherwise."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + confidence / 2))


def mean(values: Sequence[float], *, floor: float | None = None, confidence: float = CONFIDENCE) -> Estimate:
    """Mean of repeats. One value has no interval. ``floor``: what cannot be below it (a time, a size of memory) has no
    interval that reaches below it either."""
    count = len(values)
    if count == 0:
        return Estimate(value=None, reason=note("nothing_measured"))
    center = fmean(values)
    if count == 1:
        return Estimate(value=center, num=1, reason=note("one_repeat"))
    spread = sqrt(sum((v - center) ** 2 for v in values) / (count - 1))
    half = t_quantile(count - 1, confidence) * spread / sqrt(count)
    low = center - half if floor is None else max(floor, center - half)
    return Estimate(value=center, low=low, high=center + half, num=count, reason=_few(count))


def mean_difference(pairs: Sequence[tuple[float, float]]) -> Estimate:
    """Mean of (changed − baseline) over blocks; each pair is (baseline, changed) of one block."""
    return mean([changed - baseline for baseline, changed in pairs])


def _few(count: int) -> Note | None:
    return note("few_repeats", count=count) if count < FEW_REPEATS else None


def fit_line(points: Sequence[tuple[float, float]]) -> Line:
    """Least squares through (x, y). Fewer than two different x give no slope; its interval needs three points."""
    levels = len({x for x, _ in points})
    if levels < 2:
        reason = note("one_level") if points else note("nothing_measured")
        nothing = Estimate(value=None, num=len(points), reason=reason)
        return Line(intercept=None, slope=nothing, bend=nothing, num_points=len(points), num_levels=levels)
    mean_x, mean_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    intercept = mean_y - slope * mean_x
    errors = [y - intercept - slope * x for x, y in points]
    at_zero = _coefficient(intercept, errors, 1 / (1 / len(points) + mean_x**2 / spread), len(points) - 2)
    return Line(
        intercept=intercept,
        slope=_coefficient(slope, errors, spread, len(points) - 2),
        bend=_bend(points, errors),
        num_points=len(points),
        num_levels=levels,
        intercept_high=at_zero.high,
    )


def _coefficient(value: float, errors: Sequence[float], spread: float, degrees: int) -> Estimate:
    count = len(errors)
    if degrees < 1:
        return Estimate(value=value, num=count, reason=note("too_few_points", count=count))
    half = t_quantile(degrees) * sqrt(sum(e * e for e in errors) / degrees / spread)
    return Estimate(value=value, low=value - half, high=value + half, num=count)


def _bend(points: Sequence[tuple[float, float]], errors: Sequence[float]) -> Estimate:
    """Coefficient of x², from the errors of the line and the part of x² that no line explains."""
    if len({x for x, _ in points}) < 3:
        return Estimate(value=None, num=len(points), reason=note("two_levels"))
    center = fmean(x for x, _ in points)
    scale = max(abs(x - center) for x, _ in points)
    unit = [(x - center) / scale for x, _ in points]
    squares = [u * u for u in unit]
    mean_square = fmean(squares)
    tilt = sum(u * s for u, s in zip(unit, squares, strict=True)) / sum(squares)
    curve = [s - mean_square - tilt * u for u, s in zip(unit, squares, strict=True)]
    spread = sum(c * c for c in curve)
    value = sum(c * e for c, e in zip(curve, errors, strict=True)) / spread
    left = [e - value * c for c, e in zip(curve, errors, strict=True)]
    estimate = _coefficient(value, left, spread, len(points) - 3)
    return scaled(estimate, 1 / scale**2)


def fit_quadratic(points: Sequence[tuple[int, float, float]], *, confidence: float = CONFIDENCE) -> Parabola:
    """A parabola through (block, x, y) with x and y above zero, paired by block: one is fitted through the points of
    each block that has three different x, and their coefficients are averaged, with Student's t over the blocks. So a
    block that was slow as a whole does no harm. Noise may grow with y, as that of times does: within a block a point
    counts by its share, not by its seconds."""
    y_of: dict[float, list[float]] = {}
    blocks: dict[int, list[tuple[float, float]]] = {}
    for block, x, y in points:
        y_of.setdefault(x, []).append(y)
        blocks.setdefault(block, []).append((x, y))
    weights = {x: 1 / fmean(values) ** 2 for x, values in y_of.items() if fmean(values) > 0}
    whole = [b for b in blocks.values() if len({x for x, _ in b if x in weights}) >= 3]
    if not whole:
        nothing = Estimate(value=None, num=0, reason=note("two_levels" if points else "nothing_measured"))
        return Parabola(intercept=nothing, linear=nothing, quadratic=nothing, num=0)
    found = [_parabola([(x, y, weights[x]) for x, y in block if x in weights]) for block in whole]
    intercept, linear, quadratic = (mean(each, confidence=confidence) for each in zip(*found, strict=True))
    return Parabola(
        intercept=intercept,
        linear=linear,
        quadratic=quadratic,
        num=len(found),
        confidence=confidence,
        blocks=tuple(found),
    )


def _parabola(points: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """Coefficients of 1, x and x² by weighted least squares through (x, y, weight); x is scaled to at most 1."""
    scale = max(abs(x) for x, _, _ in points)
    top = max(weight for _, _, weight in points)
    rows = [(1.0, x / scale, (x / scale) ** 2, y, weight / top) for x, y, weight in points]
    table = [[sum(r[4] * r[i] * r[j] for r in rows) for j in range(4)] for i in range(3)]
    for i in range(3):
        pivot = max(range(i, 3), key=lambda n: abs(table[n][i]))
        table[i], table[pivot] = table[pivot], table[i]
        for n in range(i + 1, 3):
            factor = table[n][i] / table[i][i]
            table[n] = [a - factor * b for a, b in zip(table[n], table[i], strict=True)]
    quadratic = table[2][3] / table[2][2]
    linear = (table[1][3] - table[1][2] * quadratic) / table[1][1]
    intercept = (table[0][3] - table[0][2] * quadratic - table[0][1] * linear) / table[0][0]
    return intercept, linear / scale, quadratic / scale**2


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """``estimate`` times a positive ``factor``: per token into per thousand tokens, seconds into milliseconds."""
    return Estimate(
        value=None if estimate.value is None else estimate.value * factor,
        low=None if estimate.low is None else estimate.low * factor,
        high=None if estimate.high is None else estimate.high * factor,
        num=estimate.num,
        reason=estimate.reason,
    )


def shifted(estimate: Estimate, by: float) -> Estimate:
    """``estimate`` plus a number that is known exactly: a difference from a prediction, say."""
    return Estimate(
        value=None if estimate.value is None else estimate.value + by,
        low=None if estimate.low is None else estimate.low + by,
        high=None if estimate.high is None else estimate.high + by,
        num=estimate.num,
        reason=estimate.reason,
    )
