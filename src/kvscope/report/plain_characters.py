"""Characters that are no text: what a terminal or a browser obeys, and what no file of XML can hold, written out.

A name from a model's file may hold an escape sequence, a NUL, half of a character, or signs that turn the direction of
everything behind them. In a page they would change how other text reads; the library that draws charts ends the whole
process over some of them.
"""

import re
from collections.abc import Mapping
from typing import Any

# Control characters but for tab and line end; signs of direction; halves of characters; what Unicode never assigns.
_NO_TEXT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufeff\ufff9-\ufffb"
    "\ufffe\uffff]"
)
# Blanks that no browser breaks a line at: a few are typography, many are wider than a page.
_BLANKS = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]{9,}")
# The most of one text that a chart is given: more letters than this are not read in a drawing.
MOST_DRAWN = 200


def plain(text: str) -> str:
    """The text with such characters written out: an escape becomes ``\\x1b``, a turn of direction ``\\u202e``.
    A long run of blanks becomes one."""
    written = _NO_TEXT.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)
    return _BLANKS.sub(" ", written)


def drawable(value: Any) -> Any:
    """A specification of a chart in which every text is plain and none is longer than a drawing can show."""
    match value:
        case str():
            text = plain(value[: 2 * MOST_DRAWN])
            return text if len(text) <= MOST_DRAWN else f"{text[:MOST_DRAWN]}…"
        case Mapping():
            return {name: drawable(each) for name, each in value.items()}
        case list() | tuple():
            return [drawable(each) for each in value]
        case _:
            return value
