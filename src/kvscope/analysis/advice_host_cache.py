"""llama.cpp's copies of earlier prompts in host memory: when they are what to cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvscope.analysis.advice_command import change_command
from kvscope.analysis.advice_flags import HAS_HOST_CACHE, flags_of
from kvscope.analysis.advice_kind import Advice, Quality
from kvscope.analysis.advice_pressure import Pressure, copies, left_by_copies
from kvscope.analysis.fit import Estimate
from kvscope.analysis.notes import note
from kvscope.units import MIB

if TYPE_CHECKING:
    from kvscope.analysis.attempts import Attempt
    from kvscope.analysis.release import Release
    from kvscope.analysis.release_bounds import Bound
    from kvscope.analysis.study import Study

_SETTING = "cache_ram_mib"
# A limit that leaves half of what is free to everything else, in whole steps of so many MiB: the largest that does not
# round it to nothing.
_STEPS_MIB = (256, 16, 1)


def host_cache_advice(study: Study, pressure: Pressure) -> list[Advice]:
    """At most one: no copies where memory is short; a lower limit where theirs is beyond what the machine has left."""
    if study.engine not in HAS_HOST_CACHE:
        return []
    for release, bound, attempt in copies(study):
        if pressure.is_short:
            return [_without(study, release, bound, attempt)]
        capped = _capped(study, bound, attempt)
        if capped is not None:
            return [capped]
    return []


def _without(study: Study, release: Release, bound: Bound, attempt: Attempt) -> Advice:
    """What the copies held at the end of the conversations, as the engine's own log states it; of one attempt."""
    held = Estimate(value=float(bound.held_bytes or 0), num=1, reason=note("one_repeat"))
    values = {"step_bytes": release.step.value, "held_bytes": bound.held_bytes, "limit_bytes": bound.limit_bytes}
    return _advice(study, attempt, 0, "host_cache", saved=held, values=values)


def _capped(study: Study, bound: Bound, attempt: Attempt) -> Advice | None:
    """None where the copies have room up to their limit, or what is left is not known."""
    left, limit = left_by_copies(bound, attempt), bound.limit_bytes
    if left is None or limit is None:
        return None
    held = bound.held_bytes or 0
    half_mib = int((left / 2 + held) / MIB)
    step = next((each for each in _STEPS_MIB if each <= half_mib), None)
    if step is None:  # 0 would not lower the limit but turn the copies off
        return None
    cap_mib = half_mib // step * step
    # What would be taken without it ends with the machine's memory, whatever the limit.
    predicted = float(min(limit, held + left) - cap_mib * MIB)
    if predicted <= 0:
        return None
    values = {"left_bytes": left, "limit_bytes": limit, "held_bytes": held}
    return _advice(study, attempt, cap_mib, "host_cache_limit", predicted=predicted, values=values)


def _advice(
    study: Study,
    attempt: Attempt,
    mib: int,
    slug: str,
    *,
    values: Mapping[str, object],
    saved: Estimate | None = None,
    predicted: float | None = None,
) -> Advice:
    change = {_SETTING: mib}
    now = attempt.trial.settings.get(_SETTING, attempt.trial.levels.get(_SETTING, 8192))
    return Advice(
        slug=slug,
        axis="host_cache",
        helps="memory",
        harm=1,
        metric="memory_bytes",
        change=change,
        flags=flags_of(study.engine, change),
        saved=saved,
        predicted=predicted,
        quality=Quality(slug="not_touched"),
        evidence=(attempt.key,),
        design_id=attempt.design.design_id,
        check=change_command(attempt, "host_cache", change, {_SETTING: now}),
        values=values,
    )
