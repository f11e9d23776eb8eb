"""Did the machine, or a server that runs on, change while a design was measured? How its wait for the first token and
its memory changed over the order of its trials, and whether the repeats can tell that from noise.

Every measured trial counts, against the mean of its own level, so that what a level costs is no change. A machine that
slows down makes every time longer by a share of it, memory that is held in addition is as many bytes at every level.
One line through all of them (an analysis of covariance: a mean for each level, one slope), tested by Student's t with
Bonferroni's bound: the chance that any of a study's lines is called a change where there is none is FALSE_ALARMS.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.fit import Estimate, t_quantile
from kvscope.analysis.levels import METRICS, at_level, level_key
from kvscope.analysis.notes import note
from kvscope.record.rows import DesignRow

# From the first baseline to the last: beyond this it is asked whether that is noise.
DRIFT_SHARE = 0.15
# A line through all trials that is surely not level is a doubt from here on.
TREND_SHARE = 0.05
# Of a thousand studies in which nothing changes so many may be told that something did.
FALSE_ALARMS = 0.001
# What is looked at: the metric → how its drift is named.
TIME, MEMORY = "ttft_s", "memory_after_bytes"
METRICS_LOOKED_AT = (TIME, MEMORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How a metric changed over a design. ``share``: of the baseline's first value, from its first to its last.
    ``trend``: of the mean, along the line through all trials from the first one's start to the last's, with its 95 %
    interval. ``chance``: how often noise alone makes a line as steep; None where too few trials can tell.
    ``chance_limit``: a change is called at this or less."""

    metric: str
    share: float
    trend: Estimate
    evidence: tuple[str, ...]
    chance: float | None = None
    chance_limit: float = FALSE_ALARMS

    @property
    def is_told(self) -> bool:
        """Whether the repeats tell a change from noise: the line is surely not level, and rises or falls by more than
        TREND_SHARE."""
        is_sure = self.chance is not None and self.chance <= self.chance_limit
        return is_sure and abs(self.trend.value or 0.0) > TREND_SHARE

    @property
    def is_unclear(self) -> bool:
        """Whether the last baseline is further from the first than DRIFT_SHARE and nothing tells why: too few trials
        for an interval, or a line that noise alone might make."""
        return not self.is_told and abs(self.share) > DRIFT_SHARE


def baseline_drifts(
    designs: Sequence[tuple[DesignRow, Sequence[Attempt]]], metric: str = TIME
) -> tuple[tuple[DesignRow, Drift], ...]:
    """The drift of each design whose baseline has that metric at least twice."""
    found = []
    limit = FALSE_ALARMS / max(1, len(METRICS_LOOKED_AT) * len(designs))
    for design, attempts in designs:
        base = _known(at_level(attempts, design.baseline_level), metric)
        if len(base) >= 2:
            levels = {level_key(level): level for level in design.levels}.values()
            groups = [_known(at_level(attempts, level), metric) for level in levels]
            found.append((design, _drift(metric, base, [each for each in groups if each], limit)))
    return tuple(found)


_Known = list[tuple[Attempt, float]]


def _known(attempts: Sequence[Attempt], metric: str) -> _Known:
    known = [(a, value) for a in attempts if a.is_measured and (value := METRICS[metric](a))]
    return sorted(known, key=lambda pair: (pair[0].trial.started_at, pair[0].trial.position))


def _drift(metric: str, base: _Known, groups: Sequence[_Known], limit: float) -> Drift:
    values = [value for _, value in base]
    points = [[(float(a.trial.position), value) for a, value in group] for group in groups]
    trend, chance = trend_within(points, of_each=metric == TIME)
    return Drift(
        metric=metric,
        share=(values[-1] - values[0]) / values[0],
        trend=trend,
        evidence=(base[0][0].key, base[-1][0].key),
        chance=chance,
        chance_limit=limit,
    )


def trend_within(groups: Sequence[Sequence[tuple[float, float]]], *, of_each: bool) -> tuple[Estimate, float | None]:
    """From (place, value) of each group: how far the common line rises from the first place to the last, as a share,
    and how often noise alone makes a line as steep (two-sided Student's t; None without a degree of freedom).
    ``of_each``: values change by a share of each group's mean; else by as much in all, a share of the mean of all."""
    places = [place for group in groups for place, _ in group]
    span, num = max(places) - min(places), len(places)
    of_all = fmean(value for group in groups for _, value in group)
    points = []
    for group in groups:
        middle, mean_value = fmean(place for place, _ in group), fmean(value for _, value in group)
        unit = mean_value if of_each else of_all
        points += [(place - middle, (value - mean_value) / unit) for place, value in group]
    width = sum(x * x for x, _ in points)
    if not width:
        return Estimate(value=None, num=num, reason=note("one_level")), None
    slope = sum(x * y for x, y in points) / width
    degrees = num - len(groups) - 1
    if degrees < 1:
        return Estimate(value=slope * span, num=num, reason=note("too_few_points", count=num)), None
    error = sqrt(sum((y - slope * x) ** 2 for x, y in points) / degrees / width)
    half = t_quantile(degrees) * error
    trend = Estimate(value=slope * span, low=(slope - half) * span, high=(slope + half) * span, num=num)
    return trend, _chance(slope, error, degrees)


def _chance(slope: float, error: float, degrees: int) -> float:
    from scipy.special import stdtr

    if not error:
        return 0.0 if slope else 1.0
    return float(2 * stdtr(degrees, -abs(slope / error)))
