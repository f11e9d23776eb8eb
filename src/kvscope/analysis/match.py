"""Finds the predicted buffers among the memory mappings that the operating system lists.

The kernel joins neighbouring anonymous mappings, so a buffer may have a mapping of its own or share one. What is known
is used, and no more: a mapping's size and how much of it is resident; a buffer's exact size; and whether the engine
writes all of it when it loads.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

from kvscope.record.rows import MapRow

Item = TypeVar("Item")

KIB = 1024
# What an allocator adds to a block of its own (header, alignment, rounding to pages). Seen: 4 to 8 KiB.
OWN_SLACK_BYTES = 64 * KIB
# Small neighbours that the kernel may have joined to a buffer's mapping.
SHARED_SLACK_BYTES = 256 * KIB
# The least buffer that is looked for in a mapping with more beside it than that. llama.cpp's tables of a graph
# have a mapping of their own (2.1 MiB seen, of a model of 272 tensors): a smaller buffer could be taken to be in there.
LEAST_AMONG_UNKNOWN_BYTES = 2560 * KIB
# 2 ** 10 choices at most. A model has a handful of buffers that are filled at load.
MOST_CHOSEN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A buffer whose size is known. ``is_filled``: by the engine's rules all of it is written at load, so all of it is
    resident. ``source``: predicted, or reported (by the engine's log)."""

    component: str
    name: str
    num_bytes: int
    is_filled: bool
    source: str = "predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A mapping and the buffers in it."""

    mapping: MapRow
    buffers: tuple[Buffer, ...]

    @property
    def filled(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers if b.is_filled)

    @property
    def partly_touched(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers if not b.is_filled)

    @property
    def is_exact(self) -> bool:
        """The mapping is as large as its buffers together (up to 64 KiB more for each): it holds nothing else. Of a
        larger one it is not known what else is in it, nor whether the buffers that are not filled are there at all."""
        slack = self.mapping.size_bytes - sum(b.num_bytes for b in self.buffers)
        return 0 <= slack <= OWN_SLACK_BYTES * len(self.buffers)

    @property
    def touched_bytes(self) -> int:
        """Resident bytes of the buffers that are touched as they are used: what the filled ones leave of the mapping's
        resident memory, and never more than those buffers' own size. An upper bound unless ``is_exact``."""
        left = self.mapping.anonymous_bytes - sum(b.num_bytes for b in self.filled)
        return max(0, min(left, sum(b.num_bytes for b in self.partly_touched)))


def new_mappings(before: Iterable[MapRow], after: Iterable[MapRow], kind: str) -> tuple[MapRow, ...]:
    """Mappings of ``kind`` kept one by one in ``after`` that had no equal (name and size) in ``before``."""
    known = Counter((m.name, m.size_bytes) for m in before if m.kind == kind and m.count == 1)
    new = []
    for mapping in after:
        if mapping.kind != kind or mapping.count != 1:
            continue
        key = (mapping.name, mapping.size_bytes)
        if known[key] > 0:
            known[key] -= 1
        else:
            new.append(mapping)
    return tuple(new)


def place_buffers(
    buffers: Sequence[Buffer], mappings: Sequence[MapRow], *, is_untouched: bool = False
) -> tuple[tuple[Place, ...], tuple[Buffer, ...]]:
    """Places of the buffers that were found, and the buffers that were not. ``buffers`` of one component are in the
    order in which the engine makes them. ``is_untouched``: nothing was computed yet, so what is resident was filled.

    First the buffers with a mapping of their own (its size, up to 64 KiB more), among them neighbours of one component
    that the kernel joined. Then the filled ones that share a mapping with others: it must be large enough, all of the
    buffer must be resident in it, and what else is resident in it must fit into the other buffers still to be placed
    (up to 256 KiB more). Buffers not yet placed that fit go with them; those whose size only the log states go with
    others' mappings only if nothing else explains the mapping, or if they explain it in full.

    What is still left of the predicted and filled ones, while nothing is touched, was joined to memory that nobody
    knows: it is in the mapping that it leaves the least of, and that rest is nobody's.
    """
    places: list[Place] = []
    free, left = list(mappings), list(buffers)
    while (own := _own_place(left, free)) is not None:
        places.append(own)
        free, left = without(free, [own.mapping]), without(left, own.buffers)
    for buffer in sorted((b for b in left if b.is_filled), key=lambda b: b.num_bytes, reverse=True):
        if all(b is not buffer for b in left):
            continue  # went into the mapping of a larger one
        others = without(left, [buffer])
        place = _place_among(buffer, others, free)
        if place is None and is_untouched:
            place = _place_beside_unknown(buffer, others, free)
        if place is not None:
            places.append(place)
            free, left = without(free, [place.mapping]), without(left, place.buffers)
    return tuple(places), tuple(left)


