"""The model that makes vectors of texts, for a search by them: named by an address, or as a local model."""

import os

from kvscope.errors import BadDesign
from kvscope.quality.retrieval.index import Embedder, Method
from kvscope.quality.retrieval.server_embedder import EMBEDDINGS_KEY, ServerEmbedder


def embedder_of(method: Method, embeddings: str | None, model: str | None) -> Embedder | None:
    """None where the search needs none; the bundled local model where none was named. ``model``: which of a server's
    to ask for. The key of a server that asks for one is in the environment variable KVSCOPE_EMBEDDINGS_KEY, and goes
    nowhere else. Raises as the embedders do."""
    if method not in ("dense", "hybrid"):
        return None
    if embeddings is not None and _is_address(embeddings):
        return _of_server(embeddings, model)
    from kvscope.quality.retrieval.local_embedder import LocalEmbedder

    return LocalEmbedder() if embeddings is None else LocalEmbedder(embeddings)


def check_embeddings(method: Method, embeddings: str | None, model: str | None) -> None:
    """What can be said before anything runs. Raises BadDesign for what the method does not use, UsageError for an
    address or a key that cannot be, MissingDependency and ModelNotFound for a local model that is not there."""
    if (embeddings is not None or model is not None) and method not in ("dense", "hybrid"):
        raise BadDesign(
            f"The method {method} needs no model that makes vectors of texts.",
            hint="Search with --retrieval-method dense or hybrid, or leave --embeddings out.",
        )
    if embeddings is not None and _is_address(embeddings):
        _of_server(embeddings, model)
    elif model is not None:
        raise BadDesign(
            f"Which server has the model {model} is not said.",
            hint="Give its address: --embeddings URL. A local model is named by --embeddings alone.",
        )
    elif method in ("dense", "hybrid"):
        from kvscope.quality.retrieval.local_embedder import BUNDLED_MODEL, check_local

        check_local(embeddings or BUNDLED_MODEL)


def _is_address(embeddings: str) -> bool:
    return embeddings.lower().startswith(("http://", "https://"))


def _of_server(url: str, model: str | None) -> ServerEmbedder:
    return ServerEmbedder(url, model=model, api_key_env=EMBEDDINGS_KEY if os.environ.get(EMBEDDINGS_KEY) else None)
