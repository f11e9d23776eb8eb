"""The contract, held by adapters for servers that run already, against a real llama.cpp server."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from engine_contract import CONTEXT_TOKENS, EngineContract
from running_llama import Running, running_llama

from kvscope.engine.base import Engine
from kvscope.engine.registry import EngineChoice

# SmolLM2 135M: 30 layers × 2 (keys and values) × 3 KV heads × 64 wide × 2 bytes (f16).
SMOLLM2_BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., Running]]:
    """One server for each context, for all tests here."""
    with ExitStack() as stack:
        servers: dict[int, Running] = {}

        def serve(n_ctx: int = CONTEXT_TOKENS) -> Running:
            if n_ctx not in servers:
                servers[n_ctx] = stack.enter_context(running_llama("--metrics", n_ctx=n_ctx))
            return servers[n_ctx]

        yield serve


class _Attached(EngineContract):
    cache_bytes = CONTEXT_TOKENS * SMOLLM2_BYTES_PER_TOKEN
    name: str

    @pytest.fixture
    def make(self, serve: Callable[..., Running]) -> Callable[..., Engine]:
        return lambda **settings: EngineChoice(name=self.name, url=serve(**settings).url).create(None, {})


@pytest.mark.engine
class TestOpenAI(_Attached):
    name = "openai"


@pytest.mark.engine
class TestLlamaCppAttached(_Attached):
    name = "llama.cpp"
