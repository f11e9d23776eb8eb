"""A file of questions: JSONL or CSV, or one question a line; what a line lacks is said, and the rest is used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvscope.quality.retrieval.source import Remark, SourceDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """``id``: unique in its file. ``expected``: what a right answer names, all of it; empty where the file gives no
    answer: asked, and not scored. ``evidence``: texts that stand in a document and hold the answer. ``document``: the
    name of the document it is about. ``line``: where in the file it stands, from 1."""

    id: str
    text: str
    expected: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    document: str | None = None
    language: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What a file of questions holds. ``problems``: the lines that were left out, or lack something."""

    asked: tuple[AskedQuestion, ...]
    problems: tuple[Remark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where evidence stands: characters ``start`` to ``end`` of the text of ``document`` (its name)."""

    document: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One text that is needed, and every place where it stands; one of them is enough. ``is_stated``: the file of
    questions gives it; else it is the answer, found in the documents."""

    text: str
    places: tuple[Place, ...]
    is_stated: bool


def read_questions(path: Path) -> Questions:
    """Raises UsageError where the file cannot be read or holds no question."""
    raise NotImplementedError


def find_evidence(
    questions: Sequence[AskedQuestion], documents: Sequence[SourceDocument]
) -> Mapping[str, tuple[Evidence, ...]]:
    """By the id of a question, its evidence: that of the file, else its answers where they stand in a document,
    exactly or but for case, width and spaces. An empty tuple where no place is known."""
    raise NotImplementedError
