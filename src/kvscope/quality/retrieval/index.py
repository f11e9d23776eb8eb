"""Which passages a question needs: one interface over words, character bigrams, morphemes and embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kvscope.quality.retrieval.passages import Passage
from kvscope.quality.retrieval.source import Remark

Method = Literal["bigrams", "words", "morphemes", "dense", "hybrid"]
METHODS: tuple[Method, ...] = ("bigrams", "words", "morphemes", "dense", "hybrid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A passage found. ``score``: larger is nearer; comparable within one search only."""

    passage: Passage
    score: float


class Embedder(Protocol):
    """Turns texts into vectors. ``name``: the model's, for the record."""

    name: str

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """One vector for each text, in order, all of one length."""
        ...


class Index(Protocol):
    """Passages that can be searched. ``remarks``: what must be known about its results."""

    method: Method
    passages: tuple[Passage, ...]
    remarks: tuple[Remark, ...]

    def search(self, question: str, k: int) -> tuple[Hit, ...]:
        """The ``k`` nearest passages, nearest first, equals in the order of the documents; fewer, or none, where fewer
        have anything in common with the question."""
        ...


def make_index(passages: Sequence[Passage], method: Method = "bigrams", *, embedder: Embedder | None = None) -> Index:
    """An index over ``passages``. "dense" and "hybrid" need an ``embedder``. Raises UnknownName, UsageError,
    MissingDependency, and what the embedder raises."""
    raise NotImplementedError
