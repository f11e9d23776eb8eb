"""A conversation turn by turn: as lines of a terminal, and as a table of the page."""

from collections.abc import Sequence

from kvscope.analysis.turns import Turn, TurnTable
from kvscope.report.blocks import Table, columns, row
from kvscope.report.numbers import seconds_cell
from kvscope.report.terminal_table import aligned
from kvscope.report.terminal_text import wrapped
from kvscope.report.words import name_of, say
from kvscope.units import format_number

_HEADS = ("turn", "prompt", "reused", "computed", "ttft", "conversations", "failed")


def turn_lines(tables: Sequence[TurnTable]) -> list[str]:
    """A line for each turn, under a title; nothing where no conversation was played."""
    lines = []
    for table in tables:
        rows = [_cells(turn) for turn in table.turns]
        heads = [say(f"turns.{name}") for name in _HEADS]
        if not any(turn.failed for turn in table.turns):
            rows, heads = [cells[:-1] for cells in rows], heads[:-1]
        lines += [*wrapped(f"{_title(table)}:"), *aligned([heads, *rows], left=0, at_end=len(heads) == len(_HEADS))]
    return lines


def turn_block(table: TurnTable) -> Table:
    """The same as a table of the page."""
    return Table(
        caption=_title(table),
        columns=columns(*(say(f"turns.{name}") for name in _HEADS)),
        rows=tuple(row(*_cells(turn)) for turn in table.turns),
    )


def _title(table: TurnTable) -> str:
    parts = [say("turns.title")]
    if table.reuse_prefix is not None:
        parts.append(say("turns.with_reuse" if table.reuse_prefix else "turns.without_reuse"))
    parts += [f"{name_of('factor', name)} = {level}" for name, level in table.levels.items()]
    return ", ".join(parts) + f" ({say('turns.medians')})"


def _cells(turn: Turn) -> list[str]:
    counts = (turn.prompt_tokens, turn.cached_tokens, turn.computed_tokens)
    failed = ", ".join(f"{name_of('outcome', outcome)} × {number}" for outcome, number in turn.failed.items())
    return [str(turn.turn), *map(_count, counts), seconds_cell(turn.ttft_s), str(turn.conversations), failed]


def _count(value: float | None) -> str:
    """A count; a median that lies between two has its half."""
    return say("unknown") if value is None else format_number(value, 0 if value == round(value) else 1)
