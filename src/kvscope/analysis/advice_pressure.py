"""Whether memory is what is short here: what advice may cost depends on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvscope.analysis.advice_flags import HAS_HOST_CACHE
from kvscope.analysis.release_bounds import HOST_CACHE, Bound
from kvscope.analysis.release_curve import HOST
from kvscope.analysis.release_verdict import GROWING
from kvscope.record.metrics import last_mark

if TYPE_CHECKING:
    from kvscope.analysis.attempts import Attempt
    from kvscope.analysis.release import Release
    from kvscope.analysis.study import Study

# From this share of what was free before the start on, memory is called short: the system and other programs move too.
SHORT_SHARE = 0.8
_NO_ROOM_SLUG = "out-of-memory"
_SWAPPING = "swap-active"


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Memory that goes on growing, without a limit that ends it: ``step_bytes`` with each conversation. ``left_bytes``
    of what was free before the start are left after the last of them, and ``conversations`` more take that at this
    rate; None where it is not known."""

    step_bytes: float
    left_bytes: int | None
    conversations: int | None
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """``slug``: *ran_out* (trials ended for lack of memory, or were not run because they would not fit), *swapping*,
    *growing* (all fitted, and memory goes on growing: ``growth``), *nearly_full* (the engine took most of what was
    free), *limits_length* (all that ran fitted; memory ends before the length that the model was trained for),
    *copies_outgrow* (as *free*, but copies of earlier prompts may take more than is left), *free* (fits easily, and
    the trained length does too) or *unknown*. ``values`` fill its sentence, ``evidence`` names the attempts."""

    slug: str
    values: Mapping[str, object] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    growth: Growth | None = None

    @property
    def is_short(self) -> bool:
        """Whether memory is short for what was run."""
        return self.slug in ("ran_out", "swapping", "nearly_full")

    @property
    def is_free(self) -> bool:
        """Whether memory is no trouble for what was run: then nothing may be paid for it but an end to what grows."""
        return self.slug in ("free", "copies_outgrow")


NOT_KNOWN = Pressure(slug="unknown")


def pressure_of(study: Study) -> Pressure:
    """What the rows say of it; the worst first. Memory that grows without a limit is never no trouble."""
    found, growth = pressure_now(study), growth_of(study)
    if growth is None:
        return found
    if found.slug in ("ran_out", "swapping"):
        return replace(found, growth=growth)
    values = {"step_bytes": growth.step_bytes, "left_bytes": growth.left_bytes, "conversations": growth.conversations}
    return Pressure(slug="growing", values=values, evidence=growth.evidence, growth=growth)


def growth_of(study: Study) -> Growth | None:
    """The growth of the release check that grows fastest; None where none is seen to grow without a limit."""
    steps = [(step, each) for each in study.releases if each.verdict == GROWING and (step := _step(each)) > 0]
    if not steps:
        return None
    step, release = max(steps, key=lambda pair: pair[0])
    attempt = next((a for a in study.attempts if a.key == release.attempt_key), None)
    # What is free on a device no record states.
    used = None if attempt is None or release.judged_place != HOST else _used(attempt)
    left = None if used is None else max(0, used[1] - used[0])
    return Growth(
        step_bytes=step,
        left_bytes=left,
        conversations=None if left is None else int(left / step),
        evidence=(release.attempt_key,),
    )


def _step(release: Release) -> float:
    again = release.same_text_step
    slope = again if release.grows_again and again is not None else release.step
    return slope.value or 0.0


def pressure_now(study: Study) -> Pressure:
    """What was seen up to now, without what goes on growing: what saves memory once does not end that."""
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
    if limit.binds == "memory":
        return Pressure(slug="limits_length", values=values, evidence=(attempt.key,))
    outgrown = _outgrown(study)
    if outgrown is None:
        return Pressure(slug="free", values=values, evidence=(attempt.key,))
    values |= {"left_bytes": outgrown[0], "to_go_bytes": outgrown[1]}
    return Pressure(slug="copies_outgrow", values=values, evidence=(attempt.key,))


def copies(study: Study) -> Iterator[tuple[Release, Bound, Attempt]]:
    """Where the engine kept copies of earlier prompts: each series of conversations, what bounds them, and the attempt
    that it is of."""
    for release in study.releases if study.engine in HAS_HOST_CACHE else ():
        bound = next((b for b in release.bounds if b.holder == HOST_CACHE and b.held_bytes), None)
        attempt = next((a for a in study.attempts if a.key == release.attempt_key), None)
        if bound is not None and attempt is not None:
            yield release, bound, attempt


def left_by_copies(bound: Bound, attempt: Attempt) -> int | None:
    """Bytes that are left on the machine, where copies may take more than that; else None, also where it was not
    read."""
    end = last_mark(attempt.result, "after_request")
    left = None if end is None else end.machine_available_bytes
    return left if left is not None and (bound.to_go_bytes or 0) > left else None


def _outgrown(study: Study) -> tuple[int, int] | None:
    """Bytes that are left, and that copies may still take, where the second is more."""
    found = ((left_by_copies(bound, attempt), bound.to_go_bytes or 0) for _, bound, attempt in copies(study))
    return next(((left, to_go) for left, to_go in found if left is not None), None)


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
