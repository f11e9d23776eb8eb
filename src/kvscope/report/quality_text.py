"""What a design says of answers in a terminal, at most 80 columns wide: memory, time and quality side by side, then the
answers, the divergence and the copy gain that were measured. Verdicts in sentences are among the design's findings."""

import re
from collections.abc import Mapping, Sequence

from kvscope.analysis.attempts import load_attempts
from kvscope.analysis.quality_effects import QualityEffects, quality_effects
from kvscope.record.rows import DesignRow
from kvscope.record.store import Records
from kvscope.report.level_words import level_text
from kvscope.report.quality_cells import (
    FIDELITY_HEADS,
    GAIN_HEADS,
    PANEL_HEADS,
    SideTable,
    fidelity_rows,
    floors_text,
    gain_rows,
    gates_text,
    other_baselines_text,
    panel_rows,
    side_table,
    tasks_text,
    twins_text,
)
from kvscope.report.terminal_table import aligned, is_too_wide
from kvscope.report.terminal_text import cut_off, wrapped
from kvscope.report.words import NO_BREAK, say
from kvscope.units import format_count

# Designs whose levels are tasks: an answer's task is its level.
OF_TASKS = "quality"


def recorded_quality(records: Records, design_id: str) -> list[str]:
    """The lines of one design of a record; none where it has no answers."""
    design = next(row for row in records.designs() if row.design_id == design_id)
    effects = quality_effects(design, load_attempts(records, design, {run.run_id: run for run in records.runs()}))
    return [] if effects is None else quality_lines(design, effects)


def quality_lines(design: DesignRow, effects: QualityEffects) -> list[str]:
    """All tables that there is something for, each with a line that says how to read it."""
    base = level_text(design.baseline_level)
    lines: list[str] = []
    side = side_table(effects)
    if side is not None:
        lines += ["", *wrapped(say("quality.side_title", name=design.name, base=base)), *_side_lines(side)]
    if effects.panel.cells:
        lines += ["", *wrapped(say("quality.panel_title")), *_panel_lines(effects, design.name == OF_TASKS)]
        legend = (tasks_text(effects.panel), say("quality.panel_legend"), gates_text(effects.panel))
        lines += wrapped(" ".join(filter(None, legend))) + wrapped(twins_text(effects.panel))
    if effects.fidelity is not None:
        rows = [cells for _, cells in fidelity_rows(effects.fidelity)]
        lines += ["", *wrapped(say("quality.fidelity_title", base=base)), *aligned(_table(FIDELITY_HEADS, rows))]
        lines += wrapped(f"{say('quality.scored_legend')} {floors_text(effects.fidelity)}")
    gains = [cells for _, cells in gain_rows(effects)]
    if gains:
        lines += ["", *wrapped(say("quality.gain_title")), *_gain_lines(gains)]
    lines += wrapped(other_baselines_text(effects))
    if lines and isinstance(design.baseline_level, Mapping):
        lines = ["", *wrapped(say("quality.grid_levels", factors=tuple(design.baseline_level))), *lines]
    return lines


def _side_lines(side: SideTable) -> list[str]:
    """Two lines for each level: values, and their intervals below. Columns that find no room are named as left out."""
    count = next((n for n in range(len(side.heads), 2, -1) if not is_too_wide(_side(side, n))), 2)
    left = wrapped(say("quality.left_columns")) if count < len(side.heads) else []
    legend = wrapped(say("quality.side_legend")) if side.is_choice else []
    return [*aligned(_side(side, count), heads=2), *left, *legend]


def _side(side: SideTable, count: int) -> list[list[str]]:
    last = [say("quality_col.beaten")] if side.is_choice else []
    table = [
        ["", *_two_lines(side.heads[:count])[0], *last],
        ["", *_two_lines(side.heads[:count])[1], *["" for _ in last]],
    ]
    for row in side.rows:
        cells = row.cells[:count]
        table.append([cut_off(row.level, 18), *(cell.value for cell in cells), *([row.beaten] if last else [])])
        if any(cell.interval for cell in cells):
            table.append(["", *(cell.interval for cell in cells), *["" for _ in last]])
    return table


def _two_lines(heads: Sequence[str]) -> tuple[list[str], list[str]]:
    """Titles over two lines, broken before their unit."""
    parts = [re.split(r",? (?=\(M|\(G|\(m|\(s|points|nats)", head.replace(NO_BREAK, " "), maxsplit=1) for head in heads]
    return [part[0] for part in parts], [part[1] if len(part) > 1 else "" for part in parts]


def _panel_lines(effects: QualityEffects, is_of_tasks: bool) -> list[str]:
    """Without the column of levels where a level is a task, unless it is a length as well."""
    rows = []
    has_one_language = len({cell.language for cell in effects.panel.cells}) == 1
    for cell, cells in panel_rows(effects.panel):
        if has_one_language:  # the sentences name it
            cells[0] = cell.task
        if is_of_tasks:
            tokens = cell.document_tokens
            cells[1] = say("none") if tokens is None else format_count(round(tokens))
        rows.append(cells)
    heads = ("task", "tokens", *PANEL_HEADS[2:]) if is_of_tasks else PANEL_HEADS
    return aligned(_table(heads, rows), left=2)


def _gain_lines(rows: Sequence[list[str]]) -> list[str]:
    """Without the name of the task where it is one; without the two sides of a gain where there is no room for them."""
    first = 0 if len({cells[0] for cells in rows}) > 1 else 1
    left = 2 - first
    for dropped in ((), ("present", "absent")):
        kept = [index for index, head in enumerate(GAIN_HEADS) if index >= first and head not in dropped]
        heads = [GAIN_HEADS[index] for index in kept]
        table = _table(heads, [[cells[index] for index in kept] for cells in rows])
        if not is_too_wide(table):
            break
    return aligned(table, left)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    return [[say(f"quality_col.{name}") for name in heads], *rows]
