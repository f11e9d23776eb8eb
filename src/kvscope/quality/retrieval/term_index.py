"""BM25 over terms, by the package bm25s; ours are the terms, and which of two equal passages comes first."""

from collections.abc import Callable, Sequence
from typing import Literal

from kvscope.errors import MissingDependency
from kvscope.quality.retrieval.index import Hit, Method
from kvscope.quality.retrieval.morphemes import morphemes
from kvscope.quality.retrieval.passages import Passage
from kvscope.quality.retrieval.source import Remark
from kvscope.quality.retrieval.terms import bigrams, korean_share, words

TermMethod = Literal["bigrams", "words", "morphemes"]
TERMS: dict[TermMethod, Callable[[Sequence[str]], list[list[str]]]] = {
    "bigrams": bigrams,
    "words": words,
    "morphemes": morphemes,
}
_KOREAN_SHARE = 0.05  # of the letters: from here on a text is not only English with some names in it


class TermIndex:
    """See ``index.Index``. Scores are those of ``bm25s.BM25()`` with its defaults (Lucene's formula, k1 = 1.5,
    b = 0.75) over the terms of ``TERMS[method]``."""

    def __init__(self, passages: Sequence[Passage], texts: Sequence[str], method: TermMethod) -> None:
        """Raises MissingDependency."""
        try:
            import bm25s
        except ImportError:
            raise MissingDependency("Searching documents", None, "bm25s") from None
        self.method: Method = method
        self.passages = tuple(passages)
        self.remarks = _remarks(texts, method)
        self._terms = TERMS[method]
        self._index = bm25s.BM25()
        terms = self._terms(texts)
        self._has_terms = any(terms)  # without a single one bm25s divides by zero
        if self._has_terms:
            self._index.index(terms, show_progress=False)

    def search(self, question: str, k: int) -> tuple[Hit, ...]:
        """Passages without any term of the question are no hits."""
        import numpy

        known = self._index.get_tokens_ids(self._terms([question])[0]) if self._has_terms else []
        if not known:
            return ()
        scores = self._index.get_scores_from_ids(known)
        # bm25s' own selection leaves open which of two equal scores it takes.
        best = numpy.argsort(-scores, kind="stable")[:k]
        return tuple(Hit(passage=self.passages[at], score=float(scores[at])) for at in best if scores[at] > 0)


def _remarks(texts: Sequence[str], method: TermMethod) -> tuple[Remark, ...]:
    if method != "words":
        return ()
    share = korean_share("".join(text[:500] for text in texts[:200]))
    if share < _KOREAN_SHARE:
        return ()
    text = (
        f"{share:.0%} of the letters are Korean: words with their particles are hardly ever the same in a question and "
        "its answer. Search by bigrams."
    )
    return (Remark(slug="words-and-korean", text=text),)
