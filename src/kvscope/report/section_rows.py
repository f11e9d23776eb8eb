"""10. Every row. 11. Definitions and sources."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.attribute import unexplained_bytes
from kvscope.analysis.study import Study
from kvscope.analysis.table import table_row
from kvscope.record.metrics import DEFINITIONS
from kvscope.record.strict_json import strict_json
from kvscope.report.blocks import Block, Column, Download, Fold, Link, Paragraph, Row, Section, Table, row
from kvscope.report.numbers import mib_cell, number_cell, seconds_cell
from kvscope.report.section_time import level_text
from kvscope.report.section_trust import clipped
from kvscope.report.words import name_of, say

# Above this many attempts the page shows the first ones and names the record for the rest.
MOST_ROWS = 5000
_TEXT = ("design", "level", "outcome")
_NUMBERS = (
    "repeat", "prompt_asked", "prompt_server", "cached", "limit", "output", "ttft_s", "tpot_s", "completion_s",
    "memory_loaded_bytes", "memory_peak_bytes", "memory_after_bytes", "memory_released_bytes", "unexplained",
)  # fmt: skip


def rows_section(study: Study, anchors: Mapping[str, Link]) -> Section:
    """Section 10."""
    attempts = study.attempts[:MOST_ROWS]
    titles = [Column(title=say("col.row"), is_number=True)]
    titles += [Column(title=say(f"col.{name}")) for name in _TEXT]
    titles += [Column(title=say(f"col.{name}"), is_number=True) for name in _NUMBERS]
    blocks: list[Block] = [Paragraph(text=say("rows.lead", total=len(study.attempts)), kind="lead")]
    if len(study.attempts) > MOST_ROWS:
        blocks.append(Paragraph(text=say("rows.cut", shown=MOST_ROWS, total=len(study.attempts)), kind="doubt"))
    blocks.append(
        Table(
            caption=say("caption.rows"),
            columns=tuple(titles),
            rows=tuple(_attempt_row(attempt, anchors[attempt.key]) for attempt in attempts),
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
    """Times to a microsecond: their sixteenth digit is noise, and a third of the page."""
    if isinstance(value, float):
        return round(value, 6)
    return clipped(value) if isinstance(value, str) else value


def sources_section(study: Study) -> Section:
    """Section 11."""
    blocks: list[Block] = [_facts(study), _designs(study), _definitions()]
    blocks += [_machine(study)] if study.machine else []
    blocks += [Fold(summary=say("summary.commands"), text="\n".join(dict.fromkeys(r.command for r in study.runs)))]
    unique = dict.fromkeys(r.line for a in study.attempts[:1] for r in a.result.reported)
    main = study.main.attempt.result.reported if study.main is not None else ()
    lines = dict.fromkeys([r.line for r in main if r.line]) or unique
    if lines:
        blocks.append(Fold(summary=say("summary.engine_lines"), text="\n".join(lines)))
    return Section(slug="sources", title=say("title.sources"), blocks=tuple(blocks))


def _facts(study: Study) -> Table:
    model = (study.prediction or {}).get("model") or {}
    rules = ((study.prediction or {}).get("scenario") or {}).get("engine_version")
    facts = (
        ("model", study.model_name),
        ("model_source", study.model_source),
        ("fingerprint", study.model_fingerprint),
        ("architecture", str(model.get("architecture") or say("unknown"))),
        ("parameters", number_cell(model.get("parameters"))),
        ("trained_context", number_cell(model.get("trained_context_tokens"))),
        ("engine", study.engine),
        ("engine_version", study.engine_version),
        ("engine_build", study.engine_build),
        ("rules", str(rules or say("unknown"))),
        ("kvscope_version", ", ".join(dict.fromkeys(r.kvscope_version for r in study.runs)) or say("unknown")),
        ("machine_id", study.machine_id),
        ("started", ", ".join(r.started_at for r in study.runs) or say("unknown")),
    )
    return Table(
        caption=say("caption.facts"),
        columns=(Column(title=say("col.fact")), Column(title=say("col.value"))),
        rows=tuple(row(say(f"fact.{name}"), clipped(value)) for name, value in facts),
    )


def _designs(study: Study) -> Table:
    names = ("design", "factor", "levels", "repeats", "seed", "settings")
    return Table(
        caption=say("caption.designs"),
        columns=tuple(Column(title=say(f"col.{name}"), is_number=name in ("repeats", "seed")) for name in names),
        rows=tuple(
            row(
                d.design.name,
                name_of("factor", d.design.factor),
                ", ".join(level_text(level) for level in d.design.levels),
                str(d.design.repeats),
                str(d.design.seed),
                level_text(d.design.settings),
            )
            for d in study.designs
        ),
        summary=say("summary.designs"),
    )


def _definitions() -> Table:
    return Table(
        caption=say("caption.definitions"),
        columns=(Column(title=say("col.term")), Column(title=say("col.meaning"))),
        rows=tuple(row(name_of("metric", name), text) for name, text in DEFINITIONS.items()),
        summary=say("summary.definitions"),
    )


def _machine(study: Study) -> Table:
    return Table(
        caption=say("caption.machine"),
        columns=(Column(title=say("col.fact")), Column(title=say("col.value"))),
        rows=tuple(
            row(name_of("machine", str(name)), clipped(_machine_value(str(name), value)))
            for name, value in study.machine.items()
        ),
        summary=say("summary.machine"),
    )


def _machine_value(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or say("none")
    if value is None:
        return say("none")
    if name in ("memory_total_bytes", "swap_total_bytes", "memory_limit_bytes"):
        return f"{mib_cell(value)} MiB"
    return level_text(value)
