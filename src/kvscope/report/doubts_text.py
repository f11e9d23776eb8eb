"""What makes the rows of a design doubtful, in a terminal: each kind of warning once, with how many trials have it and
what to do about it."""

from collections import Counter
from collections.abc import Sequence

from kvscope.analysis.attempts import Attempt, latest_attempts, load_attempts
from kvscope.language import shown
from kvscope.record.store import Records
from kvscope.report.terminal_text import wrapped
from kvscope.report.words import say


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
    first = {w.slug: w for each in reversed(trials) for w in each.result.warnings}
    lines = wrapped(say("doubts.lead"), "! ")
    for slug, count in sorted(counts.items(), key=lambda pair: (pair[0] != "client-limited", -pair[1], pair[0])):
        told = {"slug": slug, "count": count, "total": len(trials), "message": shown(first[slug].message)}
        lines += wrapped(say("doubts.one", **told, hint=shown(first[slug].hint)), "  ", "    ")
    return lines
