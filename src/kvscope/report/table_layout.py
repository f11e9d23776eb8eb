"""How a table is laid out where there is little room: its classes, and its heads for where a row stands as a card.

On a telephone a table that is too wide is shown row by row, each cell with its column's head before it. The heads are
written once a table, as custom properties of CSS, and not once a cell. Widths are worked out from the longest piece of
each column that no line may break; they decide between two ways of showing, so they need not be exact.
"""

import re
from collections.abc import Mapping

from markupsafe import Markup

from kvscope.report.blocks import Table
from kvscope.report.plain_characters import plain
from kvscope.report.spoken import Spoken
from kvscope.report.terminal_text import display_width

# A cell of more characters than this is read, not looked up: its column stays wide enough.
_LONG = 60
# The widest table of a telephone 360 pixels wide, of the page, and of a sheet of A4, in pixels; what a character and a
# cell's padding take there.
_TELEPHONE, _PAGE, _SHEET = (331, 6.8, 6.4), (1112, 8, 20), (700, 6.3, 7)
# More than a long text needs to be read: no column asks for more.
_LONG_WIDTH = 22
# What a string of CSS in an attribute cannot hold as it is, and more: what is left out here is certainly harmless.
_NOT_IN_CSS = re.compile(r"[^\w .,:;()/%+±×·|=\-\[\]*?]", re.ASCII)


def attributes(table: Table, extra: tuple[str, ...] = ()) -> Markup:
    """The element's attributes, with a blank before each. Classes: ``n3``: the third column is one of numbers;
    ``t3``: of long texts; ``card``: its rows are cards on a telephone; ``dense``: it is wide on a screen too;
    ``flow``: its rows are run on on paper. ``style``: the heads (--h1 …), where a row may be shown without them above
    it. ``extra``: heads of columns that the page adds at the end."""
    classes = [f"n{place}" for place, column in enumerate(table.columns, start=1) if column.is_number]
    classes += [f"t{place}" for place in range(1, len(table.columns) + 1) if _is_long(table, place)]
    is_card = not _fits(table, len(extra), _TELEPHONE)
    if is_card:
        classes.append("card")
        classes += [] if _fits(table, len(extra), _PAGE) else ["dense"]
        classes += [] if _fits(table, len(extra), _SHEET) else ["flow"]
    made = f' class="{" ".join(classes)}"' if classes else ""
    if is_card:
        heads = (*(column.title for column in table.columns), *extra)
        # In these quotation marks, so that those of the strings need no escape; nothing in a string is one of them.
        made += f" style='{';'.join(f'--h{place}:{_head(head)}' for place, head in enumerate(heads, start=1))}'"
    return Markup(made)


def _is_long(table: Table, place: int) -> bool:
    is_number = table.columns[place - 1].is_number
    return not is_number and any(len(row.cells[place - 1]) > _LONG for row in table.rows if len(row.cells) >= place)


def _fits(table: Table, num_extra: int, where: tuple[float, float, float]) -> bool:
    """Whether the table is no wider than there is room, when its texts are broken at every space."""
    room, character, padding = where
    places = range(1, len(table.columns) + 1)
    widths = [_characters(table, place) * character + padding for place in places]
    return sum(widths) + num_extra * (6 * character + padding) <= room


def _characters(table: Table, place: int) -> int:
    """The widest piece of a column that no line may break; in the language in which it is widest."""
    column = table.columns[place - 1]
    widest = max(display_width(word) for text in _versions(column.title) for word in text.split() or [""])
    for row in table.rows:
        for text in _versions(row.cells[place - 1]) if len(row.cells) >= place else ():
            pieces = text.split("\n") if column.is_number else re.split(r"[ \n]+", text)
            widest = max(widest, *map(display_width, pieces))
    return max(widest, _LONG_WIDTH) if _is_long(table, place) else widest


def _versions(text: str) -> tuple[str, ...]:
    return tuple(text.versions.values()) if isinstance(text, Spoken) else (text,)


def _head(title: str) -> str:
    """The head in each language as a string of CSS: page.css leaves out the language that is not shown."""
    versions: Mapping[str, str] = title.versions if isinstance(title, Spoken) else {}
    if not versions:
        return _quoted(title)
    return " ".join(f"var(--x-{name},{_quoted(text)})" for name, text in versions.items())


def _quoted(text: str) -> str:
    """A string of CSS that nothing in it can end."""
    kept = "".join(" " if each.isspace() else each for each in plain(text))
    return '"' + _NOT_IN_CSS.sub(lambda found: _escaped(found[0]), kept) + '"'


def _escaped(character: str) -> str:
    # Letters of other scripts need no escape, and would be three times as long with it.
    return character if ord(character) >= 0xA0 else f"\\{ord(character):x} "
