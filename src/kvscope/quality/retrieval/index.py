"""Which passages a question needs: one interface over words, character bigrams, morphemes and embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kvscope.errors import UnknownName, UsageError
from kvscope.quality.retrieval.passages import Passage, headings_above
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

    def embed(self, texts: Sequence[str], *, are_questions: bool = False) -> Sequence[Sequence[float]]:
        """One vector for each text, in order, all of one length. Some models read questions another way."""
        ...

    def remarks_on(self, texts: Sequence[str]) -> tuple[Remark, ...]:
        """What must be known about its vectors of these texts: a language it does not know, texts it cuts."""
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


def make_index(
    passages: Sequence[Passage],
    method: Method = "bigrams",
    *,
    embedder: Embedder | None = None,
    with_sections: bool = True,
) -> Index:
    """An index over ``passages``. "dense" and "hybrid" (bigrams and embeddings together) need an ``embedder``.
    ``with_sections``: the headings above a passage are searched with it, as questions name what a page is about and its
    passages seldom do. Raises UnknownName, UsageError, MissingDependency, and what the embedder raises."""
    from kvscope.quality.retrieval.dense_index import DenseIndex
    from kvscope.quality.retrieval.hybrid_index import HybridIndex
    from kvscope.quality.retrieval.term_index import TermIndex

    if method not in METHODS:
        raise UnknownName("way to search", method, METHODS)
    if not passages:
        raise UsageError("There is no passage to search in.", hint="Give documents that hold text.")
    texts = [searched_text(each) if with_sections else each.text for each in passages]
    if method in ("bigrams", "words", "morphemes"):
        return TermIndex(passages, texts, method)
    if embedder is None:
        raise UsageError(
            f"Searching by {method} needs a model that makes embeddings.",
            hint="Name a server's address, or a local model; or search by bigrams, which needs none.",
        )
    dense = DenseIndex(passages, texts, embedder)
    return dense if method == "dense" else HybridIndex([TermIndex(passages, texts, "bigrams"), dense])


def searched_text(passage: Passage) -> str:
    """A passage under its title and headings, but those that are in it anyway."""
    return "\n".join([*headings_above(passage), passage.text])
