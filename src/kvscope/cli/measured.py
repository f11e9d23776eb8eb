"""What kvscope measure says when its trials are over."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict

from kvscope.analysis.answer_designs import is_of_tasks
from kvscope.analysis.attempts import load_attempts
from kvscope.analysis.design_claims import recorded_claims
from kvscope.analysis.retrieval_panel import recorded_panel
from kvscope.analysis.study import analyse, releases_of
from kvscope.analysis.table import table_rows
from kvscope.analysis.turns import turn_tables
from kvscope.cli.output import say, say_json
from kvscope.errors import RecordLost
from kvscope.experiment.runner import NARROW_ENOUGH, DesignSummary
from kvscope.language import shown
from kvscope.record.queries import outcome_counts
from kvscope.record.store import open_records
from kvscope.report.claim_lines import claim_lines
from kvscope.report.doubts_text import recorded_doubts
from kvscope.report.effects_text import recorded_effects
from kvscope.report.quality_cells import is_in_tables
from kvscope.report.quality_text import recorded_quality
from kvscope.report.release_text import release_lines
from kvscope.report.retrieval_text import retrieval_lines
from kvscope.report.terminal_text import wrapped
from kvscope.report.text import change_first
from kvscope.report.turns import turn_lines
from kvscope.report.words import say as words

# A record of more attempts takes seconds to be read as a whole.
MOST_ATTEMPTS = 2_000


def tell(summaries: Sequence[DesignSummary], records: str, as_json: bool) -> None:
    """The rows as JSON; or in words what became of each design, and what it found."""
    if as_json:
        with open_records(records) as found:
            ids = dict.fromkeys(summary.design_id for summary in summaries)
            rows = [row for design_id in ids for row in table_rows(found, design_id)]
            panels = [asdict(panel) for each in ids if (panel := recorded_panel(found, each)) is not None]
            say_json({"rows": rows, "retrieval": panels} if panels else rows, indent=None)
        return
    for summary in summaries:
        _tell_one(summary, records)
    _tell_advice(summaries, records)
    command = f"kvscope report --records {shlex.quote(records)} --out report.html"
    say(words("measured.see", command=command), err=True)


def _tell_one(summary: DesignSummary, records: str) -> None:
    told = {"name": summary.name, "counts": _counts(summary), "records": records}
    if summary.not_run and summary.stopped_by != NARROW_ENOUGH:
        why = None if summary.stopped_by is None else shown(summary.stopped_by)
        text = words("measured.told_left", **told, count=summary.not_run, why=why)
    else:
        text = words("measured.told", **told)
    retry = words("measured.retry", count=summary.kept_failed) if summary.kept_failed else ""
    for line in [*wrapped(text), *wrapped(retry)]:
        say(line, err=True)
    _tell_doubts(summary, records)
    if summary.name == "retrieval":  # one page instead of all tables
        _tell_retrieval(summary, records)
        return
    _tell_turns(summary, records)
    _tell_release(summary, records)
    _tell_effects(summary, records)
    _tell_quality(summary, records)
    _tell_claims(summary, records)


def _tell_advice(summaries: Sequence[DesignSummary], records: str) -> None:
    """What to change first, by all that the record has of what was measured here."""
    measured = {summary.design_id for summary in summaries if summary.measured}
    with open_records(records) as found:
        attempts = sum(count.attempts for count in outcome_counts(found))
        if not measured or attempts > MOST_ATTEMPTS:  # the report has it; here nobody waits for it
            return
        studies = analyse(found).studies
    for study in studies:
        if any(each.design.design_id in measured for each in study.designs):
            for line in change_first(study):
                say(line)


def _counts(summary: DesignSummary) -> list[str]:
    counts = {
        "measured": summary.measured - summary.warmups,
        "failed": summary.failed - summary.refused,
        "refused": summary.refused or None,
        "warmups_one" if summary.warmups == 1 else "warmups": summary.warmups or None,
        "kept": summary.kept,
    }
    return [words(f"measured.{name}", count=count) for name, count in counts.items() if count is not None]


def _tell_turns(summary: DesignSummary, records: str) -> None:
    with open_records(records) as found:
        design = next((row for row in found.designs() if row.design_id == summary.design_id), None)
        if design is None:
            raise RecordLost(
                f"{records} does not hold what was measured: the file was replaced after that.",
                hint="Run the same command again, and leave the file in its place while it runs.",
            )
        tables = turn_tables(load_attempts(found, design, {run.run_id: run for run in found.runs()}))
    for line in turn_lines(tables):
        say(line)


def _tell_doubts(summary: DesignSummary, records: str) -> None:
    with open_records(records) as found:
        if all(row.design_id != summary.design_id for row in found.designs()):
            return
        lines = recorded_doubts(found, summary.design_id)
    for line in [*lines, ""] if lines else []:
        say(line)


def _tell_release(summary: DesignSummary, records: str) -> None:
    if summary.name != "release":
        return
    with open_records(records) as found:
        for line in release_lines(releases_of(found, summary.design_id)):
            say(line)


def _tell_retrieval(summary: DesignSummary, records: str) -> None:
    with open_records(records) as found:
        panel = recorded_panel(found, summary.design_id)
    for line in [] if panel is None else retrieval_lines(panel):
        say(line)


def _tell_effects(summary: DesignSummary, records: str) -> None:
    if summary.name in ("release", "turns"):  # they have tables of their own
        return
    with open_records(records) as found:
        if any(row.design_id == summary.design_id and is_of_tasks(row) for row in found.designs()):
            return  # what one task takes longer than another is no effect
        for line in recorded_effects(found, summary.design_id):
            say(line)


def _tell_quality(summary: DesignSummary, records: str) -> None:
    with open_records(records) as found:
        for line in recorded_quality(found, summary.design_id):
            say(line)


def _tell_claims(summary: DesignSummary, records: str) -> None:
    with open_records(records) as found:
        for line in claim_lines([f for f in recorded_claims(found, summary.design_id) if not is_in_tables(f)]):
            say(line)
