"""The text sources, read and made into pages.

A source file is a row of parts, each under a line ``=== kind: ...``: ``page: PATH | STAGE`` (a page as it stands),
``series: PATH | STAGE`` (pages of one kind: a table ``data``, a ``body``, and ``pool NAME`` of blocks, between
lines ``--``, or of lines) and ``words`` (lists to draw from). In a body, ``@pool NAME N`` stands for N blocks,
``@list NAME N`` for N lines (those of years in their order), ``@log NAME N`` for N lines with the times of a
day. Lines of ``//`` are notes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from wiki.grammar import Draws, Pool, filled
from wiki.korean import with_particles

_DIRECTIVE = re.compile(r"@(pool|list|log) (\w+) (\S+)")
_BEGINS = re.compile(r"(^(?:# |\")?|[a-z\d)”\"][.!?] )([a-z])", re.MULTILINE)
_YEAR = re.compile(r"- 20\d\d(?:년)?: ")
_FIRST_MINUTE = 6 * 60


@dataclass(slots=True)
class Series:
    """Pages of one kind, before they are made."""

    path: str
    stage: str
    body: str = ""
    rows: list[dict[str, str]] = field(default_factory=list)
    pools: dict[str, Pool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Made:
    """One page as it goes into the package."""

    path: str
    stage: str
    text: str


def made_pages(folder: Path) -> list[Made]:
    """Every page of one language's sources, sorted by path."""
    parts = [part for file in sorted(folder.glob("*.txt")) for part in _parts(file.read_text(encoding="utf-8"))]
    words = {name: choices for kind, _, text in parts if kind == "words" for name, choices in _word_lists(text)}
    pages = [_as_it_stands(arguments, text, words) for kind, arguments, text in parts if kind == "page"]
    for series in _series(parts):
        pages += [_one_of_series(series, row, words) for row in series.rows]
    return sorted(pages, key=lambda page: page.path)


def _parts(text: str) -> Iterator[tuple[str, str, str]]:
    for piece in re.split(r"^=== ", text, flags=re.MULTILINE)[1:]:
        head, _, rest = piece.partition("\n")
        lines = [line for line in rest.split("\n") if not line.startswith("//")]
        kind, _, arguments = head.partition(":") if ":" in head else head.partition(" ")
        yield kind.strip(), arguments.strip(), "\n".join(lines).strip("\n")


def _word_lists(text: str) -> Iterator[tuple[str, list[str]]]:
    for line in text.split("\n"):
        name, _, rest = line.partition(":")
        if rest:
            yield name.strip(), [word.strip() for word in rest.split(";")]


def _series(parts: list[tuple[str, str, str]]) -> list[Series]:
    found: list[Series] = []
    for kind, arguments, text in parts:
        if kind == "series":
            path, stage = (each.strip() for each in arguments.split("|"))
            found.append(Series(path, stage))
        elif kind == "data":
            found[-1].rows = _table(text)
        elif kind == "body":
            found[-1].body = text
        elif kind == "pool":
            apart = re.split(r"^--$", text, flags=re.MULTILINE) if "\n--\n" in text else text.split("\n")
            blocks = [block.strip("\n") for block in apart]
            found[-1].pools[arguments] = Pool(blocks, Draws(f"{found[-1].path}#{arguments}"))
    return found


def _table(text: str) -> list[dict[str, str]]:
    head, *rows = [[cell.strip() for cell in line.split(" | ")] for line in text.split("\n") if line]
    return [dict(zip(head, row, strict=True)) for row in rows]


def _as_it_stands(arguments: str, text: str, words: dict[str, list[str]]) -> Made:
    path, stage = (each.strip() for each in arguments.split("|"))
    return Made(path, stage, _finished(filled(text, {}, words, Draws(path))))


def _one_of_series(series: Series, row: dict[str, str], words: dict[str, list[str]]) -> Made:
    draws = Draws(filled(series.path, row, words, Draws("")))
    lines: list[str] = []
    for paragraph in series.body.split("\n"):
        directive = _DIRECTIVE.fullmatch(paragraph)
        if directive is None:
            lines.append(filled(paragraph, row, words, draws))
            continue
        kind, name, how_many = directive.groups()
        number = int(filled(how_many, row, words, draws))
        blocks = [filled(block, row, words, draws) for block in series.pools[name].take(number)]
        lines.append(_joined(kind, blocks, draws))
    return Made(draws.name, row.get("stage", series.stage), _finished("\n".join(lines)))


def _finished(text: str) -> str:
    """Particles that fit, capitals where a paragraph or a sentence begins, no empty lines in a row."""
    text = re.sub(r"\n{3,}", "\n\n", with_particles(text)).strip("\n")
    return _BEGINS.sub(lambda found: found[1] + found[2].upper(), text) + "\n"


def _joined(kind: str, blocks: list[str], draws: Draws) -> str:
    if kind == "list" and all(_YEAR.match(block) for block in blocks):
        return "\n".join(sorted(blocks, key=lambda block: block[2:6]))
    if kind != "log":
        return ("\n\n" if kind == "pool" else "\n").join(blocks)
    step = 840 // max(len(blocks), 1)
    minutes = [_FIRST_MINUTE + number * step + draws.below(step) for number in range(len(blocks))]
    times = [f"{minute // 60:02d}:{minute % 60:02d}" for minute in minutes]
    return "\n".join(f"- {time} {block[:1].upper()}{block[1:]}" for time, block in zip(times, blocks, strict=True))
