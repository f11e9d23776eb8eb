"""Words for a terminal. Names from model files, engines and records may hold anything; a terminal obeys control
characters, so they are shown instead."""

import json
import re
import unicodedata
from typing import Any

import click

from kvscope.record.strict_json import strict_json

_KEPT = {"\n", "\t"}
# Control characters, those that turn the direction of text, and halves of characters, which no output can encode.
_NEVER_RAW = ("Cc", "Cf", "Cs")
_MAY_BE_RAW = re.compile("[^\x20-\x7e\n\t]")


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text, with a line end unless ``nl`` is false, to standard output or to standard error."""
    click.echo(printable(text), err=err, nl=nl)


def say_json(value: Any, *, indent: int | None = 1) -> None:
    """Print JSON to standard output: the same value to a program, and to a terminal nothing that it obeys."""
    text = strict_json(value, indent=indent)
    click.echo(_MAY_BE_RAW.sub(lambda found: _as_json(found[0]), text))


def _as_json(character: str) -> str:
    return json.dumps(character)[1:-1] if unicodedata.category(character) in _NEVER_RAW else character


def printable(text: str) -> str:
    """The text with control characters written out: an escape becomes ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c in _KEPT or unicodedata.category(c) not in _NEVER_RAW else _written(c) for c in text)


def _written(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
