"""One component of memory at two levels: predicted, as the engine's log prints it, and as seen in the process."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.attribute import attribute
from kvscope.analysis.compare import Component, compare_components
from kvscope.analysis.design_claims.changed import block_pairs, evidence, named
from kvscope.analysis.effects import PAGE_BYTES, paired_effect
from kvscope.analysis.finding import Finding
from kvscope.analysis.levels import at_level, level_key
from kvscope.record.rows import DesignRow, Json

# Memory is handed out in pages: what is seen of two buffers may differ from their sizes by a few of them.
PAGES_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A component at one level. ``agrees``: in every attempt the log printed what was predicted; None: nothing to
    compare."""

    predicted_bytes: int | None
    reported_mib: tuple[str, ...]
    agrees: bool | None


def buffer_at(attempts: Sequence[Attempt], level: Json, component: str) -> Buffer | None:
    """The component in the measured attempts of a level; None where none of them knows of it."""
    found = [c for a in at_level(attempts, level) if a.is_measured and (c := _component(a, component)) is not None]
    if not found:
        return None
    verdicts = [c.agrees for c in found]
    return Buffer(
        predicted_bytes=found[-1].allocated_bytes,
        reported_mib=found[-1].reported_mib,
        agrees=None if None in verdicts else all(verdicts),
    )


def _component(attempt: Attempt, slug: str) -> Component | None:
    rows = compare_components(attempt.result, attempt.prediction, None)
    return next((row for row in rows if row.slug == slug), None)


def seen_bytes(attempt: Attempt, component: str, phase: str = "loaded") -> int | None:
    """What of the component was seen in memory in the process's list of mappings; None where only a bound was."""
    attribution = attribute(attempt.result, attempt.prediction, phase)
    resident = None if attribution is None else attribution.residents.get(component)
    return None if resident is None or resident.how != "seen" else resident.num_bytes


def buffer_findings(design: DesignRow, attempts: Sequence[Attempt], component: str) -> tuple[Finding, ...]:
    """For each changed level what the component takes there and at the baseline. Nothing where neither the prediction
    nor the engine knows of it."""
    base = buffer_at(attempts, design.baseline_level, component)
    if base is None:
        return ()
    base_key = level_key(design.baseline_level)
    found = []
    for level in (x for x in design.levels if level_key(x) != base_key):
        here = buffer_at(attempts, level, component)
        if here is not None:
            found.append(_compared(design, attempts, level, component, base, here))
    return tuple(found)


def predicted_difference(design: DesignRow, attempts: Sequence[Attempt], level: Json, component: str) -> int | None:
    """By how many bytes the component is predicted to differ from the baseline."""
    base, here = (buffer_at(attempts, x, component) for x in (design.baseline_level, level))
    if base is None or here is None or base.predicted_bytes is None or here.predicted_bytes is None:
        return None
    return here.predicted_bytes - base.predicted_bytes


def _compared(
    design: DesignRow, attempts: Sequence[Attempt], level: Json, component: str, base: Buffer, here: Buffer
) -> Finding:
    difference = predicted_difference(design, attempts, level, component)
    pairs = block_pairs(design, attempts, level, lambda attempt: seen_bytes(attempt, component))
    seen = paired_effect(component, pairs, resolution=PAGE_BYTES).difference if pairs else None
    is_seen = seen is not None and seen.value is not None and difference is not None
    is_as_seen = is_seen and seen is not None and abs((seen.value or 0) - (difference or 0)) <= PAGES_BYTES
    if here.agrees is False or base.agrees is False:
        slug = "contradicted"
    elif difference is None:
        slug = "reported_only"
    elif here.agrees is None or base.agrees is None:
        slug = "predicted_only"
    else:
        slug = ("confirmed" if is_as_seen else "not_in_memory") if is_seen else "reported"
    return Finding(
        slug=f"buffer_{slug}",
        is_contradiction=slug in ("contradicted", "not_in_memory"),
        values={
            **named(design, level),
            "component": component,
            "predicted_bytes": here.predicted_bytes,
            "baseline_predicted_bytes": base.predicted_bytes,
            "difference_bytes": difference,
            "reported_mib": " + ".join(here.reported_mib) or None,
            "baseline_reported_mib": " + ".join(base.reported_mib) or None,
            "seen_difference_bytes": None if seen is None else seen.value,
        },
        evidence=evidence(design, attempts, level),
        size=seen,
        also_possible=("other_engine_build", "other_settings") if slug == "contradicted" else (),
        how_to_check="engine_lines",
    )
