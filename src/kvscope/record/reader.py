"""A record file that is read. Any release's: what an older one did not keep yet is not known."""

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from kvscope.errors import RecordBusy, RecordNotFound, SchemaMismatch
from kvscope.record import older
from kvscope.record.attempt_rows import ALL_PARTS, AttemptRows
from kvscope.record.columns import COPY, from_columns
from kvscope.record.metrics_table import METRICS, are_current, scalar_metrics
from kvscope.record.rows import DesignRow, Json, PredictionRow, RunRow, TrialResult, TrialRow
from kvscope.record.sqlite_errors import explained

Row = TypeVar("Row")
# So many attempts are read at once where all are asked for one after another.
_BATCH = 500


class Records:
    """A record file opened for reading. Close it, or use it in a ``with`` statement."""

    def __init__(self, connection: sqlite3.Connection, path: Path, doubt: str | None = None) -> None:
        """``doubt``: what to know before these rows are believed; None where there is nothing."""
        connection.row_factory = sqlite3.Row
        self._connection = connection
        self.path = path
        self.doubt = doubt
        with explained(path):
            self.version: int = connection.execute("PRAGMA user_version").fetchone()[0]
            self._has_metrics = self.version > older.LAST_VERSION and are_current(connection)
        self._attempts: AttemptRows | older.OlderAttemptRows = AttemptRows(connection, self.version)
        if self.version <= older.LAST_VERSION:
            self._attempts = older.OlderAttemptRows(connection, self.version)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    @property
    def has_metrics(self) -> bool:
        """Whether the file keeps the metrics of its attempts as this release defines them."""
        return self._has_metrics

    @contextmanager
    def one_state(self) -> Iterator[None]:
        """While this lasts, every row is read as it is now, whatever is recorded meanwhile."""
        if self._connection.in_transaction:
            yield
            return
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.rollback()  # nothing was written

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """SQLite's errors, and values that do not fit together, in words."""
        try:
            with explained(self.path), self.one_state():
                yield
        except (ValueError, TypeError, LookupError) as error:
            raise SchemaMismatch(f"{self.path} is damaged: {what}: {error}.", hint=COPY) from error
        except SchemaMismatch as error:
            if not self._is_of_another_version():
                raise
            raise RecordBusy(
                f"{self.path} was brought up to date by another kvscope while it was read.", hint="Read it again."
            ) from error

    def _is_of_another_version(self) -> bool:
        try:
            return bool(self._connection.execute("PRAGMA user_version").fetchone()[0] != self.version)
        except sqlite3.Error:
            return False

    def select(self, query: str, values: tuple[Any, ...] = ()) -> list[sqlite3.Row]:
        """The rows of a query in SQL, for what has no method (schema.py documents the tables)."""
        with self._reading("a query"):
            return self._connection.execute(query, values).fetchall()

    def _all(self, row_type: type[Row], table: str) -> tuple[Row, ...]:
        return self._rows_of(row_type, table, self.select(f"SELECT * FROM {table} ORDER BY rowid"))

    def _rows_of(self, row_type: type[Row], table: str, found: Sequence[sqlite3.Row]) -> tuple[Row, ...]:
        rows = []
        for columns in found:
            with self._reading(f"table {table}, {_name(columns)}"):
                rows.append(from_columns(row_type, dict(columns)))
        return tuple(rows)

    def runs(self) -> tuple[RunRow, ...]:
        return self._all(RunRow, "runs")

    def designs(self) -> tuple[DesignRow, ...]:
        return self._all(DesignRow, "designs")

    def trials(self, design_id: str | None = None) -> tuple[TrialRow, ...]:
        """All attempts, in the order in which they were recorded, those of one trial by their number; of one design, or
        of all."""
        rows = list(self.each_trial(design_id))
        places: dict[tuple[str, str], list[int]] = {}
        for place, row in enumerate(rows):
            places.setdefault((row.design_id, row.trial_id), []).append(place)
        for mine in places.values():
            # An attempt that another file brought may have an earlier number than one that was here before.
            attempts = sorted((rows[place] for place in mine), key=lambda row: row.attempt)
            for place, row in zip(mine, attempts, strict=True):
                rows[place] = row
        return tuple(rows)

    def each_trial(self, design_id: str | None = None) -> Iterator[TrialRow]:
        """The same one after another, as they were recorded: a record of any size fits."""
        condition = "" if design_id is None else "AND design_id = ?"
        query = f"SELECT rowid AS place, * FROM trials WHERE rowid > ? {condition} ORDER BY rowid LIMIT {_BATCH}"
        last = -1
        while True:
            found = self.select(query, (last,) if design_id is None else (last, design_id))
            yield from self._rows_of(TrialRow, "trials", found)
            if len(found) < _BATCH:
                return
            last = found[-1]["place"]

    def prediction(self, trial: TrialRow) -> Mapping[str, Json] | None:
        """What was predicted for the attempt before it ran (schema kvscope.prediction/1). Attempts that were predicted
        the same may share one object: it is not to be changed."""
        found = self.prediction_row(trial)
        return None if found is None else found.prediction

    def prediction_row(self, trial: TrialRow) -> PredictionRow | None:
        """The same, with the moment when it was made."""
        with self._reading(f"the prediction for {_which(trial)}"):
            key: Any = self._attempts.key(trial)
            return None if key is None else self._attempts.prediction(key)

    def result(self, trial: TrialRow, parts: Collection[str] = ALL_PARTS) -> TrialResult:
        """Everything one attempt left, or only these ``parts`` of it (attributes of TrialResult); the others are empty
        then. ``trial`` names it by its design, its trial and its number. Raises RecordNotFound if there is no such
        attempt."""
        with self._reading(_which(trial)):
            key: Any = self._attempts.key(trial)
            if key is None:
                raise RecordNotFound(f"{self.path} holds no {_which(trial)} in design {trial.design_id}.")
            return self._attempts.result(key, parts)

    def metrics(self, trial: TrialRow) -> Mapping[str, int | float | None]:
        """The attempt's metrics that are one number each: as the file keeps them, else derived from its rows."""
        if self.has_metrics:
            query = (
                "SELECT metrics.* FROM metrics JOIN trials USING (attempt_id) "
                "WHERE design_id = ? AND trial_id = ? AND attempt = ?"
            )
            for found in self.select(query, (trial.design_id, trial.trial_id, trial.attempt)):
                return {name: found[name] for name in METRICS}
        return scalar_metrics(self.result(trial))


def _which(trial: TrialRow) -> str:
    return f"attempt {trial.attempt} of trial {trial.trial_id}"


def _name(columns: sqlite3.Row) -> str:
    """Which row it is, by the first column that names one."""
    names = [name for name in ("trial_id", "design_id", "run_id") if name in columns.keys()]  # noqa: SIM118 (`in` of a Row looks at its values)
    return f"{names[0]} {columns[names[0]]}" + (f", attempt {columns['attempt']}" if names[0] == "trial_id" else "")
