"""Documents cut into passages of at most so many tokens, at ends of sentences; nothing is lost between them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvscope.quality.retrieval.source import SourceDocument

LEAST_PASSAGE_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A stretch of a document. ``document``: its name. ``index``: which passage of that document, from 0. ``text`` is
    the document's text from ``start`` to ``end`` (characters); the passages of a document follow each other without a
    gap. ``tokens``: what ``count`` said of ``text``. ``section``: the headings above its beginning, highest first."""

    document: str
    index: int
    text: str
    start: int
    end: int
    tokens: int
    section: tuple[str, ...] = ()


def split(document: SourceDocument, count: Callable[[str], int], passage_tokens: int) -> tuple[Passage, ...]:
    """The document's passages, each of at most ``passage_tokens`` tokens as ``count`` counts a text by itself (no BOS,
    no template). Joined they are the document's text. Raises BadDesign under LEAST_PASSAGE_TOKENS."""
    raise NotImplementedError


def split_all(
    documents: Sequence[SourceDocument], count: Callable[[str], int], passage_tokens: int
) -> tuple[Passage, ...]:
    """The passages of every document, in order. Raises as ``split``."""
    return tuple(passage for document in documents for passage in split(document, count, passage_tokens))
