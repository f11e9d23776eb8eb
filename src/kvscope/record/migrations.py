"""From an older record to this release's, step by step. A record that is only read is not changed: what its schema did
not have yet is unknown then.

    1 → 2   requests.prompt_tokens_ours_from, requests.prompt_tokens_server_from
    2 → 3   trials.evidence; tokens.kind; device and control-group columns of marks; phase and device of occupants;
            statistics
    3 → 4   designs.study_id, holds, definition; requests.cached_tokens_predicted, stream, due_s, client
"""

import sqlite3
from collections.abc import Mapping, Sequence

from kvscope.record.schema import SCHEMA_VERSION

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
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
