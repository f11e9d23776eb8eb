"""The record file: written by one process at a time, one transaction per trial; read by anyone.

A trial is written twice: when it starts (with its prediction, outcome empty) and when it ends. A process that is killed
in between leaves the first half; the next writer completes it as ``interrupted``. Nothing is ever updated after that.
"""

import fcntl
import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from kvscope.errors import RecordBusy, RecordNotFound, RecordUnwritable, SchemaMismatch, UsageError
from kvscope.record.migrations import OLDEST_VERSION, migrate
from kvscope.record.rows import (
    DesignRow,
    Json,
    MapRow,
    MarkRow,
    OccupantRow,
    PredictionRow,
    ReadRow,
    ReportedBufferRow,
    RequestRow,
    RunRow,
    SampleRow,
    StatisticRow,
    TokenRow,
    TrialResult,
    TrialRow,
    WarningRow,
)
from kvscope.record.schema import APPLICATION_ID, SCHEMA, SCHEMA_VERSION

Row = TypeVar("Row")

# Halves of characters, which JSON can hold and UTF-8 cannot.
_HALVES = re.compile("[\\ud800-\\udfff]")

# Row fields whose column has another name ("index" is a reserved word of SQL).
_COLUMN = {
    (RequestRow, "index"): "request_index",
    (TokenRow, "index"): "token_index",
}
_JSON_FIELDS: Mapping[type[Any], set[str]] = {
    RunRow: {"machine"},
    DesignRow: {"levels", "baseline_level", "held", "confounders", "settings", "holds", "definition"},
    TrialRow: {"levels", "level", "settings", "client", "evidence"},
    RequestRow: {"engine_timings", "client"},
}
_TUPLE_FIELDS: Mapping[type[Any], set[str]] = {DesignRow: {"levels", "confounders", "holds"}}
_BOOL_FIELDS: Mapping[type[Any], set[str]] = {DesignRow: {"is_grid"}}
_CHILD_TABLES: Mapping[str, type[Any]] = {
    "requests": RequestRow,
    "tokens": TokenRow,
    "reads": ReadRow,
    "marks": MarkRow,
    "maps": MapRow,
    "samples": SampleRow,
    "reported_buffers": ReportedBufferRow,
    "occupants": OccupantRow,
    "statistics": StatisticRow,
    "warnings": WarningRow,
}
_CHILD_ATTRIBUTE = {"reported_buffers": "reported"}
# Tables that older records do not have, and the schema that brought them.
_TABLE_SINCE = {"statistics": 3}
# The schema that gave every attempt a number of its own in the file; before it the trial's id told files apart.
_ATTEMPT_ID_SINCE = 4

INTERRUPTED_MESSAGE = "The process that ran this trial ended before it could write a result."


def _column(row_type: type[Any], field_name: str) -> str:
    return _COLUMN.get((row_type, field_name), field_name)


def storable(text: str) -> str:
    r"""The text with what no UTF-8 can hold written out, as in \ud83d: half of a character that a server split between
    two pieces of its answer, or a byte of a file's name. Nothing that comes from outside may cost a trial."""
    return text.encode(errors="backslashreplace").decode()


def _as_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return _HALVES.sub(lambda half: f"\\\\u{ord(half.group()):04x}", text)


def _to_columns(row: Any) -> dict[str, Any]:
    row_type = type(row)
    as_json = _JSON_FIELDS.get(row_type, set())
    columns = {}
    for f in fields(row):
        value = getattr(row, f.name)
        if f.name in as_json:
            value = _as_json(dict(value) if isinstance(value, Mapping) else value)
        elif isinstance(value, str):
            value = storable(value)
        columns[_column(row_type, f.name)] = value
    return columns


def _from_columns(row_type: type[Row], columns: Mapping[str, Any]) -> Row:
    as_json = _JSON_FIELDS.get(row_type, set())
    as_tuple = _TUPLE_FIELDS.get(row_type, set())
    as_bool = _BOOL_FIELDS.get(row_type, set())
    values = {}
    for f in fields(row_type):  # type: ignore[arg-type]  # every row type is a dataclass
        column = _column(row_type, f.name)
        if column not in columns and not (f.default is MISSING and f.default_factory is MISSING):
            continue  # an older record, which did not have it yet
        value = columns[column]
        if f.name in as_json:
            value = json.loads(value)
        if f.name in as_tuple:
            value = tuple(value)
        if f.name in as_bool:
            value = bool(value)
        values[f.name] = value
    return row_type(**values)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors, and Python's about values that SQLite cannot hold, into ours, with what to do."""
    try:
        yield
    except OverflowError as error:
        raise UsageError(
            f"A number is too large for the record {path}: {error}.",
            hint="Whole numbers, --seed among them, may have 63 bits: up to 9223372036854775807.",
        ) from error
    except sqlite3.OperationalError as error:
        text = str(error)
        if "full" in text or "disk I/O" in text:
            raise RecordUnwritable(
                f"Cannot write to {path}: {text}.",
                hint="Free some space, or record elsewhere (--records FILE; --out FOLDER for the lab), and run the "
                "same command again: "
                "finished trials are kept and not repeated.",
            ) from error
        if "no such table" in text or "no such column" in text:
            raise SchemaMismatch(
                f"{path} is a damaged or foreign record: {text}.", hint="Name another file with --records FILE."
            ) from error
        if "locked" in text:
            raise RecordBusy(f"{path} is locked by another program.", hint="Close it and try again.") from error
        raise RecordUnwritable(
            f"Cannot use {path} as a record: {text}.", hint="Check that the folder exists and can be written to."
        ) from error
    except sqlite3.DatabaseError as error:
        raise SchemaMismatch(
            f"{path} is not a readable kvscope record: {error}.", hint="Name another file with --records FILE."
        ) from error


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


