"""Where the engine put layers and cache at each level, by its own log; what that changed. Where nothing was moved, that
is what is said, and no difference in time is laid to it."""

from collections.abc import Sequence

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims.changed import evidence, memory_findings, named, time_findings
from kvscope.analysis.finding import Finding
from kvscope.analysis.levels import at_level, level_key
from kvscope.record.rows import DesignRow, Json

# How llama.cpp names buffers in host memory: CPU, CPU_Mapped, CPU_REPACK …, and memory that a device can read
# (CUDA_Host).
_HOST = ("CPU", "BLAS")
_HOST_ENDING = "_Host"


def claims(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """For each changed level where things are; then memory and times of those levels at which something was moved, or
    at which the engine does not say."""
    base_key = level_key(design.baseline_level)
    levels = [level for level in design.levels if level_key(level) != base_key]
    found = [(level, finding) for level in levels if (finding := _places(design, attempts, level)) is not None]
    moved = [level for level, finding in found if finding.slug != "offload_nothing_moved"]
    there = [
        a for a in attempts if any(level_key(a.trial.level) == level_key(x) for x in (design.baseline_level, *moved))
    ]
    compared = (
        *memory_findings(design, there, "memory_loaded_bytes"),
        *memory_findings(design, there, "memory_loaded_bytes_device"),
        *time_findings(design, there),
    )
    return (*(finding for _, finding in found), *(compared if moved else ()))


def _places(design: DesignRow, attempts: Sequence[Attempt], level: Json) -> Finding | None:
    here = [a for a in at_level(attempts, level) if a.is_measured]
    base = [a for a in at_level(attempts, design.baseline_level) if a.is_measured]
    if not here:
        return None
    places = _named_places(here[-1])
    before = _named_places(base[-1]) if base else ()
    slug = "offload_not_stated"
    if places:
        slug = "offload_moved" if any(map(_is_device, (*places, *before))) else "offload_nothing_moved"
    return Finding(
        slug=slug,
        values={
            **named(design, level),
            "places": places,
            "baseline_places": before,
            "unconfirmed": sum(any(w.slug == "setting-not-confirmed" for w in a.result.warnings) for a in here),
            "measured": len(here),
        },
        evidence=evidence(design, attempts, level),
        also_possible=("build_without_device",) if slug == "offload_nothing_moved" else (),
        how_to_check="engine_lines",
    )


def _named_places(attempt: Attempt) -> tuple[str, ...]:
    """Where the engine's log puts each component, as it writes it: "weights: CPU_Mapped"."""
    names: dict[str, list[str]] = {}
    for row in attempt.result.reported:
        if row.phase == "loaded" and row.component in ("weights", "compute_buffer"):
            names.setdefault(row.component, []).append(row.name)
    cache = attempt.result.effective.get("kv_cache_devices")
    if isinstance(cache, str):
        names["kv_cache"] = [cache]
    return tuple(f"{component}: {', '.join(dict.fromkeys(found))}" for component, found in names.items())


def _is_device(place: str) -> bool:
    parts = place.partition(": ")[2].split(", ")
    return any(not part.startswith(_HOST) and not part.endswith(_HOST_ENDING) for part in parts)
