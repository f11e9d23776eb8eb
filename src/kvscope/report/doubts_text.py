"""What makes the rows of a design doubtful, in a terminal: each kind of warning once, with how many trials have it."""

import re
import textwrap
from collections import Counter
from collections.abc import Sequence

from kvscope.analysis.attempts import Attempt, latest_attempts, load_attempts
from kvscope.record.store import Records
from kvscope.report.words import say

WIDTH = 80


def is_limited(attempt: Attempt) -> bool:
    """Whether kvscope's own client may have been what limited (``client_limited`` in its row)."""
    return attempt.trial.client.get("client_limited") is True


def recorded_doubts(records: Records, design_id: str) -> list[str]:
    """The lines of one design of a record; none where there is no doubt."""
    design = next(row for row in records.designs() if row.design_id == design_id)
    return doubt_lines(load_attempts(records, design, {run.run_id: run for run in records.runs()}))


def doubt_lines(attempts: Sequence[Attempt]) -> list[str]:
    """Of the latest attempt of each trial that is no warm-up."""
    trials = [each for each in latest_attempts(attempts) if each.trial.role == "measured"]
    counts = Counter(slug for each in trials for slug in dict.fromkeys(w.slug for w in each.result.warnings))
    if not counts:
        return []
    messages = {w.slug: w.message for each in reversed(trials) for w in each.result.warnings}
    lines = [say("doubts.lead")]
    for slug, count in sorted(counts.items(), key=lambda pair: (pair[0] != "client-limited", -pair[1], pair[0])):
        text = say("doubts.one", slug=slug, count=count, total=len(trials), message=messages[slug])
        lines += textwrap.wrap(
            re.sub(r"\s+", " ", text), WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
        )
    return lines
