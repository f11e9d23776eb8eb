"""The model that makes vectors of texts, for a search by them: named by an address, or as a local model."""

from kvscope.experiment.retrieval_asked import RetrievalAsked
from kvscope.quality.retrieval.index import Embedder


def embedder_of(asked: RetrievalAsked) -> Embedder | None:
    """None where the search needs none; the bundled local model where none was named. Raises as the embedders do."""
    if asked.method not in ("dense", "hybrid"):
        return None
    named = asked.embeddings
    if named is not None and named.startswith(("http://", "https://")):
        from kvscope.quality.retrieval.server_embedder import ServerEmbedder

        return ServerEmbedder(named)
    from kvscope.quality.retrieval.local_embedder import LocalEmbedder

    return LocalEmbedder() if named is None else LocalEmbedder(named)
