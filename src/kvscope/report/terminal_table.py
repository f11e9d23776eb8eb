"""Tables of a terminal: columns that line up on the screen in every language, at most 80 columns wide.

A table that is too wide has its heads and its names folded over several lines, and its names cut in the middle; one
that is too wide all the same is written as a list: each row a paragraph, each cell behind the head of its column.
"""

import re
from collections.abc import Sequence

from kvscope.report.terminal_text import (
    WIDTH,
    cut_off,
    display_width,
    padded,
    plain_blanks,
    printable,
    wrapped,
)
from kvscope.report.words import NO_BREAK, say

_GAPS = (2, 1)
_INDENT = "  "
# A column of text is never made narrower by folding.
_LEAST = 12
# A number and its unit stay together when a cell is folded.
_UNIT = re.compile(r"(?<=\d) (?=(?:[KMGT]?i?B|ms|s|%|×|ns|µs)(?![A-Za-z]))")


def aligned(
    rows: Sequence[Sequence[str]], left: int = 1, *, heads: int = 1, width: int = WIDTH, at_end: int = 0
) -> list[str]:
    """Lines of a table. The first ``left`` columns and the last ``at_end`` stand to the left, the others to the right;
    the first ``heads`` rows are its head. No line is wider than ``width``."""
    if not rows:
        return []
    cells = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    num = len(cells[0])
    is_left = [column < left or column >= num - at_end for column in range(num)]
    widths = [max(display_width(row[column]) for row in cells) for column in range(num)]
    for gap in _GAPS:
        room = width - len(_INDENT) - gap * (num - 1)
        narrow = widths if sum(widths) <= room else _narrowed(cells, heads, is_left, room)
        if narrow is not None:
            return [line for row in cells for line in _lines(row, narrow, is_left, gap)]
    return _stacked(cells, heads, width)


def is_too_wide(rows: Sequence[Sequence[str]], width: int = WIDTH) -> bool:
    """Whether a table of these cells takes more than ``width`` columns as it is."""
    widths = [max(display_width(plain_blanks(row[column])) for row in rows) for column in range(len(rows[0]))]
    return len(_INDENT) + sum(widths) + _GAPS[0] * (len(widths) - 1) > width


def _narrowed(cells: Sequence[Sequence[str]], heads: int, is_left: Sequence[bool], room: int) -> list[int] | None:
    """Widths that fit into ``room``: heads are folded first, then names, then other cells, at last names inside
    their words; of several columns the widest first. None where all of that is not enough."""
    columns = list(zip(*cells, strict=True))
    narrow = [max(map(display_width, column)) for column in columns]
    words = [max(map(_longest_word, column)) for column in columns]
    bodies = [max(map(display_width, column[heads:]), default=0) for column in columns]
    by_heads = [max(word, body) for word, body in zip(words, bodies, strict=True)]
    by_names = [word if at_left else each for word, each, at_left in zip(words, by_heads, is_left, strict=True)]
    broken = [min(word, _LEAST) if at_left else word for word, at_left in zip(words, is_left, strict=True)]
    for least in (by_heads, by_names, words, broken):
        while sum(narrow) > room:
            spare = [column for column in range(len(narrow)) if narrow[column] > least[column]]
            if not spare:
                break
            narrow[max(spare, key=lambda column: narrow[column])] -= 1
    return narrow if sum(narrow) <= room else None


def _longest_word(text: str) -> int:
    return max((display_width(word) for word in _glued(text).split(" ")), default=0)


def _glued(text: str) -> str:
    return _UNIT.sub(NO_BREAK, text)


def _lines(row: Sequence[str], widths: Sequence[int], is_left: Sequence[bool], gap: int) -> list[str]:
    """A row as lines, each cell folded to its column's width."""
    folded = [_folded(cell, width) for cell, width in zip(row, widths, strict=True)]
    lines = []
    for number in range(max(map(len, folded))):
        parts = [
            padded(pieces[number] if number < len(pieces) else "", width, to_right=not at_left)
            for pieces, width, at_left in zip(folded, widths, is_left, strict=True)
        ]
        lines.append(plain_blanks((_INDENT + (" " * gap).join(parts)).rstrip()))
    return lines


def _folded(cell: str, width: int) -> list[str]:
    """Lines of at most ``width``. Where there is room, what stands before the first word, an indent, is kept."""
    if display_width(cell) <= width:
        return [cell]
    indent = cell[: len(cell) - len(cell.lstrip(" "))]
    has_room = len(indent) + 2 + _longest_word(cell) <= width
    return wrapped(_glued(cell), indent if has_room else "", f"{indent}  " if has_room else "", width)


def _stacked(cells: Sequence[Sequence[str]], heads: int, width: int) -> list[str]:
    """Each row as a paragraph: its first cell, and below it the others with the heads of their columns."""
    titles = [" ".join(row[column] for row in cells[:heads] if row[column]) for column in range(len(cells[0]))]
    lines = []
    for row in cells[heads:]:
        lines.append(_INDENT + cut_off(row[0] or titles[0], width - len(_INDENT)))
        told = [
            say("table.cell", head=head, cell=cell) if head else cell
            for head, cell in zip(titles[1:], row[1:], strict=True)
            if cell
        ]
        lines += wrapped("; ".join(map(_glued, told)), _INDENT * 3, _INDENT * 3, width)
    return lines
