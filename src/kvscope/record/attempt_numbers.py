"""Which attempt of a trial is which, where several files hold attempts of one. Each file counts them from 1, so the
number does not tell; the sitting and the moment in which an attempt began do."""

import sqlite3

from kvscope.record.rows import MEASURED_OUTCOMES, TrialRow


def number_of_same(connection: sqlite3.Connection, trial: TrialRow) -> int | None:
    """The number under which a record has this attempt; None where it has not. sqlite3's errors pass through."""
    found = connection.execute(
        "SELECT attempt FROM trials WHERE design_id = ? AND trial_id = ? AND run_id = ? AND started_at = ?",
        (trial.design_id, trial.trial_id, trial.run_id, trial.started_at),
    ).fetchone()
    return None if found is None else int(found[0])


def next_number(connection: sqlite3.Connection, trial: TrialRow) -> int:
    """A number that no attempt of this trial has yet."""
    (last,) = connection.execute(
        "SELECT max(attempt) FROM trials WHERE design_id = ? AND trial_id = ?", (trial.design_id, trial.trial_id)
    ).fetchone()
    return 1 if last is None else int(last) + 1


def number_anew(connection: sqlite3.Connection, trial: TrialRow) -> None:
    """Number the attempts of a trial in the order in which they began, those that measured last: the last one counts,
    so no measurement is lost to a failure. The order in which files were merged makes no difference."""
    found = connection.execute(
        "SELECT attempt_id, attempt, outcome, started_at, run_id FROM trials WHERE design_id = ? AND trial_id = ?",
        (trial.design_id, trial.trial_id),
    ).fetchall()
    ordered = sorted(found, key=lambda row: (row["outcome"] in MEASURED_OUTCOMES, row["started_at"], row["run_id"]))
    numbers = {row["attempt_id"]: number for number, row in enumerate(ordered, 1) if row["attempt"] != number}
    # A number may not be given twice, not even between two statements.
    for attempt_id, number in numbers.items():
        connection.execute("UPDATE trials SET attempt = ? WHERE attempt_id = ?", (-number, attempt_id))
    for attempt_id, number in numbers.items():
        connection.execute("UPDATE trials SET attempt = ? WHERE attempt_id = ?", (number, attempt_id))
