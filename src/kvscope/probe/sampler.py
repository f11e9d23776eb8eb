"""Reading a probe again and again in the background, on a jittered clock; each reading says how late it was.

Jitter: a strictly regular clock can fall in step with what it watches (an engine's own loop) and see the same moment of
it every time. Due times lie around a regular grid counted from the start, so that delays do not add up.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from kvscope.probe.base import Probe, Sample

DEFAULT_INTERVAL_S = 0.020
# Share of the interval by which a due time may lie before or after its place on the grid.
_JITTER = 0.4


def due_times(interval_s: float, seed: int) -> Iterator[float]:
    """Seconds from the start at which to read: one in each interval, at a random place around its middle."""
    rng = random.Random(seed)
    place = 0
    while True:
        yield (place + 0.5 + rng.uniform(-_JITTER, _JITTER)) * interval_s
        place += 1


class Sampler:
    """Reads ``probe`` in a thread until stopped.

    ``now`` gives the time that ``at_s`` is on, in seconds (the trial's clock). All quantities of one reading share one
    ``at_s``, taken just before it; its ``late_s`` is how long after its due moment that was.

    ``missed``: due moments without a reading, because an earlier reading took longer than an interval. ``error``: the
    first exception of the probe, which ended the sampling; None while all is well. It is never raised into the
    measurement. Both may be read at any moment, and are final after ``stop``.
    """

    def __init__(
        self,
        probe: Probe,
        *,
        interval_s: float = DEFAULT_INTERVAL_S,
        quantities: Sequence[str] = ("anon_bytes", "swap_bytes", "file_bytes"),
        seed: int = 0,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.error: Exception | None = None
        self.missed = 0
        self._probe = probe
        self._interval_s = interval_s
        self._quantities = tuple(quantities)
        self._seed = seed
        self._now = now
        self._stopping = threading.Event()
        # (time, lateness, reading); made into samples at the end, to cost little while it runs.
        self._readings: list[tuple[float, float, Mapping[str, int]]] = []
        self._thread = threading.Thread(target=self._run, name="kvscope-sampler", daemon=True)

    def start(self) -> None:
        """Begin. A sampler runs once."""
        self._thread.start()

    def stop(self) -> list[Sample]:
        """End, and give what was read. Safe to call twice."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        return [
            Sample(probe=self._probe.name, quantity=quantity, at_s=at_s, value_bytes=reading[quantity], late_s=late_s)
            for at_s, late_s, reading in self._readings
            for quantity in self._quantities
            if quantity in reading
        ]

    def _run(self) -> None:
        start_s = self._now()
        for after_s in due_times(self._interval_s, self._seed):
            due_s = start_s + after_s
            wait_s = due_s - self._now()
            if wait_s < -self._interval_s:
                self.missed += 1
                continue
            time.sleep(max(wait_s, 0.0))  # half the cost of waiting for the event, 50 times a second
            if self._stopping.is_set():
                return
            try:
                self._take(due_s)
            except Exception as error:  # whatever it is, a bug of ours included, the trial goes on
                self.error = error
                return

    def _take(self, due_s: float) -> None:
        now_s = self._now()
        self._readings.append((now_s, max(now_s - due_s, 0.0), self._probe.read()))