class Records:
    """A record file opened for reading. Close it, or use it in a ``with`` statement."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        connection.row_factory = sqlite3.Row
        self._connection = connection
        self.path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def _select(self, row_type: type[Row], query: str, values: tuple[Any, ...] = ()) -> tuple[Row, ...]:
        with _explained(self.path):
            return tuple(_from_columns(row_type, dict(found)) for found in self._connection.execute(query, values))

    def _schema_version(self) -> int:
        version: int = self._connection.execute("PRAGMA user_version").fetchone()[0]
        return version

    def runs(self) -> tuple[RunRow, ...]:
        return self._select(RunRow, "SELECT * FROM runs ORDER BY rowid")

    def designs(self) -> tuple[DesignRow, ...]:
        return self._select(DesignRow, "SELECT * FROM designs ORDER BY rowid")

    def trials(self, design_id: str | None = None) -> tuple[TrialRow, ...]:
        """All attempts, in the order in which they started; of one design, or of all."""
        where = "" if design_id is None else "WHERE design_id = ?"
        values = () if design_id is None else (design_id,)
        return self._select(TrialRow, f"SELECT * FROM trials {where} ORDER BY rowid", values)

    def prediction(self, trial: TrialRow) -> Mapping[str, Json] | None:
        """What was predicted for the attempt before it ran (schema kvscope.prediction/1)."""
        where, key = self._key(trial)
        with _explained(self.path):
            found = self._connection.execute(f"SELECT prediction FROM predictions WHERE {where}", key).fetchone()
        return None if found is None else json.loads(found[0])

    def result(self, trial: TrialRow) -> TrialResult:
        """Everything one attempt left: ``trial`` names it by its design, its trial and its number. Raises
        RecordNotFound if there is no such attempt."""
        where, key = self._key(trial)
        with _explained(self.path):
            found = self._connection.execute(f"SELECT * FROM trials WHERE {where}", key).fetchone()
        if found is None:
            raise RecordNotFound(f"{self.path} holds no attempt {trial.attempt} of trial {trial.trial_id}.")
        children: dict[str, Any] = {
            _CHILD_ATTRIBUTE.get(table, table): self._select(
                row_type, f"SELECT * FROM {table} WHERE {where} ORDER BY {_order(table)}", key
            )
            for table, row_type in _CHILD_TABLES.items()
            if self._schema_version() >= _TABLE_SINCE.get(table, 0)
        }
        effective = json.loads(found["effective"]) if found["effective"] else {}
        return TrialResult(trial=_from_columns(TrialRow, dict(found)), effective=effective, **children)

    def _key(self, trial: TrialRow) -> tuple[str, tuple[Any, ...]]:
        """The condition that picks an attempt's row in every table of this file, and its values."""
        if self._schema_version() < _ATTEMPT_ID_SINCE:
            return "trial_id = ? AND attempt = ?", (trial.trial_id, trial.attempt)
        with _explained(self.path):
            found = self._connection.execute(
                "SELECT attempt_id FROM trials WHERE design_id = ? AND trial_id = ? AND attempt = ?",
                (trial.design_id, trial.trial_id, trial.attempt),
            ).fetchone()
        return "attempt_id = ?", (None if found is None else found[0],)


def _order(table: str) -> str:
    # WITHOUT ROWID tables have no insertion order of their own.
    return "request_index, token_index" if table == "tokens" else "rowid"


