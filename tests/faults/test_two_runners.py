"""Two kvscopes at once, as real processes: they take turns on a device, never share a record, and never measure over
what one that was killed has left running."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from kvscope.record.store import open_records

TURN_TAKER = Path(__file__).with_name("turn_taker.py")
TRIALS = 7  # a warm-up, and three times two levels
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="who holds a lock is read from /proc")


@contextmanager
def runner(*words: object) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, str(TURN_TAKER), *map(str, words)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setenv("KVSCOPE_LOCKS", str(folder))


def hear(process: "subprocess.Popen[str]", word: str) -> str:
    """The rest of the next line that begins with this word."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return line.removeprefix(word).strip()
    assert process.stderr is not None
    pytest.fail(process.stderr.read())


def test_they_take_turns_on_a_device(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with runner(tmp_path / "one.db", log) as one, runner(tmp_path / "two.db", log) as two:
        assert hear(one, "done") == hear(two, "done") == f"{TRIALS} 0"
    spans = sorted((float(begin), float(end), pid) for pid, begin, end in map(str.split, log.read_text().splitlines()))
    assert len(spans) == 2 * TRIALS
    for earlier, later in pairwise(spans):
        assert earlier[1] <= later[0], "two trials at once"
    # Neither keeps it until it is through.
    order = [pid for _, _, pid in spans]
    assert sum(one != other for one, other in pairwise(order)) >= 3, order


def test_nobody_measures_over_an_engine_whose_runner_was_killed(tmp_path: Path) -> None:
    record, log = tmp_path / "r.db", tmp_path / "log"
    with runner(record, log, "stubborn") as killed:
        engine = int(hear(killed, "engine"))
        killed.kill()
        killed.wait()
        # Its record is free, and its device is not.
        with runner(record, log) as next_one:
            with ended(engine):
                assert f"in use by process {engine} " in hear(next_one, "waiting")
                assert not log.exists()
            assert hear(next_one, "done") == f"{TRIALS} 0"
    with open_records(record) as records:
        trials = records.trials()
    assert [trial.outcome for trial in trials] == ["interrupted"] + ["ok"] * TRIALS
    assert (trials[0].trial_id, trials[1].attempt) == (trials[1].trial_id, 2)


@contextmanager
def ended(pid: int) -> Iterator[None]:
    """At the end, SIGKILL to a program that turn_taker.py started and that nobody else ends."""
    handle = os.pidfd_open(pid)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)


def test_a_record_has_one_runner(tmp_path: Path) -> None:
    record, log = tmp_path / "r.db", tmp_path / "log"
    with runner(record, log, "stubborn") as first:
        engine = int(hear(first, "engine"))
        with ended(engine), runner(record, log) as second:
            assert second.wait(60) != 0
            assert second.stderr is not None
            assert "RecordBusy" in second.stderr.read()
        with open_records(record) as records:
            assert [trial.outcome for trial in records.trials()] == [None]
