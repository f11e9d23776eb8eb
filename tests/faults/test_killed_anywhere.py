"""Killed at any moment and begun again: what was finished is there once, as it was; what was in flight is told and
tried anew; and the table is the one of a study that nobody stopped.

The kills are real (SIGKILL, or the kernel's own at a write), of processes with a real record file. See zygote.py.
"""

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kvscope.analysis.table import request_rows, table_rows, token_rows
from kvscope.record.rows import TrialRow
from kvscope.record.store import open_records

ZYGOTE = Path(__file__).with_name("zygote.py")
SEED = 20260730
# What tells of the sitting and not of what was measured. ``attempt`` is 2 of a trial whose first one was cut short, and
# ``warnings`` may name programs that moved on the machine meanwhile.
OF_THE_SITTING = ("run_id", "started_at", "attempt", "client_cpu_share", "warnings")
TRIALS = 5
STOPPED = 130

Row = dict[str, Any]


class Zygote:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ZYGOTE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, folder: Path, kind: str = "none", number: int = 0) -> Row:
        """How it ended: ``signal``, and the ``count`` of lines or steps where it came to its end."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"folder": str(folder), "kill": [kind, number]}) + "\n")
        self.process.stdin.flush()
        said: Row = json.loads(self.process.stdout.readline())
        assert said["signal"] or said["code"] in (0, STOPPED), "it failed, and was not stopped"
        return said


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    started = Zygote()
    yield started
    started.process.communicate()


@pytest.fixture(scope="module")
def whole(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """The table of a study that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    zygote.run(folder)
    return table(folder)


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder whose files are in memory, where there is one: a killed process leaves it as it leaves a disk, and
    nobody waits for it."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="kvscope-test-"))
    yield folder
    shutil.rmtree(folder)


def table(folder: Path) -> list[Row]:
    """Every row, of trials, requests and tokens, that is not of an interrupted attempt."""
    with open_records(folder / "r.db") as records:
        cut = {(row.trial_id, row.attempt) for row in records.trials() if row.outcome == "interrupted"}
        rows = [*table_rows(records), *request_rows(records), *token_rows(records)]
    kept = [row for row in rows if (row["trial_id"], row["attempt"]) not in cut]
    return [{name: value for name, value in row.items() if name not in OF_THE_SITTING} for row in kept]


def finished(folder: Path) -> list[TrialRow]:
    """Trials that were over when it was killed, as they were recorded. Read as anybody would: nothing is put in order
    first."""
    path = folder / "r.db"
    if not path.is_file() or is_empty(path):
        return []
    with open_records(path) as records:
        return [row for row in records.trials() if row.outcome not in (None, "interrupted")]


def is_empty(path: Path) -> bool:
    """Whether it was killed before its tables were made."""
    with closing(sqlite3.connect(path)) as connection:
        return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0)


def check_resumed(zygote: Zygote, folder: Path, whole: list[Row], *, kills: int) -> int:
    """Run what is left, and hold the record against the whole one's; how many trials had been finished before."""
    before = finished(folder)
    zygote.run(folder)
    assert table(folder) == whole
    with open_records(folder / "r.db") as records:
        assert len(records.designs()) == 1
        after = records.trials()
        for row in before:
            assert row in after  # as it was: when it began, in which sitting, how long it took
        outcomes = Counter(row.outcome for row in after)
        assert set(outcomes) <= {"ok", "interrupted"}
        assert outcomes["ok"] == TRIALS
        assert outcomes["interrupted"] <= kills
        done = [row.trial_id for row in after if row.outcome == "ok"]
        assert len(set(done)) == TRIALS
    with closing(sqlite3.connect(folder / "r.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    return len(before)


def places(zygote: Zygote, folder: Path, kind: str, count: int) -> list[int]:
    """Random places out of all that a study runs through, the first and the last of them among these."""
    total = zygote.run(folder, kind)["count"]
    assert total > count
    chosen = random.Random(f"{SEED}/{kind}")
    return [1, total, *chosen.sample(range(2, total), count - 2)]


@pytest.mark.parametrize(("kind", "count"), [("line", 76), ("record", 60), ("steps", 30)])
def test_killed_at_any(zygote: Zygote, whole: list[Row], in_memory: Path, kind: str, count: int) -> None:
    seen = Counter[int]()
    for number, place in enumerate(places(zygote, in_memory / "counted", kind, count)):
        folder = in_memory / str(number)
        assert zygote.run(folder, kind, place)["signal"] == 9
        seen[check_resumed(zygote, folder, whole, kills=1)] += 1
    assert set(seen) >= set(range(TRIALS)), "kills in each of the trials"


def test_killed_at_a_write(zygote: Zygote, whole: list[Row], in_memory: Path) -> None:
    """By the kernel, at the write that would make the file, its journal or its log larger than so much: in the middle
    of a commit, with pages of it written and others not."""
    zygote.run(in_memory / "size")
    largest = (in_memory / "size" / "r.db").stat().st_size
    chosen = random.Random(f"{SEED}/size")
    killed = 0
    for number in range(20):
        folder = in_memory / str(number)
        killed += zygote.run(folder, "size", chosen.randrange(512, largest))["signal"] == 25
        check_resumed(zygote, folder, whole, kills=1)
    assert killed >= 15


def test_killed_at_any_time(zygote: Zygote, whole: list[Row], tmp_path: Path) -> None:
    """By another process, whatever it is at: in the kernel too, waiting for the disk. And again while it resumes."""
    chosen = random.Random(f"{SEED}/time")
    for number in range(12):
        folder = tmp_path / str(number)
        for _ in range(3):
            zygote.run(folder, "time", chosen.randrange(1_000, 100_000))
        check_resumed(zygote, folder, whole, kills=3)


def test_interrupted_at_any_time(zygote: Zygote, whole: list[Row], in_memory: Path) -> None:
    """Ctrl-C, and once more within a millisecond: it ends by itself, and as soon as a trial's result is there, it is
    written."""
    chosen = random.Random(f"{SEED}/interrupt")
    stopped = 0
    for number in range(20):
        folder = in_memory / str(number)
        stopped += zygote.run(folder, "interrupt", chosen.randrange(1_000, 30_000))["code"] == STOPPED
        check_resumed(zygote, folder, whole, kills=1)
    assert stopped >= 10
