"""The rows of one attempt in a record of an older schema, as today's rows. The file is not changed: what its schema did
not have yet is not known. Schemas 1 to 3 name an attempt by its trial's id and its number in every table, and keep one
row for each token, read and sample."""

import sqlite3
from collections.abc import Collection, Mapping
from typing import Any

from kvscope.record.attempt_rows import ALL_PARTS, PLAIN, SINCE, effective_of, predicted_of
from kvscope.record.columns import from_columns, reading
from kvscope.record.rows import PredictionRow, ReadRow, SampleRow, TokenRow, TrialResult, TrialRow

# The last schema that this is about.
LAST_VERSION = 3
_TABLES: Mapping[str, tuple[str, type[Any]]] = {
    **PLAIN,
    "tokens": ("tokens", TokenRow),
    "reads": ("reads", ReadRow),
    "samples": ("samples", SampleRow),
}
# "index" is a reserved word of SQL; this table has no order of its own.
_SELECT = {"tokens": "*, token_index AS 'index'"}
_ORDER = {"tokens": "request_index, token_index"}

Key = tuple[str, int]


class OlderAttemptRows:
    """The rows of attempts in one older file. A key is (trial_id, attempt). sqlite3's errors pass through."""

    def __init__(self, connection: sqlite3.Connection, version: int) -> None:
        self._connection = connection
        self._tables = {name: of for name, of in _TABLES.items() if version >= SINCE.get(name, 0)}

    def key(self, trial: TrialRow) -> Key | None:
        """The attempt's key; None if there is none of this design, trial and number."""
        key = (trial.trial_id, trial.attempt)
        found = self._connection.execute(
            "SELECT 1 FROM trials WHERE trial_id = ? AND attempt = ? AND design_id = ?", (*key, trial.design_id)
        ).fetchone()
        return None if found is None else key

    def result(self, key: Key, parts: Collection[str] = ALL_PARTS) -> TrialResult:
        """Everything the attempt left, or only these kinds of rows of it."""
        children: dict[str, Any] = {}
        for table, (attribute, row_type) in self._tables.items():
            if attribute not in parts:
                continue
            rows = self._connection.execute(
                f"SELECT {_SELECT.get(table, '*')} FROM {table} WHERE trial_id = ? AND attempt = ? "
                f"ORDER BY {_ORDER.get(table, 'rowid')}",
                key,
            )
            with reading(table):
                children[attribute] = tuple(from_columns(row_type, dict(row)) for row in rows)
        columns = dict(
            self._connection.execute("SELECT * FROM trials WHERE trial_id = ? AND attempt = ?", key).fetchone()
        )
        with reading("trials"):
            trial, effective = from_columns(TrialRow, columns), effective_of(columns)
        return TrialResult(trial=trial, effective=effective, **children)

    def prediction(self, key: Key) -> PredictionRow | None:
        """What was predicted for the attempt."""
        found = self._connection.execute(
            "SELECT created_at, prediction FROM predictions WHERE trial_id = ? AND attempt = ?", key
        ).fetchone()
        if found is None:
            return None
        with reading("predictions"):
            return PredictionRow(created_at=found["created_at"], prediction=predicted_of(found["prediction"]))
