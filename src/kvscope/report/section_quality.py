"""7. Does it still answer? Memory, time and quality side by side, the answers behind it, what was scored, and the whole
document against retrieval. Questions, answers and names of documents are text that others wrote: only ever cells."""

from collections.abc import Mapping, Sequence

from kvscope.analysis.levels import at_level
from kvscope.analysis.quality_effects import QualityEffects, quality_effects
from kvscope.analysis.quality_panel import MARKERS
from kvscope.analysis.study import DesignStudy, Study
from kvscope.record.rows import Json
from kvscope.report.blocks import Block, Bullets, Column, Link, Paragraph, Row, Section, Table, row
from kvscope.report.charts_quality import quality_chart
from kvscope.report.claims import claim
from kvscope.report.links import rows_behind
from kvscope.report.quality_cells import (
    FIDELITY_HEADS,
    GAIN_HEADS,
    PANEL_HEADS,
    SideTable,
    fidelity_rows,
    floors_text,
    gain_rows,
    gates_text,
    is_in_tables,
    other_baselines_text,
    panel_rows,
    short_level,
    side_table,
    tasks_text,
    thirds_text,
    twins_text,
    useful_text,
)
from kvscope.report.quality_words import TASK_FACTOR, is_of_quality, readings_text, task_text
from kvscope.report.section_retrieval import retrieval_blocks
from kvscope.report.words import name_of, say

# Wrong answers that are shown of a design; all of them are in the record.
SHOWN_ANSWERS = 20
MOST_TEXT = 160
RETRIEVAL = "retrieval"


def quality_section(study: Study, anchors: Mapping[str, Link]) -> Section:
    """Section 7; says so where nothing was asked, and where nothing came of what was asked."""
    found = {design.design.design_id: quality_effects(design.design, design.attempts) for design in study.designs}
    if not any(found.values()):
        return Section(
            slug="quality", title=say("title.quality"), blocks=(Paragraph(text=_nothing(study), kind="lead"),)
        )
    shown = [each for each in found.values() if each is not None]
    of_retrieval = {each.design.design_id for each in study.designs if each.design.name == RETRIEVAL}
    blocks: list[Block] = [
        Paragraph(text=lead([each for each in shown if each.design_id not in of_retrieval]), kind="lead")
    ]
    for number, design in enumerate(study.designs, start=1):
        effects = found[design.design.design_id]
        if effects is not None:
            blocks += _design(study, design, effects, anchors, f"quality-{number}")
    items = [say(f"quality_definition.{name}") for name in _definitions(shown)]
    blocks += [Paragraph(text=say("quality.definitions")), Bullets(items=tuple(items))]
    return Section(slug="quality", title=say("title.quality"), blocks=tuple(blocks))


def _nothing(study: Study) -> str:
    asked = [d for d in study.designs if TASK_FACTOR in d.design.held or TASK_FACTOR in d.design.factor]
    if not asked:
        return say("quality.not_measured")
    attempts = [each for design in asked for each in design.attempts]
    return say("quality.asked_in_vain", failed=sum(each.is_failure for each in attempts), total=len(attempts))


def lead(found: Sequence[QualityEffects]) -> str:
    """How many comparisons say what; without any, how many tasks can be judged."""
    told = [each.judged.verdict for effects in found for each in effects.panel.comparisons]
    scored = [each.verdict for effects in found if effects.fidelity for each in effects.fidelity.levels]
    gates = [cell.gate for effects in found for cell in effects.panel.cells]
    parts = [] if found else [say("quality.lead_retrieval")]
    if told:
        counts = [(name, told.count(name)) for name in ("loss", "gain", "no_loss_beyond", "cannot_tell")]
        named = tuple(say(f"quality_lead.{name}", count=count) for name, count in counts if count)
        parts.append(say("quality.lead_compared", counts=named))
    elif gates:
        parts.append(say("quality.lead_asked", total=len(gates), judged=gates.count("measured")))
    if len(scored) > 1:
        levels = len(scored) - scored.count("reference")
        parts.append(say("quality.lead_scored", total=levels, loss=scored.count("loss")))
    return " ".join(parts) or say("quality.lead_only_scored")


def _definitions(found: Sequence[QualityEffects]) -> list[str]:
    names = ["right", "chance", "useful", "cannot_tell"] if any(each.panel.cells for each in found) else []
    names += ["fidelity", "perplexity"] if any(each.fidelity for each in found) else []
    names += ["copy_gain"] if any(level.gains for each in found for level in each.levels) else []
    return [*names, "apart"]


