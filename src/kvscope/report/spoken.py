"""One page in every language at once: the same blocks, said in each, put together so that what does not differ is there
once. A browser shows one language and hides the others, which takes no script.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import zip_longest
from typing import Any, TypeVar, cast

from markupsafe import escape

from kvscope.language import LANGUAGES, current, speaking
from kvscope.report.blocks import Block, Chart, Link, Section, StudyPage, Table

_Any = TypeVar("_Any")


class Spoken(str):
    """A text in several languages. As a ``str`` it is the first of them; as HTML each in an element of its own."""

    __slots__ = ("versions",)
    versions: Mapping[str, str]

    def __new__(cls, versions: Mapping[str, str]) -> "Spoken":
        made = super().__new__(cls, next(iter(versions.values())))
        made.versions = dict(versions)
        return made

    def __html__(self) -> str:
        return "".join(f'<span lang="{name}">{escape(text)}</span>' for name, text in self.versions.items() if text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenChart:
    """A chart whose drawing holds words: one drawing for each language, one table for all."""

    slug: str
    title: str
    description: str
    versions: Mapping[str, Chart]
    table: Table
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Blocks that differ by more than words, so that each language has its own."""

    versions: Mapping[str, tuple[Block, ...]]


class _Different(Exception):
    """The versions differ by more than words."""


def languages() -> tuple[str, ...]:
    """All languages, the current one first: what a page shows when it is opened."""
    return (current(), *(name for name in LANGUAGES if name != current()))


def in_each(make: Callable[[], _Any]) -> dict[str, _Any]:
    """What ``make`` gives under each language, the current one first."""
    made = {}
    for name in languages():
        with speaking(name):
            made[name] = make()
    return made


def said_in_each(make: Callable[[], str]) -> str:
    """A text under each language as one; plain where it is the same in all."""
    return _together(in_each(make))


def together(pages: Mapping[str, Sequence[StudyPage]]) -> tuple[StudyPage, ...]:
    """The pages of each language as one: language → the studies' pages, the same studies in the same order."""
    return tuple(_page(dict(zip(pages, each, strict=True))) for each in zip(*pages.values(), strict=True))


def _page(versions: Mapping[str, StudyPage]) -> StudyPage:
    first = next(iter(versions.values()))
    sections = zip(*(page.sections for page in versions.values()), strict=True)
    answers = {name: page.answer for name, page in versions.items()}
    doubts = _blocks({name: answer.doubts for name, answer in answers.items()})
    bare = {name: replace(answer, doubts=(), chart=None) for name, answer in answers.items()}
    charts = {name: answer.chart for name, answer in answers.items()}
    answer = replace(_together(bare), doubts=cast("Any", doubts), chart=_together(charts))
    return replace(
        first,
        answer=answer,
        sections=tuple(_section(dict(zip(versions, each, strict=True))) for each in sections),
    )


def _section(versions: Mapping[str, Section]) -> Section:
    first = next(iter(versions.values()))
    title = _together({name: section.title for name, section in versions.items()})
    blocks = _blocks({name: section.blocks for name, section in versions.items()})
    return replace(first, title=title, blocks=cast("tuple[Block, ...]", blocks))


def _blocks(versions: Mapping[str, Sequence[Block]]) -> tuple[Any, ...]:
    if len({len(blocks) for blocks in versions.values()}) > 1:
        return (_apart({name: tuple(blocks) for name, blocks in versions.items()}),)
    return tuple(_block(dict(zip(versions, each, strict=True))) for each in zip(*versions.values(), strict=True))


def _block(versions: Mapping[str, Block]) -> Any:
    try:
        return _together(versions)
    except _Different:
        return _apart({name: (block,) for name, block in versions.items()})


def _apart(versions: Mapping[str, tuple[Block, ...]]) -> Apart:
    """Anchors stay with the first language: an anchor names one place of a page."""
    first = next(iter(versions))
    return Apart(versions={n: blocks if n == first else _without_anchors(blocks) for n, blocks in versions.items()})


def _without_anchors(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    def bare(table: Table) -> Table:
        return replace(table, rows=tuple(replace(row, anchor=None) for row in table.rows))

    def each(block: Block) -> Block:
        if isinstance(block, Table):
            return bare(block)
        return replace(block, table=bare(block.table)) if isinstance(block, Chart) else block

    return tuple(map(each, blocks))


def _together(versions: Mapping[str, _Any]) -> _Any:
    """The versions as one. Raises _Different where they differ by more than words."""
    values = list(versions.values())
    first = values[0]
    if all(value == first for value in values[1:]):
        return first
    if all(isinstance(value, str) for value in values):
        return cast("_Any", Spoken(cast("Mapping[str, str]", versions)))
    if {type(value) for value in values} != {type(first)}:
        raise _Different
    if isinstance(first, Chart):
        return cast("_Any", _chart(cast("Mapping[str, Chart]", versions)))
    if isinstance(first, tuple):
        return cast("_Any", tuple(_each(cast("Mapping[str, tuple[Any, ...]]", versions))))
    if is_dataclass(first) and not isinstance(first, type):
        parts = {
            field.name: _together({name: getattr(value, field.name) for name, value in versions.items()})
            for field in fields(first)
        }
        return replace(first, **parts)
    raise _Different


def _each(versions: Mapping[str, tuple[Any, ...]]) -> Iterator[Any]:
    """Element by element. Lists of texts may differ in length: a language needs no more sentences than it has."""
    alike = len({len(value) for value in versions.values()}) == 1
    if not alike and not all(isinstance(item, str) for value in versions.values() for item in value):
        raise _Different
    for items in zip_longest(*versions.values(), fillvalue=""):
        yield _together(dict(zip(versions, items, strict=True)))


def _chart(versions: Mapping[str, Chart]) -> Any:
    first = next(iter(versions.values()))
    parts = {
        part: _together({name: getattr(chart, part) for name, chart in versions.items()})
        for part in ("title", "description", "table", "links")
    }
    # Its title and description are in the drawing too: one drawing only where they are the same.
    is_spoken = any(isinstance(parts[part], Spoken) for part in ("title", "description"))
    if not is_spoken and all(chart.spec == first.spec for chart in versions.values()):
        return replace(first, **parts)
    return SpokenChart(slug=first.slug, versions=dict(versions), **parts)
