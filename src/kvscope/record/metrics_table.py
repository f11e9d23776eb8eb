"""The metrics of every attempt, kept beside its rows so that questions about many attempts need not derive them again.

They are a copy, never a second truth: written in the transaction that writes the rows, made anew from the rows by the
next recorder where they were made with other definitions (``metrics.METRICS_VERSION``), and not used by a reader then.
"""

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields

from kvscope.record.columns import insert
from kvscope.record.metrics import METRICS_VERSION, TrialMetrics, metrics_of
from kvscope.record.rows import TrialResult

# Every metric that is one number. The gaps between tokens (itl_s) are not: they are in the tokens' rows.
METRICS: Mapping[str, type[int] | type[float]] = {
    field.name: int if str(field.type).startswith("int") else float
    for field in fields(TrialMetrics)
    if str(field.type) in ("int | None", "float | None")
}


def create_metrics(connection: sqlite3.Connection) -> None:
    """Make the table, empty, for the metrics that this release defines."""
    columns = ",\n    ".join(f"{name} {'INTEGER' if kind is int else 'REAL'}" for name, kind in METRICS.items())
    connection.execute("DROP TABLE IF EXISTS metrics")
    connection.execute(
        f"CREATE TABLE metrics (\n    attempt_id INTEGER PRIMARY KEY REFERENCES trials,\n    {columns}\n) STRICT"
    )
    connection.execute("INSERT OR REPLACE INTO about (name, value) VALUES ('metrics_version', ?)", (METRICS_VERSION,))


def are_current(connection: sqlite3.Connection) -> bool:
    """Whether the table holds what this release would derive."""
    found = connection.execute("SELECT value FROM about WHERE name = 'metrics_version'").fetchone()
    names = [row[1] for row in connection.execute("PRAGMA table_info(metrics)")]
    return found is not None and found[0] == METRICS_VERSION and names == ["attempt_id", *METRICS]


def scalar_metrics(result: TrialResult) -> dict[str, int | float | None]:
    """Metric → value, of those that are one number."""
    metrics = metrics_of(result)
    return {name: getattr(metrics, name) for name in METRICS}


def keep_metrics(connection: sqlite3.Connection, attempt_id: int, result: TrialResult) -> None:
    """Write the metrics of an attempt that has ended, in place of those that are there."""
    connection.execute("DELETE FROM metrics WHERE attempt_id = ?", (attempt_id,))
    insert(connection, "metrics", [{"attempt_id": attempt_id, **scalar_metrics(result)}])


def derive_anew(
    connection: sqlite3.Connection, attempt_ids: Iterable[int], result_of: Callable[[int], TrialResult]
) -> None:
    """Replace the table by what the rows of these attempts say, with today's definitions."""
    create_metrics(connection)
    for attempt_id in attempt_ids:
        keep_metrics(connection, attempt_id, result_of(attempt_id))
