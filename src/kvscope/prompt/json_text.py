"""JSON as people's files have it, read strictly: what is ambiguous or no JSON is an error that names its place."""

import codecs
import json
import math
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from kvscope.errors import MalformedFile

_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_DEEPEST = 200  # levels: no request nests deeper, and the template's values are read again by other programs


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in a file a value stands: its line, where a file has one value per line, and the keys down to it."""

    file: str
    line: int | None = None
    key: str = ""

    def at(self, key: str | int) -> "Place":
        """The place of an entry of the value that stands here."""
        step = f"[{key}]" if isinstance(key, int) else f".{key}" if self.key else key
        return replace(self, key=self.key + step)

    def __str__(self) -> str:
        line = "" if self.line is None else f"line {self.line}"
        return ", ".join(part for part in (line, self.key) if part) or "line 1"

    def error(self, problem: str, *, hint: str | None = None) -> MalformedFile:
        """What is wrong with the value that stands here."""
        return MalformedFile(self.file, str(self), problem, hint=hint or "Correct that value.")


def decoded(content: bytes, name: str) -> str:
    """The text of a file in UTF-8, or in UTF-16 that says so. Raises MalformedFile for anything else."""
    hint = "Save it as UTF-8."
    if content.startswith(_UTF_16):
        try:
            return content.decode("utf-16")
        except UnicodeDecodeError as error:
            raise MalformedFile(name, f"byte {error.start}", "this is not UTF-16", hint=hint) from None
    content = content.removeprefix(codecs.BOM_UTF8)
    if (zero := content.find(b"\0")) >= 0:
        raise MalformedFile(name, f"byte {zero}", "this is a binary file, not text", hint="Pass a file of JSON.")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise MalformedFile(name, f"line {line}", "this is not UTF-8", hint=hint) from None


def lines_of(text: str) -> list[tuple[int, str]]:
    """The lines that hold something, with their numbers. JSON itself has no other line ends than these."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip(" \t")]


def parsed(text: str, place: Place) -> Any:
    """The JSON value ``text``. Raises MalformedFile, also for a key that is there twice, for NaN and Infinity (they are
    no JSON), and for what is nested too deep."""
    try:
        value = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_number, parse_float=_number)
    except json.JSONDecodeError as error:
        line = error.lineno if place.line is None else place.line
        where = f"line {line}, column {error.colno}"
        raise MalformedFile(place.file, where, f"this is not JSON: {error.msg}", hint="Is it whole?") from None
    except (ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        problem = "it is nested too deep" if deep else str(error)
        raise MalformedFile(
            place.file, str(place), f"this JSON cannot be read: {problem}", hint="Correct it."
        ) from None
    if _depth_over(value, _DEEPEST):
        raise MalformedFile(place.file, str(place), f"it is nested deeper than {_DEEPEST} levels", hint="Correct it.")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} stands twice in one object, and programs differ in which they take")
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no value of JSON")


def _number(written: str) -> float:
    number = float(written)
    if math.isinf(number):
        raise ValueError(f"the number {written[:40]} is too large")
    return number


def _depth_over(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [entry for entries in inner for entry in entries]
        if not level:
            return False
    return True
