"""FILE-wal, and whether it belongs to the FILE that it lies beside. SQLite reads the two together whatever they are:
another record, or an older copy of this one, put in the place of one that was killed, would be read as a mixture.

Each time a recorder opens a file that is whole, it writes a random number into it; every transaction after that writes
the page with that number into FILE-wal too. So both together say the same as FILE does alone, or they do not belong
together.
"""

import secrets
import sqlite3
from contextlib import closing
from pathlib import Path

from kvscope.errors import SchemaMismatch

_SEEN_AT_LEAST = 2  # a recorder may have closed the file and opened it anew between two looks


def begin_era(connection: sqlite3.Connection) -> None:
    """Give the file its number, before FILE-wal exists; where there is one already, its number holds."""
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        era = secrets.randbits(62)
        connection.execute("INSERT OR REPLACE INTO about (name, value) VALUES ('era', ?)", (era,))
    connection.execute("INSERT OR IGNORE INTO about (name, value) VALUES ('written', 0)")


def note_written(connection: sqlite3.Connection) -> None:
    """To be done in every transaction: it takes the page with the number along."""
    connection.execute("UPDATE about SET value = value + 1 WHERE name = 'written'")


def check_wal(path: Path) -> None:
    """Raise SchemaMismatch where the FILE-wal beside this file, which exists, is of another one."""
    resolved = path.resolve()
    try:
        found = {_eras(resolved) for _ in range(_SEEN_AT_LEAST)}
    except sqlite3.OperationalError:
        return  # what is in the way is said by whoever opens it
    alone, together = found.pop()
    if found or alone is None or alone == together:
        return
    raise SchemaMismatch(
        f"{path.name}-wal, which lies beside {path}, is of another record, or of another state of this one: a "
        f"recorder that was killed left it, and {path.name} was put there after that.",
        hint=f"Move {path.name}-wal and {path.name}-shm into another folder; {path.name} is read alone then.",
    )


def _eras(resolved: Path) -> tuple[int | None, int | None]:
    """The number of the file read alone, and read with its FILE-wal; None where it has none, -1 where it cannot be read
    so. The second look takes no lock and looks at nothing else."""
    together = _era(f"{resolved.as_uri()}?mode=ro")
    alone = _era(f"{resolved.as_uri()}?mode=ro&immutable=1")
    return (None if alone == -1 else alone), together


def _era(uri: str) -> int | None:
    try:
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            found = connection.execute("SELECT value FROM about WHERE name = 'era'").fetchone()
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        return -1
    return None if found is None else int(found[0])
