"""Noise of the fake engine: times that scatter around its law, minutes that are slow, a machine that slows down.

All of it comes from a seed and from what is asked, so the same trial takes the same time whenever it is run, and a
study with a known effect and known noise can be simulated as often as one likes.
"""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

# Time is cut into stretches of this length; one in five is slow.
SLOW_STRETCH_S = 60.0
SLOW_PART = 0.2
# A time is never less than this share of what the law says.
LEAST_FACTOR = 0.05

_launches: dict[int, "itertools.count[int]"] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """``share``: standard deviation of a time, as a share of it. ``is_skewed``: lognormal instead of normal; the mean
    is the law's in both. ``slow_share``: how much longer everything takes in a slow stretch. ``drift_per_s``: how much
    longer everything takes for each second on the clock. ``bytes_deviation``: standard deviation of the memory that a
    process holds once its model is loaded; ``bytes_per_launch``: how much more each process holds than the one before.
    ``heap_deviation``: standard deviation of the heap from one request to the next."""

    seed: int
    share: float
    is_skewed: bool
    slow_share: float
    drift_per_s: float
    bytes_deviation: int
    bytes_per_launch: int = 0
    heap_deviation: int = 0

    def time_factors(self, number: int, words: Sequence[str], now_s: float) -> tuple[float, float]:
        """What the first token's time and that of all later ones are multiplied by, for the ``number``-th request of an
        engine, with these words, at this time on the clock."""
        if not (self.share or self.slow_share or self.drift_per_s):
            return 1.0, 1.0
        common = 1 + self.drift_per_s * now_s
        if self.slow_share and self.is_slow(now_s):
            common *= 1 + self.slow_share
        drawn = random.Random(f"{self.seed}/{number}/{' '.join(words)}")
        return common * self._factor(drawn), common * self._factor(drawn)

    def is_slow(self, now_s: float) -> bool:
        """Whether this is a slow stretch."""
        return random.Random(f"{self.seed}/stretch/{int(now_s // SLOW_STRETCH_S)}").random() < SLOW_PART

    def launch_bytes(self) -> int:
        """Bytes more (or fewer) for the next process that is launched; the n-th with one seed has the same in every run
        of kvscope."""
        if not self.bytes_deviation and not self.bytes_per_launch:
            return 0
        number = next(_launches.setdefault(self.seed, itertools.count()))
        drawn = random.Random(f"{self.seed}/launch/{number}").gauss(0, self.bytes_deviation)
        return round(drawn) + number * self.bytes_per_launch

    def heap_bytes(self, launch_bytes: int, num_requests: int) -> int:
        """Bytes more (or fewer) in the heap of a process after so many requests."""
        if not self.heap_deviation or not num_requests:
            return 0
        drawn = random.Random(f"{self.seed}/heap/{launch_bytes}/{num_requests}")
        return round(drawn.gauss(0, self.heap_deviation))

    def _factor(self, drawn: random.Random) -> float:
        unit = drawn.gauss(0, 1)
        if not self.is_skewed:
            return max(LEAST_FACTOR, 1 + self.share * unit)
        variance = math.log(1 + self.share**2)
        return math.exp(math.sqrt(variance) * unit - variance / 2)
