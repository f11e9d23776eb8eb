"""A record of an older release is read as it is, and brought up to date when it is written to."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from kvscope.errors import SchemaMismatch
from kvscope.record.migrations import OLDEST_VERSION, STEPS, migrate
from kvscope.record.schema import SCHEMA_VERSION
from kvscope.record.store import create_records, open_records

OLD = Path(__file__).parent.parent / "golden" / "records" / "lab.db"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A real record that the first release wrote (schema 1)."""
    path = tmp_path / "old.db"
    shutil.copy(OLD, path)
    assert version(path) == 1
    return path


def version(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.close()
    return found


def columns(path: Path) -> dict[str, set[tuple[object, ...]]]:
    connection = sqlite3.connect(path)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {table: {row[1:] for row in connection.execute(f"PRAGMA table_info({table})")} for table in tables}
    connection.close()
    return found


def test_reading_changes_nothing_and_what_was_not_kept_then_is_unknown(old: Path) -> None:
    before = old.read_bytes()
    with open_records(old) as records:
        results = [records.result(trial) for trial in records.trials()]
    requests = [request for result in results for request in result.requests]
    assert requests
    assert {(r.prompt_tokens_ours_from, r.prompt_tokens_server_from) for r in requests} == {(None, None)}
    assert any(request.prompt_tokens_server for request in requests)
    assert old.read_bytes() == before


def test_writing_brings_it_up_to_date_and_keeps_every_row(old: Path, tmp_path: Path) -> None:
    with open_records(old) as records:
        before = [records.result(trial) for trial in records.trials()]
    with create_records(old) as recorder:
        assert [recorder.result(trial) for trial in recorder.trials()] == before
    assert version(old) == SCHEMA_VERSION
    create_records(tmp_path / "new.db").close()
    fresh = columns(tmp_path / "new.db")
    assert columns(old) == fresh


def test_every_version_has_a_step() -> None:
    assert sorted(STEPS) == list(range(OLDEST_VERSION, SCHEMA_VERSION))


def test_a_step_that_fails_leaves_the_record_as_it_was(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {1: (*STEPS[1], "ALTER TABLE nowhere ADD COLUMN x TEXT")}
    monkeypatch.setattr("kvscope.record.migrations.STEPS", broken)
    before = columns(old)
    connection = sqlite3.connect(old, isolation_level=None)
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        migrate(connection)
    connection.close()
    assert version(old) == 1
    assert columns(old) == before


@pytest.mark.parametrize("number", [0, SCHEMA_VERSION + 1])
def test_a_version_that_nobody_wrote(old: Path, number: int) -> None:
    connection = sqlite3.connect(old)
    connection.execute(f"PRAGMA user_version = {number}")
    connection.close()
    for opened in (open_records, create_records):
        with pytest.raises(SchemaMismatch, match=f"schema {number}"):
            opened(old)
