"""Whether the effect of a design is known as closely as was asked: the rule by which repeating ends."""

from kvscope.analysis.attempts import load_attempts
from kvscope.analysis.levels import level_rows
from kvscope.record.rows import DesignRow
from kvscope.record.store import Records


def is_precise_enough(records: Records, design: DesignRow, *, metric: str, share: float) -> bool:
    """Whether, at every level, the 95 % interval of the difference from the baseline reaches no further than ``share``
    of the baseline's mean to either side. False where an interval is not known."""
    attempts = load_attempts(records, design, {run.run_id: run for run in records.runs()})
    rows = level_rows(design, attempts)
    base = rows[0].means[metric].value
    if base is None or len(rows) < 2:
        return False
    for row in rows[1:]:
        difference = row.differences[metric]
        if difference.low is None or difference.high is None:
            return False
        if (difference.high - difference.low) / 2 > share * base:
            return False
    return True
