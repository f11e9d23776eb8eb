"""Text for a terminal: how many columns it takes, lines of at most 80 of them, nothing in it that a terminal obeys.

A Korean syllable takes two columns and a joining mark none, so ``len``, ``ljust`` and ``textwrap`` are of no use here.
"""

import re
import unicodedata
from collections.abc import Iterable

from kvscope.report.words import NO_BREAK

WIDTH = 80
_KEPT = {"\n", "\t"}
# Control characters, those that turn the direction of text, and halves of characters, which no output can encode.
NEVER_RAW = ("Cc", "Cf", "Cs")
_BLANKS = re.compile(r"[ \n\r\t]+")


def printable(text: str) -> str:
    """The text with control characters written out: an escape becomes ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c in _KEPT or unicodedata.category(c) not in NEVER_RAW else _written(c) for c in text)


def _written(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def display_width(text: str) -> int:
    """The columns that ``text``, as ``printable`` gives it, takes in a terminal."""
    if text.isascii():
        return len(text)
    from wcwidth import wcswidth  # not at the top: most texts need none of its tables

    return max(0, wcswidth(text.replace(NO_BREAK, " ")))


def padded(text: str, columns: int, *, to_right: bool = False) -> str:
    """``text`` with blanks behind it, or before it, up to so many columns."""
    blanks = " " * max(0, columns - display_width(text))
    return blanks + text if to_right else text + blanks


def shortened(text: str, columns: int) -> str:
    """``text`` on one line, in at most so many columns; its middle is left out where it has more."""
    text = printable(_BLANKS.sub(" ", text) if "\n" in text else text)
    if display_width(text) <= columns:
        return text
    room = max(2, columns - 3)
    head, tail = text[: room - room // 2], text[-(room // 2) :]
    while display_width(head) + display_width(tail) > room:
        head, tail = (head[:-1], tail) if display_width(head) >= display_width(tail) else (head, tail[1:])
    return f"{head}...{tail}"


def cut_off(text: str, columns: int) -> str:
    """``text`` on one line, in at most so many columns; its end is left out where it has more."""
    plain = printable(_BLANKS.sub(" ", text).strip())
    return plain if display_width(plain) <= columns else f"{_beginning(plain, max(1, columns - 1))}…"


def wrapped(text: str, first: str = "", later: str = "  ", width: int = WIDTH) -> list[str]:
    """Lines of at most ``width`` columns, broken between words, the first behind ``first`` and the others behind
    ``later``. A word that finds no room on a line of its own is broken inside; no text, no lines."""
    lines: list[str] = []
    line, is_empty = first, True
    for word in _words(text, width - max(display_width(first), display_width(later))):
        if not is_empty and display_width(line) + 1 + display_width(word) > width:
            lines.append(line)
            line, is_empty = later, True
        line = f"{line}{word}" if is_empty else f"{line} {word}"
        is_empty = False
    return [] if is_empty else [plain_blanks(each.rstrip()) for each in [*lines, line]]


def wrapped_note(text: str) -> list[str]:
    """As ``wrapped``, two columns in, its further lines six."""
    return wrapped(text, "  ", "      ")


def plain_blanks(text: str) -> str:
    """With ordinary blanks where lines were not to be broken."""
    return text.replace(NO_BREAK, " ")


def joined(lines: Iterable[str]) -> str:
    """The lines as one text that ends with a line end."""
    return plain_blanks("\n".join(lines)) + "\n"


def _words(text: str, room: int) -> Iterable[str]:
    # Not str.split: it would take the space between a number and its unit for a place to break.
    for word in _BLANKS.split(printable(_BLANKS.sub(" ", text)).strip()):
        while display_width(word) > room > 1:
            piece = _beginning(word, room)
            yield piece
            word = word[len(piece) :]
        if word:
            yield word


def _beginning(text: str, columns: int) -> str:
    """As much of the beginning as so many columns hold; at least one character."""
    end = min(len(text), columns)
    while end > 1 and display_width(text[:end]) > columns:
        end -= 1
    return text[:end]
