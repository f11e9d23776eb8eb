"""The growth of a real process of transformers, read from outside, against the terms that the engine names inside."""

from pathlib import Path

import pytest
from transformers_models import Child, folder_of, llama_config

from kvscope.engine.base import ChatRequest, Message
from kvscope.engine.transformers import TransformersEngine
from kvscope.model.load import load_model
from kvscope.predict.memory import predict
from kvscope.probe.proc import ProcessTreeProbe

SHARE = 0.05
HEAP = ("heap_in_use_bytes", "heap_free_bytes", "heap_mmapped_bytes", "python_arena_bytes")


@pytest.fixture
def wide(tmp_path: Path, transformers_child: Child) -> TransformersEngine:
    """4 layers × keys and values × 8 KV heads × 128 wide × 4 bytes: 32 KiB of cache a token."""
    config = llama_config(
        num_hidden_layers=4, num_key_value_heads=8, head_dim=128, max_position_embeddings=4096, vocab_size=512
    )
    model = load_model(folder_of(tmp_path / "wide", config))
    engine = TransformersEngine(model=model, settings={"num_threads": 1, "dtype": "float32"})
    transformers_child.give_to(engine)
    engine.load()
    return engine


def ask(engine: TransformersEngine, letters: int) -> int:
    """Tokens held afterwards."""
    messages = (Message(role="user", content="x" * letters),)
    answer = engine.generate(ChatRequest(messages=messages, max_output_tokens=2))
    assert answer.prompt_tokens is not None
    return answer.prompt_tokens + 1


@pytest.mark.engine
def test_growth_is_the_cache_and_what_the_heap_keeps(wide: TransformersEngine) -> None:
    probe = ProcessTreeProbe(wide.pids)
    ask(wide, 16)
    before, inside_before = probe.read(), wide.statistics()
    if not set(HEAP) <= set(inside_before):
        pytest.skip("the C library does not count its heap")
    held = ask(wide, 1500)
    after, inside = probe.read(), wide.statistics()
    growth = after["anon_bytes"] + after["swap_bytes"] - before["anon_bytes"] - before["swap_bytes"]
    heap = sum(inside[name] - inside_before[name] for name in HEAP)
    cache = inside["cache_storage_bytes"]
    assert cache == 4 * 2 * 8 * 128 * 4 * held
    assert cache == predict(wide._model, engine="transformers", tokens=held, dtype="float32").kv_cache_storage_bytes
    assert growth > 0.9 * cache
    # The cache is part of the heap, in use there; the rest of the growth is the heap's and Python's.
    assert abs(growth - heap) <= SHARE * growth


@pytest.mark.engine
def test_what_unload_gives_back_and_what_the_heap_keeps(wide: TransformersEngine) -> None:
    ask(wide, 1000)
    before = wide.statistics()
    wide.unload()
    after = wide.statistics()
    released = sum(before[name] - after[name] for name in ("heap_in_use_bytes", "heap_mmapped_bytes"))
    # The weights (4 bytes a parameter) and the cache are handed back to the heap; what it keeps of them it keeps free.
    parameters = wide._model.num_parameters
    assert parameters is not None
    assert released >= 0.95 * (4 * parameters + before["cache_storage_bytes"])
    assert "cache_tensor_bytes" not in after
