"""A grid of two factors: every cell against the baseline cell, and whether the two changes together do what they do one
by one, added up. Where both factors changed, a difference is laid to neither."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims.changed import (
    ASKED_SHARE,
    evidence,
    memory_findings,
    named,
    time_findings,
    verdict,
)
from kvscope.analysis.design_claims.open_loop import not_kept_up
from kvscope.analysis.effects import Effect, paired_effect, resolution_of
from kvscope.analysis.finding import Finding
from kvscope.analysis.levels import METRICS, at_level, error_rates, level_key
from kvscope.record.rows import DesignRow, Json

_MEMORY = "memory_after_bytes"


def claims(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """What a grid's differences are, first; then cells; then interactions."""
    cell = ", ".join(f"{name} = {value}" for name, value in dict(design.baseline_level).items())
    values = {"factors": design.factor, "cells": len(design.levels), "baseline": cell}
    label = Finding(slug="grid_label", values=values)
    cells = (*time_findings(design, attempts), *memory_findings(design, attempts, _MEMORY))
    return (
        label,
        *not_kept_up(design, attempts),
        *(_labelled(design, finding) for finding in cells),
        *_interactions(design, attempts, "ttft_s"),
        *_interactions(design, attempts, "tpot_s"),
        *_interactions(design, attempts, _MEMORY),
    )


def num_changed(design: DesignRow, level: Json) -> int:
    """How many factors differ from the baseline cell."""
    base = design.baseline_level
    return sum(level_key(level[name]) != level_key(base[name]) for name in base)


def _labelled(design: DesignRow, finding: Finding) -> Finding:
    level = finding.values["level"]
    if isinstance(level, Mapping) and num_changed(design, level) > 1:
        return replace(finding, also_possible=("both_factors_changed", *finding.also_possible))
    return finding


def _interactions(design: DesignRow, attempts: Sequence[Attempt], metric: str) -> list[Finding]:
    """For each cell in which both factors changed: what the two do together beyond what each does alone."""
    both = [level for level in design.levels if isinstance(level, Mapping) and num_changed(design, level) == 2]
    found = []
    for level in both:
        effect = _interaction(design, attempts, level, metric, num_levels=len(both))
        if effect.num_pairs:
            found.append(_finding(design, attempts, level, metric, effect))
    return found


def _interaction(
    design: DesignRow, attempts: Sequence[Attempt], level: Mapping[str, Json], metric: str, *, num_levels: int
) -> Effect:
    """By block: (both − first alone) against (second alone − baseline cell)."""
    base = design.baseline_level
    first, second = list(base)
    alone = ({**base, first: level[first]}, {**base, second: level[second]})
    values = [_by_block(attempts, cell, metric) for cell in (base, *alone, level)]
    blocks = sorted(set.intersection(*(set(each) for each in values)))
    pairs = [(values[2][b] - values[0][b], values[3][b] - values[1][b]) for b in blocks]
    # Four readings are in it, not two.
    step = 2 * resolution_of(metric)
    return paired_effect(metric, pairs, num_levels=num_levels, rates=error_rates(design), resolution=step)


def _by_block(attempts: Sequence[Attempt], cell: Json, metric: str) -> dict[int, float]:
    found = {}
    for attempt in at_level(attempts, cell):
        value = METRICS[metric](attempt)
        if attempt.is_measured and value is not None:
            found[attempt.trial.block] = value
    return found


def _asked(attempts: Sequence[Attempt], cell: Json, metric: str) -> float:
    """How closely an interaction should be known before "not seen" says much: a share of the baseline cell's mean."""
    values = _by_block(attempts, cell, metric).values()
    return ASKED_SHARE * abs(fmean(values)) if values else 0.0


def _finding(design: DesignRow, attempts: Sequence[Attempt], level: Json, metric: str, effect: Effect) -> Finding:
    kind = "memory" if metric == _MEMORY else "time"
    told = verdict(effect, _asked(attempts, design.baseline_level, metric))
    slug = {"more": "seen", "less": "seen", "unknown": "unknown", "cannot_tell": "cannot_tell"}.get(told, "not_seen")
    unit = "bytes" if kind == "memory" else "s"
    return Finding(
        slug=f"interaction_{kind}_{slug}",
        values={
            **named(design, level),
            "metric": metric,
            f"beyond_{unit}": effect.difference.value,
            f"ruled_out_{unit}": effect.would_have_been_seen,
            "pairs": effect.num_pairs,
        },
        evidence=evidence(design, attempts, level),
        size=effect.difference,
        how_to_check="until_narrow",
    )
