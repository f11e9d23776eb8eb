"""Words for a terminal. Names from model files, engines and records may hold anything; a terminal obeys control
characters, so they are shown instead. The only ones printed are those of this file: colours, and a line that the next
one takes the place of; and these only where a terminal reads them.

Colours are off when asked: ``--no-color``, the variable NO_COLOR (https://no-color.org), TERM=dumb. They stand beside a
mark or a word that says the same.
"""

import json
import os
import re
import sys
import unicodedata
from typing import Any, TextIO

import click

from kvscope.record.strict_json import strict_json
from kvscope.report.terminal_text import NEVER_RAW, WIDTH, cut_off, plain_blanks, printable

__all__ = ["no_color_option", "printable", "say", "say_json", "say_passing"]

_MAY_BE_RAW = re.compile("[^\x20-\x7e\n\t]")
# Mark at the beginning of a line → how the line's first words are shown.
_COLOURS: dict[str, dict[str, Any]] = {
    "≠": {"fg": "magenta", "bold": True},  # prediction and measurement disagree
    "×": {"fg": "red", "bold": True},  # failed
    "!": {"fg": "yellow", "bold": True},  # a doubt
}
_MARKED = re.compile(rf"^( *)([{''.join(_COLOURS)}] .*)$", re.MULTILINE)
_CLEAR_LINE = "\r\x1b[K"


class _Terminal:
    """What was asked of the output of this process, and what stands on the terminal's last line."""

    is_plain = False
    has_passing = False


def no_color_option() -> click.Option:
    """``--no-color``, which every command has."""
    return click.Option(
        ["--no-color"], is_flag=True, expose_value=False, callback=_use_no_colours, help="No colours in a terminal."
    )


def _use_no_colours(_: click.Context, __: click.Parameter, value: bool) -> None:
    _Terminal.is_plain = _Terminal.is_plain or value


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text, with a line end unless ``nl`` is false, to standard output or to standard error."""
    _take_away_passing()
    text = plain_blanks(printable(text))
    click.echo(_coloured(text) if is_coloured(sys.stderr if err else sys.stdout) else text, err=err, nl=nl)


def say_passing(text: str) -> None:
    """Show one line on standard error until the next is printed; nothing where no terminal reads it."""
    if is_terminal(sys.stderr):
        _take_away_passing()
        click.echo(f"  {cut_off(plain_blanks(text), WIDTH - 3)}", err=True, nl=False)
        _Terminal.has_passing = True


def _take_away_passing() -> None:
    if _Terminal.has_passing:
        _Terminal.has_passing = False
        click.echo(_CLEAR_LINE, err=True, nl=False)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a terminal that obeys control characters reads it."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def is_coloured(stream: TextIO | None) -> bool:
    """Whether text on it has colours."""
    return is_terminal(stream) and not _Terminal.is_plain and not os.environ.get("NO_COLOR")


def _coloured(text: str) -> str:
    return _MARKED.sub(lambda found: found[1] + click.style(found[2], **_COLOURS[found[2][0]]), text)


def say_json(value: Any, *, indent: int | None = 1) -> None:
    """Print JSON to standard output: the same value to a program, and to a terminal nothing that it obeys."""
    _take_away_passing()
    text = strict_json(value, indent=indent)
    click.echo(_MAY_BE_RAW.sub(lambda found: _as_json(found[0]), text))


def _as_json(character: str) -> str:
    return json.dumps(character)[1:-1] if unicodedata.category(character) in NEVER_RAW else character
