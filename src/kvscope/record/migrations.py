"""From an older record to this release's, step by step. A record that is only read is not changed: what its schema did
not have yet is unknown then.

    1 → 2   requests.prompt_tokens_ours_from, requests.prompt_tokens_server_from
    2 → 3   trials.evidence; tokens.kind; device and control-group columns of marks; phase and device of occupants;
            statistics
    3 → 4   designs.study_id, holds, definition; requests.cached_tokens_predicted, stream, due_s, client; every attempt
            has a number of its own in the file, which other tables refer to
"""

import sqlite3
from collections.abc import Mapping, Sequence

from kvscope.record.schema import SCHEMA, SCHEMA_VERSION

# Tables whose rows belong to an attempt.
OF_ATTEMPTS = (
    "predictions",
    "requests",
    "tokens",
    "reads",
    "marks",
    "maps",
    "samples",
    "reported_buffers",
    "occupants",
    "statistics",
    "warnings",
)

# Version → the statements that make the next one of it.
STEPS: Mapping[int, Sequence[str]] = {
    1: (
        "ALTER TABLE requests ADD COLUMN prompt_tokens_ours_from TEXT",
        "ALTER TABLE requests ADD COLUMN prompt_tokens_server_from TEXT",
    ),
    2: (
        "ALTER TABLE trials ADD COLUMN evidence TEXT NOT NULL DEFAULT '{}'",
        "ALTER TABLE tokens ADD COLUMN kind TEXT",
        "ALTER TABLE marks ADD COLUMN device_bytes INTEGER",
        "ALTER TABLE marks ADD COLUMN device_peak_bytes INTEGER",
        "ALTER TABLE marks ADD COLUMN cgroup_bytes INTEGER",
        "ALTER TABLE marks ADD COLUMN cgroup_peak_bytes INTEGER",
        "ALTER TABLE marks ADD COLUMN cgroup_oom_kills INTEGER",
        "ALTER TABLE occupants ADD COLUMN phase TEXT NOT NULL DEFAULT 'before'",
        "ALTER TABLE occupants ADD COLUMN device TEXT",
        "CREATE TABLE statistics (trial_id TEXT NOT NULL, attempt INTEGER NOT NULL, phase TEXT NOT NULL, "
        "request_index INTEGER, at_s REAL NOT NULL, name TEXT NOT NULL, value REAL NOT NULL) STRICT",
        "CREATE INDEX statistics_of_trial ON statistics (trial_id, attempt)",
    ),
    3: (
        "ALTER TABLE designs ADD COLUMN study_id TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE designs ADD COLUMN holds TEXT NOT NULL DEFAULT '[]'",
        "ALTER TABLE designs ADD COLUMN definition TEXT NOT NULL DEFAULT '{}'",
        "ALTER TABLE requests ADD COLUMN cached_tokens_predicted INTEGER",
        "ALTER TABLE requests ADD COLUMN stream INTEGER",
        "ALTER TABLE requests ADD COLUMN due_s REAL",
        "ALTER TABLE requests ADD COLUMN client TEXT NOT NULL DEFAULT '{}'",
    ),
}
OLDEST_VERSION = min(STEPS)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a record that was just opened for writing up to SCHEMA_VERSION, in one transaction. sqlite3's errors pass
    through."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in STEPS:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in range(version, SCHEMA_VERSION):
            for statement in STEPS[step]:
                connection.execute(statement)
        _rekey(connection)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _rekey(connection: sqlite3.Connection) -> None:
    """Give every attempt its number, and every row that belongs to one that number in place of the trial's id."""
    tables = ("trials", *OF_ATTEMPTS)
    for (index,) in connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    ).fetchall():
        connection.execute(f"DROP INDEX {index}")
    for table in tables:
        connection.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    known = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for statement in _statements(SCHEMA):
        if not any(f"CREATE TABLE {table} (" in statement for table in known):
            connection.execute(statement)
    for table in tables:
        _copy(connection, table)
    for table in reversed(tables):
        connection.execute(f"DROP TABLE old_{table}")


def _statements(script: str) -> list[str]:
    found, pending = [], ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            found.append(pending)
            pending = ""
    return found


def _copy(connection: sqlite3.Connection, table: str) -> None:
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    kept = [name for name in names if name != "attempt_id"]
    order = "old.request_index, old.token_index" if table == "tokens" else "old.rowid"
    source = f"old_{table} AS old"
    if table != "trials":
        source += " JOIN trials ON trials.trial_id = old.trial_id AND trials.attempt = old.attempt"
    number = "NULL" if table == "trials" else "trials.attempt_id"
    connection.execute(
        f"INSERT INTO {table} (attempt_id, {', '.join(kept)}) "
        f"SELECT {number}, {', '.join(f'old.{name}' for name in kept)} FROM {source} ORDER BY {order}"
    )
