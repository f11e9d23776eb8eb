"""Estimates and memory as the cells of a table or the middle of a sentence."""

from collections.abc import Callable

from kvscope.analysis.fit import Estimate
from kvscope.report.words import say
from kvscope.units import MIB, format_number


def mib_cell(num_bytes: float | None, digits: int = 1, *, signed: bool = False) -> str:
    """MiB without the unit, or the word for unknown."""
    if num_bytes is None:
        return say("unknown")
    text = format_number(num_bytes / MIB, digits)
    return f"+{text}" if signed and num_bytes > 0 else text


def number_cell(value: float | None, digits: int = 0) -> str:
    """A number, or the word for unknown."""
    return say("unknown") if value is None else format_number(value, digits)


def seconds_cell(value: float | None) -> str:
    """Seconds with three decimals, or the word for unknown."""
    return number_cell(value, 3)


def estimate_cell(estimate: Estimate, write: Callable[[float | None], str]) -> str:
    """Value with its 95 % interval under it: ``0.310`` and ``(0.290 to 0.330)``; alone where there is none."""
    if estimate.value is None:
        return say("unknown")
    if estimate.low is None or estimate.high is None:
        return write(estimate.value)
    return say("estimate.interval", value=write(estimate.value), low=write(estimate.low), high=write(estimate.high))


def difference_cell(estimate: Estimate, write: Callable[[float | None], str], *, is_seen: bool) -> str:
    """A difference with its sign and interval; says so where it has one and is not called a difference
    (``Effect.is_seen``)."""
    text = estimate_cell(estimate, lambda v: _signed(v, write))
    return say("estimate.maybe_zero", text=text) if estimate.has_interval and not is_seen else text


def _signed(value: float | None, write: Callable[[float | None], str]) -> str:
    text = write(value)
    return f"+{text}" if value is not None and value > 0 else text
