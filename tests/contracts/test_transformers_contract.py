"""The contract, held by real transformers: a tiny Llama of random weights in a static cache, whose
length is a setting.

Importing torch and transformers takes seconds of processor time. So a child that a test leaves alive and well is used
again, except where what it holds before a model is loaded is measured.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from engine_contract import CONTEXT_TOKENS, EngineContract

from kvscope.engine.base import Engine
from kvscope.engine.transformers import TransformersEngine
from kvscope.model.load import load_model
from kvscope.scenario import SettingValue

sys.path.append(str(Path(__file__).parent.parent / "engine"))
from transformers_models import folder_of, llama_config, write_tokenizer


@pytest.fixture(scope="module")
def idle() -> Iterator[list[TransformersEngine]]:
    """Engines whose children may be used again."""
    found: list[TransformersEngine] = []
    yield found
    for engine in found:
        engine.stop()


@pytest.mark.engine
class TestTransformers(EngineContract):
    # 2 layers × 2 (keys and values) × 4 KV heads × 32 wide × 4 bytes (float32) × 512 places; the weights are more.
    cache_bytes = 2 * 2 * 4 * 32 * 4 * CONTEXT_TOKENS
    effective: ClassVar[Mapping[str, object]] = {"context_tokens": CONTEXT_TOKENS, "dtype": "float32"}
    slots: ClassVar[tuple[int, ...]] = ()
    # The cache is made by the first request, and nothing else is reserved.
    buffers: ClassVar[frozenset[str]] = frozenset({"weights"})
    context_setting = "max_cache_len"
    refused_settings: ClassVar[Mapping[str, tuple[object, str]]] = {
        "n_contex": (1, "n_contex"),
        "max_cache_len": ("many", "max_cache_len"),
    }

    @pytest.fixture
    def make(
        self, tmp_path: Path, idle: list[TransformersEngine], request: pytest.FixtureRequest
    ) -> Iterator[Callable[..., Engine]]:
        folder = folder_of(tmp_path / "tiny-llama", llama_config())
        write_tokenizer(folder)
        model = load_model(folder)
        made: list[TransformersEngine] = []
        usable = [] if request.node.originalname == "test_a_whole_life" else idle

        class Reusing(TransformersEngine):
            def launch(self) -> None:
                if usable:
                    other = usable.pop()
                    self._process, self._version, self._numbers = other._process, other._version, other._numbers
                    other._process = None
                else:
                    super().launch()

        def build(**settings: SettingValue) -> Engine:
            usual = {"cache_implementation": "static", "max_cache_len": CONTEXT_TOKENS, "num_threads": 1}
            made.append(Reusing(model=model, settings={**usual, **settings}))
            return made[-1]

        yield build
        for engine in made:
            if engine.pids():
                engine.unload()
                idle.append(engine)
