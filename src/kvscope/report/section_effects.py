"""5. What did one change do? Every design with its levels, its differences with their intervals, and what it says."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvscope.analysis.answer_designs import RETRIEVAL, is_of_answers, is_of_tasks
from kvscope.analysis.finding import Finding
from kvscope.analysis.levels import LevelRow, at_level
from kvscope.analysis.study import DesignStudy, Study
from kvscope.language import shown
from kvscope.record.held import held_of
from kvscope.report.blocks import Block, Bullets, Column, Link, Paragraph, Row, Section, Table, row
from kvscope.report.charts_effects import effects_chart
from kvscope.report.claims import claim, level_text
from kvscope.report.doubts_text import is_limited
from kvscope.report.effect_cells import effect_cells, shown_metrics
from kvscope.report.effects_text import drift_text, effects_lead, is_time, limited_behind, until_text
from kvscope.report.held_text import held_text
from kvscope.report.left_out_text import not_begun_text
from kvscope.report.links import rows_behind
from kvscope.report.numbers import difference_cell, estimate_cell, mib_cell, seconds_cell
from kvscope.report.quality_words import is_of_quality
from kvscope.report.words import name_of, say

# Metrics of the table of levels, with how a value is written.
_TIMES = ("ttft_s", "tpot_s", "completion_s")
_MEMORY = ("memory_loaded_bytes", "memory_peak_bytes")
# Of a record whose designs have more levels than this so many designs are shown whole, or the last of each name.
MOST_LEVELS = 60
MOST_WHOLE = 6
# Designs that have charts in a section of their own.
CHARTED_ELSEWHERE = ("context_limit", "input_length", "output_length", "turns", "release")


def changes_section(study: Study, anchors: Mapping[str, Link]) -> Section:
    """Section 5: each design with its tables, what it says of it, what it held fixed and what could mislead."""
    blocks: list[Block] = [Paragraph(text=say("changes.lead"), kind="lead")]
    whole = _whole(study.designs)
    if len(whole) < len(study.designs):
        counts = {"shown": len(whole), "total": len(study.designs)}
        text = say("changes.summarised", **counts, file=shlex.quote(study.record_name))
        blocks.append(Paragraph(text=text, kind="doubt"))
    said: dict[str | None, list[Finding]] = {}
    for finding in study.findings:
        said.setdefault(finding.design_id, []).append(finding)
    missing = not_begun_text(study)
    blocks += [] if missing is None else [Paragraph(text=missing, kind="doubt")]
    for number, design in enumerate(study.designs, start=1):
        if not design.attempts:
            continue
        own = said.get(design.design.design_id, [])
        is_whole = design.design.design_id in whole
        told: list[Block] = [
            claim(finding, anchors)
            for finding in own
            if not is_of_quality(finding) and (is_whole or finding.is_contradiction)
        ]
        if any(map(is_of_quality, own)):  # a section of its own tells those
            told.append(Paragraph(text=say("changes.quality_below")))
        if is_whole:
            blocks += _design_blocks(design, told, f"effects-{number}", anchors)
        else:
            blocks += [*_levels(design, anchors), *told]
    return Section(slug="changes", title=say("title.changes"), blocks=tuple(blocks))


def _design_blocks(study: DesignStudy, said: Sequence[Block], slug: str, anchors: Mapping[str, Link]) -> list[Block]:
    design = study.design
    blocks = [*_levels(study, anchors), *effect_blocks(study, slug), *said]
    items = [say("changes.held", held=held_text(held_of(design)))]
    items += [say("changes.holds", text=shown(text)) for text in design.holds]
    if any(level.num_measured == 1 for level in study.levels):
        items.append(say("changes.one_repeat"))
    items += [say("changes.confounder", text=shown(text)) for text in design.confounders]
    blocks.append(Bullets(items=tuple(items)))
    return blocks


def _whole(designs: Sequence[DesignStudy]) -> set[str]:
    """Ids of the designs that are shown with all their differences and findings: all, or, of too many, the last of each
    name, and the newest up to MOST_WHOLE."""
    if sum(len(each.levels) for each in designs) <= MOST_LEVELS:
        return {each.design.design_id for each in designs}
    last = {each.design.name: each.design.design_id for each in designs}
    newest = [each.design.design_id for each in reversed(designs) if each.design.design_id not in last.values()]
    return {*last.values(), *newest[: max(0, MOST_WHOLE - len(last))]}


def _levels(study: DesignStudy, anchors: Mapping[str, Link]) -> list[Block]:
    """Each level with its times and memory, and their differences from the baseline."""
    design = study.design
    blocks: list[Block] = []
    if design.is_grid:
        blocks.append(Paragraph(text=say("changes.grid", factor=design.factor), kind="doubt"))
    # Of one number for the first question, which reads everything, and later ones nothing can be said.
    times = () if design.name == RETRIEVAL else _TIMES
    titles = [Column(title=name_of("factor", design.factor))]
    titles += [Column(title=say(f"col.{name}"), is_number=True) for name in ("repeats", "failed", *times, *_MEMORY)]
    blocks.append(
        Table(
            caption=say("caption.design", question=shown(design.question), name=design.name),
            columns=tuple(titles),
            rows=tuple(
                replace(
                    _level_row(level, times, is_compared=not is_of_tasks(design)),
                    evidence=rows_behind(at_level(study.attempts, level.level), anchors),
                )
                for level in study.levels
            ),
        )
    )
    return blocks


def effect_blocks(study: DesignStudy, slug: str) -> list[Block]:
    """What changed, and by how much: every difference with its interval, drawn where no other section draws it; whether
    repeating was enough, and whether the machine changed under way. Nothing where no level has a pair."""
    table = _effects_table(study)
    if table is None or is_of_answers(study.design):  # one number for the first question and later ones tells nothing
        return []
    blocks: list[Block] = []
    chart = None
    if study.design.name not in CHARTED_ELSEWHERE:
        chart = effects_chart(slug, study.design, study.levels, table)
    blocks.append(table if chart is None else chart)
    until, drift = until_text(study.design, study.attempts), drift_text(study.design, study.attempts)
    measured = [attempt for attempt in study.attempts if attempt.is_measured]
    limited = sum(map(is_limited, measured))
    if limited:
        blocks.append(Paragraph(text=say("effects.limited_all", count=limited, total=len(measured)), kind="doubt"))
    blocks += [Paragraph(text=until)] if until else []
    blocks += [Paragraph(text=drift, kind="doubt")] if drift else []
    return blocks


def _effects_table(study: DesignStudy) -> Table | None:
    changed = [level for level in study.levels if not level.is_baseline]
    rows = [
        row(level_text(level.level), c.what, c.baseline, c.difference, c.interval, c.share, c.pairs, c.verdict + mark)
        for level in changed
        for is_marked in (limited_behind(study.design, level, study.attempts)[0] > 0,)
        for name in shown_metrics([level])
        for c in (effect_cells(level.effects[name]),)
        for mark in ("*" if is_marked and is_time(name) else "",)
    ]
    if not rows:
        return None
    heads = ("level_changed", "what", "at_baseline", "difference", "interval", "share", "pairs", "seen_difference")
    numbers = ("at_baseline", "difference", "share", "pairs")
    return Table(
        caption=say(
            "effects.caption", name=study.design.name, lead=effects_lead(changed, num_base=study.levels[0].num_measured)
        ),
        columns=tuple(Column(title=say(f"col.{head}"), is_number=head in numbers) for head in heads),
        rows=tuple(rows),
        summary=say("effects.summary"),
    )


def _level_row(level: LevelRow, times: Sequence[str], *, is_compared: bool) -> Row:
    label = level_text(level.level)
    if level.is_baseline and is_compared:
        label = say("changes.baseline", level=label)
    cells = [_change(level, name, is_compared=is_compared) for name in (*times, *_MEMORY)]
    kind = "baseline" if level.is_baseline and is_compared else ""
    return row(label, str(level.num_measured), str(level.num_failed), *cells, kind=kind)


def _change(level: LevelRow, name: str, *, is_compared: bool) -> str:
    """The mean with its interval; for a changed condition its difference from the baseline beside it, where levels do
    the same work."""

    def write(value: float | None) -> str:
        return mib_cell(value) if name in _MEMORY else seconds_cell(value)

    mean = level.means[name]
    if level.num_measured == 0:
        return say("none")
    if level.is_baseline or not is_compared or mean.value is None:
        return estimate_cell(mean, write)
    effect = level.effects[name]
    if effect.difference.value is None:
        return write(mean.value)
    difference = difference_cell(effect.difference, write, is_seen=effect.is_seen)
    return say("changes.changed", value=write(mean.value), difference=difference)
