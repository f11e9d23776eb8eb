"""The background sampler: its clock, its lateness, and that it never raises."""

import threading
import time
from collections.abc import Mapping
from itertools import islice, pairwise

import pytest

from kvscope.errors import ProbeLost
from kvscope.probe.sampler import Sampler, due_times


class Steps:
    """A probe whose reading is how often it was read; fails or sleeps on command."""

    name = "steps"

    def __init__(self, *, fail_at: int | None = None, sleep_at: int | None = None, sleep_s: float = 0.0) -> None:
        self.count = 0
        self.fail_at, self.sleep_at, self.sleep_s = fail_at, sleep_at, sleep_s
        self.reached = threading.Event()

    def unavailable(self) -> str | None:
        return None

    def read(self) -> Mapping[str, int]:
        self.count += 1
        if self.count == self.fail_at:
            self.reached.set()
            raise ProbeLost("gone")
        if self.count == self.sleep_at:
            time.sleep(self.sleep_s)
        if self.count == 20:
            self.reached.set()
        return {"anon_bytes": self.count, "swap_bytes": 0, "other": 7}


def test_due_times_lie_around_a_grid_that_does_not_drift() -> None:
    times = list(islice(due_times(0.02, seed=1), 1000))
    for place, due_s in enumerate(times):
        assert place * 0.02 < due_s < (place + 1) * 0.02
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert sum(gaps) / len(gaps) == pytest.approx(0.02, rel=0.01)
    assert len({round(gap, 6) for gap in gaps}) > 900  # no two alike
    assert times == list(islice(due_times(0.02, seed=1), 1000))
    assert times != list(islice(due_times(0.02, seed=2), 1000))


def test_readings_with_their_times() -> None:
    probe = Steps()
    sampler = Sampler(probe, interval_s=0.005)
    before_s = time.perf_counter()
    sampler.start()
    assert probe.reached.wait(10)
    samples = sampler.stop()
    after_s = time.perf_counter()
    assert sampler.error is None
    anon = [sample for sample in samples if sample.quantity == "anon_bytes"]
    assert [sample.value_bytes for sample in anon] == list(range(1, len(anon) + 1))
    assert len(anon) >= 20
    assert {sample.quantity for sample in samples} == {"anon_bytes", "swap_bytes"}  # those it was asked for
    assert all(before_s <= sample.at_s <= after_s for sample in samples)
    assert all(sample.late_s >= 0 for sample in samples)
    # Quantities of one reading share its time.
    assert len({sample.at_s for sample in samples}) == len(anon)
    count = probe.count
    time.sleep(0.03)
    assert probe.count == count  # stopped is stopped
    assert sampler.stop() == samples


def test_times_are_on_the_clock_that_is_given() -> None:
    started_s = time.perf_counter()
    probe = Steps()
    sampler = Sampler(probe, interval_s=0.005, now=lambda: time.perf_counter() - started_s)
    sampler.start()
    assert probe.reached.wait(10)
    assert all(0 <= sample.at_s < 10 for sample in sampler.stop())


def test_late_readings_are_counted_and_moments_that_passed_are_not_made_up() -> None:
    probe = Steps(sleep_at=5, sleep_s=0.2)
    sampler = Sampler(probe, interval_s=0.01)
    sampler.start()
    assert probe.reached.wait(10)
    samples = [sample for sample in sampler.stop() if sample.quantity == "anon_bytes"]
    # 0.2 s are twenty moments; all but the last one or two of them were missed, and no burst made up for them.
    assert sampler.missed >= 15
    after_pause = samples[5]
    assert after_pause.at_s - samples[4].at_s >= 0.2
    late = [sample.late_s > 0.1 for sample in samples]
    assert sum(late) < len(late) / 2


def test_an_error_ends_it_and_is_kept() -> None:
    probe = Steps(fail_at=4)
    sampler = Sampler(probe, interval_s=0.005)
    sampler.start()
    assert probe.reached.wait(10)
    samples = sampler.stop()
    assert isinstance(sampler.error, ProbeLost)
    assert len([sample for sample in samples if sample.quantity == "anon_bytes"]) == 3


def test_stop_before_start_and_twice() -> None:
    sampler = Sampler(Steps())
    assert sampler.stop() == []
    assert sampler.stop() == []
    assert (sampler.missed, sampler.error) == (0, None)
