"""The file under a record's name is deleted, replaced or cut short while it is recorded into: that is noticed at the
next trial, said, and what can still be read is saved beside it."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rows_for_tests import design_row, full_result, run_row, trial_row

from kvscope.errors import RecordLost
from kvscope.record.rows import PredictionRow
from kvscope.record.store import Recorder, create_records, open_records

PREDICTION = PredictionRow(created_at="now", prediction={"of": "it"})


def begun(path: Path, trials: int) -> Recorder:
    recorder = create_records(path)
    recorder.add_run(run_row())
    recorder.add_design(design_row())
    for number in range(trials):
        append(recorder, number)
    return recorder


def append(recorder: Recorder, number: int, between: Callable[[], object] = lambda: None) -> None:
    trial = trial_row(trial_id=f"t{number}", position=number)
    recorder.start_trial(trial, PREDICTION)
    between()
    recorder.finish_trial(full_result(replace(trial, outcome="ok", duration_s=1.5)))


def ids(path: Path) -> list[tuple[str, str | None]]:
    with open_records(path) as records:
        assert all(records.prediction_row(trial) == PREDICTION for trial in records.trials())
        assert all(records.result(trial) == full_result(trial) for trial in records.trials() if trial.outcome)
        return [(trial.trial_id, trial.outcome) for trial in records.trials()]


def deleted(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    other = path.with_name("other")
    create_records(other).close()
    other.replace(path)


@pytest.mark.parametrize("lose", [deleted, replaced])
@pytest.mark.parametrize("is_running", [True, False], ids=["while a trial runs", "between two"])
def test_deleted_or_replaced_everything_is_saved(
    tmp_path: Path, lose: Callable[[Path], None], is_running: bool
) -> None:
    path, saved = tmp_path / "r.db", tmp_path / "r-rescued-2.db"
    (tmp_path / "r-rescued-1.db").write_text("somebody else's")
    recorder = begun(path, 3)
    if not is_running:
        lose(path)
    with pytest.raises(RecordLost, match=f"{lose.__name__} .+All that it held is in {saved}") as caught:
        append(recorder, 3, lambda: lose(path))
    assert caught.value.exit_code == 4
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(RecordLost):
        append(recorder, 4)
    recorder.close()
    assert ids(saved) == [(f"t{number}", "ok") for number in range(4 if is_running else 3)]
    assert (tmp_path / "r-rescued-1.db").read_text() == "somebody else's"
    assert not (tmp_path / "r-rescued-3.db").exists()
    assert (path.read_bytes() if path.exists() else None) == before
    with create_records(saved) as again:  # and it goes on there
        append(again, 9)
    # What is under the name now has nothing of the lost one beside it.
    with create_records(path) as other:
        assert other.trials() == ()


def test_cut_short_what_ended_last_is_saved(tmp_path: Path) -> None:
    path, saved = tmp_path / "r.db", tmp_path / "r-rescued-1.db"
    begun(path, 3).close()
    recorder = create_records(path)
    recorder.add_run(run_row(run_id="run2"))
    recorder.add_design(design_row())
    trial = trial_row(trial_id="t9", run_id="run2")
    recorder.start_trial(trial, PREDICTION)
    os.truncate(path, 0)
    with pytest.raises(RecordLost, match="was cut short"):
        recorder.finish_trial(full_result(replace(trial, outcome="ok")))
    recorder.close()
    assert ids(saved)[-1] == ("t9", "ok")


def test_the_next_recorder_of_the_name_is_left_alone(tmp_path: Path) -> None:
    """The first one, closing its deleted file, must not take FILE-wal away from the one that has the name now."""
    path = tmp_path / "r.db"
    first = begun(path, 1)
    for each in tmp_path.glob("r.db*"):
        each.unlink()
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\nfrom test_record_lost import begun\n"
        f"recorder = begun(Path({str(path)!r}), 2)\nprint('begun', flush=True)\nsys.stdin.read(1)\n"
        "import os; os._exit(0)"  # as if it were killed
    )
    with subprocess.Popen(
        [sys.executable, "-B", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        with pytest.raises(RecordLost):
            append(first, 1)
        first.close()
        process.stdin.write("x")
    assert ids(path) == [("t0", "ok"), ("t1", "ok")]


def test_a_file_that_only_grows_or_moves_with_its_folder_name_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recorder = begun(Path("r.db"), 1)
    monkeypatch.chdir("/")
    append(recorder, 1)
    with closing(sqlite3.connect(tmp_path / "r.db", isolation_level=None)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    append(recorder, 2)
    shutil.copy(tmp_path / "r.db", tmp_path / "copy.db")
    recorder.close()
    assert len(ids(tmp_path / "r.db")) == 3
