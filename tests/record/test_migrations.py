"""A record of an older release is read as it is, and brought up to date when it is written to. Nothing is lost."""

import json
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvscope.errors import RecordBusy, SchemaMismatch
from kvscope.record import migrations, store
from kvscope.record.migrations import OLDEST_VERSION
from kvscope.record.schema import SCHEMA_VERSION
from kvscope.record.store import create_records, open_records

GOLDEN = Path(__file__).parent.parent / "golden" / "records"


def at_schema_2(path: Path) -> None:
    """What the second release made of a record of the first: the statements that it ran."""
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE requests ADD COLUMN prompt_tokens_ours_from TEXT")
    connection.execute("ALTER TABLE requests ADD COLUMN prompt_tokens_server_from TEXT")
    connection.execute("UPDATE requests SET prompt_tokens_ours_from = 'files' WHERE prompt_tokens_ours > 100")
    connection.execute("PRAGMA user_version = 2")
    connection.commit()
    connection.close()


@pytest.fixture(params=[1, 2, 3])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A real record that an older release wrote: schema 1 or 3; 2 is made of 1 by that release's own statements. (From
    schema 4 nothing is copied: test_answers_in_the_record.py.)"""
    path = tmp_path / "old.db"
    shutil.copy(GOLDEN / ("schema3.db" if request.param == 3 else "lab.db"), path)
    if request.param == 2:
        at_schema_2(path)
    assert version(path) == request.param
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


def table(path: Path, name: str) -> list[dict[str, Any]]:
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    found = [dict(row) for row in connection.execute(f"SELECT * FROM {name}")]
    connection.close()
    return found


def test_reading_changes_nothing_and_what_was_not_kept_then_is_unknown(old: Path) -> None:
    before = old.read_bytes()
    with open_records(old) as records:
        results = [records.result(trial) for trial in records.trials()]
        assert {design.study_id for design in records.designs()} == {""}
    requests = [request for result in results for request in result.requests]
    assert requests
    if version(old) == 1:
        assert {(r.prompt_tokens_ours_from, r.prompt_tokens_server_from) for r in requests} == {(None, None)}
    if version(old) < 3:
        assert {token.kind for result in results for token in result.tokens} == {None}
    assert {(r.cached_tokens_predicted, r.stream, r.due_s) for r in requests} == {(None, None, None)}
    assert any(request.prompt_tokens_server for request in requests)
    assert old.read_bytes() == before
    assert [file.name for file in old.parent.iterdir()] == [old.name]


def test_writing_brings_it_up_to_date(old: Path, tmp_path: Path) -> None:
    with open_records(old) as records:
        runs, designs = records.runs(), records.designs()
        before = [(records.result(trial), records.prediction_row(trial)) for trial in records.trials()]
    with create_records(old) as recorder:
        assert [(recorder.result(trial), recorder.prediction_row(trial)) for trial in recorder.trials()] == before
        assert (recorder.runs(), recorder.designs()) == (runs, designs)
    assert version(old) == SCHEMA_VERSION
    create_records(tmp_path / "new.db").close()
    assert columns(old) == columns(tmp_path / "new.db")


def test_no_row_of_any_table_is_lost(old: Path) -> None:
    """Held against the tables themselves, read with SQL before and after, not against our reading of them."""
    names = [name for name in columns(old) if not name.startswith("sqlite_")]
    before = {name: table(old, name) for name in names}
    create_records(old).close()
    keys = {row["attempt_id"]: (row["trial_id"], row["attempt"]) for row in table(old, "trials")}
    texts = {row["text_id"]: row["prediction"] for row in table(old, "prediction_texts")}
    for name in names:
        now = list(_unpacked(name, table(old, name)))
        for row in now:
            if name not in ("runs", "designs", "trials"):
                row["trial_id"], row["attempt"] = keys[row["attempt_id"]]
            if name == "predictions":
                row["prediction"] = texts[row["text_id"]]
        kept = [{column: row[column] for column in before[name][0]} for row in now] if before[name] else []
        assert Counter(map(_frozen, kept)) == Counter(map(_frozen, before[name])), name


def _frozen(row: dict[str, object]) -> tuple[object, ...]:
    # The order of a prediction's keys says nothing: the first release wrote them as they came.
    return tuple(
        json.dumps(json.loads(str(value)), sort_keys=True) if name == "prediction" else value
        for name, value in sorted(row.items())
    )


def _unpacked(name: str, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The packed tables by the format that schema.py documents, with struct and json alone."""
    for row in rows:
        if name not in ("tokens", "reads", "samples"):
            yield row
            continue
        times = struct.unpack(f"<{len(row['at_s']) // 8}d", row["at_s"])
        for place, at_s in enumerate(times):
            one = {"attempt_id": row["attempt_id"], "at_s": at_s}
            if name == "samples":
                quantities = json.loads(row["quantities"])
                late = struct.unpack(f"<{len(times)}d", row["late_s"])
                values = struct.unpack(f"<{len(times) * len(quantities)}q", row["value_bytes"])
                for number, quantity in enumerate(quantities):
                    value = values[place * len(quantities) + number]
                    yield {**one, "quantity": quantity, "late_s": late[place], "value_bytes": value}
                continue
            one["request_index"] = row["request_index"]
            if name == "reads":
                more = {key: json.loads(row[key])[place] for key in ("num_bytes", "num_events")}
                yield {**one, **more}
                continue
            kinds = json.loads(row["kinds"])
            indexes = json.loads(row["indexes"]) if row["indexes"] else range(len(times))
            kind = kinds[place] if isinstance(kinds, list) else kinds
            yield {**one, "token_index": indexes[place], "text": json.loads(row["texts"])[place], "kind": kind}


