"""Memory of an engine that counts its own heap (transformers, in a process with glibc): the terms of the identity by
what the allocator itself says is in use and what it keeps, instead of by mappings.

torch takes tensors from the C library's malloc, whose blocks share mappings with one another and are kept when they are
freed; a list of mappings cannot tell them apart. The allocator can: mallinfo2(3) states what is in use and what is
free but not given back, and weights and cache are a part of what is in use, counted tensor by tensor by the engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvscope.analysis.attribution import Attribution
from kvscope.record.metrics import last_mark
from kvscope.record.rows import MapRow, MarkRow, TrialResult

_IN_USE = ("heap_in_use_bytes", "heap_mmapped_bytes")
# Endings of files that weights are mapped from; mapped weights are pages of their file and not of the heap.
_WEIGHT_FILES = (".safetensors",)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnHeap:
    """Growth in bytes since the start. ``weights`` and ``cache`` lie in the heap and are counted by the engine;
    ``in_use`` is what else does, ``kept`` what was freed and not given back, ``python`` at most what the interpreter's
    own arenas take, which are not of the heap: how much of a new one is touched is not stated."""

    weights: int
    cache: int
    in_use: int
    kept: int
    python: int


def own_heap(result: TrialResult, start: MarkRow | None, mark: MarkRow, maps: Sequence[MapRow]) -> OwnHeap | None:
    """What the engine's own counters say of the growth between two marks; None where it does not state them at both,
    or where its model is on a device. ``maps``: the mappings at ``mark``."""
    if start is None or not str(result.effective.get("device", "cpu")).startswith("cpu"):
        return None
    if not isinstance(result.effective.get("weights_bytes"), int):
        return None  # it counts its heap, and not what of its model lies in it (llama.cpp)
    before, now = _counters(result, start), _counters(result, mark)
    if any(name not in counters for name in _IN_USE for counters in (before, now)):
        return None
    weights = _weights_in_heap(result, mark, maps)
    cache = round(now.get("cache_storage_bytes", 0))
    grown = {name: round(now[name] - before.get(name, 0)) for name in now}
    return OwnHeap(
        weights=weights,
        cache=cache,
        in_use=sum(grown[name] for name in _IN_USE) - weights - cache,
        kept=grown.get("heap_free_bytes", 0),
        python=_in_memory(grown, _maps_at(result, start), maps),
    )


def heap_at_peak(result: TrialResult, after: Attribution) -> dict[str, int]:
    """When the allocator held most during the last request, by its own count: ``more``, what it had in use beyond what
    is in use at ``after``, and ``kept``, growth of what was freed and not given back. Empty where it does not count
    that."""
    start, mark = last_mark(result, "launched"), last_mark(result, after.phase)
    if start is None or mark is None or own_heap(result, start, mark, ()) is None:
        return {}
    before, now = _counters(result, start), _counters(result, mark)
    if "heap_peak_bytes" not in now:
        return {}
    more = now["heap_peak_bytes"] - sum(now[name] for name in _IN_USE)
    kept = now["heap_peak_free_bytes"] - before.get("heap_free_bytes", 0)
    return {"more": max(0, round(more)), "kept": round(kept)}


def _in_memory(grown: Mapping[str, int], before: Sequence[MapRow], after: Sequence[MapRow]) -> int:
    """What Python's new arenas take. It maps 1 MiB at once and touches it little by little: they hold no more than
    private mappings without a name have grown by, less those that malloc made."""
    stated = grown.get("python_arena_bytes", 0)
    unnamed = [sum(m.anonymous_bytes for m in maps if m.kind == "anonymous") for maps in (before, after)]
    if stated <= 0 or not all(unnamed):
        return stated
    return min(stated, max(0, unnamed[1] - unnamed[0] - grown["heap_mmapped_bytes"]))


def _maps_at(result: TrialResult, mark: MarkRow) -> tuple[MapRow, ...]:
    return tuple(m for m in result.maps if m.phase == mark.phase and m.request_index == mark.request_index)


def _counters(result: TrialResult, mark: MarkRow) -> Mapping[str, float]:
    return {
        row.name: row.value
        for row in result.statistics
        if row.phase == mark.phase and row.request_index == mark.request_index
    }


def _weights_in_heap(result: TrialResult, mark: MarkRow, maps: Sequence[MapRow]) -> int:
    """Weights that are no pages of a mapped file: random ones, and those converted to another format."""
    stated = result.effective.get("weights_bytes")
    if mark.phase == "unloaded" or not isinstance(stated, int):
        return 0
    mapped = sum(m.size_bytes for m in maps if m.kind == "file" and m.name.endswith(_WEIGHT_FILES))
    return max(0, stated - mapped)
