"""Waits that come of computing a prompt's beginning anew: what the record shows of reuse, and what it would save."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from kvscope.analysis.advice_command import change_command
from kvscope.analysis.advice_flags import LLAMA_CPP, flags_of
from kvscope.analysis.advice_kind import Advice, Quality
from kvscope.analysis.design_claims.changed import block_pairs, evidence
from kvscope.analysis.effects import paired_effect
from kvscope.analysis.fit import Estimate
from kvscope.analysis.levels import METRICS, at_level, error_rates
from kvscope.record.rows import Json

if TYPE_CHECKING:
    from kvscope.analysis.study import DesignStudy, Study

_WARM = "warm"
_CHANGED = "changed_start"
# Findings of a history that is computed again, and what is advised by their cause.
_FOUND = "turns_reuse_"
_CAUSES = {"reasoning_dropped": "history_reasoning", "window": "history_window", "lost": "history"}


def reuse_advice(study: Study) -> list[Advice]:
    """Of the last prefix_reuse design and of the last conversation that the engine was allowed to reuse."""
    return [*_stable_prefix(study), *_history(study)]


def _stable_prefix(study: Study) -> list[Advice]:
    """A change at the start of a prompt was measured to cost the wait that a known beginning saves."""
    found = [d for d in study.designs if d.design.name == "prefix_reuse" and d.num_measured]
    if not found:
        return []
    own = found[-1]
    levels = {str(level) for level in own.design.levels}
    if not {_WARM, _CHANGED} <= levels:
        return []
    saved, keys = _sooner(own, _CHANGED, _WARM)
    if saved is None:
        return []
    values = {"cached_tokens": _cached(own, _WARM), "changed_cached_tokens": _cached(own, _CHANGED)}
    return [_waiting("stable_prefix", saved=saved, evidence=keys, values=values, design_id=own.design.design_id)]


def _sooner(own: DesignStudy, late: Json, early: Json) -> tuple[Estimate | None, tuple[str, ...]]:
    """How much sooner the first token comes at one level than at another; None where that is not told from noise."""
    against = replace(own.design, baseline_level=early)
    pairs = block_pairs(against, own.attempts, late, METRICS["ttft_s"])
    num_levels = max(1, len(own.design.levels) - 1)
    effect = paired_effect("ttft_s", pairs, num_levels=num_levels, rates=error_rates(own.design))
    if effect.verdict != "more":
        return None, ()
    return effect.difference, evidence(against, own.attempts, late)


def _cached(own: DesignStudy, level: Json) -> float | None:
    counts = [
        float(a.measured_requests[-1].cached_tokens)
        for a in at_level(own.attempts, level)
        if a.is_measured and a.measured_requests and a.measured_requests[-1].cached_tokens is not None
    ]
    return median(counts) if counts else None


def _history(study: Study) -> list[Advice]:
    """What to do about a history that is computed again, by the cause that the findings name; nothing of a state that
    cannot be cut back."""
    found = [f for f in study.findings if f.slug.startswith(_FOUND) and f.design_id is not None]
    if not found:
        return []
    finding = found[-1]
    cause = finding.slug.removeprefix(_FOUND).removeprefix("at_")
    saved = _history_wait(finding.values)
    if cause not in _CAUSES or saved <= 0:
        return []
    told = _waiting(
        _CAUSES[cause],
        predicted=saved,
        evidence=finding.evidence,
        values=finding.values,
        design_id=finding.design_id or "",
    )
    return [_with_window(study, told) if cause == "window" else told]


def _history_wait(values: Mapping[str, object]) -> float:
    """The part of the last turn's wait that falls to the history, if each computed token takes the same time: no more
    than a prediction."""
    held, cached, prompt, wait = (
        float(v) if isinstance(v := values.get(name), int | float) else 0.0
        for name in ("held_tokens", "cached_tokens", "prompt_tokens", "last_s")
    )
    computed = prompt - cached
    return wait * max(0.0, min(held, prompt) - cached) / computed if computed > 0 else 0.0


def _with_window(study: Study, told: Advice) -> Advice:
    """With the setting that keeps windows whole, where the engine has it and it is off."""
    first = next((a for a in study.attempts if a.key in told.evidence), None)
    if first is None or study.engine != LLAMA_CPP or first.trial.settings.get("swa_full"):
        return replace(told, slug="history")
    change = {"swa_full": True}
    return replace(
        told,
        axis="window",
        harm=1,
        change=change,
        flags=flags_of(study.engine, change),
        check=change_command(first, "window", change, {"swa_full": False}),
    )


def _waiting(
    slug: str,
    *,
    evidence: tuple[str, ...],
    values: Mapping[str, object],
    design_id: str,
    saved: Estimate | None = None,
    predicted: float | None = None,
) -> Advice:
    return Advice(
        slug=slug,
        axis=slug,
        helps="waiting",
        harm=0,
        metric="ttft_s",
        saved=saved,
        predicted=predicted,
        quality=Quality(slug="not_touched"),
        evidence=evidence,
        design_id=design_id,
        values=values,
    )
