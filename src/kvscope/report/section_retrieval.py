"""Whole document against retrieval on the page: the ways side by side, and which facts each lost."""

from kvscope.analysis.fit import Estimate
from kvscope.analysis.retrieval_panel import Lost, RetrievalPanel, WayRow, retrieval_panel
from kvscope.analysis.study import DesignStudy
from kvscope.record.rows import is_left_out
from kvscope.report.blocks import Block, Column, Paragraph, Row, Table, row
from kvscope.report.numbers import mib_cell
from kvscope.report.quality_words import right_text
from kvscope.report.retrieval_text import evidence_head, failure_lines, legend
from kvscope.report.words import name_of, say
from kvscope.units import format_count, format_seconds

MOST_TEXT = 160
# Facts that are shown of each way.
SHOWN_FACTS = 20
_HEADS = ("way", "right", "interval", "evidence", "read", "wait", "answer_s", "peak", "failures")
_NUMBERS = ("right", "interval", "evidence", "read", "wait", "answer_s", "peak")


def retrieval_blocks(design: DesignStudy) -> list[Block]:
    """Nothing for a design that varies something else."""
    panel = retrieval_panel(design.design, design.attempts)
    if panel is None:
        return []
    blocks: list[Block] = [_ways(panel), *(Paragraph(text=text) for text in (legend(panel), *failure_lines(panel)))]
    facts = [(each.level, lost) for each in panel.rows for lost in each.lost[:SHOWN_FACTS]]
    if facts:
        blocks.append(_facts(facts))
    if any(is_left_out(text) for _, lost in facts for text in (lost.expected, lost.answer)):
        blocks.append(Paragraph(text=say("retrieval.text_left_out")))
    return blocks


def _ways(panel: RetrievalPanel) -> Table:
    titles = {head: head for head in _HEADS} | {"evidence": evidence_head(panel.rows)}
    columns = tuple(
        Column(title=say(f"retrieval_col.{title}"), is_number=head in _NUMBERS) for head, title in titles.items()
    )
    return Table(
        caption=say("retrieval.caption"), columns=columns, rows=tuple(_way(each, panel) for each in panel.rows)
    )


def _way(each: WayRow, panel: RetrievalPanel) -> Row:
    kind = "baseline" if each.level == panel.design.baseline_level else ""
    if not each.num_trials:
        return row(each.level, *(say("none") for _ in _HEADS[1:-1]), _cut(each.why_not), kind="failed")
    failures = ", ".join(
        say("retrieval.reason", count=count, failure=name_of("failure", name)) for name, count in each.failures.items()
    )
    return row(
        each.level,
        f"{right_text(each.num_right)}/{each.num_scored}",
        _share(each.share),
        f"{each.with_evidence}/{each.evidence_known}",
        f"{_count(each.first_computed)} + {_count(each.later_computed)}",
        f"{_seconds(each.first_s)} + {_seconds(each.later_s)}",
        _seconds(each.answer_s),
        mib_cell(each.peak_bytes),
        failures or say("none"),
        kind=kind,
    )


def _facts(facts: list[tuple[str, Lost]]) -> Table:
    heads = ("way", "question", "expected", "answer", "failure")
    made = [
        row(level, _cut(each.question), _cut(each.expected), _cut(each.answer), name_of("failure", each.failure or ""))
        for level, each in facts
    ]
    return Table(
        caption=say("retrieval.facts_caption"),
        columns=tuple(Column(title=say(f"retrieval_col.{head}")) for head in heads),
        rows=tuple(made),
        summary=say("retrieval.facts_summary", count=len(facts)),
    )


def _share(found: Estimate) -> str:
    if found.low is None or found.high is None:
        return say("none")
    return say("quality.percents", low=f"{100 * found.low:.0f}", high=f"{100 * found.high:.0f}")


def _count(value: float | None) -> str:
    return say("unknown") if value is None else format_count(round(value))


def _seconds(found: Estimate) -> str:
    return say("unknown") if found.value is None else format_seconds(found.value)


def _cut(text: str | None) -> str:
    if not text:
        return say("none")
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} …"
