"""Several requests at once on the fake engine: slots, a queue before them, and steps that take longer with each request
that shares them.

Each request has its tokens' times as if it were alone. While k requests are in slots, all of them advance at the rate
1 ÷ (1 + ``slowdown`` × (k − 1)); a request beyond the slots waits, first come first served. Every moment follows from
that, so what a measurement should find can be worked out by hand: k equal requests that begin together take (1 +
``slowdown`` × (k − 1)) times as long as one alone.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvscope.engine.base import (
    ChatRequest,
    ClientHealth,
    Generation,
    Load,
    LoadAnswer,
    LoadResult,
    Read,
    TokenEvent,
)
from kvscope.engine.load_client import due_times
from kvscope.errors import ContextOverflow, EngineDied, EngineStalled, KvscopeError

BYTES_PER_EVENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A request in its slot: which of all (from 1), what of its prompt was kept there, and the seconds from its begin
    to each of its tokens if it were alone. ``num_stated``: the prompt tokens that it states. ``answer``: the texts of
    its first tokens, where it answers something. ``stalls``: it sends nothing for its ``stall_s`` and then fails."""

    request: ChatRequest
    number: int
    slot: int
    num_prompt: int
    cached: int
    steps_s: tuple[float, ...]
    finish_reason: str
    num_stated: int | None
    answer: tuple[str, ...] = ()
    stalls: bool = False

    def generation(self, times_s: Sequence[float], *, waited_s: float = 0.0) -> Generation:
        """The answer whose tokens came at these times, after it had waited for its slot."""
        return Generation(
            events=tuple(TokenEvent(at_s=moment, text=self._text(number)) for number, moment in enumerate(times_s)),
            reads=tuple(Read(at_s=moment, num_bytes=BYTES_PER_EVENT, num_events=1) for moment in times_s),
            completed_s=times_s[-1],
            prompt_tokens=self.num_stated,
            cached_tokens=self.cached,
            output_tokens=len(times_s),
            finish_reason=self.finish_reason,
            prompt_tokens_from=None if self.num_stated is None else "usage.prompt_tokens",
            engine_timings={
                "prompt_ms": (times_s[0] - waited_s) * 1000,
                "predicted_ms": (times_s[-1] - times_s[0]) * 1000,
            },
        )

    def _text(self, number: int) -> str:
        return self.answer[number] if number < len(self.answer) else f"word{number} "

    def stalled(self) -> EngineStalled:
        """The error of a request that was told to stall."""
        return EngineStalled(f"The fake engine sent nothing for {self.request.stall_s:g} s.", hint="As asked.")


@dataclass(slots=True)
class Course:
    """What becomes of a request: seconds from the begin of the load. ``times_s``: its tokens'. ``done_s``: how much of
    what it would take alone is done."""

    index: int
    stream: int
    sent_s: float
    due_s: float | None = None
    began_s: float = 0.0
    done_s: float = 0.0
    times_s: list[float] = field(default_factory=list)
    given: Given | None = None
    error: KvscopeError | None = None

    def answer(self) -> LoadAnswer:
        """As the client would have it."""
        generation = None
        if self.error is None and self.given is not None:
            times = [moment - self.sent_s for moment in self.times_s]
            generation = self.given.generation(times, waited_s=self.began_s - self.sent_s)
        return LoadAnswer(
            index=self.index,
            stream=self.stream,
            sent_s=self.sent_s,
            due_s=self.due_s,
            generation=generation,
            error=self.error,
        )


