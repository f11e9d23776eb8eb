"""The contract, held by the adapter of Ollama against a stand-in for its server (tests/engine/ollama_standin.py), which
was written from Ollama's documents and source. No real Ollama was run.

The stand-in's runners hold 4,096 bytes a token of context, and count one token a byte.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from engine_contract import CONTEXT_TOKENS, EngineContract, held_bytes, user
from ollama_standin import BYTES_PER_TOKEN, StandIn, running
from ollama_store_files import write_store

from kvscope.engine.base import ChatRequest, Engine
from kvscope.engine.ollama import OllamaEngine
from kvscope.errors import InvalidSettings
from kvscope.scenario import SettingValue


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("ollama"), "tiny:latest", "other:1b")


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[StandIn]:
    with running(store) as standin:
        yield standin


class TestOllama(EngineContract):
    """With its store of models on this machine: prompts are counted without computing them."""

    cache_bytes = CONTEXT_TOKENS * BYTES_PER_TOKEN
    context_setting = "num_ctx"
    reports_active_requests = False
    reuse_is_asked_for = False
    refused_settings: ClassVar = {"num_ctz": (1, "num_ctz"), "n_ctx": ("many", "num_ctx")}

    @pytest.fixture
    def make(self, server: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Engine]]:
        monkeypatch.setenv("OLLAMA_MODELS", str(server.store))
        made: list[Engine] = []

        def build(url: str = server.url, **settings: SettingValue) -> Engine:
            held = {"num_ctx": CONTEXT_TOKENS, **settings}
            made.append(OllamaEngine(url=url, served_model="tiny", settings=held))
            return made[-1]

        yield build
        for engine in made:
            engine.stop()
        assert server.held() == []  # whatever was asked of it, what we loaded is unloaded

    def test_two_at_once_do_not_mix(self, make: Callable[..., Engine], store: Path) -> None:
        """On two servers; what two do with one model on one server is in tests/engine/test_ollama.py."""
        with running(store) as other:
            one, two = self.bring_up(make), self.bring_up(make, url=other.url)
            assert min(held_bytes(one), held_bytes(two)) >= self.cache_bytes
            assert not set(one.pids()) & set(two.pids())
            one.stop()
            self.check_output(two, two.generate(ChatRequest(messages=user("Hello."), max_output_tokens=2)), 2)
            two.stop()

    def test_a_running_server_outlives_its_use(self, make: Callable[..., Engine]) -> None:
        """As for any running server, but that options of loading are ours to give; what is the server's is not."""
        with pytest.raises(InvalidSettings, match="OLLAMA_NUM_PARALLEL"):
            self.bring_up(make, num_parallel=2)
        first = self.bring_up(make)
        pids = first.pids()
        first.stop()
        again = self.bring_up(make)
        assert again.pids() == pids
        self.check_output(again, again.generate(ChatRequest(messages=user("Hello."), max_output_tokens=2)), 2)

    def test_settings_are_told(self, make: Callable[..., Engine]) -> None:
        assert make().settings == {"num_ctx": CONTEXT_TOKENS}

    def test_settings_that_are_refused(self, make: Callable[..., Engine]) -> None:
        for name, (value, says) in self.refused_settings.items():
            with pytest.raises(InvalidSettings, match=says):
                self.bring_up(make, **{name: value})
