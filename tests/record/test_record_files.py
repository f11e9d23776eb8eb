"""One file that several programs open: readers while a recorder writes, a killed recorder, copies, locks, read-only."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rows_for_tests import design_row, full_result, run_row, trial_row

from kvscope.cli.main import cli
from kvscope.errors import RecordBusy, RecordError, RecordUnwritable, SchemaMismatch
from kvscope.record import store
from kvscope.record.store import Recorder, create_records, open_records


def append(recorder: Recorder, first: int, count: int = 1) -> None:
    for number in range(first, first + count):
        trial = trial_row(trial_id=f"t{number}", position=number)
        recorder.start_trial(trial, None)
        recorder.finish_trial(full_result(replace(trial, outcome="ok", duration_s=1.5)))


def begun(path: Path, trials: int = 3) -> Recorder:
    recorder = create_records(path)
    recorder.add_run(run_row())
    recorder.add_design(design_row())
    append(recorder, 0, trials)
    return recorder


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def journal_of(path: Path) -> int:
    """What the file's header says how it is written: 1 with a rollback journal, 2 with a second file FILE-wal."""
    return path.read_bytes()[18]


def killed_recorder(path: Path, trials: int = 3) -> None:
    """A process that records, and is killed with the file open."""
    script = f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from test_record_files import begun
        begun(Path({str(path)!r}), {trials})
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-B", "-c", textwrap.dedent(script)], check=False)
    assert done.returncode == -signal.SIGKILL


def test_readers_and_the_recorder_never_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BUSY_S", 0.0)  # whoever had to wait would fail at once
    path = tmp_path / "r.db"
    recorder = begun(path, 1)
    other = sqlite3.connect(path, isolation_level=None)  # any other program, in the middle of reading
    other.execute("BEGIN")
    assert other.execute("SELECT count(*) FROM trials").fetchone() == (1,)
    with open_records(path) as before:
        append(recorder, 1, 5)
        assert len(before.trials()) == 6
        with open_records(path) as records:
            assert [records.result(trial) for trial in records.trials()] == [before.result(t) for t in before.trials()]
    assert other.execute("SELECT count(*) FROM trials").fetchone() == (1,)  # what it began with
    other.close()
    recorder.close()
    assert names(tmp_path) == ["r.db"]


def test_a_closed_record_is_one_file_and_needs_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    recorder = begun(path)
    assert names(tmp_path) == ["r.db", "r.db-shm", "r.db-wal"]
    recorder.close()
    assert names(tmp_path) == ["r.db"]
    assert journal_of(path) == 1
    before = path.read_bytes()
    with open_records(path) as records:
        assert records.doubt is None
        assert len(records.trials()) == 3
        assert names(tmp_path) == ["r.db"]
    assert path.read_bytes() == before


def test_closed_while_somebody_reads_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    recorder = begun(path)
    with open_records(path) as records:
        recorder.close()
        assert len(records.trials()) == 3
    copy = tmp_path / "copy" / "r.db"
    copy.parent.mkdir()
    shutil.copy(path, copy)
    with open_records(copy) as records:
        assert records.doubt is None
        assert len(records.trials()) == 3
    with create_records(path) as recorder:
        append(recorder, 3)
    assert names(tmp_path) == ["copy", "r.db"]
    assert journal_of(path) == 1


