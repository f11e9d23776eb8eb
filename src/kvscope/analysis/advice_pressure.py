"""Whether memory is what is short here: what advice may cost depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvscope.record.metrics import last_mark

if TYPE_CHECKING:
    from kvscope.analysis.attempts import Attempt
    from kvscope.analysis.study import Study

# From this share of what was free before the start on, memory is called short: the system and other programs move too.
SHORT_SHARE = 0.8
_NO_ROOM_SLUG = "out-of-memory"
_SWAPPING = "swap-active"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """``slug``: *ran_out* (trials ended for lack of memory, or were not run because they would not fit), *swapping*,
    *nearly_full* (the engine took most of what was free), *limits_length* (all that ran fitted; memory ends before the
    length that the model was trained for), *free* (fits easily, and the trained length does too) or *unknown*.
    ``values`` fill its sentence, ``evidence`` names the attempts."""

    slug: str
    values: Mapping[str, object] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()

    @property
    def is_short(self) -> bool:
        """Whether memory is short for what was run."""
        return self.slug in ("ran_out", "swapping", "nearly_full")

    @property
    def is_free(self) -> bool:
        """Whether memory is no trouble: then nothing may be paid for it."""
        return self.slug == "free"


NOT_KNOWN = Pressure(slug="unknown")


def pressure_of(study: Study) -> Pressure:
    """What the rows say of it; the worst first."""
    trials = study.trials
    failed = [a for a in trials if _had_no_room(a)]
    if failed:
        return Pressure(
            slug="ran_out",
            values={"failed": len(failed), "total": len(trials)},
            evidence=tuple(a.key for a in failed),
        )
    swapping = [a for a in study.attempts if any(w.slug == _SWAPPING for w in a.result.warnings)]
    if swapping:
        return Pressure(
            slug="swapping",
            values={"count": len(swapping), "total": len(study.attempts)},
            evidence=tuple(a.key for a in swapping),
        )
    shares = [(used / free, used, free, a) for a in study.attempts if (found := _used(a)) for used, free in [found]]
    if not shares:
        return NOT_KNOWN
    share, used, free, attempt = max(shares, key=lambda each: each[0])
    values: dict[str, object] = {"used_bytes": used, "free_bytes": free, "share": share}
    if share > SHORT_SHARE:
        return Pressure(slug="nearly_full", values=values, evidence=(attempt.key,))
    limit = study.limit
    if limit is None or limit.binds == "trained_only":
        return NOT_KNOWN
    values |= {"tokens": limit.tokens, "trained_tokens": limit.trained_tokens}
    return Pressure(slug="limits_length" if limit.binds == "memory" else "free", values=values, evidence=(attempt.key,))


def most_saved_in_vain(study: Study) -> int:
    """Bytes by which the smallest trial that had no room was predicted to be too large for the memory that was
    available, as recorded, else for all of the machine's; 0 where it was predicted to fit, or nothing was."""
    machine = study.machine.get("memory_limit_bytes") or study.machine.get("memory_total_bytes")
    lacking = []
    for attempt in study.trials:
        if _had_no_room(attempt):
            needed = ((attempt.prediction or {}).get("totals") or {}).get("total_bytes") or 0
            available = attempt.trial.evidence.get("available_bytes") or machine
            lacking.append(max(0, needed - available) if available else 0)
    return min(lacking, default=0)


def _had_no_room(attempt: Attempt) -> bool:
    """Ended for lack of memory, or not run because it was predicted not to fit."""
    trial = attempt.trial
    return trial.outcome == "out_of_memory" or (trial.outcome == "refused" and trial.error_slug == _NO_ROOM_SLUG)


def _used(attempt: Attempt) -> tuple[int, int] | None:
    """What the engine grew by up to its peak, file-backed pages included, and what was free before it; None where a
    device has it (whose free memory no record states), or where either was not read."""
    start = last_mark(attempt.result, "launched")
    peak, before = attempt.metrics.memory_peak_bytes, attempt.metrics.memory_baseline_bytes or 0
    free = None if start is None else start.machine_available_bytes
    if not attempt.is_measured or attempt.metrics.memory_peak_bytes_device or peak is None or not free:
        return None
    of_file = (attempt.metrics.memory_peak_bytes_file or 0) - (0 if start is None else start.file_bytes)
    return max(0, peak - before) + max(0, of_file), free
