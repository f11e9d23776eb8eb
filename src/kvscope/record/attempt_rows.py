"""The rows of one attempt, read from and written to a record of this schema."""

import hashlib
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from kvscope.record import packed
from kvscope.record.columns import all_from_columns, as_json, from_columns, insert, json_object, reading, to_columns
from kvscope.record.json_numbers import check_numbers
from kvscope.record.rows import (
    AnswerRow,
    Json,
    MapRow,
    MarkRow,
    OccupantRow,
    PredictionRow,
    ReportedBufferRow,
    RequestRow,
    StatisticRow,
    TrialResult,
    TrialRow,
    WarningRow,
)
from kvscope.record.sampled import SampledRows
from kvscope.record.schema import SCHEMA_VERSION

# Table → (the attribute of a TrialResult, its kind of row), one row of the file for each row.
PLAIN: Mapping[str, tuple[str, type[Any]]] = {
    "requests": ("requests", RequestRow),
    "marks": ("marks", MarkRow),
    "maps": ("maps", MapRow),
    "reported_buffers": ("reported", ReportedBufferRow),
    "occupants": ("occupants", OccupantRow),
    "statistics": ("statistics", StatisticRow),
    "warnings": ("warnings", WarningRow),
    "answers": ("answers", AnswerRow),
}


def _each(unpack: Callable[[Any], Iterable[Any]]) -> Callable[[Iterable[Any]], tuple[Any, ...]]:
    return lambda rows: tuple(chain.from_iterable(unpack(row) for row in rows))


# Table → (how rows are packed into it, how the packed ones of an attempt are read).
PACKED: Mapping[str, tuple[Callable[[Any], Iterable[Mapping[str, Any]]], Callable[[Any], Sequence[Any]]]] = {
    "tokens": (packed.pack_tokens, _each(packed.unpack_tokens)),
    "reads": (packed.pack_reads, _each(packed.unpack_reads)),
    "samples": (packed.pack_samples, SampledRows),
    "scored_tokens": (packed.pack_scored, _each(packed.unpack_scored)),
}
# Tables that came later, and the schema that brought them.
SINCE = {"statistics": 3, "answers": 5, "scored_tokens": 5}
# The kinds of rows that an attempt leaves, by their attribute of TrialResult.
ALL_PARTS: frozenset[str] = frozenset({*PACKED, *(attribute for attribute, _ in PLAIN.values())})
_ORDER = {"tokens": "request_index", "reads": "request_index"}
# Predictions are long and few: so many parsed ones are kept at hand.
_PARSED_PREDICTIONS = 64


class AttemptRows:
    """The rows of attempts in one file. A key is an attempt's number in it. sqlite3's errors pass through."""

    def __init__(self, connection: sqlite3.Connection, version: int = SCHEMA_VERSION) -> None:
        """``version``: the file's schema, at least 4."""
        self._connection = connection
        self._lacks = {table for table, since in SINCE.items() if since > version}
        self._parsed: dict[int, Mapping[str, Json]] = {}

    def key(self, trial: TrialRow) -> int | None:
        """The attempt's key; None if there is none of this design, trial and number."""
        found = self._connection.execute(
            "SELECT attempt_id FROM trials WHERE design_id = ? AND trial_id = ? AND attempt = ?",
            (trial.design_id, trial.trial_id, trial.attempt),
        ).fetchone()
        return None if found is None else int(found[0])

    def result(self, key: int, parts: Collection[str] = ALL_PARTS) -> TrialResult:
        """Everything the attempt left, or only these kinds of rows of it."""
        columns = dict(self._connection.execute("SELECT * FROM trials WHERE attempt_id = ?", (key,)).fetchone())
        children: dict[str, Any] = {}
        for table, (attribute, row_type) in PLAIN.items():
            if attribute in parts and table not in self._lacks:
                with reading(table):
                    children[attribute] = all_from_columns(row_type, self._rows(table, key))
        for table, (_, unpack) in PACKED.items():
            if table in parts and table not in self._lacks:
                with reading(table):
                    children[table] = unpack(self._rows(table, key))
        with reading("trials"):
            trial, effective = from_columns(TrialRow, columns), effective_of(columns)
        return TrialResult(trial=trial, effective=effective, **children)

    def _rows(self, table: str, key: int) -> sqlite3.Cursor:
        order = _ORDER.get(table, "rowid")
        return self._connection.execute(f"SELECT * FROM {table} WHERE attempt_id = ? ORDER BY {order}", (key,))

    def prediction(self, key: int) -> PredictionRow | None:
        """What was predicted for the attempt. Predictions with the same text are one object: do not change it."""
        found = self._connection.execute(
            "SELECT text_id, created_at FROM predictions WHERE attempt_id = ?", (key,)
        ).fetchone()
        if found is None:
            return None
        return PredictionRow(created_at=found["created_at"], prediction=self._prediction(found["text_id"]))

    def _prediction(self, text_id: int) -> Mapping[str, Json]:
        if text_id not in self._parsed:
            if len(self._parsed) >= _PARSED_PREDICTIONS:
                self._parsed.pop(next(iter(self._parsed)))
            (text,) = self._connection.execute(
                "SELECT prediction FROM prediction_texts WHERE text_id = ?", (text_id,)
            ).fetchone()
            with reading("prediction_texts"):
                self._parsed[text_id] = predicted_of(text)
        return self._parsed[text_id]


def predicted_of(text: Any) -> dict[str, Json]:
    """What was predicted, of its column. Raises ValueError where that holds none, or a text where a number belongs."""
    prediction = json_object(text, "prediction")
    check_numbers(prediction, "prediction")
    return prediction


def effective_of(trial: Mapping[str, Any]) -> dict[str, Json]:
    """The settings that the engine said it used, of a trial's columns. Raises ValueError where they are none."""
    return json_object(trial["effective"], "effective") if trial["effective"] else {}


def insert_trial(connection: sqlite3.Connection, trial: TrialRow, prediction: PredictionRow | None) -> int:
    """Write an attempt that begins; returns its key."""
    insert(connection, "trials", [to_columns(trial)])
    key: int = connection.execute("SELECT last_insert_rowid()").fetchone()[0]
    if prediction is not None:
        text = as_json(dict(prediction.prediction))
        columns = {"attempt_id": key, "created_at": prediction.created_at, "text_id": _text_id(connection, text)}
        insert(connection, "predictions", [columns])
    return key


def _text_id(connection: sqlite3.Connection, text: str) -> int:
    digest = hashlib.sha256(text.encode()).hexdigest()
    found = connection.execute("SELECT text_id FROM prediction_texts WHERE sha256 = ?", (digest,)).fetchone()
    if found is not None:
        return int(found[0])
    insert(connection, "prediction_texts", [{"sha256": digest, "prediction": text}])
    return int(connection.execute("SELECT last_insert_rowid()").fetchone()[0])


def complete_trial(connection: sqlite3.Connection, key: int, result: TrialResult) -> None:
    """Write what an attempt left when it ended."""
    columns = {**to_columns(result.trial), "effective": as_json(dict(result.effective))}
    assignments = ", ".join(f"{name} = :{name}" for name in columns)
    connection.execute(f"UPDATE trials SET {assignments} WHERE attempt_id = :key", {**columns, "key": key})
    for table, (attribute, _) in PLAIN.items():
        rows = getattr(result, attribute)
        insert(connection, table, [{"attempt_id": key, **to_columns(row)} for row in rows])
    for table, (pack, _) in PACKED.items():
        insert(connection, table, [{"attempt_id": key, **row} for row in pack(getattr(result, table))])
