"""4. Why does it slow down? The first token and the later ones apart."""

from collections.abc import Mapping

from kvscope.analysis.study import Study
from kvscope.analysis.turns import turn_tables
from kvscope.report.blocks import Block, Link, Paragraph, Section, Table, columns, row
from kvscope.report.charts_time import completion_chart, tpot_chart, ttft_chart
from kvscope.report.claims import claims
from kvscope.report.claims import level_text as level_text
from kvscope.report.links import failed_levels
from kvscope.report.numbers import number_cell
from kvscope.report.turns import turn_block
from kvscope.report.words import say


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
        blocks.append(Paragraph(text=say("time.elsewhere" if _has_times(study) else "time.not_measured")))
    return Section(slug="time", title=say("title.time"), blocks=tuple(blocks))


def _has_times(study: Study) -> bool:
    """Whether any design measured times: of one that varies neither length, they stand with its changes."""
    return any(a.is_measured and a.metrics.ttft_s is not None for a in study.attempts)


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
