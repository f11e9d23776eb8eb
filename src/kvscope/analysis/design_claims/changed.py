"""What a changed level did to time and memory, as findings: the difference from the baseline, paired by block."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.effects import Effect, ErrorRates
from kvscope.analysis.finding import Finding
from kvscope.analysis.fit import Estimate, shifted
from kvscope.analysis.levels import LevelRow, at_level, level_rows
from kvscope.record.rows import DesignRow, Json

TIMES = ("ttft_s", "tpot_s")
# How closely a time or a size should be known before "no difference" says much: so far to either side, of the baseline.
ASKED_SHARE = 0.05


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


def count_span(
    attempts: Sequence[Attempt], level: Json, get: Callable[[Attempt], float | None]
) -> tuple[int, int] | None:
    """Fewest and most of a count over the repeats of a level: what is the same in each is one number."""
    values = [int(value) for a in at_level(attempts, level) if a.is_measured and (value := get(a)) is not None]
    return (min(values), max(values)) if values else None


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


def verdict(effect: Effect, asked: float) -> str:
    """What may be said of a difference: more or less; equal (the same in every pair); no_difference_seen where its
    interval reaches no further than ``asked`` to either side; cannot_tell where it does; unknown without one."""
    if effect.is_same:
        return "equal"
    half = effect.half_width
    if effect.verdict == "no_difference_seen" and half is not None and half > asked:
        return "cannot_tell"
    return effect.verdict


def ruled_out(effect: Effect, asked: float) -> dict[str, object]:
    """What a verdict leaves open: how large a difference it rules out, how many repeats would tell one as large as
    ``asked`` or as the one seen here, if it is there, and by how much differences scatter, as a share."""
    most, base = effect.would_have_been_seen, effect.baseline
    target = max(asked, abs(effect.difference.value or 0.0))
    return {
        "ruled_out": most,
        "ruled_out_share": None if most is None or not base else most / abs(base),
        "target": target,
        "needed": repeats_to_call(effect, target),
        "pairs": effect.num_pairs,
        "noise_share": None if effect.spread is None or not base else effect.spread / abs(base),
    }


def _with_unit(values: Mapping[str, object], unit: str) -> dict[str, object]:
    return {f"{name}_{unit}" if name in ("ruled_out", "target") else name: value for name, value in values.items()}


def _time(effect: Effect, names: Mapping[str, object], keys: tuple[str, ...]) -> Finding:
    asked = ASKED_SHARE * abs(effect.baseline or 0.0)
    slug = verdict(effect, asked)
    return Finding(
        slug=f"time_{slug}",
        values={
            **names,
            "metric": effect.metric,
            "difference_s": effect.difference.value,
            "baseline_s": effect.baseline,
            "share": effect.share.value,
            **_with_unit(ruled_out(effect, asked), "s"),
        },
        evidence=keys,
        size=effect.difference,
        also_possible=remarks(effect, slug),
        how_to_check="until_narrow",
    )


def remarks(effect: Effect, slug: str) -> tuple[str, ...]:
    """What else there is to say of a verdict on a time or a rate."""
    if slug in ("more", "less"):
        return ("busy_machine",)
    if slug == "cannot_tell" and effect.is_known and not effect.difference.contains(0.0):
        return ("one_of_several",)
    return ()


def repeats_to_call(effect: Effect, size: float) -> int | None:
    """How many repeats, as noisy as those measured, would call a difference of that size one."""
    error = effect.rates.call / effect.num_levels
    return replace(effect, rates=ErrorRates(interval=error, call=effect.rates.call)).repeats_needed(size)


def rate_findings(design: DesignRow, attempts: Sequence[Attempt], metrics: Sequence[str]) -> tuple[Finding, ...]:
    """The same of rates, in tokens per second."""
    found = []
    for row, keys in changed_rows(design, attempts, metrics):
        for effect in row.effects.values():
            if effect.num_pairs:
                asked = ASKED_SHARE * abs(effect.baseline or 0.0)
                slug = verdict(effect, asked)
                values = {
                    **named(design, row.level),
                    "metric": effect.metric,
                    "difference_per_s": effect.difference.value,
                    "baseline_per_s": effect.baseline,
                    "share": effect.share.value,
                    **_with_unit(ruled_out(effect, asked), "per_s"),
                }
                found.append(
                    Finding(
                        slug=f"rate_{slug}",
                        values=values,
                        evidence=keys,
                        size=effect.difference,
                        also_possible=remarks(effect, slug),
                        how_to_check="until_narrow",
                    )
                )
    return tuple(found)


def memory_findings(
    design: DesignRow,
    attempts: Sequence[Attempt],
    metric: str,
    predicted: Callable[[Json], int | None] = lambda _: None,
) -> tuple[Finding, ...]:
    """For each level the difference in all memory of the engine, beside what one buffer's was predicted to be."""
    return tuple(
        _memory(row.effects[metric], named(design, row.level), predicted(row.level), keys)
        for row, keys in changed_rows(design, attempts, (metric,))
        if row.effects[metric].num_pairs
    )


def _memory(effect: Effect, names: Mapping[str, object], expected: int | None, keys: tuple[str, ...]) -> Finding:
    # A size that was predicted should be told from none; without one a share of all memory has to do.
    asked = abs(expected) / 2 if expected else ASKED_SHARE * abs(effect.baseline or 0.0)
    slug = verdict(effect, asked)
    size = effect.difference
    beyond = Estimate(value=None) if expected is None else shifted(size, -expected)
    is_beside = beyond.has_interval and slug != "cannot_tell" and not beyond.contains(0.0)
    end = "" if expected is None else "_beside" if is_beside else "_predicted"
    return Finding(
        slug=f"memory_{slug}{end}",
        values={
            **names,
            "metric": effect.metric,
            "difference_bytes": size.value,
            "baseline_bytes": effect.baseline,
            "predicted_bytes": expected,
            "beyond_bytes": beyond.value,
            "beyond_low_bytes": beyond.low,
            "beyond_high_bytes": beyond.high,
            **_with_unit(ruled_out(effect, asked), "bytes"),
        },
        evidence=keys,
        size=size,
        also_possible=("other_buffers_follow_level",) if is_beside else (),
        how_to_check="look_at_smaps",
    )
