"""The effect of a change: a difference with its interval, never two means side by side.

Within a design, conditions are paired by block: each block holds every condition once, so that a slow quarter of an
hour hits both sides of a pair alike. Intervals are Student's t on the paired differences (two sets of attempts that
share no blocks: Welch's). Bootstraps were tried on simulated studies and covered the truth less often, at every number
of repeats that anybody runs (docs/reference/statistics.md has the figures).

No interval is narrower than what can be resolved (``resolution_of``): memory comes in pages, moments in the clock's
steps. Two or three equal values show that the noise is below that, never that there is none.

Two things are kept apart. The *interval* of each level is 95 % by itself. A difference is *called* one (``is_seen``)
only where a wider interval, which holds for all levels of the design together, leaves out zero: of studies in which
nothing differs, no more than 5 % call anything a difference, however many levels they have.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import expm1, log, sqrt
from statistics import fmean

from kvscope.analysis.fit import Estimate, mean, scaled, t_quantile
from kvscope.analysis.notes import note

PAIRED, UNPAIRED, NO_METHOD = "paired_t", "welch_t", "none"
# A number of repeats beyond which none is worth naming.
MOST_NEEDED = 100_000
# A change by less than this share is what is left of rounding: numbers that were added in another order.
ROUNDING = 1e-9
# Memory is read in pages: each reading may be off by half of one, and so may the other that it is compared with.
PAGE_BYTES = 4096.0
# Moments closer than this are not told apart: by the clock, the reading of a socket, and the rounding of sums.
CLOCK_S = 1e-6
# The standard deviation that rounding to whole steps leaves in a difference of two values: √2 ÷ √12 of a step.
ROUNDED = sqrt(1 / 6)
# An interval of a ratio that reaches further than to this many times as much (or as little) says nothing.
MOST_RATIO = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRates:
    """How often an interval may miss the truth, and how often a study without any difference may call one."""

    interval: float
    call: float


# The second number is below 5 % because no noise is exactly normal, and because a thousand studies shall not call more
# than fifty by bad luck either.
FIXED = ErrorRates(interval=0.05, call=0.035)
# Where repeating ended because the interval had become narrow (``--until``), the interval is narrow by luck more often
# than others: the rates that bring coverage back to 95 % were found by simulation (tests/analysis/test_precision.py).
STOPPED = ErrorRates(interval=0.04, call=0.025)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """changed − baseline of one metric.

    ``baseline`` and ``changed`` are the means that the difference is between. ``difference`` has the 95 % interval of
    this level by itself. ``relative`` is the change as a share: the ratio changed ÷ baseline of each block, averaged as
    logarithms (the geometric mean), less one; a block that was slow for both has the same ratio as any other.
    ``together`` is the wider interval of the difference that holds for all ``num_levels`` levels compared with one
    baseline. ``method``: paired_t (Student's t on the differences of ``num_pairs`` blocks), welch_t (no blocks in
    common) or none (too few). ``spread``: the standard deviation of the paired differences; ``widest``: the largest of
    them, whatever its sign. ``resolution``: the smallest difference that single values can show."""

    metric: str
    baseline: float | None
    changed: float | None
    difference: Estimate
    relative: Estimate
    together: Estimate
    method: str
    num_pairs: int
    num_levels: int = 1
    spread: float | None = None
    widest: float | None = None
    resolution: float = 0.0
    rates: ErrorRates = FIXED

    @property
    def is_same(self) -> bool:
        """Whether no pair shows any difference that can be resolved."""
        return self.is_known and self.widest is not None and self.widest <= self.resolution

    @property
    def is_known(self) -> bool:
        """Whether there is an interval at all: two pairs at least."""
        return self.difference.has_interval

    @property
    def is_seen(self) -> bool:
        """Whether this may be called a difference: zero is outside the interval that holds for all levels together."""
        return self.together.has_interval and not self.together.contains(0.0) and not self._is_rounding

    @property
    def _is_rounding(self) -> bool:
        return _is_rounding(self.baseline or 0.0, self.changed or 0.0)

    @property
    def verdict(self) -> str:
        """more, less, no_difference_seen, or unknown (too few repeats for an interval)."""
        if not self.is_known or self.difference.value is None:
            return "unknown"
        if not self.is_seen:
            return "no_difference_seen"
        return "more" if self.difference.value > 0 else "less"

    @property
    def share(self) -> Estimate:
        """The difference with its interval as a share of the baseline, as it is shown: its sign is the difference's.
        No value where the baseline is not above zero."""
        if self.baseline is None or self.baseline <= 0:
            return Estimate(value=None, num=self.difference.num, reason=note("not_above_zero"))
        return scaled(self.difference, 1 / self.baseline)

    @property
    def would_have_been_seen(self) -> float | None:
        """The size of difference that the interval rules out, whichever its sign: larger ones would have been seen."""
        low, high = self.difference.low, self.difference.high
        return None if low is None or high is None else max(abs(low), abs(high))

    @property
    def half_width(self) -> float | None:
        """How far the interval of the difference reaches to either side."""
        low, high = self.difference.low, self.difference.high
        return None if low is None or high is None else (high - low) / 2

    def repeats_needed(self, half_width: float) -> int | None:
        """How many blocks would give an interval that reaches no further than ``half_width`` to either side, if they
        are as noisy as those measured. None where that is not known (fewer than two pairs, or no pairs at all), or
        where it is less than can be resolved."""
        if self.spread is None or half_width <= 0 or half_width < self.resolution:
            return None
        return _repeats(max(self.spread, ROUNDED * self.resolution), half_width, self.rates.interval)


def _repeats(spread: float, half_width: float, error: float) -> int:
    """The smallest n with t(n − 1) · spread / √n ≤ half_width."""
    low, high = 1, 2
    while high < MOST_NEEDED and t_quantile(high - 1, 1 - error) * spread / sqrt(high) > half_width:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if t_quantile(middle - 1, 1 - error) * spread / sqrt(middle) > half_width:
            low = middle
        else:
            high = middle
    return high


def _is_rounding(baseline: float, changed: float) -> bool:
    return abs(changed - baseline) <= ROUNDING * max(abs(baseline), abs(changed))


def resolution_of(metric: str) -> float:
    """How far a difference of two values of a metric may be off by reading alone: a page of memory, a step of the
    clock, half a token (counts are whole). 0.0 of a rate, which is as fine as its time."""
    if "_bytes" in metric:
        return PAGE_BYTES
    if "_per_s" in metric:
        return 0.0
    return CLOCK_S if metric.endswith("_s") else 0.5 if "_tokens" in metric else 0.0


def _resolution(metric: str, given: float | None, values: Sequence[float]) -> float:
    """``given``, or that of the metric; never below what is left of rounding in sums of such values."""
    own = resolution_of(metric) if given is None else given
    return max(own, ROUNDING * max((abs(value) for value in values), default=0.0))


def paired_effect(
    metric: str,
    pairs: Sequence[tuple[float, float]],
    *,
    num_levels: int = 1,
    rates: ErrorRates = FIXED,
    resolution: float | None = None,
) -> Effect:
    """The effect from (baseline, changed) of each block; what rounding left between the two is no difference.
    ``num_levels``: how many levels are compared with the same baseline. ``resolution``: the smallest difference that
    can be resolved, where it is not the metric's own."""
    pairs = [(baseline, baseline if _is_rounding(baseline, changed) else changed) for baseline, changed in pairs]
    differences = [changed - baseline for baseline, changed in pairs]
    count = len(pairs)
    step = _resolution(metric, resolution, [value for pair in pairs for value in pair])
    difference = _resolved(mean(differences, confidence=1 - rates.interval), differences, step, rates.interval)
    base = fmean(b for b, _ in pairs) if pairs else None
    return Effect(
        metric=metric,
        baseline=base,
        changed=fmean(c for _, c in pairs) if pairs else None,
        difference=difference,
        relative=_paired_share(pairs, step, rates.interval),
        together=_resolved(
            mean(differences, confidence=1 - rates.call / num_levels), differences, step, rates.call / num_levels
        ),
        method=PAIRED if count >= 2 else NO_METHOD,
        num_pairs=count,
        num_levels=num_levels,
        spread=_deviation(differences) if count >= 2 else None,
        widest=max(map(abs, differences), default=None),
        resolution=step,
        rates=rates,
    )


