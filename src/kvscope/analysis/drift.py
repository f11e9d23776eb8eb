"""Did the machine, or a server that runs on, change while a design was measured? The baseline is run first, in the
middle and last: how its wait for the first token and its memory changed over that order, and whether the repeats can
tell that from noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.fit import Estimate, fit_line, scaled
from kvscope.analysis.levels import METRICS, at_level
from kvscope.record.rows import DesignRow

# From the first baseline to the last: beyond this it is asked whether that is noise.
DRIFT_SHARE = 0.15
# A line through all baselines that is surely not level is a doubt from here on.
TREND_SHARE = 0.05
# What is looked at: the metric → how its drift is named.
TIME, MEMORY = "ttft_s", "memory_after_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How a metric of the baseline changed over a design. ``share``: of its first value, from the first to the last.
    ``trend``: of its mean, along the line through all of them from the first trial's start to the last's."""

    metric: str
    share: float
    trend: Estimate
    evidence: tuple[str, ...]

    @property
    def is_told(self) -> bool:
        """Whether the repeats tell a change from noise: the line is surely not level, and rises or falls by more than
        TREND_SHARE."""
        is_sure = self.trend.has_interval and not self.trend.contains(0.0)
        return is_sure and abs(self.trend.value or 0.0) > TREND_SHARE

    @property
    def is_unclear(self) -> bool:
        """Whether the last value is further from the first than DRIFT_SHARE and nothing tells why: too few baselines
        for an interval, or one that holds zero."""
        return not self.is_told and abs(self.share) > DRIFT_SHARE


def baseline_drifts(
    designs: Sequence[tuple[DesignRow, Sequence[Attempt]]], metric: str = TIME
) -> tuple[tuple[DesignRow, Drift], ...]:
    """The drift of each design whose baseline has that metric at least twice."""
    found = []
    for design, attempts in designs:
        known = [(a, value) for a in at_level(attempts, design.baseline_level) if (value := _value(a, metric))]
        known.sort(key=lambda pair: (pair[0].trial.started_at, pair[0].trial.position))
        if len(known) >= 2:
            found.append((design, _drift(metric, known)))
    return tuple(found)


def _value(attempt: Attempt, metric: str) -> float | None:
    return METRICS[metric](attempt) if attempt.is_measured else None


def _drift(metric: str, known: Sequence[tuple[Attempt, float]]) -> Drift:
    values = [value for _, value in known]
    line = fit_line([(float(a.trial.position), value) for a, value in known])
    span = known[-1][0].trial.position - known[0][0].trial.position
    return Drift(
        metric=metric,
        share=(values[-1] - values[0]) / values[0],
        trend=scaled(line.slope, span / fmean(values)) if span > 0 else line.slope,
        evidence=(known[0][0].key, known[-1][0].key),
    )