class Recorder(Records):
    """A record file opened for writing, by this process alone."""

    def __init__(self, connection: sqlite3.Connection, path: Path, unlock: Callable[[], None]) -> None:
        super().__init__(connection, path)
        self._unlock = unlock

    def close(self) -> None:
        super().close()
        self._unlock()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with _explained(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def add_run(self, run: RunRow) -> None:
        with self._transaction() as connection:
            _insert(connection, "runs", [_to_columns(run)])

    def add_design(self, design: DesignRow) -> None:
        """Add a design; the same one may be added again by a later sitting that resumes it."""
        with self._transaction() as connection:
            known = connection.execute("SELECT 1 FROM designs WHERE design_id = ?", (design.design_id,)).fetchone()
            if known is None:
                _insert(connection, "designs", [_to_columns(design)])

    def start_trial(self, trial: TrialRow, prediction: PredictionRow | None) -> None:
        """Record that an attempt begins, with what is predicted for it, before anything runs."""
        with self._transaction() as connection:
            _insert(connection, "trials", [_to_columns(trial)])
            if prediction is not None:
                columns = _to_columns(prediction)
                columns["prediction"] = _as_json(prediction.prediction)
                columns["attempt_id"] = connection.execute("SELECT last_insert_rowid()").fetchone()[0]
                _insert(connection, "predictions", [columns])

    def finish_trial(self, result: TrialResult) -> None:
        """Record everything an attempt left, in one transaction. Raises RecordNotFound if it was never started."""
        _, (attempt_id,) = self._key(result.trial)
        if attempt_id is None:
            raise RecordNotFound(f"{self.path}: trial {result.trial.trial_id} ends, but was never started.")
        with self._transaction() as connection:
            columns = _to_columns(result.trial)
            columns["effective"] = _as_json(dict(result.effective))
            assignments = ", ".join(f"{name} = :{name}" for name in columns)
            connection.execute(
                f"UPDATE trials SET {assignments} WHERE attempt_id = :attempt_id", {**columns, "attempt_id": attempt_id}
            )
            for table in _CHILD_TABLES:
                rows = getattr(result, _CHILD_ATTRIBUTE.get(table, table))
                _insert(connection, table, [{"attempt_id": attempt_id, **_to_columns(row)} for row in rows])

    def complete_interrupted(self) -> int:
        """Mark attempts that a killed process left open as interrupted; returns how many there were."""
        left_open = [trial for trial in self.trials() if trial.outcome is None]
        for trial in left_open:
            self.finish_trial(
                TrialResult(
                    trial=replace(
                        trial, outcome="interrupted", error_slug="interrupted", error_message=INTERRUPTED_MESSAGE
                    )
                )
            )
        return len(left_open)


def _insert(connection: sqlite3.Connection, table: str, rows: Iterable[dict[str, Any]]) -> None:
    rows = list(rows)
    if rows:
        names = ", ".join(rows[0])
        places = ", ".join(f":{name}" for name in rows[0])
        connection.executemany(f"INSERT INTO {table} ({names}) VALUES ({places})", rows)


def open_records(path: str | Path) -> Records:
    """Open a record file for reading.

    Raises RecordNotFound if it does not exist, SchemaMismatch if it is not a record of this schema.
    """
    path = Path(path)
    if not path.is_file():
        raise RecordNotFound(
            f"There is no record file {path}.",
            hint="Name it with --records FILE, or make one: kvscope lab, or kvscope measure.",
        )
    with _explained(path):
        # Opened read-write where possible: only then can SQLite roll back what a killed writer left half-written.
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, isolation_level=None)
        try:
            connection.execute("PRAGMA query_only = 1")
            _check_schema(connection, path)
        except BaseException:
            connection.close()
            raise
    return Records(connection, path)


def create_records(path: str | Path) -> Recorder:
    """Open a record file for writing, creating it if needed, and complete what a killed process left open.

    Raises RecordBusy if another process records into it, SchemaMismatch if it is something else,
    RecordUnwritable if it cannot be written.
    """
    path = Path(path)
    try:
        lock = path.open("ab")
    except OSError as error:
        raise RecordUnwritable(
            f"Cannot write {path}: {error.strerror}.", hint="Name another file with --records FILE."
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise RecordBusy(
            f"Another kvscope is recording into {path}.",
            hint="Wait for it, or record elsewhere (--records FILE; --out FOLDER for the lab).",
        ) from error
    try:
        connection = _connect_for_writing(path)
    except BaseException:
        lock.close()
        raise
    recorder = Recorder(connection, path, lock.close)
    try:
        recorder.complete_interrupted()
    except BaseException:
        recorder.close()
        raise
    return recorder


def _connect_for_writing(path: Path) -> sqlite3.Connection:
    with _explained(path):
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            # A rollback journal keeps the record one file; FULL makes a finished trial survive a power cut.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                connection.executescript(
                    f"BEGIN; {SCHEMA} PRAGMA application_id = {APPLICATION_ID}; "
                    f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
                )
            _check_schema(connection, path)
            migrate(connection)
        except BaseException:
            connection.close()
            raise
    return connection