def _paired_share(pairs: Sequence[tuple[float, float]], step: float, error: float) -> Estimate:
    if not all(min(pair) > 0 for pair in pairs):
        return _no_share([changed - baseline for baseline, changed in pairs])
    logs = [log(changed / baseline) for baseline, changed in pairs]
    finest = step / fmean(baseline for baseline, _ in pairs) if pairs else 0.0
    return _as_share(_resolved(mean(logs, confidence=1 - error), logs, finest, error))


def _resolved(estimate: Estimate, differences: Sequence[float], step: float, error: float) -> Estimate:
    """An interval no narrower than steps of that size allow. The noise of the differences is at least what rounding
    leaves in them; and where all values are rounded alike, no number of repeats tells less than a step."""
    value, low, high = estimate.value, estimate.low, estimate.high
    if value is None or low is None or high is None:
        return estimate
    half = max(step, t_quantile(len(differences) - 1, 1 - error) * ROUNDED * step / sqrt(len(differences)))
    return replace(estimate, low=min(low, value - half), high=max(high, value + half))


def unpaired_effect(
    metric: str,
    baseline: Sequence[float],
    changed: Sequence[float],
    *,
    num_levels: int = 1,
    rates: ErrorRates = FIXED,
    resolution: float | None = None,
) -> Effect:
    """The effect between two sets of values that share no blocks: Welch's t, which lets each set have its own noise.
    What changed between the two apart from what was asked (the hour, the temperature) is in the difference."""
    base = fmean(baseline) if baseline else None
    other = fmean(changed) if changed else None
    known = len(baseline) >= 2 and len(changed) >= 2
    step = _resolution(metric, resolution, (*baseline, *changed))
    return Effect(
        metric=metric,
        baseline=base,
        changed=other,
        difference=_welch(baseline, changed, rates.interval, step),
        relative=_unpaired_share(baseline, changed, rates.interval, step),
        together=_welch(baseline, changed, rates.call / num_levels, step),
        method=UNPAIRED if known else NO_METHOD,
        num_pairs=0,
        num_levels=num_levels,
        resolution=step,
        rates=rates,
    )


