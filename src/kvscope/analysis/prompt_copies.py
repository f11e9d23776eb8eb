"""What an engine keeps of earlier prompts beside its cache, as its own log states it: copies in host memory, and
checkpoints of what cannot be rolled back."""

import re
from collections.abc import Sequence
from itertools import pairwise

from kvscope.analysis.match import Buffer
from kvscope.record.rows import TrialResult
from kvscope.units import MIB

# How llama.cpp's log lists a copy of an old prompt: "- prompt 0x…: 503 tokens, checkpoints: 0, 11.586 MiB".
# Its size is that of the checkpoints in it too, which are blocks of memory of their own.
_COPY = re.compile(r"checkpoints: +(\d+), +([\d.]+) MiB")


def stated_copies(result: TrialResult, request_index: int | None) -> list[Buffer]:
    """The copies in the host prompt cache: as the log lists them, or else each as large as the cache grew by from one
    stated size to the next."""
    rows = [
        r
        for r in result.reported
        if r.component == "host_cache"
        and r.request_index is not None
        and request_index is not None
        and r.request_index <= request_index
    ]
    if not rows:
        return []
    return _blocks(_listed(result, rows[-1].line) or _steps([_at_least(r.printed_mib) for r in rows]))


def copies_after_clearing(result: TrialResult) -> list[Buffer]:
    """The copies that are left once the engine has cleared its own cache, as its log lists or sums them."""
    rows = [r for r in result.reported if r.component == "host_cache" and r.phase == "cache_cleared"]
    if not rows:
        return []
    return _blocks(_listed(result, rows[-1].line) or [_at_least(rows[-1].printed_mib)])


def _blocks(sizes: Sequence[int]) -> list[Buffer]:
    return [
        Buffer(component="host_cache", name="copy", num_bytes=size, is_filled=True, source="reported")
        for size in sizes
        if size
    ]


def _listed(result: TrialResult, line: str) -> list[int]:
    """Sizes of the copies that a line lists, each as its tokens' state and its checkpoints, where the log says how
    large so many of them are; all states first, in the order of the list."""
    states, carried = [], []
    for count, printed in _COPY.findall(line):
        size = _at_least(printed)
        checkpoints = _checkpoints_of(result, int(count))
        if sum(checkpoints) >= size:
            checkpoints = []
        states.append(size - sum(checkpoints))
        carried += checkpoints
    return [*states, *carried]


def _checkpoints_of(result: TrialResult, count: int) -> list[int]:
    """Sizes of ``count`` checkpoints as the log states them after every request that left so many; nothing where they
    were not always equal."""
    found = set()
    for index in {r.request_index for r in result.reported if r.component == "checkpoint"}:
        sizes = tuple(sorted(b.num_bytes for b in stated_checkpoints(result, index)))
        if index is not None and len(sizes) == count:
            found.add(sizes)
    return list(found.pop()) if len(found) == 1 else []


def copies_carry_checkpoints(result: TrialResult) -> bool:
    """Whether the log lists copies with context checkpoints in them: such a copy is larger than its tokens' cache."""
    lines = [r.line for r in result.reported if r.component == "host_cache"]
    return any(int(count) for line in lines for count, _ in _COPY.findall(line))


def stated_checkpoints(result: TrialResult, request_index: int | None) -> list[Buffer]:
    """The context checkpoints that the engine holds after a request: copies of what its windows hold, beside them."""
    return [
        Buffer(
            component="checkpoint",
            name=r.name,
            num_bytes=_at_least(r.printed_mib),
            is_filled=True,
            source="reported",
        )
        for r in result.reported
        if r.component == "checkpoint" and r.request_index == request_index
    ]


def _steps(totals: Sequence[int]) -> list[int]:
    if list(totals) != sorted(totals):
        # Old copies were dropped: which of them are left, the totals do not say.
        return [totals[-1]]
    return [after - before for before, after in pairwise([0, *totals]) if after > before]


def host_cache_bytes(result: TrialResult, request_index: int | None) -> int | None:
    """The engine's host prompt cache as its log states it after a request, in whole bytes not above the real size;
    None where it states none."""
    stated = [r for r in result.reported if r.component == "host_cache" and r.request_index == request_index]
    return _at_least(stated[-1].printed_mib) if stated else None


def _at_least(printed_mib: str) -> int:
    """The least whole number of bytes that prints so: half of the last digit is taken off."""
    digits = len(printed_mib.partition(".")[2])
    return max(0, int((float(printed_mib) - 0.5 / 10**digits) * MIB))
