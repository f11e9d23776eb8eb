"""The model that makes vectors of texts, for a search by them: named by an address, or as a local model."""

from kvscope.experiment.retrieval_asked import RetrievalAsked
from kvscope.quality.retrieval.index import Embedder


def embedder_of(asked: RetrievalAsked) -> Embedder | None:
    """None where the search needs none. Raises as the embedders do."""
    if asked.method not in ("dense", "hybrid") or asked.embeddings is None:
        return None
    raise NotImplementedError
