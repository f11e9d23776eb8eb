"""llama.cpp's copies of earlier prompts in host memory: when they are what to cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvscope.analysis.advice_command import change_command
from kvscope.analysis.advice_flags import HAS_HOST_CACHE, flags_of
from kvscope.analysis.advice_kind import Advice, Quality
from kvscope.analysis.advice_pressure import Pressure
from kvscope.analysis.fit import Estimate
from kvscope.analysis.notes import note
from kvscope.analysis.release_bounds import HOST_CACHE, Bound
from kvscope.record.metrics import last_mark
from kvscope.units import MIB

if TYPE_CHECKING:
    from kvscope.analysis.attempts import Attempt
    from kvscope.analysis.release import Release
    from kvscope.analysis.study import Study

_SETTING = "cache_ram_mib"
# A limit that leaves half of what is free to everything else, in steps of this many MiB.
_STEP_MIB = 256


def host_cache_advice(study: Study, pressure: Pressure) -> list[Advice]:
    """At most one: no copies where memory is short; a lower limit where theirs is beyond what the machine has left."""
    if study.engine not in HAS_HOST_CACHE:
        return []
    for release in study.releases:
        bound = next((b for b in release.bounds if b.holder == HOST_CACHE and b.held_bytes), None)
        attempt = next((a for a in study.attempts if a.key == release.attempt_key), None)
        if bound is None or attempt is None:
            continue
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
    end = last_mark(attempt.result, "after_request")
    left, limit = None if end is None else end.machine_available_bytes, bound.limit_bytes
    if left is None or limit is None or (bound.to_go_bytes or 0) <= left:
        return None
    cap_mib = int((left / 2 + (bound.held_bytes or 0)) / MIB) // _STEP_MIB * _STEP_MIB
    values = {"left_bytes": left, "limit_bytes": limit, "held_bytes": bound.held_bytes}
    predicted = float(limit - cap_mib * MIB)
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
