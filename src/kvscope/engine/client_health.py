"""How kvscope's own client was while it measured: watched by a ticker on its event loop, judged by stated limits.

A time that the client took late is the client's, not the server's. So every answer says how late the loop came to what
was due, and what share of a processor the client took; past a limit it is ``client_limited``. The ticker waits for just
what a token waits for: the processor, and whatever the loop does before it. A tick that was missed because the loop was
held up counts as late as it was, each one: a loop that hung for a second is not one late tick among many punctual ones.

Ticks are samples. Between them the kernel counts how long the client had no processor (``processor_wait.py``), so that
of every answer it is known how late its first and its last token may have been stamped.
"""

import asyncio
import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from types import TracebackType

from kvscope.engine.base import ClientHealth, Generation, Read
from kvscope.engine.loop_timer import LoopTimer
from kvscope.engine.processor_wait import ProcessorWait

# Fifty times a second disturbs little that is measured beside it, and tells the 99th percentile of two seconds.
TICK_S = 0.020
# A first token is one moment: until it is there, and in a load, where one is always to come.
FINE_TICK_S = 0.005
# A tick and a read that were held up together come within so much of each other.
_TOGETHER_S = 0.001

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
# Two settings are compared by percents: what may be off by more than half of one says so. Less than 0.3 ms is what
# being woken takes, and what ``kvscope selftest`` allows.
MOST_OFF_SHARE = 0.005
LEAST_OFF_S = 0.0003
# Of the worst of several answers, which makes their 99th percentile and their maximum, so much of the longest.
MOST_WORST_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Moments of one answer, on ``time.perf_counter``'s clock: sent, its first token, its last."""

    sent_s: float
    first_s: float
    last_s: float


