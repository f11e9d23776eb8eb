"""A record file that is written: by one process at a time, one transaction per trial.

A trial is written twice: when it starts (with its prediction, outcome empty) and when it ends. A process that is killed
in between leaves the first half; the next writer completes it as ``interrupted``. Nothing is ever updated after that.

While it is open, SQLite keeps what was written last in a second file, FILE-wal, so that readers never wait for the
writer nor it for them. When it is closed there is one file again. After a kill both remain, and belong together: the
next recorder brings them together, and a reader reads both.
"""

import ctypes
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from kvscope.errors import KvscopeError, RecordLost, RecordNotFound
from kvscope.hiding import hide_secrets
from kvscope.record.attempt_numbers import next_number, number_anew, number_of_same
from kvscope.record.attempt_rows import AttemptRows, complete_trial, insert_trial
from kvscope.record.columns import insert, to_columns
from kvscope.record.locked_file import LockedFile
from kvscope.record.metrics_table import derive_anew, keep_metrics
from kvscope.record.no_secrets import result_without_secrets, without_secrets
from kvscope.record.reader import Records
from kvscope.record.rescue import InHand, rescue
from kvscope.record.rows import DesignRow, PredictionRow, RunRow, TrialResult, TrialRow
from kvscope.record.sqlite_errors import explained
from kvscope.record.wal import note_written

INTERRUPTED_MESSAGE = "The process that ran this trial ended before it could write a result."
# How long closing waits for readers before it leaves bringing the two files together to the next recorder.
_CLOSE_WAIT_MS = 200


