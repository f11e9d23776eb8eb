"""Slopes, differences and means, each with its 95 % interval, or the reason why there is none.

Ordinary least squares and Student's t. The only number taken from outside is t's quantile (scipy).
"""

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
    points: above zero where y grows faster than x."""

    intercept: float | None
    slope: Estimate
    bend: Estimate
    num_points: int
    num_levels: int

    def at(self, x: float) -> float | None:
        if self.intercept is None or self.slope.value is None:
            return None
        return self.intercept + self.slope.value * x


def t_quantile(degrees: int) -> float:
    """Two-sided 95 % quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + CONFIDENCE / 2))


def mean(values: Sequence[float], *, floor: float | None = None) -> Estimate:
    """Mean of repeats. One value has no interval. ``floor``: what cannot be below it (a time, a size of memory) has no
    interval that reaches below it either."""
    count = len(values)
    if count == 0:
        return Estimate(value=None, reason=note("nothing_measured"))
    center = fmean(values)
    if count == 1:
        return Estimate(value=center, num=1, reason=note("one_repeat"))
    spread = sqrt(sum((v - center) ** 2 for v in values) / (count - 1))
    half = t_quantile(count - 1) * spread / sqrt(count)
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
    return Line(
        intercept=intercept,
        slope=_coefficient(slope, errors, spread, len(points) - 2),
        bend=_bend(points, errors),
        num_points=len(points),
        num_levels=levels,
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


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """``estimate`` times a positive ``factor``: per token into per thousand tokens, seconds into milliseconds."""
    return Estimate(
        value=None if estimate.value is None else estimate.value * factor,
        low=None if estimate.low is None else estimate.low * factor,
        high=None if estimate.high is None else estimate.high * factor,
        num=estimate.num,
        reason=estimate.reason,
    )
