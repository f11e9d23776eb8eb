"""Reading several probes again and again in the background, each at its own interval, all on one clock.

Every probe has a thread of its own: one that is slow, or hangs in its driver, delays no other. All of them stamp their
readings on the same clock, so that the curves of host and device lie on one time axis.

Jitter: a strictly regular clock can fall in step with what it watches (an engine's own loop) and see the same moment of
it every time. Due times lie around a regular grid counted from the start, so that delays do not add up.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvscope.errors import ProbeError
from kvscope.probe.base import Sample

DEFAULT_INTERVAL_S = 0.020
HOST_QUANTITIES = ("anon_bytes", "swap_bytes", "file_bytes")
# Share of the interval by which a due time may lie before or after its place on the grid.
_JITTER = 0.4
# A longer wait can be broken off when the sampler is stopped; for a short one that costs more than it is worth.
_SHORT_WAIT_S = 0.05
# How long a reading under way is waited for at the end. A driver that hangs is left behind.
_STOP_WAIT_S = 2.0


def due_times(interval_s: float, seed: int) -> Iterator[float]:
    """Seconds from the start at which to read: one in each interval, at a random place around its middle."""
    rng = random.Random(seed)
    place = 0
    while True:
        yield (place + 0.5 + rng.uniform(-_JITTER, _JITTER)) * interval_s
        place += 1


class Readable(Protocol):
    """What a sampler needs of a probe."""

    name: str

    def read(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A probe to be read every ``interval_s`` seconds, and which of its quantities to keep."""

    probe: Readable
    interval_s: float = DEFAULT_INTERVAL_S
    quantities: tuple[str, ...] = HOST_QUANTITIES


class Stream:
    """The readings of one probe. ``missed``: due moments without a reading, because an earlier one took longer than an
    interval. ``error``: the first exception of the probe, which ended this stream and no other; None while all is
    well. It is never raised into the measurement. Both may be read at any moment, and are final after the sampler's
    ``stop``."""

    def __init__(
        self,
        watched: Watched,
        *,
        seed: int,
        now: Callable[[], float],
        stopping: threading.Event,
        paused: threading.Event,
    ) -> None:
        self.probe = watched.probe
        self.interval_s = watched.interval_s
        self.missed = 0
        self.error: Exception | None = None
        self._quantities = watched.quantities
        self._seed = seed
        self._now = now
        self._stopping = stopping
        self._paused = paused
        # (time, lateness, reading); made into samples at the end, to cost little while it runs.
        self._readings: list[tuple[float, float, Mapping[str, int]]] = []
        self._thread = threading.Thread(target=self._run, name=f"kvscope-sampler {self.probe.name}", daemon=True)

    def start(self) -> None:
        """Begin reading."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the reading under way, but not for ever: one that does not come back becomes the error."""
        if self._thread.ident is None:
            return
        self._thread.join(_STOP_WAIT_S)
        if self._thread.is_alive() and self.error is None:
            self.error = ProbeError(
                f"The last reading of {self.probe.name} had not come back {_STOP_WAIT_S:g} s after the end.",
                hint="Its driver may hang; readings until then are kept.",
            )

    def samples(self) -> list[Sample]:
        """What was read so far. All quantities of one reading share one ``at_s``, taken just before it."""
        return [
            Sample(probe=self.probe.name, quantity=quantity, at_s=at_s, value_bytes=reading[quantity], late_s=late_s)
            for at_s, late_s, reading in tuple(self._readings)
            for quantity in self._quantities
            if quantity in reading
        ]

    def _run(self) -> None:
        start_s = self._now()
        for after_s in due_times(self.interval_s, self._seed):
            due_s = start_s + after_s
            wait_s = due_s - self._now()
            if wait_s < -self.interval_s:
                self.missed += not self._paused.is_set()
                continue
            self._wait(max(wait_s, 0.0))
            if self._stopping.is_set():
                return
            if self._paused.is_set():
                continue
            try:
                self._take(due_s)
            except Exception as error:  # whatever it is, a bug of ours included, the trial goes on
                self.error = error
                return

    def _wait(self, wait_s: float) -> None:
        if self.interval_s <= _SHORT_WAIT_S:
            time.sleep(wait_s)  # half the cost of waiting for the event, 50 times a second
        else:
            self._stopping.wait(wait_s)

    def _take(self, due_s: float) -> None:
        now_s = self._now()
        self._readings.append((now_s, max(now_s - due_s, 0.0), self.probe.read()))


class Sampler:
    """Reads every probe of ``watched`` until stopped. ``now`` gives the time that ``at_s`` is on, in seconds (the
    trial's clock). ``streams``: one for each of ``watched``, in their order."""

    def __init__(
        self, watched: Sequence[Watched], *, seed: int = 0, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._stopping, self._paused = threading.Event(), threading.Event()
        self.streams = tuple(
            Stream(each, seed=seed + number, now=now, stopping=self._stopping, paused=self._paused)
            for number, each in enumerate(watched)
        )

    def start(self) -> None:
        """Begin. A sampler runs once."""
        for stream in self.streams:
            stream.start()

    def pause(self, *, is_paused: bool = True) -> None:
        """Read nothing for a while, or go on: what falls due meanwhile is neither read nor missed."""
        if is_paused:
            self._paused.set()
        else:
            self._paused.clear()

    def stop(self) -> list[Sample]:
        """End, and give what was read of all probes, in the order of time. Safe to call twice."""
        self._stopping.set()
        for stream in self.streams:
            stream.join()
        return sorted(
            (sample for stream in self.streams for sample in stream.samples()), key=lambda sample: sample.at_s
        )
