"""/proc/PID/smaps → mappings, each with its kind. Format: proc_pid_smaps(5).

How a malloc arena is known: glibc gives each further thread that allocates an arena of its own, made of blocks that
are aligned to 64 MiB and reserve 64 MiB of address space, of which the first part is readable and writable and the
rest is not accessible yet (malloc's HEAP_MAX_SIZE on 64-bit). So an anonymous ``rw-p`` mapping that begins at a
multiple of 64 MiB and ends, together with an inaccessible ``---p`` mapping right behind it, 64 MiB later, is one.

How the stack of a thread is known: pthread_create(3) reserves the soft limit of the stack size (``ulimit -s``, 8 MiB on
most systems) right above one inaccessible guard page. The kernel may join a stack to an idle neighbour; such a mapping
is then called anonymous, which it is.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvscope.probe.base import MemoryMapping
from kvscope.units import KIB, MIB

_HEAD = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) [0-9a-f]+ \S+ (\d+) *(.*)$")
_ARENA_BYTES = 64 * MIB
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SINGLE_FROM_BYTES = MIB
DEFAULT_STACK_BYTES = 8 * MIB


@dataclass(slots=True)
class _Entry:
    start: int
    end: int
    mode: str
    inode: int
    name: str
    fields: dict[str, int] = field(default_factory=dict)


def parse_smaps(text: str, *, stack_bytes: int = DEFAULT_STACK_BYTES) -> list[MemoryMapping]:
    """Every mapping of the text, one by one, inaccessible reservations (``---p``) left out: they can hold nothing.
    ``stack_bytes``: the size of a thread's stack in that process."""
    entries = _entries(text)
    found = []
    for before, entry, after in zip([None, *entries], entries, [*entries[1:], None], strict=False):
        if entry.mode.startswith("---"):
            continue
        found.append(
            MemoryMapping(
                kind=_kind(before, entry, after, stack_bytes),
                name=entry.name if entry.inode else "",
                size_bytes=entry.end - entry.start,
                resident_bytes=entry.fields.get("Rss", 0) * KIB,
                anonymous_bytes=entry.fields.get("Anonymous", 0) * KIB,
            )
        )
    return found


def _entries(text: str) -> list[_Entry]:
    entries: list[_Entry] = []
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            entries.append(_Entry(int(head[1], 16), int(head[2], 16), head[3], int(head[4]), head[5]))
            continue
        name, _, value = line.partition(":")
        if name in ("Rss", "Anonymous") and entries:
            entries[-1].fields[name] = int(value.split()[0])
    return entries


def _kind(before: _Entry | None, entry: _Entry, after: _Entry | None, stack_bytes: int) -> str:
    if entry.inode:
        return "file"
    if entry.name == "[heap]":
        return "heap"
    if entry.name.startswith("[stack") or _is_thread_stack(before, entry, stack_bytes):
        return "stack"
    if _is_arena(entry, after):
        return "arena"
    return "anonymous"


def _is_thread_stack(before: _Entry | None, entry: _Entry, stack_bytes: int) -> bool:
    return (
        entry.mode.startswith("rw-p")
        and entry.end - entry.start == stack_bytes
        and before is not None
        and before.mode.startswith("---")
        and before.end == entry.start
        and before.end - before.start == _PAGE_BYTES
    )


def _is_arena(entry: _Entry, after: _Entry | None) -> bool:
    if not entry.mode.startswith("rw-p") or entry.start % _ARENA_BYTES:
        return False
    if entry.end - entry.start == _ARENA_BYTES:
        return True  # grown to its end
    return (
        after is not None
        and after.mode.startswith("---")
        and after.start == entry.end
        and after.end - entry.start == _ARENA_BYTES
    )


def sum_small(mappings: Iterable[MemoryMapping]) -> tuple[MemoryMapping, ...]:
    """Anonymous and file mappings of SINGLE_FROM_BYTES (1 MiB) or more stay as they are, largest first; everything
    else is summed, one entry per kind, with ``count`` saying how many. No byte is dropped."""
    single: list[MemoryMapping] = []
    small: dict[str, list[MemoryMapping]] = {}
    for mapping in mappings:
        if mapping.kind in ("anonymous", "file") and mapping.size_bytes >= SINGLE_FROM_BYTES:
            single.append(mapping)
        else:
            small.setdefault(mapping.kind, []).append(mapping)
    single.sort(key=lambda mapping: (mapping.kind, -mapping.size_bytes, mapping.name))
    return (*single, *(_sum(kind, small[kind]) for kind in sorted(small)))


def _sum(kind: str, mappings: list[MemoryMapping]) -> MemoryMapping:
    return MemoryMapping(
        kind=kind,
        name="",
        size_bytes=sum(mapping.size_bytes for mapping in mappings),
        resident_bytes=sum(mapping.resident_bytes for mapping in mappings),
        anonymous_bytes=sum(mapping.anonymous_bytes for mapping in mappings),
        count=len(mappings),
    )
