"""A document as it was read, and what was left out: what the rest of retrieval works on."""

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["markdown", "text", "html", "pdf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something the reader of a result must know. ``slug`` is stable (docs/reference/messages.md); ``text`` is one
    sentence that says what happened, and what to do where something can be done. ``hint``: what to do, where that is
    said apart."""

    slug: str
    text: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A file that is not among the documents, and why."""

    path: str
    remark: Remark


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """``start``: where its line begins in the document's text, in characters. ``level``: 1 is the highest."""

    start: int
    level: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDocument:
    """One document to ask about. ``name``: its path below the folder that was named, with "/"; unique. ``path``: where
    it was read. ``text``: what a model is given of it: lines end in ``\\n``, front matter is gone. ``title``: as the
    document says it, else None. ``problems``: what is doubtful about its text. ``page_starts``: of a PDF, where in
    ``text`` each page begins."""

    name: str
    path: str
    text: str
    kind: Kind
    title: str | None = None
    problems: tuple[Remark, ...] = ()
    headings: tuple[Heading, ...] = ()
    page_starts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """The documents of a folder, in the order of their names, and the files that are none of them. ``duplicates``:
    the name of each document whose text another one had before it, with the name of that one; it is left out too."""

    documents: tuple[SourceDocument, ...]
    left_out: tuple[LeftOut, ...] = ()
    duplicates: dict[str, str] = field(default_factory=dict)
