"""What the tests of trials share."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kvscope.probe.base import Sample
from kvscope.probe.sampler import Sampler


@pytest.fixture(autouse=True)
def readings_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reading of memory comes when it is due: how busy this machine is, is no matter of these tests. What comes
    late, or not at all, a test says itself."""
    stop = Sampler.stop

    def stopped(self: Sampler) -> Sequence[Sample]:
        samples = [replace(sample, late_s=0.0) for sample in stop(self)]
        for stream in self.streams:
            stream.missed = 0
        return samples

    monkeypatch.setattr(Sampler, "stop", stopped)


@pytest.fixture(autouse=True)
def quiet_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other programs do on this machine is no matter of these tests either."""
    monkeypatch.setattr("kvscope.probe.occupants.MOVED_BYTES", 1 << 60)
    monkeypatch.setattr("kvscope.experiment.neighbours.MOVED_BYTES", 1 << 60)
