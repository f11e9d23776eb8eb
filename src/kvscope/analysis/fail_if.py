"""The condition under which a comparison fails, for a build that shall break: ``memory_peak > +5%``.

A threshold with a sign or a percent sign is a change from A to B; one without is a value of B. The verdict rests on the
interval: over the threshold for certain, within it for certain, or undecided.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvscope.analysis.effects import FIXED, ROUNDING, Effect, ErrorRates, paired_effect, unpaired_effect
from kvscope.errors import UnknownName, UsageError
from kvscope.units import GIB, KIB, MIB

FAILED, PASSED, UNDECIDED, NOT_MEASURED = "failed", "passed", "undecided", "not_measured"

_FORM = re.compile(r"\s*([a-z][a-z0-9_]*)\s*(>=|<=|>|<)\s*([+-]?)\s*(\d{1,18}(?:\.\d{1,18})?)\s*(%|[A-Za-z]*)\s*")
_BYTES = {"": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0}
_PLAIN = {"": 1.0}
# What a column's name may leave out.
_UNITS = ("_bytes", "_s", "_per_s", "_tokens")
_EXAMPLE = 'Write it like "memory_peak > +5%", "ttft > +20ms", "memory_loaded > +10MiB" or "ttft > 0.5s".'


@dataclass(frozen=True, slots=True, kw_only=True)
class FailIf:
    """``kind``: share or amount (both of a change), or value (of B). ``threshold`` in the metric's own unit."""

    text: str
    metric: str
    is_upper: bool
    is_strict: bool
    kind: str
    threshold: float

    def allowed(self, baseline: float) -> float:
        """The value of B at the threshold, for a value of A."""
        match self.kind:
            case "share":
                return (1 + self.threshold) * baseline
            case "amount":
                return baseline + self.threshold
            case _:
                return self.threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``state`` is one of failed, passed, undecided, not_measured. ``effect`` is of the excess over the threshold."""

    state: str
    effect: Effect | None


def parse_fail_if(text: str, metrics: Sequence[str]) -> FailIf:
    """A condition from its text. ``metrics`` are the columns there are. Raises UsageError, UnknownName."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is not a condition.", hint=_EXAMPLE)
    name, operator, sign, number, unit = found.groups()
    metric = _metric(name, metrics)
    value = float(number) * (-1 if sign == "-" else 1)
    if unit == "%":
        kind, value = "share", value / 100
    else:
        kind, value = ("amount" if sign else "value"), value * _factor(unit, metric, text)
    return FailIf(
        text=text.strip(),
        metric=metric,
        is_upper=operator.startswith(">"),
        is_strict="=" not in operator,
        kind=kind,
        threshold=value,
    )


def _metric(name: str, metrics: Sequence[str]) -> str:
    if name in metrics:
        return name
    for metric in metrics:
        for unit in _UNITS:
            if unit in metric and name in (metric.removesuffix(unit), metric.replace(f"{unit}_", "_")):
                return metric
    raise UnknownName("metric", name, metrics)


def _factor(unit: str, metric: str, text: str) -> float:
    if "_bytes" in metric:
        units: Mapping[str, float] = _BYTES
    else:
        units = _SECONDS if metric.endswith("_s") and not metric.endswith("_per_s") else _PLAIN
    if unit not in units:
        known = ", ".join(name for name in units if name) or "none"
        raise UsageError(f"{metric} has no unit {unit!r} ({text}).", hint=f"Units of it: {known}. {_EXAMPLE}")
    return units[unit]


def judge(
    condition: FailIf,
    baseline: Sequence[float],
    changed: Sequence[float],
    *,
    is_paired: bool,
    num_places: int = 1,
    rates: ErrorRates = FIXED,
) -> Verdict:
    """Whether the condition holds of the values of A and B; ``is_paired``: those of one place belong together. The
    interval is one that holds for all ``num_places`` places at which it is asked, with the error ``rates`` of their
    design. Without an interval (one repeat) the values alone decide."""
    before, after = _sides(condition, baseline, changed)
    is_paired = is_paired or condition.kind == "value"
    if is_paired:
        pairs = list(zip(before, after, strict=True))
        effect = paired_effect(condition.metric, pairs, num_levels=num_places, rates=rates)
    else:
        effect = unpaired_effect(condition.metric, before, after, num_levels=num_places, rates=rates)
    value = effect.difference.value
    if value is None:
        return Verdict(state=NOT_MEASURED, effect=None)
    if _are_equal(before, after, is_paired=is_paired):
        return Verdict(state=PASSED if condition.is_strict else FAILED, effect=effect)
    low = value if effect.together.low is None else effect.together.low
    high = value if effect.together.high is None else effect.together.high
    if _holds(condition, low):
        return Verdict(state=FAILED, effect=effect)
    return Verdict(state=UNDECIDED if _holds(condition, high) else PASSED, effect=effect)


def _sides(
    condition: FailIf, baseline: Sequence[float], changed: Sequence[float]
) -> tuple[Sequence[float], Sequence[float]]:
    """What B would have at the threshold, and what it has; both turned round where less than that is what fails."""
    sign = 1 if condition.is_upper else -1
    after = [sign * value for value in changed]
    if condition.kind == "value":  # A does not matter: each value of B is held against the threshold
        return [sign * condition.threshold] * len(after), after
    return [sign * condition.allowed(value) for value in baseline], after


def _are_equal(before: Sequence[float], after: Sequence[float], *, is_paired: bool) -> bool:
    """Whether every value is at the threshold, to the last digit: there is nothing left that repeats could decide."""
    rounding = ROUNDING * max(map(abs, (*before, *after)))
    if is_paired:
        return all(abs(there - here) <= rounding for here, there in zip(before, after, strict=True))
    return max(*before, *after) - min(*before, *after) <= rounding


def _holds(condition: FailIf, excess: float) -> bool:
    return excess > 0 if condition.is_strict else excess >= 0
