"""Who else holds memory: a look at every other program, and what moved between two looks.

What a program holds is what is its own: RssAnon + VmSwap. Pages of files that it maps are the system's to take back and
are counted in ``resident_bytes`` only, as `top` shows it.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvscope.probe.machine_memory import PROC, machine_memory
from kvscope.probe.proc import process_tree
from kvscope.units import KIB, MIB

# Movements up to this are the ordinary life of a machine.
MOVED_BYTES = 256 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A program: ``resident_bytes`` (VmRSS, files it maps included), ``anon_bytes`` (RssAnon) and ``swap_bytes``."""

    pid: int
    name: str
    resident_bytes: int
    anon_bytes: int
    swap_bytes: int

    @property
    def held_bytes(self) -> int:
        return self.anon_bytes + self.swap_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """One look. ``others``: every other program that this user may see, largest first. ``own_anon_bytes``: RssAnon of
    kvscope and the engine together. ``available_bytes``: MemAvailable, None where the kernel does not state it."""

    others: tuple[Occupant, ...]
    own_anon_bytes: int
    available_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What all processes of one name held at two looks."""

    name: str
    before_bytes: int
    after_bytes: int


def look(engine_pids: Collection[int], proc: Path = PROC, kvscope_pid: int | None = None) -> Occupancy:
    """Who holds memory now. ``engine_pids``, kvscope and all their descendants are their own, everything else is
    others. Raises ProbeUnavailable where /proc/meminfo cannot be read."""
    available = machine_memory(proc).available_bytes
    own = set(process_tree((os.getpid() if kvscope_pid is None else kvscope_pid, *engine_pids), proc))
    found = list(_occupants(proc))
    return Occupancy(
        others=tuple(
            sorted((each for each in found if each.pid not in own), key=lambda each: (-each.resident_bytes, each.pid))
        ),
        own_anon_bytes=sum(each.anon_bytes for each in found if each.pid in own),
        available_bytes=available,
    )


def moves(before: Occupancy, after: Occupancy) -> tuple[Move, ...]:
    """The programs whose share moved by more than MOVED_BYTES, the largest move first. Processes of one name count as
    one program: a browser's come and go."""
    held = [_by_name(occupancy.others) for occupancy in (before, after)]
    found = [
        Move(name=name, before_bytes=held[0].get(name, 0), after_bytes=held[1].get(name, 0))
        for name in held[0].keys() | held[1].keys()
    ]
    moved = [move for move in found if abs(move.after_bytes - move.before_bytes) > MOVED_BYTES]
    return tuple(sorted(moved, key=lambda move: (-abs(move.after_bytes - move.before_bytes), move.name)))


def unexplained_fall_bytes(before: Occupancy, after: Occupancy) -> int | None:
    """How much less memory is available than what the engine, kvscope and the other programs took since explains; None
    where the kernel does not state what is available. Negative where there is more than that."""
    if before.available_bytes is None or after.available_bytes is None:
        return None
    others = [sum(each.anon_bytes for each in occupancy.others) for occupancy in (before, after)]
    taken = (after.own_anon_bytes - before.own_anon_bytes) + (others[1] - others[0])
    return before.available_bytes - after.available_bytes - taken


def _by_name(occupants: Sequence[Occupant]) -> dict[str, int]:
    held: dict[str, int] = {}
    for each in occupants:
        held[each.name] = held.get(each.name, 0) + each.held_bytes
    return held


def _occupants(proc: Path) -> Iterator[Occupant]:
    """Every process that shows its status: one that ended meanwhile, or hides it from this user, is left out."""
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "status").read_text(errors="replace")
        except OSError:
            continue
        fields = dict(line.partition(":\t")[::2] for line in text.splitlines())
        if "VmRSS" in fields:  # kernel threads have none
            yield Occupant(
                pid=int(folder.name),
                name=fields["Name"],
                resident_bytes=_bytes(fields, "VmRSS"),
                anon_bytes=_bytes(fields, "RssAnon" if "RssAnon" in fields else "VmRSS"),
                swap_bytes=_bytes(fields, "VmSwap"),
            )


def _bytes(fields: dict[str, str], name: str) -> int:
    words = fields.get(name, "").split()  # VmSwap is absent in a kernel built without swap
    return int(words[0]) * KIB if words else 0
