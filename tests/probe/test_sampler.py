"""The background sampler: its clock, its lateness, and that it never raises."""

import math
import threading
import time
from collections.abc import Mapping
from itertools import islice, pairwise

import pytest

from kvscope.errors import ProbeLost
from kvscope.probe import sampler as sampler_module
from kvscope.probe.sampler import Sampler, Watched, due_times


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


def one(probe: Steps, interval_s: float = 0.02) -> list[Watched]:
    return [Watched(probe=probe, interval_s=interval_s, quantities=("anon_bytes", "swap_bytes"))]


def test_readings_with_their_times() -> None:
    probe = Steps()
    sampler = Sampler(one(probe, 0.005))
    before_s = time.perf_counter()
    sampler.start()
    assert probe.reached.wait(10)
    samples = sampler.stop()
    after_s = time.perf_counter()
    assert sampler.streams[0].error is None
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
    sampler = Sampler(one(probe, 0.005), now=lambda: time.perf_counter() - started_s)
    sampler.start()
    assert probe.reached.wait(10)
    assert all(0 <= sample.at_s < 10 for sample in sampler.stop())


def test_late_readings_are_counted_and_moments_that_passed_are_not_made_up() -> None:
    probe = Steps(sleep_at=5, sleep_s=0.2)
    sampler = Sampler(one(probe, 0.01))
    sampler.start()
    assert probe.reached.wait(10)
    samples = [sample for sample in sampler.stop() if sample.quantity == "anon_bytes"]
    # 0.2 s are twenty moments; all but the last one or two of them were missed, and no burst made up for them.
    assert sampler.streams[0].missed >= 15
    after_pause = samples[5]
    assert after_pause.at_s - samples[4].at_s >= 0.2
    late = [sample.late_s > 0.1 for sample in samples]
    assert sum(late) < len(late) / 2


def test_an_error_ends_it_and_is_kept() -> None:
    probe = Steps(fail_at=4)
    sampler = Sampler(one(probe, 0.005))
    sampler.start()
    assert probe.reached.wait(10)
    samples = sampler.stop()
    assert isinstance(sampler.streams[0].error, ProbeLost)
    assert len([sample for sample in samples if sample.quantity == "anon_bytes"]) == 3


def test_stop_before_start_and_twice() -> None:
    sampler = Sampler(one(Steps()))
    assert sampler.stop() == []
    assert sampler.stop() == []
    assert (sampler.streams[0].missed, sampler.streams[0].error) == (0, None)


class TestSeveralProbes:
    """One clock, each its own interval; what befalls one does not befall the others."""

    def test_host_and_device_curves_lie_on_one_axis(self) -> None:
        """R05: host memory rises while the device's stands still. Seen only where both have one time axis."""

        class Host(Steps):
            name = "host"

            def read(self) -> Mapping[str, int]:
                super().read()
                return {"anon_bytes": math.ceil(1e9 * (time.perf_counter() - started_s))}

        class Device(Steps):
            name = "device"

            def read(self) -> Mapping[str, int]:
                super().read()
                return {"device_bytes": 74}

        started_s = time.perf_counter()
        host, device = Host(), Device()
        sampler = Sampler(
            [
                Watched(probe=host, interval_s=0.005),
                Watched(probe=device, interval_s=0.01, quantities=("device_bytes",)),
            ],
            now=lambda: time.perf_counter() - started_s,
        )
        sampler.start()
        assert host.reached.wait(10)
        assert device.reached.wait(10)
        samples = sampler.stop()
        assert [sample.at_s for sample in samples] == sorted(sample.at_s for sample in samples)
        # The host's value is its own clock: its time stamp says the same, so both are on the sampler's axis.
        for sample in samples:
            if sample.probe == "host":
                assert sample.value_bytes >= 1e9 * sample.at_s
        curve = {probe: [s for s in samples if s.probe == probe] for probe in ("host", "device")}
        assert curve["host"][-1].value_bytes > curve["host"][0].value_bytes
        assert {sample.value_bytes for sample in curve["device"]} == {74}
        # They interleave: neither waited for the other to end.
        assert curve["host"][0].at_s < curve["device"][-1].at_s
        assert curve["device"][0].at_s < curve["host"][-1].at_s

    def test_one_that_fails_ends_alone(self) -> None:
        failing, going_on = Steps(fail_at=3), Steps()
        sampler = Sampler([*one(failing, 0.005), *one(going_on, 0.005)])
        sampler.start()
        assert failing.reached.wait(10)
        assert going_on.reached.wait(10)
        sampler.stop()
        first, second = sampler.streams
        assert isinstance(first.error, ProbeLost)
        assert second.error is None
        assert (failing.count, going_on.count >= 20) == (3, True)

    def test_lateness_and_misses_are_counted_for_each(self) -> None:
        slow, quick = Steps(sleep_at=5, sleep_s=0.3), Steps()
        sampler = Sampler([*one(slow, 0.01), *one(quick, 0.01)])
        sampler.start()
        assert slow.reached.wait(10)
        sampler.stop()
        # While the slow one was inside one reading, the other went on being read.
        assert sampler.streams[0].missed >= 20
        assert quick.count > slow.count

    def test_one_that_hangs_does_not_hold_up_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sampler_module, "_STOP_WAIT_S", 0.2)
        release = threading.Event()

        class Hangs(Steps):
            name = "hung driver"

            def read(self) -> Mapping[str, int]:
                self.reached.set()
                release.wait(60)
                return {}

        hung, well = Hangs(), Steps()
        sampler = Sampler([*one(hung, 0.005), *one(well, 0.005)])
        sampler.start()
        assert hung.reached.wait(10)
        assert well.reached.wait(10)
        samples = sampler.stop()
        release.set()
        assert len(samples) >= 40
        assert "hung driver" in str(sampler.streams[0].error)
        assert sampler.streams[1].error is None

    def test_a_slow_one_is_stopped_without_waiting_for_its_interval(self) -> None:
        sampler = Sampler(one(Steps(), interval_s=3600))
        sampler.start()
        assert sampler.stop() == []
        assert sampler.streams[0].error is None


def test_paused_it_reads_nothing_and_misses_nothing() -> None:
    probe = Steps()
    sampler = Sampler(one(probe, 0.002))
    sampler.start()
    assert probe.reached.wait(10)
    sampler.pause()
    time.sleep(0.1)  # a reading that was under way has come back by then, or comes once more
    read, missed = probe.count, sampler.streams[0].missed
    time.sleep(0.1)
    assert probe.count <= read + 1
    assert sampler.streams[0].missed <= missed + 1
    sampler.pause(is_paused=False)
    deadline = time.perf_counter() + 10
    while probe.count <= read + 1 and time.perf_counter() < deadline:
        time.sleep(0.005)
    assert probe.count > read + 1
    sampler.stop()
