"""What a changed level did to time and memory, as findings: the difference from the baseline, paired by block."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.effects import Effect, ErrorRates
from kvscope.analysis.finding import Finding
from kvscope.analysis.levels import LevelRow, at_level, level_rows
from kvscope.record.rows import DesignRow, Json

TIMES = ("ttft_s", "tpot_s")
# How closely a time should be known before "no difference" says much: so far to either side, of the baseline.
ASKED_SHARE = 0.05
# Times closer than any clock tells.
_SAME_S = 1e-9


def changed_rows(
    design: DesignRow, attempts: Sequence[Attempt], metrics: Sequence[str]
) -> tuple[tuple[LevelRow, tuple[str, ...]], ...]:
    """Every level but the baseline that was measured, each with the attempts its difference rests on."""
    rows = level_rows(design, attempts, metrics)
    return tuple(
        (row, evidence(design, attempts, row.level)) for row in rows if not row.is_baseline and row.num_measured
    )


def evidence(design: DesignRow, attempts: Sequence[Attempt], level: Json) -> tuple[str, ...]:
    """Keys of the measured attempts of the baseline and of a level."""
    both = (*at_level(attempts, design.baseline_level), *at_level(attempts, level))
    return tuple(a.key for a in both if a.is_measured)


def block_pairs(
    design: DesignRow, attempts: Sequence[Attempt], level: Json, get: Callable[[Attempt], float | None]
) -> list[tuple[float, float]]:
    """(baseline, changed) of every block that holds both."""
    before = _by_block(at_level(attempts, design.baseline_level), get)
    after = _by_block(at_level(attempts, level), get)
    return [(fmean(before[block]), fmean(after[block])) for block in sorted(before.keys() & after.keys())]


def _by_block(attempts: Sequence[Attempt], get: Callable[[Attempt], float | None]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for attempt in attempts:
        if attempt.is_measured and (value := get(attempt)) is not None:
            found.setdefault(attempt.trial.block, []).append(value)
    return found


def named(design: DesignRow, level: Json) -> dict[str, object]:
    """How a sentence names a level and what it is compared with."""
    return {"factor": design.factor, "level": level, "baseline_level": design.baseline_level}


def time_findings(
    design: DesignRow, attempts: Sequence[Attempt], metrics: Sequence[str] = TIMES
) -> tuple[Finding, ...]:
    """For each level and time: longer, shorter, no difference told from noise, or not known. A time of which there is
    no pair is left out."""
    return tuple(
        _time(effect, named(design, row.level), keys)
        for row, keys in changed_rows(design, attempts, metrics)
        for effect in row.effects.values()
        if effect.num_pairs
    )


def _time(effect: Effect, names: Mapping[str, object], keys: tuple[str, ...]) -> Finding:
    base = effect.baseline or 0.0
    ruled_out = effect.would_have_been_seen
    half = effect.half_width
    is_close = half is not None and half <= ASKED_SHARE * base
    slug = effect.verdict
    # What more repeats could tell: a difference as large as the one seen here, if it is there.
    target = max(ASKED_SHARE * base, abs(effect.difference.value or 0.0))
    if slug == "no_difference_seen" and not is_close:
        slug = "cannot_tell"
    if ruled_out is not None and ruled_out < _SAME_S:
        slug = "equal"
    return Finding(
        slug=f"time_{slug}",
        values={
            **names,
            "metric": effect.metric,
            "difference_s": effect.difference.value,
            "baseline_s": effect.baseline,
            "share": effect.relative.value,
            "ruled_out_s": ruled_out,
            "ruled_out_share": None if ruled_out is None or not base else ruled_out / base,
            "target_s": target,
            "needed": repeats_to_call(effect, target),
            "pairs": effect.num_pairs,
        },
        evidence=keys,
        size=effect.difference,
        also_possible=_remarks(effect, slug),
        how_to_check="until_narrow",
    )


def _remarks(effect: Effect, slug: str) -> tuple[str, ...]:
    if slug in ("more", "less"):
        return ("busy_machine",)
    if slug == "cannot_tell" and effect.is_known and not effect.difference.contains(0.0):
        return ("one_of_several",)
    return ()


def repeats_to_call(effect: Effect, size: float) -> int | None:
    """How many repeats, as noisy as those measured, would call a difference of that size one."""
    error = effect.rates.call / effect.num_levels
    return replace(effect, rates=ErrorRates(interval=error, call=effect.rates.call)).repeats_needed(size)


def memory_findings(
    design: DesignRow,
    attempts: Sequence[Attempt],
    metric: str,
    predicted: Callable[[Json], int | None] = lambda _: None,
) -> tuple[Finding, ...]:
    """For each level the difference in all memory of the engine, beside the part of it that was predicted."""
    found = []
    for row, keys in changed_rows(design, attempts, (metric,)):
        effect = row.effects[metric]
        if not effect.num_pairs:
            continue
        expected = predicted(row.level)
        slug = f"memory_{effect.verdict}"
        found.append(
            Finding(
                slug=slug if expected is None else f"{slug}_predicted",
                values={
                    **named(design, row.level),
                    "metric": metric,
                    "difference_bytes": effect.difference.value,
                    "baseline_bytes": effect.baseline,
                    "predicted_bytes": expected,
                    "pairs": effect.num_pairs,
                },
                evidence=keys,
                size=effect.difference,
                also_possible=("other_buffers_follow_level",) if expected is not None else (),
                how_to_check="look_at_smaps",
            )
        )
    return tuple(found)
