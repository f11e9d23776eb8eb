"""Changes of settings that a design of the record measured: what each did to memory, to times and to the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING

from kvscope.analysis.advice_axes import Axis, axis_of
from kvscope.analysis.advice_flags import POOLED
from kvscope.analysis.advice_kind import NOT_MEASURED, Cost, Quality
from kvscope.analysis.attempts import Attempt, has_engine_rules
from kvscope.analysis.design_claims.changed import ASKED_SHARE, block_pairs, evidence, verdict
from kvscope.analysis.design_claims.level_not_taken import not_taken
from kvscope.analysis.effects import ROUNDED, Effect, paired_effect
from kvscope.analysis.fit import t_quantile
from kvscope.analysis.levels import METRICS, at_level, error_rates, level_key
from kvscope.analysis.quality_effects import quality_effects
from kvscope.analysis.quality_work import baseline_of, is_choice, work_of
from kvscope.record.rows import DesignRow, Json

if TYPE_CHECKING:
    from kvscope.analysis.quality_effects import QualityLevel
    from kvscope.analysis.study import DesignStudy, Study

MEMORY = "memory_bytes"
TIMES = ("completion_s", "ttft_s", "tpot_s")
# Changes that are known to change what the model computes, or of which nothing is known.
_CHANGES_ANSWERS = frozenset({"cache_type", "weights_dtype", "setting"})
# What of these changes moves between memory of the process and pages of the model's file: the two are added up.
_MOVES_FILE = frozenset({"load_mode", "repack"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One level against the one it is a change of. ``effects``: by metric, MEMORY and TIMES. ``predicted_bytes``: how
    much less the predictions of the two say, None where they do not tell. ``is_reported``: the engine used what was
    asked, as far as it says. ``limited``: in how many trials kvscope itself had too little of the processor."""

    design: DesignRow
    level: Json
    base: Json
    axis: Axis
    change: Mapping[str, Json]
    before: Mapping[str, Json]
    effects: Mapping[str, Effect]
    quality: Quality
    predicted_bytes: float | None
    evidence: tuple[str, ...]
    first: Attempt
    quality_task: str | None
    limited: int = 0

    @property
    def costs(self) -> tuple[Cost, ...]:
        """Every metric that has a pair."""
        return tuple(cost_of(effect) for effect in self.effects.values() if effect.num_pairs)


def measured_changes(study: Study) -> tuple[Measured, ...]:
    """Of every design whose levels are ways to do the same work, each level but the baseline; where several designs
    measured one change, the last."""
    found: dict[str, Measured] = {}
    for own in study.designs:
        for each in _of_design(own, study.engine):
            found[level_key([each.axis.name, each.change, work_of(own.design, each.level)])] = each
    return tuple(found.values())


def _of_design(own: DesignStudy, engine: str) -> Iterator[Measured]:
    design, attempts = own.design, own.attempts
    if not is_choice(design, design.levels) or not any(a.is_measured for a in attempts):
        return
    refused = {level_key(finding.values.get("level")) for finding in not_taken(design, attempts)}
    known = {level_key(each.level): each for each in _quality_levels(own)}
    tasks = _quality_task(design)
    for level in design.levels:
        base = baseline_of(level, design.baseline_level, design.levels)
        here, before = _measured_at(attempts, level), _measured_at(attempts, base)
        if level_key(level) in refused or level_key(level) == level_key(base) or not here or not before:
            continue
        change, old = _changed(before[0].trial.settings, here[0].trial.settings)
        if not change or work_of(design, level) != work_of(design, base):
            continue
        axis = axis_of(change, old)
        both = (*before, *here)
        if axis.name == "context":  # its levels are the question; what of it is too much is judged by use
            continue
        against = replace(design, baseline_level=base)
        yield Measured(
            design=design,
            level=level,
            base=base,
            axis=axis,
            change=change,
            before=old,
            effects=_effects(against, attempts, level, axis, engine),
            quality=_quality(known.get(level_key(level)), base, axis),
            predicted_bytes=_predicted(before[0], here[0]),
            evidence=evidence(against, attempts, level),
            first=here[0],
            quality_task=tasks,
            limited=sum(a.trial.client.get("client_limited") is True for a in both),
        )


def _measured_at(attempts: Sequence[Attempt], level: Json) -> list[Attempt]:
    return [a for a in at_level(attempts, level) if a.is_measured]


def _changed(before: Mapping[str, Json], after: Mapping[str, Json]) -> tuple[dict[str, Json], dict[str, Json]]:
    """What differs, as it is after and as it was; nothing where a setting is only there before."""
    if before.keys() - after.keys():
        return {}, {}
    change = {name: value for name, value in after.items() if name not in before or before[name] != value}
    return change, {name: before[name] for name in change if name in before}


