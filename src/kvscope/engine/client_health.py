"""How kvscope's own client was while it measured: watched by a ticker on its event loop, judged by stated limits.

A time that the client took late is the client's, not the server's. So every answer says how late the loop came to what
was due, and what share of a processor the client took; past a limit it is ``client_limited``. The ticker waits for just
what a token waits for: the processor, and whatever the loop does before it. A tick that was missed because the loop was
held up counts as late as it was, each one: a loop that hung for a second is not one late tick among many punctual ones.
"""

import asyncio
import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from types import TracebackType

from kvscope.engine.base import ClientHealth, Read
from kvscope.engine.loop_timer import LoopTimer

# Fifty times a second disturbs little that is measured beside it, and tells the 99th percentile of two seconds.
TICK_S = 0.020

# The share of a processor is not known of less: starting alone takes some milliseconds.
_LEAST_SPAN_S = 0.05

# --- the limits, and why ----------------------------------------------------------------------------------------------

# What is read may be stamped so much too late (a fifth of a gap between tokens that is fast: 25 ms), one time in a
# hundred and once in any case.
MOST_LAG_S = 0.005
MOST_LATE_SHARE = 0.01
# Not once: a loop that stood still for so long may have stamped a first token a tenth of a second late.
MOST_HALT_S = 0.100
# Above this share of a processor a queue forms: what is read next waits for what was read before.
MOST_CPU_SHARE = 0.90
# Open loop: a request sent so late is no longer the load that was asked for (the schedule itself never shifts).
MOST_LATE_P99_S = 0.010


class Ticker:
    """Notes how late the running loop comes to each tick. Use as a context, in a coroutine. ``also``: called with the
    moment of each tick."""

    def __init__(self, every_s: float = TICK_S, also: Callable[[float], None] | None = None) -> None:
        self._every_s = every_s
        self._also = also
        self._due: list[float] = []
        self._lags: list[float] = []
        self._cpu: list[float] = []
        self._next_s = 0.0

    def __enter__(self) -> "Ticker":
        self.begin_s, self._cpu_begin_s = time.perf_counter(), time.process_time()
        self.end_s, self._cpu_end_s = self.begin_s, self._cpu_begin_s
        self._timer = LoopTimer(asyncio.get_running_loop(), self._tick)
        self._next_s = self.begin_s + min(0.001, self._every_s)
        self._timer.arm(self._next_s, every_s=self._every_s)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._timer.close()
        self.end_s, self._cpu_end_s = time.perf_counter(), time.process_time()
        self._note(self.end_s, self._cpu_end_s)

    def _tick(self) -> None:
        now = time.perf_counter()
        self._note(now, time.process_time())
        if self._also is not None:
            self._also(now)

    def _note(self, now: float, cpu_s: float) -> None:
        while self._next_s <= now:  # one, or as many as were missed
            self._due.append(self._next_s)
            self._lags.append(now - self._next_s)
            self._cpu.append(cpu_s)
            self._next_s += self._every_s

    def health(
        self,
        begin_s: float | None = None,
        end_s: float | None = None,
        *,
        send_to_wire_s: float | None = None,
        late_p99_s: float | None = None,
        coalesced_fraction: float | None = None,
        num_resent: int = 0,
    ) -> ClientHealth:
        """Between two moments of ``time.perf_counter`` (all the time that it ran), with the ticks next to them."""
        low, high = 0, len(self._due)
        if begin_s is not None and end_s is not None:
            low, high = max(0, bisect_left(self._due, begin_s) - 1), bisect_right(self._due, end_s) + 1
        lags = self._lags[low:high]
        cpu_share = self._cpu_share(low, min(high, len(self._due)) - 1)
        return ClientHealth(
            loop_lag_p99_s=percentile_99(lags),
            loop_lag_max_s=max(lags, default=None),
            cpu_share=cpu_share,
            send_to_wire_s=send_to_wire_s,
            late_p99_s=late_p99_s,
            coalesced_fraction=coalesced_fraction,
            num_resent=num_resent,
            limited_by=limits_passed(lags, cpu_share, late_p99_s),
        )

    def _cpu_share(self, low: int, last: int) -> float | None:
        """Between two ticks, if there is time enough between them; otherwise of all the time."""
        passed_s, used_s = self.end_s - self.begin_s, self._cpu_end_s - self._cpu_begin_s
        is_whole = low == 0 and last == len(self._due) - 1
        if not is_whole and last > low:
            between_s = self._due[last] + self._lags[last] - self._due[low] - self._lags[low]
            if between_s >= _LEAST_SPAN_S:
                passed_s, used_s = between_s, self._cpu[last] - self._cpu[low]
        return used_s / passed_s if passed_s >= _LEAST_SPAN_S else None


def limits_passed(
    lags_s: Sequence[float], cpu_share: float | None = None, late_p99_s: float | None = None
) -> tuple[str, ...]:
    """The limits that these pass, in words; what is not known passes none. ``lags_s``: of each tick."""
    found = []
    num_late = sum(lag_s > MOST_LAG_S for lag_s in lags_s)
    if num_late > max(1.0, MOST_LATE_SHARE * len(lags_s)):
        found.append(
            f"its event loop came more than {MOST_LAG_S * 1e3:g} ms late {num_late} of {len(lags_s)} times (limit "
            f"{MOST_LATE_SHARE:.0%})"
        )
    if max(lags_s, default=0.0) > MOST_HALT_S:
        found.append(_words("its event loop stood still for", max(lags_s), "", MOST_HALT_S))
    if cpu_share is not None and cpu_share > MOST_CPU_SHARE:
        found.append(f"it took {cpu_share:.0%} of a processor (limit {MOST_CPU_SHARE:.0%})")
    if late_p99_s is not None and late_p99_s > MOST_LATE_P99_S:
        found.append(_words("one request in a hundred was sent", late_p99_s, " late", MOST_LATE_P99_S))
    return tuple(found)


def _words(before: str, seconds: float, after: str, limit_s: float) -> str:
    return f"{before} {seconds * 1e3:.0f} ms{after} (limit {limit_s * 1e3:g} ms)"


def coalesced(reads: Sequence[Read]) -> float | None:
    """Pieces that came in one read with the piece before, of all pieces; None where none came."""
    pieces = sum(read.num_events for read in reads)
    return sum(read.num_events - 1 for read in reads if read.num_events > 1) / pieces if pieces else None


def percentile_99(values: Sequence[float]) -> float | None:
    """The value that 99 % of them do not pass (nearest rank); None of no values."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1] if values else None
