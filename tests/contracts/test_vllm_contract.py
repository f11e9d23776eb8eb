"""The contract, held by real vLLM: started by kvscope, and as a server that runs already.

A start takes half a minute, so tests that change nothing of the engine share one. vLLM: tests/engine/vllm_here.py.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from engine_contract import CONTEXT_TOKENS, EngineContract, user
from vllm_here import BYTES_PER_TOKEN, PYTHON, SETTINGS, needs_vllm, write_tiny_model

from kvscope.engine.base import ChatRequest, Engine
from kvscope.engine.registry import EngineChoice, create_engine
from kvscope.engine.vllm import VllmEngine
from kvscope.engine.vllm_attached import VllmAttached
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.probe.proc import process_exists, process_tree
from kvscope.scenario import SettingValue

POOL_BYTES = 1 << 30


class _Vllm(EngineContract):
    cache_bytes = POOL_BYTES  # the whole pool is resident as soon as it is made
    effective: ClassVar[Mapping[str, object]] = {
        "max_model_len": CONTEXT_TOKENS,
        "num_gpu_blocks": POOL_BYTES // (32 * BYTES_PER_TOKEN),
        "kv_cache_size_tokens": POOL_BYTES // BYTES_PER_TOKEN,
        "block_size": 32,
    }
    slots: ClassVar[tuple[int, ...]] = ()
    buffers: ClassVar[frozenset[str]] = frozenset({"kv_cache"})
    context_setting = "max_model_len"
    two_at_once: ClassVar[Mapping[str, object] | None] = {}
    refused_settings: ClassVar[Mapping[str, tuple[object, str]]] = {
        "max_model_length": (1, "max_model_length"),
        "max_model_len": ("many", "max_model_len"),
    }

    def test_nothing_is_reused_unless_asked_for(self, engine: Engine) -> None:
        """As the suite's, but that a prompt sent with a salt of its own is found by none that comes after it, not even
        by one that may reuse; and that whole blocks of 32 are reused."""
        messages = user("Why does memory grow when a conversation gets longer? Explain it step by step.")
        request = ChatRequest(messages=messages, max_output_tokens=2)
        engine.generate(request)
        assert engine.generate(request).cached_tokens == 0
        reusing = ChatRequest(messages=messages, max_output_tokens=2, reuse_prefix=True)
        engine.generate(reusing)
        prompt = engine.count_prompt_tokens(messages)
        assert engine.generate(reusing).cached_tokens == (prompt - 1) // 32 * 32 > 0
        assert engine.clear_cache() is None or not engine.capabilities.can_clear_cache
        if engine.capabilities.can_clear_cache:
            assert engine.generate(reusing).cached_tokens == 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return load_model(str(write_tiny_model(tmp_path_factory.mktemp("vllm") / "tiny")))


class Makers:
    """Makes engines, and sees to it that nothing of them is left."""

    def __init__(self, model: ModelSpec) -> None:
        self._model = model
        self._made: list[Engine] = []

    def __call__(self, **settings: SettingValue) -> Engine:
        held = {"max_model_len": CONTEXT_TOKENS, **SETTINGS, **settings}
        self._made.append(create_engine("vllm", model=self._model, settings=held, command=PYTHON))
        return self._made[-1]

    def close(self) -> None:
        started = process_tree([pid for engine in self._made for pid in engine.pids()])
        for engine in self._made:
            engine.stop()
        assert not [pid for pid in started if process_exists(pid)]


@pytest.fixture(scope="module")
def running(model: ModelSpec) -> Iterator[VllmEngine]:
    """One server for all tests that leave it as it is."""
    makers = Makers(model)
    made = makers()
    assert isinstance(made, VllmEngine)
    made.launch()
    made.load()
    yield made
    makers.close()


@pytest.mark.vllm
@needs_vllm
class TestStarted(_Vllm):
    @pytest.fixture
    def make(self, model: ModelSpec) -> Iterator[Callable[..., Engine]]:
        makers = Makers(model)
        yield makers
        makers.close()

    @pytest.fixture
    def engine(self, running: VllmEngine) -> Engine:
        return running


@pytest.mark.vllm
@needs_vllm
class TestAttached(_Vllm):
    """Used by its address, and left running."""

    @pytest.fixture
    def make(self, running: VllmEngine, model: ModelSpec) -> Callable[..., Engine]:
        choice = EngineChoice(name="vllm", url=running.url)

        def build(**settings: SettingValue) -> Engine:
            if settings:
                pytest.skip("it was given its settings when it was started")
            return choice.create(model, {})

        return build

    @pytest.fixture
    def engine(self, make: Callable[..., Engine]) -> Engine:
        return self.bring_up(make)

    def test_its_pool_is_read_there(self, engine: Engine) -> None:
        assert isinstance(engine, VllmAttached)
        report = engine.report()
        assert report.effective["num_gpu_blocks"] == _Vllm.effective["num_gpu_blocks"]
        assert report.effective["kv_cache_size_tokens"] == POOL_BYTES // BYTES_PER_TOKEN


@pytest.mark.engine
def test_the_model_is_written_as_kvscope_reads_it(tmp_path: Path) -> None:
    model = load_model(str(write_tiny_model(tmp_path / "tiny")))
    assert len(model.layers) == 2
    assert model.vocab_size == 49152