def _effects(design: DesignRow, attempts: Sequence[Attempt], level: Json, axis: Axis, engine: str) -> dict[str, Effect]:
    getters: dict[str, Callable[[Attempt], float | None]] = {name: METRICS[name] for name in TIMES}
    if engine not in POOLED:
        getters = {MEMORY: _memory(attempts, axis), **getters}
    num_levels = max(1, len(design.levels) - 1)
    return {
        name: paired_effect(
            name, block_pairs(design, attempts, level, get), num_levels=num_levels, rates=error_rates(design)
        )
        for name, get in getters.items()
    }


def _memory(attempts: Sequence[Attempt], axis: Axis) -> Callable[[Attempt], float | None]:
    """The peak: of the device where there is one, else of the host; with pages of the file where the change moves
    memory between the two."""
    if any(a.metrics.memory_peak_bytes_device is not None for a in attempts if a.is_measured):
        return METRICS["memory_peak_bytes_device"]
    if axis.name not in _MOVES_FILE:
        return METRICS["memory_peak_bytes"]

    def both(attempt: Attempt) -> float | None:
        own, of_file = attempt.metrics.memory_peak_bytes, attempt.metrics.memory_peak_bytes_file
        return None if own is None or of_file is None else own + of_file

    return both


def _predicted(before: Attempt, after: Attempt) -> float | None:
    """By the totals that both predictions know; None of an engine without rules, whose settings none follows."""
    if not has_engine_rules(before.prediction) or not has_engine_rules(after.prediction):
        return None
    old, new = ((each.prediction or {}).get("totals") or {} for each in (before, after))
    parts = ("weights_bytes", "cache_bytes", "compute_buffer_bytes", "output_buffer_bytes", "host_cache_bytes")
    known = [part for part in parts if old.get(part) is not None and new.get(part) is not None]
    return float(sum(old[part] - new[part] for part in known)) if known else None


def cost_of(effect: Effect) -> Cost:
    """What may be said of a difference: as the findings of a design say it."""
    asked = ASKED_SHARE * abs(effect.baseline or 0.0)
    return Cost(
        metric=effect.metric,
        verdict=verdict(effect, asked),
        difference=effect.difference,
        share=effect.share.value,
    )


def surely_less(effect: Effect, num_comparisons: int) -> bool:
    """Whether it is less by an interval that holds for all comparisons that the study's advice looks at together: of
    studies in which nothing differs, no more than 5 % give any advice of time."""
    value, spread, pairs = effect.difference.value, effect.spread, effect.num_pairs
    if value is None or spread is None or pairs < 2:
        return False
    error = effect.rates.call / max(1, num_comparisons)
    half = t_quantile(pairs - 1, 1 - error) * max(spread, ROUNDED * effect.resolution) / sqrt(pairs)
    return value + max(half, effect.resolution) < 0


def _quality_levels(own: DesignStudy) -> Sequence[QualityLevel]:
    if not any(a.result.answers for a in own.attempts if a.is_measured):
        return ()
    found = quality_effects(own.design, own.attempts)
    return () if found is None else found.levels


def _quality(level: QualityLevel | None, base: Json, axis: Axis) -> Quality:
    """Losses of answers first, then what moved; "no_loss" only where something says so."""
    if level is None:
        is_meant = axis.slug in _CHANGES_ANSWERS
        return NOT_MEASURED if is_meant else Quality(slug="not_touched")
    judged = [c for c in level.comparisons if level_key(c.baseline_level) == level_key(base)]
    lost = [c for c in judged if c.judged.verdict == "loss"]
    if lost:
        return Quality(slug="loss", size=lost[0].difference)
    scored = level.fidelity
    if scored is not None and scored.verdict == "loss":
        return Quality(slug="moved", size=scored.divergence)
    for wanted, slug in (("gain", "gain"), ("no_loss_beyond", "no_loss")):
        kept = [c for c in judged if c.judged.verdict == wanted]
        if kept:
            return Quality(slug="gain" if slug == "gain" else "no_loss", size=kept[0].difference)
    if scored is not None and scored.verdict in ("no_loss_larger_than_floor", "reference"):
        return Quality(slug="no_loss", size=None)
    return Quality(slug="cannot_tell") if judged or scored is not None else NOT_MEASURED


def _quality_task(design: DesignRow) -> str | None:
    """What the design asked of answers, where it held one task."""
    task = design.held.get("quality_task")
    return task if isinstance(task, str) else None
