"""Several requests at once on the fake engine: slots, a queue before them, and steps that take longer with each request
that shares them.

Each request has its tokens' times as if it were alone. While k requests are in slots, all of them advance at the rate
1 ÷ (1 + ``slowdown`` × (k − 1)); a request beyond the slots waits, first come first served. Every moment follows from
that, so what a measurement should find can be worked out by hand: k equal requests that begin together take (1 +
``slowdown`` × (k − 1)) times as long as one alone.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvscope.engine.base import Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A request in a slot: the seconds from its begin to each of its tokens if it were alone. ``stalls_s``: it sends
    nothing and ends as a failure so many seconds after it began, however many others there are."""

    steps_s: tuple[float, ...] = ()
    stalls_s: float | None = None


@dataclass(slots=True)
class Course:
    """What became of a request: seconds from the begin of the load. ``times_s``: its tokens'. ``work`` is None where
    the engine refused it as it came."""

    index: int
    stream: int
    due_s: float | None
    sent_s: float
    began_s: float = 0.0
    times_s: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    slot: int | None = None
    work: Work | None = None

    @property
    def is_over(self) -> bool:
        """Whether all of its tokens came."""
        return self.work is not None and len(self.times_s) == len(self.work.steps_s)


def due_times(load: Load) -> list[float]:
    """When each request of an open loop should be sent: evenly from 0 on, or with gaps that are exponentially
    distributed, from the load's seed."""
    assert load.rate_per_s is not None
    if load.arrival == "constant":
        return [index / load.rate_per_s for index in range(len(load.requests))]
    gaps = random.Random(load.seed)
    times, at_s = [], 0.0
    for _ in load.requests:
        times.append(at_s)
        at_s += gaps.expovariate(load.rate_per_s)
    return times


class LoadPlay:
    """Plays a load. ``begin(index, free slots)`` says in which slot a request begins and what it has to do, or None
    where it is refused at once; ``end(course)`` is told of each request that is over, in order of time, and may end the
    load by returning False."""

    def __init__(
        self,
        load: Load,
        *,
        slots: int,
        slowdown: float,
        begin: Callable[[int, Sequence[int]], tuple[int, Work] | None],
        end: Callable[[Course], bool],
    ) -> None:
        self._load = load
        self._slots = slots
        self._slowdown = slowdown
        self._begin, self._end = begin, end
        self._now_s = 0.0
        self._unsent = list(range(len(load.requests)))
        self._due_s = {} if load.arrival == "closed" else dict(enumerate(due_times(load)))
        self._idle_streams = list(range(load.concurrency)) if load.arrival == "closed" else []
        self._waiting: list[Course] = []
        self._running: dict[int, tuple[Course, float]] = {}  # by slot; the second is how far it has come
        self._courses: list[Course] = []
        self._broken = False

    def play(self) -> list[Course]:
        """The courses of all requests that were sent, in the order of the load's list."""
        while not self._broken and (self._unsent or self._waiting or self._running):
            self._send()
            self._fill_slots()
            if self._broken:
                break
            moment_s = self._next_moment()
            if moment_s is not None:
                self._advance(moment_s)
        return sorted(self._courses, key=lambda course: course.index)

    def _send(self) -> None:
        while self._unsent and (self._due_s or self._idle_streams):
            index = self._unsent[0]
            due_s = self._due_s.get(index)
            if due_s is not None and due_s > self._now_s:
                return
            stream = self._idle_streams.pop(0) if due_s is None else self._free_stream()
            self._unsent.pop(0)
            course = Course(index=index, stream=stream, due_s=due_s, sent_s=self._now_s)
            self._courses.append(course)
            self._waiting.append(course)

    def _free_stream(self) -> int:
        taken = {course.stream for course in self._waiting} | {course.stream for course, _ in self._running.values()}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def _fill_slots(self) -> None:
        while self._waiting and len(self._running) < self._slots and not self._broken:
            course = self._waiting.pop(0)
            course.began_s = self._now_s
            begun = self._begin(course.index, [slot for slot in range(self._slots) if slot not in self._running])
            if begun is None:
                self._finish(course)
                self._send()
                continue
            course.slot, course.work = begun
            self._running[course.slot] = (course, 0.0)

    def _rate(self) -> float:
        return 1 / (1 + self._slowdown * (len(self._running) - 1))

    def _next_moment(self) -> float | None:
        """When the next token comes, a stall ends or a request falls due; None where nothing is to come."""
        moments = [self._token_s(course, done) for course, done in self._running.values()]
        if self._unsent and self._due_s:
            moments.append(self._due_s[self._unsent[0]])
        return min(moments, default=None)

    def _token_s(self, course: Course, done: float) -> float:
        assert course.work is not None
        if course.work.stalls_s is not None:
            return course.began_s + course.work.stalls_s
        return self._now_s + (course.work.steps_s[len(course.times_s)] - done) / self._rate()

    def _advance(self, moment_s: float) -> None:
        passed = (moment_s - self._now_s) * self._rate() if self._running else 0.0
        reached = [slot for slot, (course, done) in self._running.items() if self._token_s(course, done) <= moment_s]
        self._now_s = moment_s
        for slot, (course, done) in self._running.items():
            self._running[slot] = (course, done + passed)
        for slot in reached:
            course, done = self._running[slot]
            assert course.work is not None
            if course.work.stalls_s is None:
                course.times_s.append(moment_s)
                self._running[slot] = (course, course.work.steps_s[len(course.times_s) - 1])
            if course.work.stalls_s is not None or course.is_over:
                del self._running[slot]
                self._finish(course)

    def _finish(self, course: Course) -> None:
        course.ended_s = self._now_s
        if course.due_s is None:
            self._idle_streams.append(course.stream)
            self._idle_streams.sort()
        if not self._end(course):
            self._broken = True
