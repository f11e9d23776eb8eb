"""The record file keeps what was finished, whatever happens to the process that writes it."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows_for_tests import design_row, full_result, request_row, run_row, trial_row

from kvscope.errors import RecordBusy, RecordNotFound, RecordUnwritable, SchemaMismatch, UsageError
from kvscope.record.rows import PredictionRow, TokenRow, WarningRow
from kvscope.record.schema import SCHEMA_VERSION
from kvscope.record.store import create_records, open_records


def fill(path: Path, *, trials: int = 1) -> None:
    with create_records(path) as recorder:
        recorder.add_run(run_row())
        recorder.add_design(design_row())
        for number in range(trials):
            trial = trial_row(trial_id=f"t{number}", position=number)
            recorder.start_trial(trial, None)
            recorder.finish_trial(full_result(replace(trial, outcome="ok", duration_s=1.5)))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    prediction = {"schema": "kvscope.prediction/1", "totals": {"kv_cache_bytes": 23040}}
    expected = full_result(trial_row(outcome="ok", duration_s=1.5, client={"concurrency": 1}))
    with create_records(path) as recorder:
        recorder.add_run(run_row())
        recorder.add_design(design_row())
        recorder.add_design(design_row())
        recorder.start_trial(trial_row(), PredictionRow(created_at="now", prediction=prediction))
        recorder.finish_trial(expected)
    with open_records(path) as records:
        assert records.runs() == (run_row(),)
        assert records.designs() == (design_row(),)
        assert records.result(trial_row()) == expected
        assert records.prediction(trial_row()) == prediction
        assert records.prediction(trial_row(attempt=2)) is None
        with pytest.raises(RecordNotFound):
            records.result(trial_row(attempt=2))


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE trials SET levels = '{\"prompt_tokens\": '",
        "UPDATE trials SET effective = '{'",
        "UPDATE designs SET levels = '5'",
        "UPDATE tokens SET at_s = x'00112233'",
    ],
)
def test_a_damaged_record_is_called_that(tmp_path: Path, damage: str) -> None:
    fill(tmp_path / "r.db")
    with sqlite3.connect(tmp_path / "r.db") as connection:
        connection.execute(damage)
    connection.close()

    def read_all() -> None:
        with open_records(tmp_path / "r.db") as records:
            assert records.designs()
            assert [records.result(trial) for trial in records.trials()]

    with pytest.raises(SchemaMismatch) as caught:
        read_all()
    assert caught.value.hint
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 99999999999999999999}, "too large"),
    ],
)
def test_a_value_that_cannot_be_kept_is_said_in_words(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with create_records(tmp_path / "r.db") as recorder:
        recorder.add_run(run_row())
        with pytest.raises(UsageError, match=words) as caught:
            recorder.add_design(replace(design_row(), **change))
        str(caught.value).encode()
        assert recorder.designs() == ()
        recorder.add_design(design_row())  # and the record is as usable as before


def test_half_a_character_is_written_out_and_costs_no_trial(tmp_path: Path) -> None:
    # A server may split a character between two pieces: JSON can hold each half ("\\ud83d"), UTF-8 cannot.
    halves = (
        TokenRow(request_index=0, index=0, at_s=0.5, text="\ud83d"),
        TokenRow(request_index=0, index=1, at_s=0.6, text="\ude00 \\ud83d"),
    )
    trial = trial_row(outcome="ok", error_message="bad \ud83d", evidence={"bo\ud83ddy": ['\udfff "']})
    result = replace(
        full_result(trial),
        tokens=halves,
        requests=(request_row(finish_reason="length\ud800", engine_timings={"\ud800": 1.0}),),
        warnings=(WarningRow(slug="s", message="caf\udce9", hint=""),),
        effective={"served_model": "m\ud800"},
    )
    prediction = PredictionRow(created_at="2026", prediction={"model": "m\ud800"})
    with create_records(tmp_path / "r.db") as recorder:
        recorder.add_run(run_row())
        recorder.add_design(design_row(model_source="caf\udce9.gguf"))
        recorder.start_trial(trial_row(), prediction)
        recorder.finish_trial(result)
        kept = recorder.result(trial_row())
        assert recorder.prediction(trial_row()) == {"model": "m\\ud800"}
        assert recorder.designs()[0].model_source == "caf\\udce9.gguf"
    assert [token.text for token in kept.tokens] == ["\\ud83d", "\\ude00 \\ud83d"]
    assert (kept.trial.error_message, kept.trial.evidence) == ("bad \\ud83d", {"bo\\ud83ddy": ['\\udfff "']})
    assert kept.requests[0].finish_reason == "length\\ud800"
    assert kept.requests[0].engine_timings == {"\\ud800": 1.0}
    assert (kept.warnings[0].message, kept.effective) == ("caf\\udce9", {"served_model": "m\\ud800"})


@given(text=st.text(), levels=st.lists(st.integers() | st.text() | st.booleans(), min_size=1))
@settings(max_examples=30, deadline=None)
def test_any_text_and_level_survive(tmp_path_factory: pytest.TempPathFactory, text: str, levels: list[object]) -> None:
    # SQLite keeps text as UTF-8, which has no lone surrogates; the JSON columns escape nothing else.
    text = text.encode("utf-8", "replace").decode()
    levels = [level.encode("utf-8", "replace").decode() if isinstance(level, str) else level for level in levels]
    path = tmp_path_factory.mktemp("r") / "r.db"
    design = design_row(levels=tuple(levels), baseline_level=levels[0], question=text)
    with create_records(path) as recorder:
        recorder.add_design(design)
    with open_records(path) as records:
        assert records.designs() == (design,)


def test_a_killed_writer_loses_only_the_trial_in_flight(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    script = textwrap.dedent(f"""
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from dataclasses import replace
        from rows_for_tests import design_row, full_result, run_row, trial_row
        from kvscope.record.store import create_records
        recorder = create_records({str(path)!r})
        recorder.add_run(run_row()); recorder.add_design(design_row())
        for n in range(100000):
            trial = trial_row(trial_id=f"t{{n}}", position=n)
            recorder.start_trial(trial, None)
            recorder.finish_trial(full_result(replace(trial, outcome="ok")))
            if n == 0: print("go", flush=True)
    """)
    writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    with writer.stdout:
        assert writer.stdout.readline() == "go\n"
        time.sleep(0.2)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    with create_records(path) as recorder:
        trials = recorder.trials()
        outcomes = [trial.outcome for trial in trials]
        finished = [trial for trial in trials if trial.outcome == "ok"]
        assert len(finished) >= 1
        assert outcomes.count("interrupted") <= 1
        assert set(outcomes) <= {"ok", "interrupted"}
        # Every finished trial is whole.
        for trial in finished:
            assert recorder.result(trial) == full_result(trial)


def test_an_attempt_left_open_is_completed_as_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with create_records(path) as recorder:
        recorder.add_run(run_row())
        recorder.add_design(design_row())
        recorder.start_trial(trial_row(), None)
    with open_records(path) as records:
        assert records.trials()[0].outcome is None
    with create_records(path) as recorder:
        (trial,) = recorder.trials()
    assert (trial.outcome, trial.error_slug) == ("interrupted", "interrupted")


def test_two_writers_are_refused_and_a_reader_is_not(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    fill(path)
    with create_records(path):
        with pytest.raises(RecordBusy, match="Another kvscope"):
            create_records(path)
        with open_records(path) as records:
            assert len(records.trials()) == 1
    with create_records(path):
        pass


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(RecordNotFound) as caught:
        open_records(tmp_path / "none.db")
    assert "kvscope lab" in (caught.value.hint or "")


@pytest.mark.parametrize("content", [b"not a database, just text " * 100, b"\x00" * 5000])
def test_another_kind_of_file_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(SchemaMismatch):
        create_records(path)
    with pytest.raises(SchemaMismatch):
        open_records(path)
    assert path.read_bytes() == content


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(SchemaMismatch, match="not a kvscope record"):
        create_records(path)
    assert path.read_bytes() == before


def test_another_schema_version_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    fill(path)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.commit()
    connection.close()
    with pytest.raises(SchemaMismatch, match=f"schema {SCHEMA_VERSION + 1}"):
        open_records(path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordUnwritable, match="No such file"):
        create_records(tmp_path / "nowhere" / "r.db")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB; needs the right to mount."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_keeps_what_was_finished(small_disk: Path) -> None:
    path = small_disk / "r.db"
    finished, caught = 0, None
    with create_records(path) as recorder:
        recorder.add_run(run_row())
        recorder.add_design(design_row())
        try:
            for number in range(100_000):
                trial = trial_row(trial_id=f"t{number}", position=number)
                recorder.start_trial(trial, None)
                recorder.finish_trial(full_result(replace(trial, outcome="ok")))
                finished += 1
        except RecordUnwritable as error:
            caught = error
    assert caught is not None
    assert "full" in caught.message
    assert "run the same command again" in (caught.hint or "")
    assert finished > 0
    with open_records(path) as records:
        whole = [trial for trial in records.trials() if trial.outcome == "ok"]
        assert len(whole) == finished
        assert records.result(whole[-1]) == full_result(whole[-1])


def test_the_same_trial_of_two_machines_is_two_rows(tmp_path: Path) -> None:
    # A trial's id is made of what was asked: it is the same on every machine. What a machine gave is not.
    here, there = (trial_row(design_id=design, outcome="ok") for design in ("d1", "d2"))
    with create_records(tmp_path / "r.db") as recorder:
        recorder.add_run(run_row())
        for trial, answered in ((here, 4), (there, 3)):
            recorder.add_design(design_row(design_id=trial.design_id))
            recorder.start_trial(trial, PredictionRow(created_at="now", prediction={"of": trial.design_id}))
            recorder.finish_trial(replace(full_result(trial), requests=(request_row(output_tokens=answered),)))
    with open_records(tmp_path / "r.db") as records:
        assert [records.result(trial).requests[0].output_tokens for trial in (here, there)] == [4, 3]
        assert [records.prediction(trial) for trial in (there, here)] == [{"of": "d2"}, {"of": "d1"}]
        assert records.trials("d2") == (there,)
