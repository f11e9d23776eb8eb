"""Several indexes as one: the ranks of each are added up, so that scores of different kinds need not be compared.

Reciprocal rank fusion: Cormack, Clarke and Buettcher, SIGIR 2009; their constant 60 is used as it is.
"""

from collections.abc import Sequence

from kvscope.quality.retrieval.index import Hit, Index, Method

RANK_CONSTANT = 60
_DEPTH = 100  # hits of each index that are looked at, or as many as are asked for


class HybridIndex:
    """See ``index.Index``. The score of a passage is the sum of 1 / (60 + its rank) over the indexes that found it."""

    def __init__(self, indexes: Sequence[Index]) -> None:
        """Over indexes of the same passages."""
        self.method: Method = "hybrid"
        self.passages = indexes[0].passages
        self.remarks = tuple(remark for index in indexes for remark in index.remarks)
        self._indexes = tuple(indexes)
        self._order = {(each.document, each.index): at for at, each in enumerate(self.passages)}

    def search(self, question: str, k: int) -> tuple[Hit, ...]:
        """Raises what the indexes raise."""
        scores: dict[int, float] = {}
        for index in self._indexes:
            for rank, hit in enumerate(index.search(question, max(k, _DEPTH)), start=1):
                at = self._order[hit.passage.document, hit.passage.index]
                scores[at] = scores.get(at, 0.0) + 1 / (RANK_CONSTANT + rank)
        best = sorted(scores, key=lambda at: (-scores[at], at))[:k]
        return tuple(Hit(passage=self.passages[at], score=scores[at]) for at in best)
