"""4. Why does it slow down? The first token and the later ones apart. 5. What did one change do?"""

from collections.abc import Mapping, Sequence

from kvscope.analysis.fit import Estimate
from kvscope.analysis.levels import LevelRow
from kvscope.analysis.study import DesignStudy, Study
from kvscope.analysis.turns import turn_tables
from kvscope.report.blocks import Block, Bullets, Column, Link, Paragraph, Row, Section, Table, columns, row
from kvscope.report.charts_time import completion_chart, tpot_chart, ttft_chart
from kvscope.report.claims import claim, claims
from kvscope.report.claims import level_text as level_text
from kvscope.report.numbers import difference_cell, estimate_cell, mib_cell, number_cell, seconds_cell
from kvscope.report.section_growth import failed_levels
from kvscope.report.turns import turn_block
from kvscope.report.words import name_of, say

# Metrics of the table of changes, with how a value is written.
_TIMES = ("ttft_s", "tpot_s", "completion_s")
_MEMORY = ("memory_loaded_bytes", "memory_peak_bytes")


def time_section(study: Study, anchors: Mapping[str, Link]) -> Section:
    """Section 4."""
    blocks: list[Block] = [Paragraph(text=say("time.lead"), kind="lead")]
    failed_inputs = failed_levels(study, "prompt_tokens")
    blocks += claims(study, anchors, "ttft_")
    if study.ttft is not None:
        blocks.append(ttft_chart(study.ttft, failed_inputs))
    blocks += claims(study, anchors, "tpot_")
    if study.tpot is not None:
        blocks.append(tpot_chart(study.tpot, failed_inputs))
    blocks += claims(study, anchors, "output_time", "stopped_early")
    if study.completion is not None:
        blocks.append(completion_chart(study.completion, failed_levels(study, "output_tokens")))
        blocks.append(_limits(study))
    turns = [turn_block(table) for design in study.designs for table in turn_tables(design.attempts)]
    blocks += turns
    if study.ttft is None and study.completion is None and not turns:
        blocks.append(Paragraph(text=say("time.not_measured")))
    return Section(slug="time", title=say("title.time"), blocks=tuple(blocks))


def _limits(study: Study) -> Table:
    """The limit set is not the length produced."""
    return Table(
        caption=say("caption.limits"),
        columns=columns(say("col.limit"), say("col.produced"), say("col.answers")),
        rows=tuple(
            row(
                number_cell(limit.limit_tokens),
                ", ".join(number_cell(n) for n in sorted(set(limit.produced_tokens))),
                str(len(limit.produced_tokens)),
            )
            for limit in study.limits
        ),
        summary=say("summary.limits"),
    )


def changes_section(study: Study, anchors: Mapping[str, Link]) -> Section:
    """Section 5: each design with its table, what it says of it, what it held fixed and what could mislead."""
    blocks: list[Block] = [Paragraph(text=say("changes.lead"), kind="lead")]
    for design in study.designs:
        said = [finding for finding in study.findings if finding.design_id == design.design.design_id]
        blocks += _design_blocks(design, [claim(finding, anchors) for finding in said])
    return Section(slug="changes", title=say("title.changes"), blocks=tuple(blocks))


def _design_blocks(study: DesignStudy, said: Sequence[Block]) -> list[Block]:
    design = study.design
    blocks: list[Block] = []
    if design.is_grid:
        blocks.append(Paragraph(text=say("changes.grid", factor=design.factor), kind="doubt"))
    titles = [Column(title=name_of("factor", design.factor))]
    titles += [Column(title=say(f"col.{name}"), is_number=True) for name in ("repeats", "failed", *_TIMES, *_MEMORY)]
    blocks.append(
        Table(
            caption=say("caption.design", question=design.question, name=design.name),
            columns=tuple(titles),
            rows=tuple(_level_row(level) for level in study.levels),
        )
    )
    blocks += said
    held = "; ".join(f"{name_of('factor', str(k))} = {level_text(v)}" for k, v in design.held.items())
    items = [say("changes.held", held=held or say("none"))]
    items += [say("changes.holds", text=text) for text in design.holds]
    if any(level.num_measured == 1 for level in study.levels):
        items.append(say("changes.one_repeat"))
    items += [say("changes.confounder", text=text) for text in design.confounders]
    blocks.append(Bullets(items=tuple(items)))
    return blocks


def _level_row(level: LevelRow) -> Row:
    label = level_text(level.level)
    if level.is_baseline:
        label = say("changes.baseline", level=label)
    cells = [_change(level, name) for name in (*_TIMES, *_MEMORY)]
    kind = "baseline" if level.is_baseline else ""
    return row(label, str(level.num_measured), str(level.num_failed), *cells, kind=kind)


def _change(level: LevelRow, name: str) -> str:
    """The mean with its interval; for a changed condition its difference from the baseline beside it."""

    def write(value: float | None) -> str:
        return mib_cell(value) if name in _MEMORY else seconds_cell(value)

    mean = level.means[name]
    if level.num_measured == 0:
        return say("none")
    if level.is_baseline or mean.value is None:
        return estimate_cell(mean, write)
    difference: Estimate = level.differences[name]
    if difference.value is None:
        return write(mean.value)
    return say("changes.changed", value=write(mean.value), difference=difference_cell(difference, write))