class ManyAtOnce:
    """Plays a load. ``begin`` puts a request into one of the free slots, or raises what it ends with; EngineDied ends
    all. ``compute`` is told of each that begins, ``finish`` of each that is answered, in order of time; ``sleep`` lets
    the time in between pass. ``health``: of the client, as it is to be stated."""

    def __init__(
        self,
        load: Load,
        *,
        slots: int,
        slowdown: float,
        sleep: Callable[[float], None],
        begin: Callable[[ChatRequest, Sequence[int]], Given],
        compute: Callable[[Given], None],
        finish: Callable[[Given], None],
        health: ClientHealth,
    ) -> None:
        self._load = load
        self._slots, self._slowdown = slots, slowdown
        self._sleep = sleep
        self._begin, self._compute, self._finish = begin, compute, finish
        self._health = health
        is_open = load.arrival != "closed"
        self._due_s = due_times(load) if is_open else None
        self._idle_streams = [] if is_open else list(range(load.concurrency))
        self._now_s = 0.0
        self._unsent = deque(range(len(load.requests)))
        self._waiting: deque[Course] = deque()
        self._running: dict[int, Course] = {}
        self._over: list[Course] = []

    def result(self) -> LoadResult:
        """Play it to the end."""
        self._go_on()
        while self._running or self._unsent:
            self._pass_to(self._next_moment())
            self._go_on()
        return LoadResult(
            answers=tuple(course.answer() for course in sorted(self._over, key=lambda course: course.index)),
            wall_s=self._now_s,
            health=self._health,
        )

    def _go_on(self) -> None:
        """Send what is to be sent now, and fill the free slots, until neither changes anything."""
        while self._send_next() or self._fill_next():
            pass

    def _send_next(self) -> bool:
        if not self._unsent:
            return False
        index = self._unsent[0]
        due_s = None if self._due_s is None else self._due_s[index]
        if (due_s is None and not self._idle_streams) or (due_s is not None and due_s > self._now_s):
            return False
        self._unsent.popleft()
        stream = self._idle_streams.pop(0) if due_s is None else self._free_stream()
        self._waiting.append(Course(index=index, stream=stream, sent_s=self._now_s, due_s=due_s))
        return True

    def _free_stream(self) -> int:
        taken = {course.stream for course in (*self._waiting, *self._running.values())}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def _fill_next(self) -> bool:
        free = [slot for slot in range(self._slots) if slot not in self._running]
        if not self._waiting or not free:
            return False
        course = self._waiting.popleft()
        course.began_s = self._now_s
        try:
            given = self._begin(self._load.requests[course.index], free)
        except ContextOverflow as error:
            self._end(course, error)
        except EngineDied as error:
            self._end_all(course, error)
        else:
            course.given = given
            self._running[given.slot] = course
            self._compute(given)
        return True

    def _rate(self) -> float:
        """Seconds of work done in a second, of each request in a slot."""
        return 1 / (1 + self._slowdown * (len(self._running) - 1)) if self._running else 1.0

    def _next_moment(self) -> float:
        """When the next token comes, a stall ends or a request falls due."""
        moments = [self._next_of(course) for course in self._running.values()]
        if self._unsent and self._due_s is not None:
            moments.append(self._due_s[self._unsent[0]])
        return min(moments)

    def _next_of(self, course: Course) -> float:
        given = course.given
        assert given is not None
        if given.stalls:
            return course.began_s + given.request.stall_s
        return self._now_s + (given.steps_s[len(course.times_s)] - course.done_s) / self._rate()

    def _pass_to(self, moment_s: float) -> None:
        reached = [course for course in self._running.values() if self._next_of(course) <= moment_s]
        done_s = (moment_s - self._now_s) * self._rate()
        self._sleep(moment_s - self._now_s)
        self._now_s = moment_s
        for course in self._running.values():
            course.done_s += done_s
        for course in reached:
            given = course.given
            assert given is not None
            if given.stalls:
                self._end(course, given.stalled())
                continue
            course.done_s = given.steps_s[len(course.times_s)]
            course.times_s.append(moment_s)
            if len(course.times_s) == len(given.steps_s):
                self._finish(given)
                self._end(course, None)

    def _end(self, course: Course, error: KvscopeError | None) -> None:
        course.error = error
        self._over.append(course)
        if course.given is not None:
            del self._running[course.given.slot]
        if self._due_s is None:
            self._idle_streams = sorted([*self._idle_streams, course.stream])

    def _end_all(self, course: Course, error: EngineDied) -> None:
        """The engine has died: so ends what it had taken, and what would have been sent after that."""
        self._end(course, error)
        for other in (*self._running.values(), *self._waiting):
            self._end(other, error)
        self._waiting.clear()
        for index in self._unsent:
            due_s = None if self._due_s is None else self._due_s[index]
            self._over.append(Course(index=index, stream=0, sent_s=self._now_s, due_s=due_s, error=error))
        self._unsent.clear()
