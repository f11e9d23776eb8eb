"""What a command reads is one state of the record, whatever is recorded, begun or brought up to date meanwhile; and a
record that is damaged is called that, with its table and its trial."""

import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rows_for_tests import design_row, full_result, run_row, trial_row

from kvscope.analysis.table import request_rows, sample_rows, table_rows, token_rows
from kvscope.cli.main import cli
from kvscope.errors import RecordBusy, RecordError, SchemaMismatch
from kvscope.record.merge import merge
from kvscope.record.rows import PredictionRow
from kvscope.record.schema import SCHEMA_VERSION
from kvscope.record.store import Records, create_records, open_records

GOLDEN = Path(__file__).parent.parent / "golden" / "records"


def add(path: Path, name: str) -> None:
    """A sitting of its own, with a design and a trial of its own."""
    with create_records(path) as recorder:
        recorder.add_run(run_row(run_id=f"run-{name}"))
        recorder.add_design(design_row(design_id=f"d-{name}"))
        trial = trial_row(trial_id=f"t-{name}", design_id=f"d-{name}", run_id=f"run-{name}")
        recorder.start_trial(trial, PredictionRow(created_at="now", prediction={"of": "it"}))
        recorder.finish_trial(full_result(replace(trial, outcome="ok", duration_s=1.5)))


def all_tables(records: Records) -> list[object]:
    return [*table_rows(records), *request_rows(records), *token_rows(records), *sample_rows(records)]


def invoked(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=False)


class Between:
    """Does something once, when the designs of a record have been read."""

    def __init__(self, records: Records, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
        read, left = records.designs, [happens]

        def designs() -> object:
            found = read()
            if left:
                left.pop()()
            return found

        monkeypatch.setattr(records, "designs", designs)


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_sitting_that_begins_meanwhile_is_not_seen_by_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: bool
) -> None:
    path = tmp_path / "r.db"
    add(path, "one")
    with create_records(path) as recorder, open_records(path, snapshot=snapshot) as records:

        def begin() -> None:
            recorder.add_run(run_row(run_id="new"))
            recorder.add_design(design_row(design_id="new"))
            trial = trial_row(trial_id="new", design_id="new", run_id="new")
            recorder.start_trial(trial, None)
            recorder.finish_trial(full_result(replace(trial, outcome="ok")))

        Between(records, monkeypatch, begin)
        assert [row["trial_id"] for row in table_rows(records)] == ["t-one"]
        assert [trial.trial_id for trial in records.trials()] == (["t-one"] if snapshot else ["t-one", "new"])
        with create_records(tmp_path / "out.db") as out:
            assert merge(out, [records])[0].added == (1 if snapshot else 2)


def test_an_older_record_is_read_to_its_end_before_it_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    shutil.copy(GOLDEN / "schema3.db", path)
    with open_records(path) as records:
        expected = all_tables(records)
    with open_records(path, snapshot=True) as records:
        designs = records.designs()
        recorder = threading.Thread(target=lambda: create_records(path).close())
        recorder.start()
        assert all_tables(records) == expected
        assert records.designs() == designs
    recorder.join()
    with open_records(path) as records:
        assert records.version == SCHEMA_VERSION
        assert len(all_tables(records)) == len(expected)


def test_a_reader_of_single_rows_is_told_that_the_record_was_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    shutil.copy(GOLDEN / "schema3.db", path)
    with open_records(path) as records:
        trial = records.trials()[0]
        create_records(path).close()
        with pytest.raises(RecordBusy, match="brought up to date by another kvscope while it was read"):
            records.result(trial)


@pytest.mark.parametrize("table", ["trials", "requests", "tokens", "samples"])
@pytest.mark.parametrize("has_size", [False, True], ids=["empty", "killed while the tables were made"])
def test_a_file_from_before_the_first_row_has_no_trials(tmp_path: Path, table: str, has_size: bool) -> None:
    path = tmp_path / "r.db"
    path.touch()
    if has_size:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.executescript("PRAGMA cache_size = 1; BEGIN; CREATE TABLE a (b); INSERT INTO a VALUES (1)")
            shutil.copytree(tmp_path, tmp_path / "left")
        path = tmp_path / "left" / "r.db"
    done = invoked("export", "--records", path, "--rows", table)
    assert (done.exception, done.stdout) == (None, "")
    assert invoked("merge", tmp_path / "out.db", path).exception is None
    with open_records(path) as records:
        assert (records.runs(), records.designs(), records.trials()) == ((), (), ())
    add(path, "one")
    with open_records(path) as records:
        assert len(records.trials()) == 1


