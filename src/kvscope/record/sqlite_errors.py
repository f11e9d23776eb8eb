"""SQLite's errors in words that say what to do."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvscope.errors import RecordBusy, RecordUnwritable, SchemaMismatch, UsageError


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors, and Python's about values that SQLite cannot hold, into ours, with what to do.

    Raises UsageError, RecordUnwritable, RecordBusy or SchemaMismatch.
    """
    try:
        yield
    except OverflowError as error:
        raise UsageError(
            f"A number is too large for the record {path}: {error}.",
            hint="Whole numbers, --seed among them, may have 63 bits: up to 9223372036854775807.",
        ) from error
    except sqlite3.OperationalError as error:
        raise _operational(path, str(error)) from error
    except sqlite3.DatabaseError as error:
        raise SchemaMismatch(
            f"{path} is not a readable kvscope record: {error}.", hint="Name another file with --records FILE."
        ) from error


def _operational(path: Path, text: str) -> RecordUnwritable | SchemaMismatch | RecordBusy:
    if "full" in text or "disk I/O" in text:
        return RecordUnwritable(
            f"Cannot write to {path}: {text}.",
            hint="Free some space, or record elsewhere (--records FILE; --out FOLDER for the lab), and run the "
            "same command again: "
            "finished trials are kept and not repeated.",
        )
    if "no such table" in text or "no such column" in text:
        return SchemaMismatch(
            f"{path} is a damaged or foreign record: {text}.", hint="Name another file with --records FILE."
        )
    if "locked" in text:
        return RecordBusy(
            f"{path} is locked by another program.",
            hint="Close it and try again; where a kvscope reads it (report, export, merge), when that is done.",
        )
    if "readonly" in text:
        return RecordUnwritable(
            f"{path} can be read and not written to.",
            hint="Record into another file (--records FILE; --out FOLDER for the lab), or make this one writable.",
        )
    return RecordUnwritable(
        f"Cannot use {path} as a record: {text}.", hint="Check that the folder exists and can be written to."
    )