def test_of_a_killed_recorder_everything_finished_is_read_and_nothing_is_changed_by_reading(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    killed_recorder(path)
    wal = tmp_path / "r.db-wal"
    before = path.read_bytes(), wal.read_bytes()
    for _ in range(2):
        with open_records(path) as records:
            assert records.doubt is None
            assert [trial.outcome for trial in records.trials()] == ["ok"] * 3
            assert [records.result(t) for t in records.trials()] == [full_result(t) for t in records.trials()]
    assert (path.read_bytes(), wal.read_bytes()) == before
    with create_records(path) as recorder:
        assert len(recorder.trials()) == 3
    assert names(tmp_path) == ["r.db"]


def test_a_copy_of_half_of_it_says_so(tmp_path: Path) -> None:
    path, copy = tmp_path / "r.db", tmp_path / "copy" / "r.db"
    killed_recorder(path)
    copy.parent.mkdir()
    shutil.copy(path, copy)
    with open_records(copy) as records:
        assert records.trials() == ()
        assert records.doubt is not None
        assert "r.db-wal is not beside it" in records.doubt
    commands = (
        ["export", "--records", str(copy)],
        ["report", "--records", str(copy)],
        ["merge", f"{copy}2", str(copy)],
    )
    for command in commands:
        done = CliRunner().invoke(cli, command, standalone_mode=False)
        assert done.exception is None
        assert "last trials may be missing" in done.stderr
    # With its other half it is whole, wherever they lie.
    shutil.copy(f"{path}-wal", f"{copy}-wal")
    with open_records(copy) as records:
        assert records.doubt is None
        assert len(records.trials()) == 3
    # And a file that a recorder has opened and closed since is not in doubt.
    create_records(copy).close()
    with open_records(copy) as records:
        assert records.doubt is None


def test_another_record_put_in_the_place_of_one_that_was_killed(tmp_path: Path) -> None:
    """SQLite itself reads the new file with what the killed recorder left beside the old one."""
    path, kept = tmp_path / "r.db", tmp_path / "kept.db"
    begun(kept, 1).close()
    killed_recorder(path, 3)
    shutil.copy(kept, path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if not file.name.endswith("-shm")}
    for opened in (open_records, create_records):
        with pytest.raises(SchemaMismatch, match=r"r\.db-wal, which lies beside .+ is of another record") as caught:
            opened(path)
        assert "Move r.db-wal" in str(caught.value.hint)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    for suffix in ("-wal", "-shm"):
        path.with_name(f"r.db{suffix}").unlink(missing_ok=True)
    with open_records(path) as records:
        assert len(records.trials()) == 1


def test_an_older_state_of_the_record_put_in_the_place_of_the_one_that_was_killed(tmp_path: Path) -> None:
    path, kept = tmp_path / "r.db", tmp_path / "kept.db"
    begun(path, 1).close()
    shutil.copy(path, kept)
    script = f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_record_files import append, create_records
        append(create_records({str(path)!r}), 1, 3)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-B", "-c", textwrap.dedent(script)], check=False)
    with open_records(path) as records:
        assert len(records.trials()) == 4
    shutil.copy(kept, path)
    with pytest.raises(SchemaMismatch, match="another state"):
        open_records(path)


def test_what_was_killed_more_than_once_is_its_own(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    script = f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_record_files import append, create_records
        append(create_records({str(path)!r}), int(sys.argv[1]))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed_recorder(path, 1)
    for number in (1, 2, 3):
        subprocess.run([sys.executable, "-B", "-c", textwrap.dedent(script), str(number)], check=False)
        with open_records(path) as records:
            assert len(records.trials()) == number + 1
    create_records(path).close()
    assert names(tmp_path) == ["r.db"]


def test_a_second_recorder_of_the_same_process_is_refused_and_takes_no_lock_away(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    recorder = begun(path, 1)
    recorder._connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(RecordBusy, match="Another kvscope"):
        create_records(path)
    script = (
        "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)\n"
        "try: c.execute('BEGIN IMMEDIATE')\nexcept sqlite3.OperationalError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "database is locked\n"
    recorder._connection.execute("ROLLBACK")
    recorder.close()


def test_locked_by_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BUSY_S", 0.05)
    path = tmp_path / "r.db"
    begun(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        for opened in (create_records, open_records):
            with pytest.raises(RecordBusy, match="locked by another program") as caught:
                opened(path)
            assert caught.value.exit_code == 4
    finally:
        other.close()
    with create_records(path) as recorder:
        append(recorder, 3)


def test_locked_in_the_middle_of_recording_costs_nothing_that_was_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BUSY_S", 0.05)
    path = tmp_path / "r.db"
    with begun(path, 2) as recorder:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RecordBusy):
            append(recorder, 2)
        other.close()
        append(recorder, 2)
    with open_records(path) as records:
        assert len(records.trials()) == 3


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that becomes read-only when its ``sealed`` is made; needs the right to mount."""
    folder = tmp_path / "sealed"
    folder.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode != 0:
        pytest.skip("mounting a file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def seal(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


@pytest.mark.parametrize("is_read", [False, True], ids=["closed", "closed while read"])
def test_a_record_in_a_folder_that_cannot_be_written_to(read_only: Path, is_read: bool) -> None:
    path = read_only / "r.db"
    recorder = begun(path)
    if is_read:
        with open_records(path):
            recorder.close()
        for beside in ("-wal", "-shm"):  # as a copy of the file alone has it
            Path(f"{path}{beside}").unlink()
        assert journal_of(path) == 2
    recorder.close()
    seal(read_only)
    with open_records(path) as records:
        assert records.doubt is None
        assert [records.result(trial).tokens for trial in records.trials()] == [full_result(trial_row()).tokens] * 3
    with pytest.raises(RecordUnwritable) as caught:
        create_records(path)
    assert caught.value.exit_code == 4


def test_what_a_killed_recorder_left_in_a_folder_that_cannot_be_written_to(read_only: Path) -> None:
    path = read_only / "r.db"
    killed_recorder(path)
    Path(f"{path}-shm").unlink()
    seal(read_only)
    with pytest.raises(RecordError, match="cannot be read in a folder") as caught:
        open_records(path)
    assert "r.db-wal" in caught.value.message
    copy = read_only.parent / "r.db"
    shutil.copy(path, copy)
    shutil.copy(f"{path}-wal", f"{copy}-wal")
    with open_records(copy) as records:
        assert len(records.trials()) == 3


def test_a_name_with_signs_that_mean_something_in_an_address(tmp_path: Path) -> None:
    path = tmp_path / "a?b#c %41 'x'.db"
    begun(path).close()
    with open_records(path) as records:
        assert len(records.trials()) == 3
    assert os.listdir(tmp_path) == [path.name]  # noqa: PTH208 - the names themselves


def test_a_reader_that_was_there_before_the_recorder(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    begun(path).close()
    with open_records(path) as records:
        assert len(records.trials()) == 3
        with create_records(path) as recorder:
            append(recorder, 3)
            assert len(records.trials()) == 4
        assert len(records.trials()) == 4
    create_records(path).close()
    assert names(tmp_path) == ["r.db"]


def test_recorders_one_after_another_while_somebody_reads_all_the_time(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    begun(path, 0).close()
    with open_records(path) as records:
        for number in range(3):
            with create_records(path) as recorder:
                append(recorder, number)
            assert len(records.trials()) == number + 1
    with open_records(path) as records:
        assert records.doubt is None
        assert len(records.trials()) == 3
