"""From an older record to this release's. A record that is only read is not changed: what its schema did not have yet
is unknown then.

    1 → 2   requests.prompt_tokens_ours_from, requests.prompt_tokens_server_from
    2 → 3   trials.evidence; tokens.kind; device and control-group columns of marks; phase and device of occupants;
            statistics
    3 → 4   designs.study_id, holds, definition; requests.cached_tokens_predicted, stream, due_s, client; every attempt
            has a number of its own in the file, which other tables refer to; tokens, reads and samples packed;
            predictions kept once; metrics
    4 → 5   answers, scored_tokens: two tables more, which are made in the file itself, in one transaction

Up to schema 3 every row is read as a reader of older records reads it (older.py) and written anew into a second file,
whose content then takes the old one's place in one transaction: killed at any moment, the old record is whole. The
second file has no name: nothing that is there can be in its place, and nothing of it stays.
"""

import sqlite3
import tempfile
from pathlib import Path

from kvscope.errors import RecordBusy, RecordUnwritable
from kvscope.record.attempt_rows import complete_trial, insert_trial
from kvscope.record.columns import insert, to_columns
from kvscope.record.metrics_table import create_metrics, keep_metrics
from kvscope.record.older import LAST_VERSION
from kvscope.record.reader import Records
from kvscope.record.schema import ANSWERS_SCHEMA, APPLICATION_ID, SCHEMA, SCHEMA_VERSION

OLDEST_VERSION = 1
# Pages that are put back at once, and how often that is tried where another program locks the file: for 10 s.
_PAGES, _TRIES = 4096, 40


def create_tables(connection: sqlite3.Connection) -> None:
    """Make an empty record of this schema, in one transaction. sqlite3's errors pass through."""
    connection.executescript(f"BEGIN; {SCHEMA} {ANSWERS_SCHEMA}")
    create_metrics(connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the record that ``connection`` opened for writing up to SCHEMA_VERSION. sqlite3's errors pass through;
    raises RecordBusy where another program keeps the file locked, RecordUnwritable where the folder takes no file."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version >= SCHEMA_VERSION:
        return
    if version > LAST_VERSION:
        _add_tables(connection)
        return
    made = _nameless(path.resolve().parent)
    try:
        create_tables(made)
        _copy(Records(connection, path), made)
        _put_back(made, connection, path)
    finally:
        made.close()


def _add_tables(connection: sqlite3.Connection) -> None:
    """From schema 4: nothing that is there changes. The metrics are made anew by the recorder that opens the file."""
    try:
        connection.executescript(f"BEGIN IMMEDIATE; {ANSWERS_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _nameless(folder: Path) -> sqlite3.Connection:
    """An empty database on the record's own disk, whose file loses its name as soon as it is open."""
    try:
        with tempfile.NamedTemporaryFile(prefix=".kvscope-", dir=folder) as named:
            made = sqlite3.connect(named.name, isolation_level=None)
    except OSError as error:
        raise RecordUnwritable(
            f"A record of an older release is copied before it is written to, and {folder} takes no file: "
            f"{error.strerror}.",
            hint="Make room or make it writable, or record into another file (--records FILE).",
        ) from error
    try:
        made.execute("PRAGMA journal_mode = OFF")  # it is thrown away if anything happens
        made.execute("PRAGMA synchronous = OFF")
    except BaseException:
        made.close()
        raise
    return made


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