def seen_of(answer: Generation, sent_s: float) -> tuple[Seen, ...]:
    """Of an answer that was sent at that moment; empty where it has no token."""
    if not answer.events:
        return ()
    return (Seen(sent_s=sent_s, first_s=sent_s + answer.events[0].at_s, last_s=sent_s + answer.events[-1].at_s),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """What answers were measured by, and how late the client may have been to it; means over answers. ``first_s``: at
    the first token, ``last_s``: at the first or the last one, the later of both; ``ttft_s``, ``span_s``: to the first
    token, and from there to the last. ``worst_s``, ``longest_s``: how late to the first token of one of them at most,
    and the longest time to one."""

    first_s: float
    ttft_s: float
    last_s: float
    span_s: float
    worst_s: float = 0.0
    longest_s: float = 0.0


class Ticker:
    """Notes how late the running loop comes to each tick. Use as a context, in a coroutine. ``also``: called with the
    moment of each tick."""

    def __init__(self, every_s: float = FINE_TICK_S, also: Callable[[float], None] | None = None) -> None:
        self._every_s = every_s
        self._also = also
        self._due: list[float] = []
        self._lags: list[float] = []
        self._cpu: list[float] = []
        self._next_s = 0.0
        self._marks: list[float] = []
        self._waited: list[float | None] = []

    def __enter__(self) -> "Ticker":
        self.begin_s, self._cpu_begin_s = time.perf_counter(), time.process_time()
        self.end_s, self._cpu_end_s = self.begin_s, self._cpu_begin_s
        self._wait = ProcessorWait()
        self._mark(self.begin_s)
        self._timer = LoopTimer(asyncio.get_running_loop(), self._tick)
        self._next_s = self.begin_s + min(0.001, self._every_s)
        self._timer.arm(self._next_s, every_s=self._every_s)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._timer.close()
        self.end_s, self._cpu_end_s = time.perf_counter(), time.process_time()
        self._note(self.end_s, self._cpu_end_s)
        self._mark(self.end_s)
        self._wait.close()

    def slow_down(self) -> None:
        """From now on every ``TICK_S``."""
        if self._every_s < TICK_S:
            self._every_s = TICK_S
            self._timer.arm(self._next_s, every_s=TICK_S)

    def _tick(self) -> None:
        now = time.perf_counter()
        self._note(now, time.process_time())
        self._mark(now)
        if self._also is not None:
            self._also(now)

    def _note(self, now: float, cpu_s: float) -> None:
        while self._next_s <= now:  # one, or as many as were missed
            self._due.append(self._next_s)
            self._lags.append(now - self._next_s)
            self._cpu.append(cpu_s)
            self._next_s += self._every_s

    def _mark(self, now: float) -> None:
        self._marks.append(now)
        self._waited.append(self._wait.read())

    def health(
        self,
        begin_s: float | None = None,
        end_s: float | None = None,
        *,
        send_to_wire_s: float | None = None,
        late_p99_s: float | None = None,
        coalesced_fraction: float | None = None,
        num_resent: int = 0,
        seen: Sequence[Seen] = (),
    ) -> ClientHealth:
        """Between two moments of ``time.perf_counter`` (all the time that it ran), with the ticks next to them.
        ``seen``: the answers that it is the health of."""
        low, high = 0, len(self._due)
        if begin_s is not None and end_s is not None:
            low, high = max(0, bisect_left(self._due, begin_s) - 1), bisect_right(self._due, end_s) + 1
        lags = self._lags[low:high]
        cpu_share = self._cpu_share(low, min(high, len(self._due)) - 1)
        late = self._lateness(seen) if seen else None
        return ClientHealth(
            loop_lag_p99_s=percentile_99(lags),
            loop_lag_max_s=max(lags, default=None),
            cpu_share=cpu_share,
            send_to_wire_s=send_to_wire_s,
            late_p99_s=late_p99_s,
            coalesced_fraction=coalesced_fraction,
            num_resent=num_resent,
            waited_share=self._waited_share(begin_s, end_s),
            first_late_s=None if late is None else late.first_s,
            last_late_s=None if late is None else late.last_s,
            limited_by=limits_passed(lags, cpu_share, late_p99_s, late),
        )

    def _lateness(self, seen: Sequence[Seen]) -> Lateness:
        """What comes at a random moment meets the mean lag of all ticks (those of one answer are too few to tell it);
        what held up a tick may have held up the token that came with it; and what the client waited for a processor
        between the marks around a token may all have been before that token."""
        lag_s = fmean(self._lags) if self._lags else 0.0
        first = [self._late_around(each.first_s) for each in seen]
        last = [max(begin_s, self._late_around(each.last_s)) for begin_s, each in zip(first, seen, strict=True)]
        return Lateness(
            first_s=max(lag_s, fmean(first)),
            ttft_s=fmean(each.first_s - each.sent_s for each in seen),
            last_s=max(lag_s, fmean(last)),
            span_s=fmean(each.last_s - each.first_s for each in seen),
            worst_s=max(first),
            longest_s=max(each.first_s - each.sent_s for each in seen),
        )

    def _late_around(self, at_s: float) -> float:
        return max(self._lag_around(at_s), self._waited_around(at_s))

    def _lag_around(self, at_s: float) -> float:
        """Of the ticks that were due before a moment and came with it or later."""
        worst_s = 0.0
        for place in range(bisect_right(self._due, at_s + _TOGETHER_S) - 1, -1, -1):
            if self._due[place] + self._lags[place] < at_s - _TOGETHER_S:
                break
            worst_s = max(worst_s, self._lags[place])
        return worst_s

    def _waited_around(self, at_s: float) -> float:
        """Seconds without a processor between the marks before and after a moment; 0 where it is not known."""
        after = min(bisect_left(self._marks, at_s), len(self._marks) - 1)
        return self._waited_between(max(0, after - 1), after) or 0.0

    def _waited_between(self, low: int, high: int) -> float | None:
        before_s, after_s = self._waited[low], self._waited[high]
        return None if before_s is None or after_s is None else after_s - before_s

    def _waited_share(self, begin_s: float | None, end_s: float | None) -> float | None:
        low, high = 0, len(self._marks) - 1
        if begin_s is not None and end_s is not None:
            low = max(0, bisect_right(self._marks, begin_s) - 1)
            high = min(bisect_left(self._marks, end_s), high)
        passed_s, waited_s = self._marks[high] - self._marks[low], self._waited_between(low, high)
        return None if waited_s is None or passed_s <= 0 else waited_s / passed_s

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
    lags_s: Sequence[float],
    cpu_share: float | None = None,
    late_p99_s: float | None = None,
    late: Lateness | None = None,
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
        found.append(_words("at least one in a hundred of its requests was sent", late_p99_s, " late", MOST_LATE_P99_S))
    return (*found, *(_off(late) if late is not None else ()))


def _off(late: Lateness) -> Iterator[str]:
    for late_s, of_s, what, which in (
        (late.first_s, late.ttft_s, "the first token", "the time to it"),
        (late.last_s, late.span_s, "the first or last token", "the time between them"),
    ):
        if of_s > 0 and late_s > max(LEAST_OFF_S, MOST_OFF_SHARE * of_s):
            yield (
                f"it may have been {late_s * 1e3:.1f} ms late to {what}, {late_s / of_s:.1%} of {which} (limit "
                f"{MOST_OFF_SHARE:.1%})"
            )
    if late.worst_s > max(MOST_LAG_S, MOST_WORST_SHARE * late.longest_s):
        share = late.worst_s / late.longest_s
        yield (
            f"it may have been {late.worst_s * 1e3:.1f} ms late to one first token, {share:.0%} of the longest time to "
            f"one (limit {MOST_WORST_SHARE:.0%})"
        )


def _words(before: str, seconds: float, after: str, limit_s: float) -> str:
    return f"{before} {seconds * 1e3:.0f} ms{after} (limit {limit_s * 1e3:g} ms)"


def coalesced(reads: Sequence[Read]) -> float | None:
    """Pieces that came in one read with the piece before, of all pieces; None where none came."""
    pieces = sum(read.num_events for read in reads)
    return sum(read.num_events - 1 for read in reads if read.num_events > 1) / pieces if pieces else None


def percentile_99(values: Sequence[float]) -> float | None:
    """The value that 99 % of them do not pass (nearest rank); None of no values."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1] if values else None
