"""Waits that come of computing a prompt's beginning anew: what the record shows of reuse, and what it would save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from kvscope.analysis.advice_command import change_command
from kvscope.analysis.advice_flags import flags_of
from kvscope.analysis.advice_kind import Advice, Quality
from kvscope.analysis.design_claims.changed import block_pairs, evidence
from kvscope.analysis.effects import paired_effect
from kvscope.analysis.fit import Estimate
from kvscope.analysis.levels import METRICS, at_level, error_rates
from kvscope.analysis.turns import Turn, turn_tables
from kvscope.record.rows import Json

if TYPE_CHECKING:
    from kvscope.analysis.study import DesignStudy, Study

_WARM = "warm"
_CHANGED = "changed_start"
# A later turn reuses its history where it computes no more than this share of it anew.
_REUSED_SHARE = 0.5
# History shorter than this is noise of templates.
_LEAST_TOKENS = 64


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
    """A conversation whose later turns compute again what an earlier turn had computed."""
    for own in reversed(study.designs):
        for table in turn_tables(own.attempts):
            broken = _broken_at(table.turns) if table.reuse_prefix else None
            if broken is not None:
                found = _history_of(study, own, *broken)
                return [found] if found.size > 0 else []
    return []


def _broken_at(turns: Sequence[Turn]) -> tuple[Turn, Turn] | None:
    """The last answered turn and the one before it, where the last computes more than half of its history anew."""
    known = [t for t in turns if t.conversations and t.prompt_tokens and t.computed_tokens is not None and t.ttft_s]
    if len(known) < 2:
        return None
    before, last = known[-2], known[-1]
    history = before.prompt_tokens or 0
    if history < _LEAST_TOKENS or (last.cached_tokens or 0) >= (1 - _REUSED_SHARE) * history:
        return None
    return before, last


def _history_of(study: Study, own: DesignStudy, before: Turn, last: Turn) -> Advice:
    """The wait that falls to the history, if each computed token takes the same time: no more than a prediction."""
    again = min(before.prompt_tokens or 0, last.computed_tokens or 0) - (last.cached_tokens or 0)
    computed = last.computed_tokens or 1
    saved = (last.ttft_s or 0.0) * max(0.0, again) / computed
    has_window = bool(((study.prediction or {}).get("growth") or {}).get("knees"))
    keys = tuple(a.key for a in own.attempts if a.is_measured)
    values: Mapping[str, object] = {
        "turn": last.turn,
        "computed_tokens": last.computed_tokens,
        "prompt_tokens": last.prompt_tokens,
        "history_tokens": before.prompt_tokens,
    }
    told = _waiting("history", predicted=saved, evidence=keys, values=values, design_id=own.design.design_id)
    first = next(a for a in own.attempts if a.is_measured)
    if not has_window or study.engine != "llama.cpp" or first.trial.settings.get("swa_full"):
        return told
    change = {"swa_full": True}
    return replace(
        told,
        slug="history_window",
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
