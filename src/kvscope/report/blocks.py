"""What a report is made of, before it is HTML or Markdown: sections of paragraphs, claims, tables and charts.

Everything here is plain text. Nothing is markup, so whatever a model file, a prompt or a server put into a name stays
text in every form of the report.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A reference to an anchor of the same page."""

    text: str
    anchor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """``kind``: text, lead (the section's answer) or doubt (something that weakens it)."""

    text: str
    kind: str = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A finding with its evidence. ``remarks`` are sentences under it: its interval, what else could explain it, how to
    check. ``is_contradiction``: prediction and measurement disagree."""

    text: str
    remarks: tuple[str, ...] = ()
    evidence: tuple[Link, ...] = ()
    is_contradiction: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bullets:
    """A list of short texts."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table. Its title leads to its definition, where the page defines it."""

    title: str
    is_number: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The first cell names the row. ``kind``: empty, total, baseline, failed or doubt. ``anchor``: what links name.
    ``links``: place of a cell → anchor that says where its number comes from. ``evidence``: the record's rows behind
    this one; a table in which any row has some gets a column for them."""

    cells: tuple[str, ...]
    kind: str = ""
    anchor: str | None = None
    links: Mapping[int, str] = field(default_factory=dict, hash=False)
    evidence: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """``summary``: the table is folded behind this line. ``evidence``: the record's rows behind all of it."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    summary: str | None = None
    evidence: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A Vega-Lite specification and the same numbers as a table. ``title`` says what it shows as a sentence;
    ``description`` says how to read it. ``slug`` names its file and its parts in the page. ``links``: where to read
    on about what is drawn, such as failures."""

    slug: str
    title: str
    description: str
    spec: Mapping[str, Any]
    table: Table
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Long text, kept as it is and folded behind ``summary``. ``anchor``: what links name. ``is_raw``: what a program
    wrote, such as a log: on paper only where the reader unfolded it."""

    summary: str
    text: str
    anchor: str | None = None
    is_raw: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """Text offered as a file, inside the page itself."""

    label: str
    file_name: str
    media_type: str
    text: str


Block = Paragraph | Claim | Bullets | Table | Chart | Fold | Download


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of the report. ``slug``: its anchor. ``number``: its place in the report's order, the same on every
    page; 0 for a part that has none."""

    slug: str
    title: str
    blocks: tuple[Block, ...]
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Badge:
    """A short fact of the first screen. ``mark`` is a sign (=, ×, !), so that colour is never the only carrier."""

    mark: str
    text: str
    kind: str
    anchor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The first screen: what, the answer as a sentence with its interval, whether to believe it, and where next.
    ``evidence``: the record's rows that the headline rests on. ``advice``: what would help most, in a line each."""

    strip: tuple[str, ...]
    headline: str
    interval: str
    badges: tuple[Badge, ...]
    doubts: tuple[Claim, ...]
    table: Table | None
    chart: Chart | None
    remarks: tuple[str, ...]
    evidence: tuple[Link, ...] = ()
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPage:
    """One study, ready to be drawn. ``anchor`` keeps the studies of one page apart."""

    anchor: str
    answer: Answer
    sections: tuple[Section, ...]


def row(*cells: str, kind: str = "", anchor: str | None = None, evidence: tuple[Link, ...] = ()) -> Row:
    """Shorthand for a Row."""
    return Row(cells=cells, kind=kind, anchor=anchor, evidence=evidence)


def columns(first: str, *numbers: str) -> tuple[Column, ...]:
    """A text column and columns of numbers."""
    return (Column(title=first), *(Column(title=n, is_number=True) for n in numbers))