def _own_place(buffers: Sequence[Buffer], free: Sequence[MapRow]) -> Place | None:
    """The closest fit of a mapping and a buffer, or a run of filled buffers of one component made one after another."""
    found: list[tuple[int, int, int, Place]] = []
    for run in _runs(buffers):
        size = sum(b.num_bytes for b in run)
        for number, mapping in enumerate(free):
            slack = mapping.size_bytes - size
            resident = len(run) == 1 or mapping.anonymous_bytes >= size
            if 0 <= slack <= OWN_SLACK_BYTES * len(run) and resident:
                found.append((slack, -mapping.anonymous_bytes, number, Place(mapping=mapping, buffers=run)))
    return min(found, key=lambda item: item[:3])[3] if found else None


def _runs(buffers: Sequence[Buffer]) -> list[tuple[Buffer, ...]]:
    runs: list[tuple[Buffer, ...]] = [(b,) for b in buffers]
    for component in dict.fromkeys(b.component for b in buffers):
        filled = [b for b in buffers if b.component == component and b.is_filled]
        runs += [tuple(filled[i:j]) for i in range(len(filled)) for j in range(i + 2, len(filled) + 1)]
    return runs


def without(items: Sequence[Item], used: Sequence[Item]) -> list[Item]:
    """Items less those very objects: two buffers, or two mappings, of equal size are still two."""
    return [item for item in items if all(item is not one for one in used)]


def _place_among(buffer: Buffer, others: Sequence[Buffer], free: Sequence[MapRow]) -> Place | None:
    """With other predicted buffers if possible, else with any. Where what is filled, stated ones included, is all that
    is resident in a mapping, no part of it is left for buffers that are touched as they are used."""
    by_prediction = _shared_place(buffer, [b for b in others if b.source == "predicted"], free)
    by_all = _shared_place(buffer, others, free)
    if by_prediction is None or by_all is None:
        return by_prediction or by_all
    rest = by_all.mapping.anonymous_bytes - sum(b.num_bytes for b in by_all.filled)
    if by_prediction.touched_bytes > SHARED_SLACK_BYTES and rest <= OWN_SLACK_BYTES * len(by_all.filled):
        return Place(mapping=by_all.mapping, buffers=by_all.filled)
    return by_prediction


def _shared_place(buffer: Buffer, others: Sequence[Buffer], free: Sequence[MapRow]) -> Place | None:
    """The mapping whose resident memory ``buffer`` and some of the others explain best: the least left over beside
    filled buffers."""
    candidates: list[tuple[int, Place]] = []
    for mapping in free:
        if min(mapping.size_bytes, mapping.anonymous_bytes) < buffer.num_bytes:
            continue
        inside = (buffer, *_companions(mapping, buffer, others))
        if mapping.anonymous_bytes <= sum(b.num_bytes for b in inside) + SHARED_SLACK_BYTES:
            left = mapping.anonymous_bytes - sum(b.num_bytes for b in inside if b.is_filled)
            candidates.append((left, Place(mapping=mapping, buffers=inside)))
    return min(candidates, key=lambda item: item[0])[1] if candidates else None


def _place_beside_unknown(buffer: Buffer, others: Sequence[Buffer], free: Sequence[MapRow]) -> Place | None:
    """The mapping that ``buffer``, with other predicted ones that are filled, leaves the least of: at most as much as
    these buffers are themselves."""
    if buffer.source != "predicted" or buffer.num_bytes < LEAST_AMONG_UNKNOWN_BYTES:
        return None
    filled = [b for b in others if b.is_filled and b.source == "predicted"]
    candidates: list[tuple[int, Place]] = []
    for mapping in free:
        room = mapping.anonymous_bytes - buffer.num_bytes
        if room < 0:
            continue
        inside = (buffer, *_closest(filled, room))
        size = sum(b.num_bytes for b in inside)
        if mapping.anonymous_bytes - size <= size:
            candidates.append((mapping.anonymous_bytes - size, Place(mapping=mapping, buffers=inside)))
    return min(candidates, key=lambda item: item[0])[1] if candidates else None


def _companions(mapping: MapRow, buffer: Buffer, others: Sequence[Buffer]) -> list[Buffer]:
    """Which of the other buffers are in the mapping beside ``buffer``: of the filled ones those that together come
    closest to what is resident, then what else has room, the largest first: the engine's small buffers are made of
    other memory."""
    room = mapping.size_bytes - buffer.num_bytes
    resident = mapping.anonymous_bytes - buffer.num_bytes
    inside = _closest([b for b in others if b.is_filled], min(room, resident))
    room -= sum(b.num_bytes for b in inside)
    for other in sorted(others, key=lambda b: b.num_bytes, reverse=True):
        if not other.is_filled and other.num_bytes <= room:
            inside.append(other)
            room -= other.num_bytes
    return inside


def _closest(buffers: Sequence[Buffer], limit: int) -> list[Buffer]:
    """Those of the buffers whose sum comes closest to ``limit`` from below: the best of all choices among the
    MOST_CHOSEN largest."""
    largest = sorted(buffers, key=lambda b: b.num_bytes, reverse=True)[:MOST_CHOSEN]
    choices = (c for n in range(len(largest) + 1) for c in combinations(largest, n))
    fitting = [c for c in choices if sum(b.num_bytes for b in c) <= limit]
    return list(max(fitting, key=lambda c: sum(b.num_bytes for b in c), default=()))
