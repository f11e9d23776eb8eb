"""Passages near a question by the angle between their embeddings."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvscope.errors import EngineReplyError
from kvscope.quality.retrieval.index import Embedder, Hit, Method
from kvscope.quality.retrieval.passages import Passage

if TYPE_CHECKING:
    import numpy


class DenseIndex:
    """See ``index.Index``. Every passage is a hit; its score is the cosine."""

    def __init__(self, passages: Sequence[Passage], texts: Sequence[str], embedder: Embedder) -> None:
        """Raises what the embedder raises, EngineReplyError where its vectors are not of one length or not finite."""
        self.method: Method = "dense"
        self.passages = tuple(passages)
        self._embedder = embedder
        self._vectors = _unit_vectors(embedder.embed(texts), len(texts), embedder.name)
        self.remarks = embedder.remarks_on(texts)

    def search(self, question: str, k: int) -> tuple[Hit, ...]:
        """Raises as the embedder; EngineReplyError where it makes vectors of another length now."""
        import numpy

        vector = _unit_vectors(self._embedder.embed([question], are_questions=True), 1, self._embedder.name)
        if vector.shape[1] != self._vectors.shape[1]:
            raise EngineReplyError(
                f"{self._embedder.name} made vectors of {self._vectors.shape[1]} numbers for the passages and of "
                f"{vector.shape[1]} for a question.",
                hint="Was another model loaded meanwhile? Make the index again.",
            )
        scores = self._vectors @ vector[0]
        # Rounded as far as a different order of additions may reach, so that equal texts stay in their order.
        best = numpy.argsort(-numpy.round(scores, 6), kind="stable")[:k]
        return tuple(Hit(passage=self.passages[at], score=float(scores[at])) for at in best)


def _unit_vectors(raw: Sequence[Sequence[float]], wanted: int, name: str) -> "numpy.ndarray[Any, Any]":
    import numpy

    lengths = {len(each) for each in raw}
    if len(raw) != wanted or len(lengths) != 1 or not min(lengths):
        raise EngineReplyError(
            f"{name} made {len(raw)} vectors of {sorted(lengths)} numbers for {wanted} texts.",
            hint="All must be of one length, one for each text. Is it a model for embeddings?",
        )
    vectors = numpy.asarray(raw, dtype=numpy.float32)
    if not numpy.isfinite(vectors).all():
        raise EngineReplyError(
            f"{name} made vectors with numbers that are none (NaN or infinite).", hint="Try another."
        )
    norms = numpy.linalg.norm(vectors, axis=1, keepdims=True)
    unit: numpy.ndarray[Any, Any] = vectors / numpy.where(norms == 0, 1, norms)
    return unit
