"""kvscope selftest measures as measure does: alone on the processor, for as long as it takes."""

import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvscope.cli import selftest as command
from kvscope.errors import DeviceBusy
from kvscope.experiment.device_lock import Device, hold_devices

PROCESSOR = Device(name="cpu")


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSCOPE_LOCKS", str(tmp_path))


class Ran(Exception):
    """Ends the command where its measuring would begin."""


def test_no_trial_gets_the_processor_while_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def as_another_would() -> None:
        try:
            with hold_devices((PROCESSOR,), on_wait=lambda busy: None, max_wait_s=0):
                seen.append("free")
        except DeviceBusy as busy:
            seen.append(str(busy))

    def measure(**_: object) -> None:
        other = threading.Thread(target=as_another_would)
        other.start()
        other.join()
        raise Ran

    monkeypatch.setattr(command, "run_selftest", measure)
    assert isinstance(CliRunner().invoke(command.selftest, [], standalone_mode=False).exception, Ran)
    assert len(seen) == 1
    assert "cpu is being measured by another kvscope" in seen[0]
    as_another_would()  # and then it is free again
    assert seen[1] == "free"


def test_it_waits_for_a_trial_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    has_it, may_end = threading.Event(), threading.Event()
    order: list[str] = []

    def trial() -> None:
        with hold_devices((PROCESSOR,), on_wait=lambda busy: None):
            has_it.set()
            may_end.wait(30)
            order.append("trial over")

    def measure(**_: object) -> None:
        order.append("measured")
        raise Ran

    def told(text: str, **_: object) -> None:
        order.append(text.strip())
        may_end.set()

    monkeypatch.setattr(command, "run_selftest", measure)
    monkeypatch.setattr(command, "say", told)
    running = threading.Thread(target=trial)
    running.start()
    has_it.wait(30)
    CliRunner().invoke(command.selftest, [], standalone_mode=False)
    running.join()
    assert order[0].startswith("Waiting: cpu is being measured by another kvscope")
    assert order[1:] == ["trial over", "measured"]