class Recorder(Records):
    """A record file opened for writing, by this process alone."""

    def __init__(self, connection: sqlite3.Connection, path: Path, file: LockedFile) -> None:
        super().__init__(connection, path)
        self._file = file
        self._rows = AttemptRows(connection)
        self._in_hand = InHand(runs=(), designs=(), ended=None, prediction=None)
        self._lost: RecordLost | None = None
        self._is_closed = False
        self._check_file()

    def close(self) -> None:
        """Bring the file together and close it. Where a reader has it open, or the disk is full, FILE-wal stays, and is
        read with it; nothing is lost."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._lost is not None or self._file.why_lost() is not None:
            self._leave()
            return
        with suppress(sqlite3.Error):
            self._connection.execute(f"PRAGMA busy_timeout = {_CLOSE_WAIT_MS}")
            self._connection.execute("UPDATE about SET value = 0 WHERE name = 'recording'")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.execute("PRAGMA journal_mode = DELETE")
        super().close()
        self._file.release()

    def _leave(self) -> None:
        """Let go of a file that is no longer under its name. SQLite, closing it, would take away FILE-wal and FILE-shm
        by their names, which may be another recorder's by now: so it is not to close it, ever."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
        self._file.release()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is written inside it, or nothing; inside another one, a part of that. Raises RecordLost where the
        file is not there any more, before or after."""
        if self._connection.in_transaction:
            yield self._connection
            return
        self._check_file()
        with self._written() as connection:
            yield connection

    @contextmanager
    def _written(self) -> Iterator[sqlite3.Connection]:
        try:
            with explained(self.path), self._begun():
                yield self._connection
        except KvscopeError:
            self._check_file()  # then that is why
            raise
        self._check_file()

    def _check_file(self) -> None:
        """Raise RecordLost where the name of the file means another one by now, or it was cut short; what can still be
        read of it is saved then."""
        if self._lost is None:
            why = self._file.why_lost()
            if why is None:
                return
            self._lost = self._saved(why)
        raise self._lost

    def _saved(self, why: str) -> RecordLost:
        new, is_whole = rescue(self._connection, self.path, self._in_hand)
        told = f"{self.path} {why} while kvscope recorded into it: nothing more is measured."
        if new is None:
            return RecordLost(f"{told} Nothing of it could be saved.", hint="Run the same command again.")
        if is_whole:
            self._file.remove_beside()
        name = shlex.quote(str(new))
        what = "All that it held" if is_whole else "Of what it held only the trial that ended last"
        return RecordLost(
            f"{told} {what} is in {new}.",
            hint=f"Go on in that file (--records {name}), or add it to another one: kvscope merge FILE {name}",
        )

    @contextmanager
    def _begun(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            note_written(self._connection)
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def one_state(self) -> Iterator[None]:
        """Nobody else writes: what is read is always one state."""
        yield

    def add_run(self, run: RunRow) -> None:
        run = replace(run, command=hide_secrets(run.command))
        with self.transaction() as connection:
            insert(connection, "runs", [to_columns(run)])
        self._in_hand = replace(self._in_hand, runs=(*self._in_hand.runs, run))

    def add_design(self, design: DesignRow) -> None:
        """Add a design; the same one may be added again by a later sitting that resumes it."""
        design = without_secrets(design)
        with self.transaction() as connection:
            known = connection.execute("SELECT 1 FROM designs WHERE design_id = ?", (design.design_id,)).fetchone()
            if known is None:
                insert(connection, "designs", [to_columns(design)])
        self._in_hand = replace(self._in_hand, designs=(*self._in_hand.designs, design))

    def start_trial(self, trial: TrialRow, prediction: PredictionRow | None) -> None:
        """Record that an attempt begins, with what is predicted for it, before anything runs."""
        trial = without_secrets(trial)
        with self.transaction() as connection:
            insert_trial(connection, trial, prediction)
        self._in_hand = replace(self._in_hand, ended=None, prediction=prediction)

    def finish_trial(self, result: TrialResult) -> None:
        """Record everything an attempt left, in one transaction. Of an attempt that goes on (kvscope watch) it may be
        called again, with what came since. Raises RecordNotFound if it was never started, RecordLost where the file is
        not there any more; the result is saved beside it then."""
        if self._lost is not None:
            raise self._lost
        result = result_without_secrets(result)
        self._in_hand = replace(self._in_hand, ended=result)
        is_part = self._connection.in_transaction
        with nullcontext(self._connection) if is_part else self._written() as connection:
            key = self._rows.key(result.trial)
            if key is None:
                raise RecordNotFound(f"{self.path}: trial {result.trial.trial_id} ends, but was never started.")
            goes_on = connection.execute("SELECT 1 FROM metrics WHERE attempt_id = ?", (key,)).fetchone() is not None
            complete_trial(connection, key, result)
            keep_metrics(connection, key, self._rows.result(key) if goes_on else result)

    def add_attempt(self, result: TrialResult, prediction: PredictionRow | None) -> bool:
        """Add an attempt that has ended in another record. Where this one has attempts of the same trial already, they
        are numbered anew with it; returns whether it has."""
        with self.transaction() as connection:
            number = next_number(connection, result.trial)
            is_further = number > 1
            trial = replace(result.trial, attempt=number) if is_further else result.trial
            key = insert_trial(connection, trial, prediction)
            complete_trial(connection, key, replace(result, trial=trial))
            keep_metrics(connection, key, result)
            if is_further:
                number_anew(connection, trial)
        return is_further

    def number_of_same(self, trial: TrialRow) -> int | None:
        """The number that this very attempt has here, known by its sitting and the moment when it began; None where it
        is not here."""
        with explained(self.path):
            return number_of_same(self._connection, trial)

    def find(self, trial: TrialRow) -> TrialResult | None:
        """What an attempt of this design, trial and number left; None if there is none."""
        with self._reading(f"attempt {trial.attempt} of trial {trial.trial_id}"):
            key = self._rows.key(trial)
            return None if key is None else self._rows.result(key)

    def complete_interrupted(self) -> int:
        """Mark attempts that a killed process left open as interrupted; returns how many there were."""
        left_open = self._rows_of(TrialRow, "trials", self.select("SELECT * FROM trials WHERE outcome IS NULL"))
        for trial in left_open:
            self.finish_trial(
                TrialResult(
                    trial=replace(
                        trial, outcome="interrupted", error_slug="interrupted", error_message=INTERRUPTED_MESSAGE
                    )
                )
            )
        return len(left_open)

    def renew_metrics(self) -> None:
        """Derive the metrics of all attempts anew where the file's were made with other definitions."""
        if self.has_metrics:
            return
        with self.transaction() as connection:
            ended = [row[0] for row in self.select("SELECT attempt_id FROM trials WHERE outcome IS NOT NULL")]
            derive_anew(connection, ended, self._rows.result)
        self._has_metrics = True
