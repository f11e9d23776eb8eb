"""10. Every row; of a record that holds too many for a page, what they come to."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.attribute import unexplained_bytes
from kvscope.analysis.levels import LevelRow
from kvscope.analysis.study import Study
from kvscope.analysis.table import table_row
from kvscope.language import ENGLISH, speaking
from kvscope.record.strict_json import strict_json
from kvscope.report.blocks import Block, Column, Download, Link, Paragraph, Row, Section, Table, row
from kvscope.report.numbers import estimate_cell, mib_cell, number_cell, seconds_cell
from kvscope.report.section_time import level_text
from kvscope.report.section_trust import clipped
from kvscope.report.words import name_of, say

# So many of those that failed, so many that findings rest on.
MOST_NAMED = 100
# A longer table is folded, so that the page opens at once.
OPEN_ROWS = 300
_TEXT = ("design", "level", "outcome")
_NUMBERS = (
    "repeat", "prompt_asked", "prompt_server", "cached", "limit", "output", "ttft_s", "tpot_s", "completion_s",
    "memory_loaded_bytes", "memory_peak_bytes", "memory_after_bytes", "memory_released_bytes", "unexplained",
)  # fmt: skip
# A page holds so many numbers of trials. Of a record with more it shows what they come to, and the rows that something
# names; the record has the rest.
MOST_POINTS = 20_000
MOST_ROWS = MOST_POINTS // len(_NUMBERS)
_MEANS = ("ttft_s", "tpot_s", "completion_s", "memory_loaded_bytes", "memory_peak_bytes")


def shown_attempts(study: Study) -> tuple[Attempt, ...]:
    """The attempts that the page shows as rows: all of them, or, of too many, those that failed and those that findings
    rest on, a hundred of each."""
    if len(study.attempts) <= MOST_ROWS:
        return study.attempts
    named = dict.fromkeys(key for finding in study.findings for key in finding.evidence)
    wanted = set(list(named)[:MOST_NAMED])
    wanted |= {a.key for a in [a for a in study.attempts if a.is_failure][:MOST_NAMED]}
    return tuple(attempt for attempt in study.attempts if attempt.key in wanted)


def rows_section(study: Study, anchors: Mapping[str, Link]) -> Section:
    """Section 10. ``anchors``: the row of each attempt that is shown."""
    known = {attempt.key: attempt for attempt in study.attempts}
    attempts = [known[key] for key in anchors]
    total = len(study.attempts)
    blocks: list[Block] = [Paragraph(text=say("rows.lead", total=total), kind="lead")]
    if len(attempts) < total:
        blocks.append(Paragraph(text=_summarised(study, len(attempts)), kind="doubt"))
        blocks.append(_summary(study))
    titles = [Column(title=say("col.row"), is_number=True)]
    titles += [Column(title=say(f"col.{name}")) for name in _TEXT]
    titles += [Column(title=say(f"col.{name}"), is_number=True) for name in _NUMBERS]
    blocks.append(
        Table(
            caption=say("caption.rows"),
            columns=tuple(titles),
            rows=tuple(_attempt_row(attempt, anchors[attempt.key]) for attempt in attempts),
            summary=say("summary.rows", count=len(attempts)) if len(attempts) > OPEN_ROWS else None,
        )
    )
    blocks.append(
        Download(
            label=say("rows.download", count=len(attempts)),
            file_name="kvscope-rows.jsonl",
            media_type="application/x-ndjson",
            text=json_lines(attempts),
        )
    )
    return Section(slug="rows", title=say("title.rows"), blocks=tuple(blocks))


def _summarised(study: Study, shown: int) -> str:
    name = study.record_name
    return say("rows.summarised", shown=shown, total=len(study.attempts), record=name, file=shlex.quote(name))


def _summary(study: Study) -> Table:
    """Each level of each design with its means, where there is no room for every row."""
    titles = [Column(title=say(f"col.{name}")) for name in ("design", "level")]
    titles += [Column(title=say(f"col.{name}"), is_number=True) for name in ("repeats", "failed", *_MEANS)]
    return Table(
        caption=say("caption.rows_summary"),
        columns=tuple(titles),
        rows=tuple(
            row(
                each.design.name,
                level_text(level.level),
                str(level.num_measured),
                str(level.num_failed),
                *(_mean(level, name) for name in _MEANS),
            )
            for each in study.designs
            for level in each.levels
        ),
    )


def _mean(level: LevelRow, name: str) -> str:
    if name not in level.means or level.num_measured == 0:
        return say("none")
    return estimate_cell(level.means[name], mib_cell if name.endswith("_bytes") else seconds_cell)


def _attempt_row(attempt: Attempt, link: Link) -> Row:
    trial, metrics = attempt.trial, attempt.metrics
    kind = "failed" if attempt.is_failure else ("baseline" if trial.level == attempt.design.baseline_level else "")
    outcome = say("rows.unfinished") if trial.outcome is None else name_of("outcome", trial.outcome)
    if trial.role != "measured":
        outcome = say("rows.warmup", outcome=outcome)
    last = attempt.measured_requests[-1] if attempt.measured_requests else None
    left = unexplained_bytes(attempt.result, attempt.prediction)
    memory = (f"memory_{moment}_bytes" for moment in ("loaded", "peak", "after", "released"))
    return row(
        link.text,
        attempt.design.name,
        level_text(trial.level),
        outcome,
        str(trial.repeat + 1),
        number_cell(trial.prompt_tokens_asked),
        number_cell(last.prompt_tokens_server if last else None),
        number_cell(last.cached_tokens if last else None),
        number_cell(last.output_tokens_limit if last else None),
        number_cell(last.output_tokens if last else None),
        seconds_cell(metrics.ttft_s),
        seconds_cell(metrics.tpot_s),
        seconds_cell(metrics.completion_s),
        *(mib_cell(getattr(metrics, name)) for name in memory),
        mib_cell(left, 2, signed=True),
        kind=kind,
        anchor=link.anchor,
    )


def json_lines(attempts: Sequence[Attempt]) -> str:
    """The rows as JSON Lines, with the columns of ``kvscope export``. The first line, ``common``, holds the columns
    that are equal in every row; they are left out of the others to keep the page small."""
    rows: list[Mapping[str, Any]] = [table_row(a.result, a.design, a.run, a.prediction) for a in attempts]
    if not rows:
        return ""
    common = {k: v for k, v in rows[0].items() if len(rows) > 1 and all(r[k] == v for r in rows)}
    lines: list[Mapping[str, Any]] = [{"schema": "kvscope.rows/1", "common": common}]
    lines += [{k: _short(v) for k, v in r.items() if k not in common} for r in rows]
    return "".join(strict_json(line, separators=(",", ":")) + "\n" for line in lines)


def _short(value: Any) -> Any:
    """Times to a microsecond: their sixteenth digit is noise, and a third of the page. Long text ends early, in the
    same words whatever the page's language: data are not translated."""
    if isinstance(value, float):
        return round(value, 6)
    if not isinstance(value, str):
        return value
    with speaking(ENGLISH):
        return clipped(value)