def _deviation(values: Sequence[float]) -> float:
    center = fmean(values)
    return sqrt(sum((v - center) ** 2 for v in values) / (len(values) - 1))


def _welch(baseline: Sequence[float], changed: Sequence[float], error: float, step: float) -> Estimate:
    count = len(baseline) + len(changed)
    if not baseline or not changed:
        return Estimate(value=None, num=count, reason=note("nothing_measured"))
    value = fmean(changed) - fmean(baseline)
    if len(baseline) < 2 or len(changed) < 2:
        return Estimate(value=value, num=count, reason=note("one_repeat"))
    parts = [(_variance(values, step) / len(values), len(values) - 1) for values in (baseline, changed)]
    half = max(step, _welch_quantile(parts, error) * sqrt(sum(part for part, _ in parts)))
    return Estimate(value=value, low=value - half, high=value + half, num=count)


def _variance(values: Sequence[float], step: float) -> float:
    """Of values that were rounded to steps: at least what rounding leaves in them, a twelfth of the step squared."""
    return max(_deviation(values) ** 2, step**2 / 12)


def _welch_quantile(parts: Sequence[tuple[float, int]], error: float) -> float:
    """t's quantile at Welch's degrees of freedom (Satterthwaite), of each set's squared error and degrees."""
    below = sum(part**2 / degrees for part, degrees in parts)
    total = sum(part for part, _ in parts)
    return t_quantile(total**2 / below if below else sum(degrees for _, degrees in parts), 1 - error)


def _unpaired_share(baseline: Sequence[float], changed: Sequence[float], error: float, step: float) -> Estimate:
    if min((*baseline, *changed), default=1.0) <= 0:
        return _no_share((*baseline, *changed))
    logs = [[log(v) for v in values] for values in (baseline, changed)]
    return _as_share(_welch(logs[0], logs[1], error, step / fmean(baseline) if baseline else 0.0))


def _as_share(logarithm: Estimate) -> Estimate:
    """The logarithm of a ratio as the ratio less one; without an interval where that would reach beyond anything."""
    value, low, high = logarithm.value, logarithm.low, logarithm.high
    if value is None or low is None or high is None or max(abs(low), abs(high)) > log(MOST_RATIO):
        reason = logarithm.reason if low is None else note("any_ratio")
        known = None if value is None or abs(value) > log(MOST_RATIO) else expm1(value)
        return Estimate(value=known, num=logarithm.num, reason=reason)
    return Estimate(value=expm1(value), low=expm1(low), high=expm1(high), num=logarithm.num, reason=logarithm.reason)


def _no_share(values: Sequence[float]) -> Estimate:
    return Estimate(value=None, num=len(values), reason=note("not_above_zero" if values else "nothing_measured"))
