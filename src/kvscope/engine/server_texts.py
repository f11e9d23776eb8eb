"""Texts without a chat template, and scores of tokens, of a server that runs already: by which program it is.

llama.cpp's server, vLLM's and SGLang's have ``/v1/completions``, by their sources; of others it is known once they had
no chat. Log-probabilities of given tokens are asked of llama.cpp's alone (``llama_scores.py``).
"""

from kvscope.engine.base import ScoreRequest, TokenScores
from kvscope.engine.kept_connection import KeptConnection
from kvscope.engine.llama_scores import TOKENIZE_TIMEOUT_S, LlamaScores, tokenize
from kvscope.engine.scores_nothing import no_scores
from kvscope.engine.served_facts import LLAMA_CPP, SGLANG, VLLM, ServedFacts
from kvscope.engine.server_address import ServerAddress

COMPLETES_TEXT = (LLAMA_CPP, VLLM, SGLANG)
SCORES_TOKENS = (LLAMA_CPP,)


async def tokenize_served(
    server: ServerAddress, facts: ServedFacts, text: str, *, with_special: bool
) -> tuple[int, ...]:
    """As ``Engine.tokenize``. Raises UsageError for a server that scores nothing."""
    _check_scores(facts)
    with server.hidden_in_errors():
        async with KeptConnection(server.url, server.headers) as connection:
            return await tokenize(connection.post, text, with_special=with_special, timeout_s=TOKENIZE_TIMEOUT_S)


async def score_served(server: ServerAddress, facts: ServedFacts, request: ScoreRequest) -> TokenScores:
    """As ``Engine.score``. Raises UsageError for a server that scores nothing."""
    _check_scores(facts)
    fields = {"model": facts.model}
    with server.hidden_in_errors():
        async with KeptConnection(server.url, server.headers) as connection:
            return await LlamaScores(connection.post, version=facts.version, fields=fields).score(request)


def _check_scores(facts: ServedFacts) -> None:
    if facts.kind not in SCORES_TOKENS:
        raise no_scores(facts.kind or "this server")