def test_a_copy_that_fails_leaves_the_record_as_it_was(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = old.read_bytes()

    def broken(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(migrations, "keep_metrics", broken)
    with pytest.raises(Exception, match="full"):
        create_records(old)
    assert old.read_bytes() == before
    assert [file.name for file in old.parent.iterdir()] == [old.name]


def test_what_others_put_beside_it_stays(old: Path) -> None:
    others = [old.with_name(f"{old.name}{suffix}") for suffix in ("-new", "-new-journal", ".new", "-new-wal")]
    for other in others:
        other.write_text("a record of somebody else's")
    create_records(old).close()
    assert version(old) == SCHEMA_VERSION
    assert [other.read_text() for other in others] == ["a record of somebody else's"] * 4
    assert len(list(old.parent.iterdir())) == 5


KILLED = """
    import os, signal, sys
    from kvscope.record import migrations, store
    from kvscope.record.store import create_records

    moment, path = sys.argv[1:]
    put_back = migrations._put_back
    if moment == "copying":
        class Killing:
            def __call__(self, *_): os.kill(os.getpid(), signal.SIGKILL)
        migrations.keep_metrics = Killing()
    else:
        migrations._PAGES = 5
        class Slow:
            def __init__(self, made): self.made = made
            def backup(self, target, *, pages, progress):
                def kill(status, remaining, total):
                    if remaining < total // 2: os.kill(os.getpid(), signal.SIGKILL)
                self.made.backup(target, pages=pages, progress=kill)
        migrations._put_back = lambda made, connection, path: put_back(Slow(made), connection, path)
    create_records(path)
"""


@pytest.mark.parametrize("moment", ["copying", "putting back"])
def test_killed_in_the_middle_the_old_record_is_whole(old: Path, moment: str) -> None:
    with open_records(old) as records:
        before = [(records.result(trial), records.prediction_row(trial)) for trial in records.trials()]
    found = version(old)
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), moment, str(old)], env={**os.environ}, check=False
    )
    assert run.returncode == -9
    assert {file.name for file in old.parent.iterdir()} <= {old.name, f"{old.name}-journal"}
    with open_records(old) as records:
        assert records.version == found
        assert [(records.result(trial), records.prediction_row(trial)) for trial in records.trials()] == before
    with create_records(old) as recorder:
        assert [(recorder.result(trial), recorder.prediction_row(trial)) for trial in recorder.trials()] == before
    assert [file.name for file in old.parent.iterdir()] == [old.name]


def test_a_file_that_another_program_locks_is_not_waited_for_without_end(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "_TRIES", 1)
    monkeypatch.setattr(store, "BUSY_S", 0.05)
    connection = sqlite3.connect(old, isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM trials").fetchone()  # a reader in the middle of reading
    try:
        with pytest.raises(RecordBusy, match="locked by another program"):
            create_records(old)
    finally:
        connection.close()
    assert version(old) < SCHEMA_VERSION
    create_records(old).close()
    assert version(old) == SCHEMA_VERSION


@pytest.mark.parametrize("number", [OLDEST_VERSION - 1, SCHEMA_VERSION + 1])
def test_a_version_that_nobody_wrote(old: Path, number: int) -> None:
    connection = sqlite3.connect(old)
    connection.execute(f"PRAGMA user_version = {number}")
    connection.close()
    for opened in (open_records, create_records):
        with pytest.raises(SchemaMismatch, match=f"schema {number}"):
            opened(old)
