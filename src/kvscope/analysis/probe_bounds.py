"""How far the readings behind an identity can be off: bounds, derived, in bytes. No term of the identity.

- **The kernel's counters.** RssAnon and RssFile of /proc/PID/status. Since Linux 6.2 each is kept for each processor
  and added up when a processor's part passes a batch of max(32, 2 × processors) pages (lib/percpu_counter.c); a reading
  may miss as much on every processor. Before 6.2 each thread kept up to 64 pages to itself
  (SPLIT_RSS_COUNTING, mm/memory.c). Since 6.17 a reading of the status adds up all processors' parts and misses
  nothing; the peak (VmHWM) is still taken from the counters. A growth is two readings, of two counters each.
- **Pages.** A buffer that begins and ends within a page has one page more in memory at each end than bytes of its own.
- **Time.** Totals and mappings are read one after the other, once less than 64 KiB changed in 50 ms: as much may lie
  between them, at both moments.
- **Printed digits.** A size that the engine printed in MiB is taken as the least that prints so: half of its last digit
  too little, or as much again.

The two ways to read the same thing are also compared: what all mappings sum to against RssAnon.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kvscope.analysis.attribution import Attribution
from kvscope.record.metrics import last_mark
from kvscope.record.rows import Json, TrialResult
from kvscope.units import KIB, MIB

_EXACT_FROM, _PER_PROCESSOR_FROM = (6, 17), (6, 2)
_BATCH_PAGES, _BATCH_PER_PROCESSOR, _THREAD_PAGES = 32, 2, 64
_COUNTERS = 2
_SETTLED_BYTES = 64 * KIB
_PRINTED_STEP_BYTES = MIB // 100
_OF_BUFFERS = ("predicted", "reported", "shared", "rule")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingBound:
    """Bytes by which a growth can be wrong either way; a part is None where the machine does not say enough, and then
    the whole is not known. ``seen_apart_bytes``: by how much mappings and counter really differed, None: not read."""

    counters_bytes: int | None
    pages_bytes: int
    time_bytes: int
    digits_bytes: int
    seen_apart_bytes: int | None

    @property
    def total_bytes(self) -> int | None:
        """All of them at once, each at its worst."""
        if self.counters_bytes is None:
            return None
        return self.counters_bytes + self.pages_bytes + self.time_bytes + self.digits_bytes


def reading_bound(machine: Mapping[str, Json], result: TrialResult, found: Attribution) -> ReadingBound:
    """The bound for an identity. ``machine``: the facts of its sitting."""
    page = machine.get("page_bytes")
    page = page if isinstance(page, int) else 4 * KIB
    buffers = sum(term.basis in _OF_BUFFERS for term in found.terms)
    printed = sum(row.component in ("host_cache", "checkpoint") for row in result.reported)
    return ReadingBound(
        counters_bytes=_counters(machine, page, is_peak=found.phase == "peak"),
        pages_bytes=2 * page * buffers,
        time_bytes=2 * _SETTLED_BYTES,
        digits_bytes=_PRINTED_STEP_BYTES * printed if found.phase != "loaded" else 0,
        seen_apart_bytes=_seen_apart(result, found),
    )


def _counters(machine: Mapping[str, Json], page: int, *, is_peak: bool) -> int | None:
    kernel, cpus = re.match(r"(\d+)\.(\d+)", str(machine.get("kernel") or "")), machine.get("usable_cpus")
    if kernel is None or machine.get("system") != "Linux" or not isinstance(cpus, int):
        return None
    version = int(kernel[1]), int(kernel[2])
    if version < _PER_PROCESSOR_FROM:
        return None  # of each thread, and how many there are is not recorded
    one = max(_BATCH_PAGES, _BATCH_PER_PROCESSOR * cpus) * cpus * page * _COUNTERS
    if version >= _EXACT_FROM:
        return one if is_peak else 0
    return 2 * one


def _seen_apart(result: TrialResult, found: Attribution) -> int | None:
    mark = last_mark(result, "after_request" if found.phase == "peak" else found.phase)
    if mark is None:
        return None
    mapped = [
        row.anonymous_bytes
        for row in result.maps
        if row.phase == mark.phase and row.request_index == mark.request_index
    ]
    return sum(mapped) - mark.anon_bytes if mapped else None