DAMAGE = {
    "levels = 'not json' of trials": ("trials, trial_id t-two, attempt 1", "levels"),
    "levels = '5' of trials": ("trials, trial_id t-two, attempt 1", "levels"),
    "effective = '[1]' of trials": ("attempt 1 of trial t-two: table trials", "effective"),
    "run_id = 'nosuch' of trials": ("the sitting nosuch of trial t-two", ""),
    "design_id = 'nosuch' of trials": ("the design nosuch of trial t-two", ""),
    "at_s = x'0102' of tokens": ("attempt 1 of trial t-two: table tokens", ""),
    "texts = '[]' of tokens": ("attempt 1 of trial t-two: table tokens", ""),
    "kinds = '{' of tokens": ("attempt 1 of trial t-two: table tokens", ""),
    "value_bytes = x'' of samples": ("attempt 1 of trial t-two: table samples", ""),
    "quantities = '7' of samples": ("attempt 1 of trial t-two: table samples", ""),
    "engine_timings = '[]' of requests": ("attempt 1 of trial t-two: table requests", "engine_timings"),
    "prediction = '[]' of prediction_texts": ("trial t-two: table prediction_texts", "prediction"),
    "machine = 'x' of runs": ("table runs, run_id run-two", "machine"),
    "levels = '5' of designs": ("table designs, design_id d-two", "levels"),
    'machine = \'{"memory_total_bytes": "x"}\' of runs': ("table runs, run_id run-two", "machine"),
    'client = \'{"probes": {"a": {"late": "x"}}}\' of trials': ("trials, trial_id t-two", "client holds no number"),
    'engine_timings = \'{"prompt_ms": "x"}\' of requests': ("trial t-two: table requests", "engine_timings"),
    'prediction = \'{"growth": {"bytes_per_token": "x"}}\' of prediction_texts': (
        "trial t-two: table prediction_texts",
        "growth.bytes_per_token",
    ),
}


def damaged(path: Path, change: str) -> None:
    add(path, "one")
    add(path, "two")
    what, table = change.split(" of ")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        last = connection.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0]
        if table == "prediction_texts":
            last = 1  # both were predicted the same
            connection.execute("DELETE FROM predictions WHERE attempt_id = 1")
        connection.execute(f"UPDATE {table} SET {what} WHERE rowid = {last}")


@pytest.mark.parametrize("change", DAMAGE)
def test_a_damaged_row_is_named_and_the_record_is_to_blame(tmp_path: Path, change: str) -> None:
    path, out = tmp_path / "r.db", tmp_path / "out.db"
    damaged(path, change)
    where, column = DAMAGE[change]
    commands: list[list[str | Path]] = [["merge", out, path]]
    if "samples" not in change:
        rows = "tokens" if "tokens" in change else "trials"
        commands.append(["export", "--records", path, "--rows", rows])
    if "design_id" not in change:
        commands.append(["report", "--records", path])
    for command in commands:
        error = invoked(*command).exception
        assert isinstance(error, SchemaMismatch), (command, error)
        assert f"{path} is damaged: " in error.message, command
        assert where in error.message
        assert column in error.message
        assert error.exit_code == 4
        assert error.hint
    assert not out.exists()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["r.db"]


def test_a_merge_that_ends_in_any_error_leaves_no_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path / "r.db", "one")

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("kvscope.cli.merge.merge_records", broken)
    assert isinstance(invoked("merge", tmp_path / "out.db", tmp_path / "r.db").exception, ZeroDivisionError)
    assert [file.name for file in tmp_path.iterdir()] == ["r.db"]
    add(tmp_path / "there.db", "two")
    assert isinstance(invoked("merge", tmp_path / "there.db", tmp_path / "r.db").exception, ZeroDivisionError)
    assert (tmp_path / "there.db").exists()


def test_a_recorder_waits_for_who_reads_a_closed_record_and_says_so_when_it_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.db"
    add(path, "one")
    monkeypatch.setattr("kvscope.record.store.BUSY_S", 0.01)
    with open_records(path, snapshot=True) as records:
        assert len(records.trials()) == 1
        with pytest.raises(RecordError, match="is locked by another program") as caught:
            create_records(path)
    assert "reads it" in str(caught.value.hint)
    create_records(path).close()
