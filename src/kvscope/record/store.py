"""The record file: written by one process at a time, one transaction per trial; read by anyone."""

import sqlite3
from pathlib import Path

from kvscope.errors import RecordNotFound, RecordUnwritable, SchemaMismatch
from kvscope.record.locked_file import LockedFile, is_recording_here
from kvscope.record.migrations import OLDEST_VERSION, create_tables, migrate
from kvscope.record.older import LAST_VERSION
from kvscope.record.reader import Records
from kvscope.record.recorder import Recorder
from kvscope.record.schema import APPLICATION_ID, SCHEMA_VERSION
from kvscope.record.sqlite_errors import explained
from kvscope.record.wal import begin_era, check_wal

__all__ = ["Recorder", "Records", "create_records", "open_records"]

# How long a lock of another program is waited for; by a recorder that opens the file, so much longer: those that read a
# closed record keep it out.
BUSY_S = 5.0
_TIMES_LONGER_TO_OPEN = 6


def open_records(path: str | Path, *, snapshot: bool = False) -> Records:
    """Open a record file for reading; of any release up to this one. The file is not changed. An empty one, as a
    recorder leaves that ended before its first row, has no trials.

    ``snapshot``: everything that is read is as it is now, whatever is recorded meanwhile; a recorder that opens the
    file waits for the end. Else every call finds what there is by then.

    Raises RecordNotFound if it does not exist, SchemaMismatch if it is not a record that this release can read.
    """
    path = Path(path)
    if not path.is_file():
        raise RecordNotFound(
            f"There is no record file {path}.",
            hint="Name it with --records FILE, or make one: kvscope lab, or kvscope measure.",
        )
    with explained(path):
        connection = _connect_for_reading(path)
        try:
            records = Records(connection, path, _doubt(connection, path))
            if not snapshot:
                connection.execute("COMMIT")
            return records
        except BaseException:
            connection.close()
            raise


def _connect_for_reading(path: Path) -> sqlite3.Connection:
    resolved = path.resolve()
    has_wal = _beside(resolved, "-wal")
    if has_wal and not is_recording_here(path):
        check_wal(path)
    # Opened read-write where possible: only then can SQLite roll back what a killed writer left half-written. With
    # FILE-wal read-only: only a recorder may bring the two together, and the last reader to end would.
    try:
        return _connect(path, f"{resolved.as_uri()}?mode={'ro' if has_wal else 'rw'}")
    except sqlite3.OperationalError as error:
        # In a folder that cannot be written to SQLite cannot put the files that it works with.
        if not any(words in str(error) for words in ("unable to open", "readonly")) or _beside(resolved, "-journal"):
            raise
        if has_wal:
            raise RecordUnwritable(
                f"What was recorded last into {path} is in {path.name}-wal, which cannot be read in a folder that "
                f"cannot be written to.",
                hint="Copy both files into another folder, and read the copy.",
            ) from error
        return _connect(path, f"{resolved.as_uri()}?mode=ro&immutable=1")


def _connect(path: Path, uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_S)
    try:
        connection.execute("PRAGMA query_only = 1")
        connection.execute("BEGIN")
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not tables and not connection.execute("PRAGMA page_count").fetchone()[0]:
            connection.close()
            return _empty()
        _check_schema(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _empty() -> sqlite3.Connection:
    """A record without a row, of no file."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    create_tables(connection)
    connection.execute("PRAGMA query_only = 1")
    connection.execute("BEGIN")
    return connection


def _beside(resolved: Path, suffix: str) -> bool:
    """Whether the file has something beside it that belongs to it."""
    other = resolved.with_name(resolved.name + suffix)
    return other.is_file() and other.stat().st_size > 0


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    found_id = connection.execute("PRAGMA application_id").fetchone()[0]
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found_id != APPLICATION_ID:
        raise SchemaMismatch(f"{path} is not a kvscope record.", hint="Name another file with --records FILE.")
    if not OLDEST_VERSION <= found <= SCHEMA_VERSION:
        raise SchemaMismatch(
            f"{path} has record schema {found}; this kvscope reads schemas {OLDEST_VERSION} to {SCHEMA_VERSION}.",
            hint="Read it with the kvscope release that wrote it, or record into a new file.",
        )


def _doubt(connection: sqlite3.Connection, path: Path) -> str | None:
    if connection.execute("PRAGMA user_version").fetchone()[0] <= LAST_VERSION:
        return None
    found = connection.execute("SELECT value FROM about WHERE name = 'recording'").fetchone()
    if found is None or not found[0] or _beside(path.resolve(), "-wal"):
        return None
    return (
        f"{path} was not closed by what recorded into it, and {path.name}-wal is not beside it. If this is a copy, "
        f"copy both files, or copy it when nothing records into it: its last trials may be missing here."
    )


def create_records(path: str | Path) -> Recorder:
    """Open a record file for writing, creating it if needed; bring an older one up to date; complete what a killed
    process left open.

    Raises RecordBusy if another process records into it, SchemaMismatch if it is something else,
    RecordUnwritable if it cannot be written.
    """
    path = Path(path)
    file = LockedFile(path)
    try:
        connection = _connect_for_writing(path)
    except BaseException:
        file.release()
        raise
    recorder = Recorder(connection, path, file)
    try:
        recorder.renew_metrics()
        recorder.complete_interrupted()
    except BaseException:
        recorder.close()
        raise
    return recorder


def _connect_for_writing(path: Path) -> sqlite3.Connection:
    if _beside(path.resolve(), "-wal"):
        check_wal(path)
    with explained(path):
        connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_S * _TIMES_LONGER_TO_OPEN)
        try:
            # FULL makes a finished trial survive a power cut.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                create_tables(connection)
            _check_schema(connection, path)
            migrate(connection, path)
            begin_era(connection)
            # Said in the file itself before FILE-wal exists: a copy without that one tells so.
            connection.execute("INSERT OR REPLACE INTO about (name, value) VALUES ('recording', 1)")
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA busy_timeout = {round(BUSY_S * 1000)}")
        except BaseException:
            connection.close()
            raise
    return connection
