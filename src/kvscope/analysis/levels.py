"""The table of a controlled experiment: the baseline, one changed condition at a time, repeats and failures."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from kvscope.analysis.attempts import Attempt, latest_attempts
from kvscope.analysis.effects import FIXED, STOPPED, Effect, ErrorRates, paired_effect
from kvscope.analysis.fit import Estimate, mean
from kvscope.record.rows import DesignRow, Json

_TIMES = ("ttft_s", "tpot_s", "completion_s", "first_answer_s", "itl_p50_s", "itl_p99_s")
_SPEEDS = ("prefill_tokens_per_s", "decode_tokens_per_s")
_LOADS = ("ttft_p50_s", "ttft_p99_s", "ttft_max_s", "queue_wait_s", "load_wall_s", "output_tokens_per_s_all")
_MEMORY = tuple(
    f"memory_{moment}_bytes{kind}"
    for kind in ("", "_device", "_file")
    for moment in ("baseline", "loaded", "peak", "after", "released")
)


def _metric(name: str) -> Callable[[Attempt], float | None]:
    return lambda attempt: getattr(attempt.metrics, name)


def _of_load(name: str) -> Callable[[Attempt], float | None]:
    return lambda attempt: None if attempt.metrics.load is None else getattr(attempt.metrics.load, name)


# What is compared between levels. Names are those of record.metrics.TrialMetrics, and columns of the record.
METRICS: Mapping[str, Callable[[Attempt], float | None]] = {
    **{name: _metric(name) for name in (*_TIMES, *_SPEEDS, *_MEMORY)},
    **{name: _of_load(name) for name in _LOADS},
    "output_tokens": lambda attempt: attempt.output_tokens,
}
# What a table of a design shows of them, in this order, where it was measured.
SHOWN = (
    *("ttft_s", "tpot_s", "completion_s", "ttft_max_s", "queue_wait_s", "load_wall_s", "output_tokens_per_s_all"),
    *("memory_loaded_bytes", "memory_peak_bytes", "memory_after_bytes"),
    *("memory_loaded_bytes_device", "memory_peak_bytes_device"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRow:
    """One level of a design. ``means`` are over all that were measured; ``effects`` holds, per metric, level −
    baseline, paired by block; empty for the baseline itself. Failed trials are in neither, and counted."""

    level: Json
    is_baseline: bool
    num_measured: int
    num_failed: int
    means: Mapping[str, Estimate]
    effects: Mapping[str, Effect]

    @property
    def differences(self) -> Mapping[str, Estimate]:
        """The differences of ``effects`` with their intervals alone."""
        return {name: effect.difference for name, effect in self.effects.items()}


def level_key(level: Json) -> str:
    """A level as text that equals another's only if the levels are equal; levels of a grid are mappings."""
    if type(level) is int:  # most are, and a record asks for thousands
        return str(level)
    return json.dumps(level, sort_keys=True, ensure_ascii=False)


def at_level(attempts: Sequence[Attempt], level: Json) -> tuple[Attempt, ...]:
    """Attempts of the measured role at a level, failures included."""
    key = level_key(level)
    return tuple(a for a in attempts if a.trial.role == "measured" and level_key(a.trial.level) == key)


def level_rows(
    design: DesignRow, attempts: Sequence[Attempt], metrics: Sequence[str] = tuple(METRICS)
) -> tuple[LevelRow, ...]:
    """One row per level of the design, the baseline first. Attempts of another design (another machine, engine build or
    model among them) are left out: they are never paired with these."""
    by_level: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        if attempt.trial.design_id == design.design_id and attempt.trial.role == "measured":
            by_level.setdefault(level_key(attempt.trial.level), []).append(attempt)
    base_key = level_key(design.baseline_level)
    baseline = by_level.get(base_key, [])
    before = {name: _by_block([a for a in baseline if a.is_measured], METRICS[name]) for name in metrics}
    levels = sorted(design.levels, key=lambda level: level_key(level) != base_key)
    rows = []
    for level in levels:
        here, is_baseline = by_level.get(level_key(level), []), level_key(level) == base_key
        measured = [a for a in here if a.is_measured]
        compared = (max(1, sum(level_key(level) != base_key for level in levels)), error_rates(design))
        rows.append(
            LevelRow(
                level=level,
                is_baseline=is_baseline,
                num_measured=len(measured),
                num_failed=sum(a.is_failure for a in latest_attempts(here)),
                means={name: mean(_values(measured, METRICS[name]), floor=0.0) for name in metrics},
                effects={} if is_baseline else {n: _effect(n, before[n], measured, *compared) for n in metrics},
            )
        )
    return tuple(rows)


def error_rates(design: DesignRow) -> ErrorRates:
    """The rates its intervals are made with: others where repeating could end early (``--until``)."""
    return STOPPED if design.definition.get("until") else FIXED


def _effect(
    metric: str, before: Mapping[int, list[float]], changed: Sequence[Attempt], num_levels: int, rates: ErrorRates
) -> Effect:
    """``before``: the baseline's values by block, so that a slow quarter of an hour hits both of a pair alike."""
    after = _by_block(changed, METRICS[metric]) if before else {}
    pairs = [(fmean(before[block]), fmean(after[block])) for block in sorted(before.keys() & after.keys())]
    return paired_effect(metric, pairs, num_levels=num_levels, rates=rates)


def _values(attempts: Sequence[Attempt], get: Callable[[Attempt], float | None]) -> list[float]:
    return [value for a in attempts if (value := get(a)) is not None]


def _by_block(attempts: Sequence[Attempt], get: Callable[[Attempt], float | None]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for attempt in attempts:
        if (value := get(attempt)) is not None:
            found.setdefault(attempt.trial.block, []).append(value)
    return found
