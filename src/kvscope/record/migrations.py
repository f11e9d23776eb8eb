"""From an older record to this release's. A record that is only read is not changed: what its schema did not have yet
is unknown then.

    1 → 2   requests.prompt_tokens_ours_from, requests.prompt_tokens_server_from
    2 → 3   trials.evidence; tokens.kind; device and control-group columns of marks; phase and device of occupants;
            statistics
    3 → 4   designs.study_id, holds, definition; requests.cached_tokens_predicted, stream, due_s, client; every attempt
            has a number of its own in the file, which other tables refer to; tokens, reads and samples packed;
            predictions kept once; metrics

Every row is read as a reader of older records reads it (older.py) and written anew into a second file, whose content
then takes the old one's place in one transaction: killed at any moment, the old record is whole.
"""

import sqlite3
from pathlib import Path

from kvscope.errors import RecordBusy
from kvscope.record.attempt_rows import complete_trial, insert_trial
from kvscope.record.columns import insert, to_columns
from kvscope.record.metrics_table import create_metrics, keep_metrics
from kvscope.record.reader import Records
from kvscope.record.schema import APPLICATION_ID, SCHEMA, SCHEMA_VERSION

OLDEST_VERSION = 1
# Pages that are put back at once, and how often that is tried where another program locks the file: for 10 s.
_PAGES, _TRIES = 4096, 40


def create_tables(connection: sqlite3.Connection) -> None:
    """Make an empty record of this schema, in one transaction. sqlite3's errors pass through."""
    connection.executescript(f"BEGIN; {SCHEMA}")
    create_metrics(connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the record that ``connection`` opened for writing up to SCHEMA_VERSION. sqlite3's errors pass through;
    raises RecordBusy where another program keeps the file locked."""
    if connection.execute("PRAGMA user_version").fetchone()[0] >= SCHEMA_VERSION:
        return
    new = path.with_name(f"{path.name}-new")
    new.unlink(missing_ok=True)
    made = sqlite3.connect(new, isolation_level=None)
    try:
        made.execute("PRAGMA synchronous = OFF")  # it is thrown away if anything happens
        create_tables(made)
        _copy(Records(connection, path), made)
        _put_back(made, connection, path)
    finally:
        made.close()
        new.unlink(missing_ok=True)
        new.with_name(f"{new.name}-journal").unlink(missing_ok=True)


def _copy(old: Records, made: sqlite3.Connection) -> None:
    made.execute("BEGIN")
    insert(made, "runs", [to_columns(run) for run in old.runs()])
    insert(made, "designs", [to_columns(design) for design in old.designs()])
    for trial in old.each_trial():
        result = old.result(trial)
        key = insert_trial(made, trial, old.prediction_row(trial))
        if trial.outcome is not None:
            complete_trial(made, key, result)
            keep_metrics(made, key, result)
    made.execute("COMMIT")


def _put_back(made: sqlite3.Connection, connection: sqlite3.Connection, path: Path) -> None:
    tries = 0

    def is_locked(status: int, remaining: int, total: int) -> None:
        nonlocal tries
        tries = tries + 1 if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) else 0
        if tries > _TRIES:
            raise RecordBusy(f"{path} is locked by another program.", hint="Close it and try again.")

    made.backup(connection, pages=_PAGES, progress=is_locked)
