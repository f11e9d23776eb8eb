"""The table of a controlled experiment: the baseline, one changed condition at a time, repeats and failures."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvscope.analysis.attempts import Attempt, latest_attempts
from kvscope.analysis.fit import Estimate, mean, mean_difference
from kvscope.record.rows import DesignRow, Json

# What is compared between levels. Names are those of record.metrics.TrialMetrics.
METRICS: Mapping[str, Callable[[Attempt], float | None]] = {
    "ttft_s": lambda attempt: attempt.metrics.ttft_s,
    "tpot_s": lambda attempt: attempt.metrics.tpot_s,
    "completion_s": lambda attempt: attempt.metrics.completion_s,
    "memory_loaded_bytes": lambda attempt: attempt.metrics.memory_loaded_bytes,
    "memory_peak_bytes": lambda attempt: attempt.metrics.memory_peak_bytes,
    "memory_after_bytes": lambda attempt: attempt.metrics.memory_after_bytes,
    "output_tokens": lambda attempt: attempt.output_tokens,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRow:
    """One level of a design. ``differences`` holds, per metric, level − baseline, paired by block; empty for the
    baseline itself."""

    level: Json
    is_baseline: bool
    num_measured: int
    num_failed: int
    means: Mapping[str, Estimate]
    differences: Mapping[str, Estimate]


def level_key(level: Json) -> str:
    """A level as text that equals another's only if the levels are equal; levels of a grid are mappings."""
    return json.dumps(level, sort_keys=True, ensure_ascii=False)


def at_level(attempts: Sequence[Attempt], level: Json) -> tuple[Attempt, ...]:
    """Attempts of the measured role at a level, failures included."""
    key = level_key(level)
    return tuple(a for a in attempts if a.trial.role == "measured" and level_key(a.trial.level) == key)


def level_rows(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[LevelRow, ...]:
    """One row per level of the design, the baseline first."""
    base_key = level_key(design.baseline_level)
    baseline = at_level(attempts, design.baseline_level)
    levels = sorted(design.levels, key=lambda level: level_key(level) != base_key)
    return tuple(_row(level, level_key(level) == base_key, at_level(attempts, level), baseline) for level in levels)


def _row(level: Json, is_baseline: bool, here: Sequence[Attempt], baseline: Sequence[Attempt]) -> LevelRow:
    measured = [a for a in here if a.is_measured]
    return LevelRow(
        level=level,
        is_baseline=is_baseline,
        num_measured=len(measured),
        num_failed=sum(a.is_failure for a in latest_attempts(here)),
        means={name: mean(_values(measured, get), floor=0.0) for name, get in METRICS.items()},
        differences={}
        if is_baseline
        else {name: mean_difference(_pairs(baseline, measured, get)) for name, get in METRICS.items()},
    )


def _values(attempts: Sequence[Attempt], get: Callable[[Attempt], float | None]) -> list[float]:
    return [value for a in attempts if (value := get(a)) is not None]


def _pairs(
    baseline: Sequence[Attempt], changed: Sequence[Attempt], get: Callable[[Attempt], float | None]
) -> list[tuple[float, float]]:
    """(baseline, changed) of every block that holds both, so that a slow quarter of an hour hits both alike."""
    pairs = []
    for block in sorted({a.trial.block for a in changed}):
        before = mean(_values([a for a in baseline if a.is_measured and a.trial.block == block], get)).value
        after = mean(_values([a for a in changed if a.trial.block == block], get)).value
        if before is not None and after is not None:
            pairs.append((before, after))
    return pairs
