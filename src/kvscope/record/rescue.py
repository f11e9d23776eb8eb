"""A record whose file was lost while it was recorded into: what can still be read of it, in a new record beside it."""

import os
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from kvscope.record.attempt_rows import complete_trial, insert_trial
from kvscope.record.columns import insert, to_columns
from kvscope.record.metrics_table import keep_metrics
from kvscope.record.migrations import create_tables
from kvscope.record.rows import DesignRow, PredictionRow, RunRow, TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class InHand:
    """What is known without the file: the rows that a recorder was given in this sitting, and the attempt that ended
    last, with its prediction (None where none has)."""

    runs: tuple[RunRow, ...]
    designs: tuple[DesignRow, ...]
    ended: TrialResult | None
    prediction: PredictionRow | None


def rescue(connection: sqlite3.Connection, path: Path, in_hand: InHand) -> tuple[Path | None, bool]:
    """Write what ``connection`` still reads into a new record beside ``path``; where that is damaged, only what is in
    hand. Returns the new file, and whether it holds everything; no file where nothing could be written."""
    try:
        new = _new_file(path)
    except OSError:
        return None, False
    for is_whole in (True, False):
        try:
            with closing(sqlite3.connect(new, isolation_level=None)) as made:
                if is_whole:
                    _copy_all(connection, made)
                    return new, True
                if in_hand.ended is not None:
                    _write(made, in_hand, in_hand.ended)
                    return new, False
        except sqlite3.Error:
            os.truncate(new, 0)
    new.unlink()
    return None, False


def _new_file(path: Path) -> Path:
    """A file of ours beside the record, with a name that nothing else has; where its folder is gone, in that for
    temporary ones."""
    folder = path.parent if path.parent.is_dir() else Path(tempfile.gettempdir())
    for number in count(1):
        new = folder / f"{path.stem}-rescued-{number}{path.suffix}"
        try:
            new.open("xb").close()
        except FileExistsError:
            continue
        return new
    raise AssertionError  # there is always another number


def _copy_all(connection: sqlite3.Connection, made: sqlite3.Connection) -> None:
    connection.backup(made)
    made.execute("PRAGMA journal_mode = DELETE")
    if [tuple(row) for row in made.execute("PRAGMA quick_check")] != [("ok",)]:
        raise sqlite3.DatabaseError("what is left of the record is damaged")
    made.execute("UPDATE about SET value = 0 WHERE name = 'recording'")


def _write(made: sqlite3.Connection, in_hand: InHand, ended: TrialResult) -> None:
    create_tables(made)
    made.execute("BEGIN")
    insert(made, "runs", [to_columns(run) for run in in_hand.runs])
    insert(made, "designs", [to_columns(design) for design in in_hand.designs])
    key = insert_trial(made, ended.trial, in_hand.prediction)
    complete_trial(made, key, ended)
    keep_metrics(made, key, ended)
    made.execute("COMMIT")