def _design(
    study: Study, design: DesignStudy, effects: QualityEffects, anchors: Mapping[str, Link], slug: str
) -> list[Block]:
    said = [f for f in study.findings if f.design_id == design.design.design_id and is_of_quality(f)]
    blocks: list[Block] = [claim(finding, anchors) for finding in said if not is_in_tables(finding)]
    if design.design.name == RETRIEVAL:
        return [*blocks, *retrieval_blocks(design)]
    name = design.design.name
    rows = _Rows(design, anchors)
    side = side_table(effects)
    if side is not None:
        table = _side(side, effects, rows, name)
        chart = quality_chart(slug, effects, table)
        blocks += [table if chart is None else chart, Paragraph(text=say("quality.side_legend"))]
    if effects.panel.cells:
        blocks.append(_panel(effects, rows, name))
        legend = (tasks_text(effects.panel), gates_text(effects.panel), twins_text(effects.panel))
        blocks += [Paragraph(text=text) for text in legend if text]
    if effects.fidelity is not None:
        cells = [(each.level, texts) for each, texts in fidelity_rows(effects.fidelity)]
        blocks += [_table("fidelity", FIDELITY_HEADS, cells, rows, name)]
        blocks += [Paragraph(text=f"{say('quality.scored_legend')} {floors_text(effects.fidelity)}")]
    others = other_baselines_text(effects)
    blocks += [Paragraph(text=others)] if others else []
    gains = [(each.level, texts) for each, texts in gain_rows(effects)]
    blocks += [_table("gain", GAIN_HEADS, gains, rows, name)] if gains else []
    return [*blocks, *_wrong_answers(design, anchors)]


class _Rows:
    """Which rows of the page a level's answers are in."""

    def __init__(self, design: DesignStudy, anchors: Mapping[str, Link]) -> None:
        self._design, self._anchors = design, anchors

    def of(self, level: Json) -> str:
        return ", ".join(link.text for link in self.links(level)) or say("none")

    def links(self, level: Json) -> tuple[Link, ...]:
        """The same as links."""
        here = [a for a in at_level(self._design.attempts, level) if a.is_measured and a.result.answers]
        return rows_behind(here, self._anchors)


def _side(side: SideTable, effects: QualityEffects, rows: _Rows, name: str) -> Table:
    heads = [say("quality_col.level"), *side.heads, *([say("quality_col.beaten")] if side.is_choice else [])]
    heads.append(say("quality_col.rows"))
    made: list[Row] = []
    for level, each in zip(effects.levels, side.rows, strict=True):
        cells = [f"{cell.value}\n({cell.interval})" if cell.interval else cell.value for cell in each.cells]
        beaten = [each.beaten] if side.is_choice else []
        kind = "baseline" if each.is_baseline else ""
        label = say("changes.baseline", level=each.level) if each.is_baseline else each.level
        made.append(row(label, *cells, *beaten, rows.of(level.level), kind=kind, evidence=rows.links(level.level)))
    numbers = range(1, len(side.heads) + 1)
    columns = tuple(Column(title=head, is_number=index in numbers) for index, head in enumerate(heads))
    return Table(caption=say("quality.side_caption", name=name), columns=columns, rows=tuple(made))


def _panel(effects: QualityEffects, rows: _Rows, name: str) -> Table:
    heads = (*PANEL_HEADS, "twin_named", "twin_refused", "refused", "useful", "thirds", "left_out", "rows")
    made = []
    for cell, texts in panel_rows(effects.panel):
        left = readings_text(cell.left_out) or say("none")
        kind = "baseline" if cell.is_baseline else ""
        counts = (f"{cell.twin_named}/{cell.num_twins}", f"{cell.twin_refused}/{cell.num_twins}", str(cell.refused))
        more = (useful_text(cell), thirds_text(cell), left, rows.of(cell.level))
        made.append(row(*texts, *counts, *more, kind=kind, evidence=rows.links(cell.level)))
    numbers = ("right", "interval", "chance", "twin", "twin_named", "twin_refused", "refused", "useful")
    columns = tuple(Column(title=say(f"quality_col.{head}"), is_number=head in numbers) for head in heads)
    return Table(caption=say("quality.panel_caption", name=name), columns=columns, rows=tuple(made))


def _table(
    kind: str, heads: Sequence[str], cells: Sequence[tuple[Json, Sequence[str]]], rows: _Rows, name: str
) -> Table:
    texts = ("task", "level", "verdict", "rows")
    columns = tuple(Column(title=say(f"quality_col.{h}"), is_number=h not in texts) for h in (*heads, "rows"))
    made = tuple(row(*each, rows.of(level), evidence=rows.links(level)) for level, each in cells)
    return Table(caption=say(f"quality.{kind}_caption", name=name), columns=columns, rows=made)


def _wrong_answers(design: DesignStudy, anchors: Mapping[str, Link]) -> list[Block]:
    """The first answers that were not right, folded: what was expected, and what came."""
    wrong = [
        (attempt, answer)
        for attempt in design.attempts
        if attempt.is_measured
        for answer in attempt.result.answers
        if answer.reading not in ("right", "scored") and not answer.is_twin and answer.task != MARKERS
    ]
    if not wrong:
        return []
    heads = ("item", "level", "task", "expected", "answer", "reading", "rows")
    made = [
        row(
            _cut(answer.item),
            short_level(attempt.trial.level),
            task_text(answer.task, answer.language),
            _cut(answer.expected),
            _cut(answer.answer),
            name_of("reading", answer.reading),
            anchors[attempt.key].text if attempt.key in anchors else say("none"),
        )
        for attempt, answer in wrong[:SHOWN_ANSWERS]
    ]
    return [
        Table(
            caption=say("quality.wrong_caption", name=design.design.name),
            columns=tuple(Column(title=say(f"quality_col.{head}")) for head in heads),
            rows=tuple(made),
            summary=say("quality.wrong_summary", shown=len(made), total=len(wrong)),
        )
    ]


def _cut(text: str | None) -> str:
    if not text:
        return say("none")
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} …"
