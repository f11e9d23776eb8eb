"""Words for a terminal. Names from model files, engines and records may hold anything; a terminal obeys control
characters, so they are shown instead."""

import unicodedata

import click

_KEPT = {"\n", "\t"}


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text, with a line end unless ``nl`` is false, to standard output or to standard error."""
    click.echo(printable(text), err=err, nl=nl)


def printable(text: str) -> str:
    """The text with control characters written out: an escape becomes ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c in _KEPT or unicodedata.category(c) not in ("Cc", "Cf") else _written(c) for c in text)


def _written(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
