"""Terms of the identity that are buffers: found among the mappings, resident by rule, or only at most so much."""

from collections.abc import Mapping, Sequence

from kvscope.analysis.attribution import Resident, Term
from kvscope.analysis.match import Buffer, Place
from kvscope.analysis.notes import note
from kvscope.record.rows import MapRow
from kvscope.units import MIB

# Larger blocks than this always get a mapping of their own from glibc's malloc: the upper limit of its mmap threshold
# on 64-bit systems (mallopt(3), DEFAULT_MMAP_THRESHOLD_MAX). Smaller ones may lie in a heap or an arena.
HEAP_BLOCK_BYTES = 32 * MIB


def buffer_terms(
    places: Sequence[Place], missing: Sequence[Buffer], *, at_load: Mapping[int, int] | None = None
) -> tuple[list[Term], dict[str, Resident]]:
    """Terms and residents of the buffers; those of one component are added up.

    A filled buffer that was not found is resident by the engine's rule. It is a term only if it is too large for the
    heap: a smaller one may lie there, and the heap's growth is a term already.

    ``at_load``: the heap is no term. Then all that is resident by rule, or by the engine's word, is one; and in a
    mapping that buffers share with other memory only that is theirs by which it grew since the load (by the mapping's
    size: what else was in it then).
    """
    seen: dict[str, int] = {}
    basis: dict[str, str] = {}
    touched: dict[tuple[str, str], int] = {}
    residents: dict[str, Resident] = {}
    for place in places:
        for buffer in place.filled:
            size = min(buffer.num_bytes, place.mapping.anonymous_bytes)
            seen[buffer.component] = seen.get(buffer.component, 0) + size
            basis[buffer.component] = buffer.source
        names = tuple(sorted({b.component for b in place.partly_touched}))
        if names:
            slug = names[0] if len(names) == 1 else "working_buffers"
            key = slug, "predicted" if place.is_exact else "shared"
            size = _touched(place, at_load)
            touched[key] = touched.get(key, 0) + size
            for name in names:
                residents[name] = _touched_resident(name, names, place, size)
    _add_missing(missing, seen, basis, residents, is_by_cause=at_load is not None)
    for component, size in seen.items():
        lost = sum(b.num_bytes for b in missing if b.component == component)
        partly = note("partly_found", size_bytes=lost) if lost else None
        residents.setdefault(component, Resident(num_bytes=size, how="seen", note=partly))
    terms = [Term(slug=s, backing="anonymous", num_bytes=n, basis=basis[s]) for s, n in seen.items()]
    terms += [Term(slug=s, backing="anonymous", num_bytes=n, basis=how) for (s, how), n in touched.items()]
    return terms, residents


def _touched(place: Place, at_load: Mapping[int, int] | None) -> int:
    """What is in memory of the buffers of a place that are touched as they are used."""
    if place.is_exact or at_load is None:
        return place.touched_bytes
    grown = place.mapping.anonymous_bytes - sum(b.num_bytes for b in place.filled)
    grown -= at_load.get(place.mapping.size_bytes, grown)
    return max(0, min(grown, sum(b.num_bytes for b in place.partly_touched)))


def _add_missing(
    missing: Sequence[Buffer],
    seen: dict[str, int],
    basis: dict[str, str],
    residents: dict[str, Resident],
    *,
    is_by_cause: bool,
) -> None:
    """What is known of the buffers that were not found, put beside what was ``seen`` of their components."""
    if is_by_cause:
        _add_stated(missing, seen, basis)
    for component in dict.fromkeys(b.component for b in missing):
        size = sum(b.num_bytes for b in missing if b.component == component)
        filled = [b for b in missing if b.component == component and b.is_filled and b.source == "predicted"]
        if filled:
            large = sum(b.num_bytes for b in filled if b.num_bytes > HEAP_BLOCK_BYTES)
            small = sum(b.num_bytes for b in filled) - large
            whole = seen.get(component, 0) + large + small
            why = note("by_rule_in_heap", size_bytes=small) if small else note("by_rule_not_seen")
            residents[component] = Resident(num_bytes=whole, how="rule", note=why)
            if is_by_cause:
                seen[component] = whole
                basis[component] = "rule"
            elif large:
                seen[component] = seen.get(component, 0) + large
                basis[component] = "rule"
        elif component not in seen:
            residents.setdefault(
                component, Resident(num_bytes=None, how="unknown", note=note("no_own_mapping", size_bytes=size))
            )


def _add_stated(missing: Sequence[Buffer], seen: dict[str, int], basis: dict[str, str]) -> None:
    """Blocks that the engine says it holds, in full, and that lie among others."""
    for buffer in missing:
        if buffer.is_filled and buffer.source == "reported":
            seen[buffer.component] = seen.get(buffer.component, 0) + buffer.num_bytes
            basis[buffer.component] = "reported"


def not_grown(places: Sequence[Place], at_load: Mapping[int, int]) -> list[Buffer]:
    """Buffers touched as they are used that were placed in a mapping with room for them which has not grown since the
    load: it had the room, and they are elsewhere."""
    still = [place for place in places if not place.is_exact and _touched(place, at_load) == 0]
    return [buffer for place in still for buffer in place.partly_touched]


def joined_terms(missing: Sequence[Buffer], at_load: Sequence[MapRow], free: Sequence[MapRow]) -> list[Term]:
    """Buffers that are touched as they are used and were not found: the kernel may have joined one to other memory, in
    a mapping that has room for it and that grew since the load. At most that growth is the buffer's. ``at_load``: the
    mappings then; ``free``: those now in which nothing was found."""
    terms = []
    for buffer in sorted((b for b in missing if not b.is_filled), key=lambda b: b.num_bytes, reverse=True):
        grown = [(_grown_since(at_load, m), m) for m in free if m.size_bytes >= buffer.num_bytes]
        size, mapping = max(grown, key=lambda pair: pair[0], default=(0, None))
        if mapping is None or size <= 0:
            continue
        size = min(size, buffer.num_bytes)
        terms.append(Term(slug=buffer.component, backing="anonymous", num_bytes=size, basis="shared"))
        free = [each for each in free if each is not mapping]
    return terms


def _grown_since(at_load: Sequence[MapRow], mapping: MapRow) -> int:
    """By how much a mapping that was there after the load has grown; 0 where none of its size was."""
    before = [m.anonymous_bytes for m in at_load if m.kind == mapping.kind and m.size_bytes == mapping.size_bytes]
    return max(0, mapping.anonymous_bytes - max(before)) if before else 0


def _touched_resident(name: str, names: tuple[str, ...], place: Place, size: int) -> Resident:
    others = tuple(n for n in names if n != name)
    if not place.is_exact:
        slug = "at_most_together" if others else "at_most"
        return Resident(num_bytes=None, how="at_most", note=note(slug, others=others, size_bytes=size))
    if not others:
        return Resident(num_bytes=size, how="seen", note=note("touched_part"))
    return Resident(num_bytes=None, how="together", note=note("seen_together", others=others, size_bytes=size))


def with_model_file(copied: Resident | None, file_bytes: int) -> Resident:
    """Weights may be in memory twice over: in the mapped file, and copied or repacked into a buffer."""
    if copied is None:
        return Resident(num_bytes=file_bytes, how="seen")
    if copied.num_bytes is None:
        return Resident(num_bytes=None, how="together", note=note("weights_file_only", size_bytes=file_bytes))
    return Resident(num_bytes=file_bytes + copied.num_bytes, how=copied.how, note=copied.note)
