"""Finds the predicted buffers among the memory mappings that the operating system lists.

The kernel joins neighbouring anonymous mappings, so a buffer may have a mapping of its own or share one. What is known
is used, and no more: a mapping's size and how much of it is resident; a buffer's exact size; and whether the engine
writes all of it when it loads.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvscope.record.rows import MapRow

KIB = 1024
# What an allocator adds to a block of its own (header, alignment, rounding to pages). Seen: 4 to 8 KiB.
OWN_SLACK_BYTES = 64 * KIB
# Small neighbours that the kernel may have joined to a buffer's mapping.
SHARED_SLACK_BYTES = 256 * KIB


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
    def touched_bytes(self) -> int:
        """Resident bytes of the buffers that are touched as they are used: what the filled ones leave of the mapping's
        resident memory, and never more than those buffers' own size."""
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
    buffers: Sequence[Buffer], mappings: Sequence[MapRow]
) -> tuple[tuple[Place, ...], tuple[Buffer, ...]]:
    """Places of the buffers that were found, and the buffers that were not.

    First each buffer that has a mapping of its own (its size, up to 64 KiB more). Then the filled ones that share a
    mapping: it must be large enough, all of the buffer must be resident in it, and what else is resident in it must fit
    into the other buffers still to be placed (up to 256 KiB more). Buffers not yet placed that fit go with them.
    """
    free = list(mappings)
    left = sorted(buffers, key=lambda b: b.num_bytes, reverse=True)
    places: list[Place] = []
    for buffer in tuple(left):
        own = [m for m in free if 0 <= m.size_bytes - buffer.num_bytes <= OWN_SLACK_BYTES]
        if own:
            best = min(own, key=lambda m: (m.size_bytes, -m.anonymous_bytes))
            places.append(Place(mapping=best, buffers=(buffer,)))
            free.remove(best)
            left.remove(buffer)
    for buffer in [b for b in left if b.is_filled]:
        if buffer not in left:
            continue  # went into the mapping of a larger one
        place = _shared_place(buffer, [b for b in left if b is not buffer], free)
        if place is not None:
            places.append(place)
            free.remove(place.mapping)
            left = [b for b in left if b not in place.buffers]
    return tuple(places), tuple(left)


def _shared_place(buffer: Buffer, others: Sequence[Buffer], free: Sequence[MapRow]) -> Place | None:
    candidates = []
    for mapping in free:
        if min(mapping.size_bytes, mapping.anonymous_bytes) < buffer.num_bytes:
            continue
        inside = _companions(mapping, buffer, others)
        explained = buffer.num_bytes + sum(b.num_bytes for b in inside) + SHARED_SLACK_BYTES
        if mapping.anonymous_bytes <= explained:
            candidates.append(Place(mapping=mapping, buffers=(buffer, *inside)))
    return min(candidates, key=lambda p: p.mapping.anonymous_bytes, default=None)


def _companions(mapping: MapRow, buffer: Buffer, others: Sequence[Buffer]) -> list[Buffer]:
    """Which of the other buffers fit into the mapping beside ``buffer``: filled ones only if they can be resident."""
    room = mapping.size_bytes - buffer.num_bytes
    resident = mapping.anonymous_bytes - buffer.num_bytes
    inside = []
    for other in sorted(others, key=lambda b: not b.is_filled):
        if other.num_bytes > room or (other.is_filled and other.num_bytes > resident):
            continue
        inside.append(other)
        room -= other.num_bytes
        resident -= other.num_bytes if other.is_filled else 0
    return inside
