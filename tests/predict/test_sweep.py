"""Many scenarios at once: each equal to predict() with ==."""

import random
from typing import Any

import pytest

import kvscope
from kvscope.errors import UsageError
from kvscope.model.spec import ModelSpec
from kvscope.predict.question import Question
from kvscope.predict.sweep import sweep

LLAMA: dict[str, Any] = {"model_type": "llama", "num_key_value_heads": 8, "torch_dtype": "bfloat16"}
MISTRAL = {"model_type": "mistral", "sliding_window": 1000, "torch_dtype": "bfloat16"}


@pytest.mark.parametrize("engine", ["logical", "transformers"])
@pytest.mark.parametrize("config", [LLAMA, MISTRAL], ids=["llama", "mistral"])
def test_without_an_engine_and_transformers(engine: str, config: dict[str, Any]) -> None:
    model = kvscope.load_model(config)
    tokens = [0, 1, 7, *range(900, 1100), 4096, 10**6]
    found = sweep(
        Question(model=model, engine=engine), tokens=tokens, sequences=[1, 3, 64], cache_dtypes=["float16", "float32"]
    )
    assert len(found) == len(tokens) * 3 * 2
    for dtype, sequences, count, total, cache in random.Random(7).sample(list(found.rows()), 120):
        asked = kvscope.predict(model, engine=engine, tokens=count, sequences=sequences, dtype=dtype)
        assert (total, cache) == (asked.total_bytes, asked.cache_bytes)


@pytest.mark.parametrize("settings", [{}, {"kv_unified": True}, {"flash_attn": "off"}, {"swa_full": True}])
def test_llama_cpp(gemma3: ModelSpec, settings: dict[str, Any]) -> None:
    """Every length is given the room that it needs, in blocks of 256; windows, batches and slots bend the line."""
    types = ["f16"] if "flash_attn" in settings else ["f16", "q8_0"]
    tokens = [*range(1, 40_000, 371), 255, 256, 257, 512, 513, 1024, 1025, 2048, 2049]
    found = sweep(
        Question(model=gemma3, engine="llama.cpp", settings=settings),
        tokens=tokens,
        sequences=[1, 2, 5],
        cache_dtypes=types,
    )
    for dtype, sequences, count, total, cache in found.rows():
        if count % 3 and count > 4000:
            continue  # every third one, and all short ones
        asked = kvscope.predict(
            gemma3,
            engine="llama.cpp",
            tokens=count,
            sequences=sequences,
            settings={
                "n_ctx": -(-count // 256) * 256 * sequences,
                "n_parallel": sequences,
                "cache_type_k": dtype,
                "cache_type_v": dtype,
                **settings,
            },
        )
        assert (total, cache) == (asked.total_bytes, asked.cache_bytes), (dtype, sequences, count)


def test_an_engine_with_a_pool_is_asked_every_time() -> None:
    model = kvscope.load_model(MISTRAL)
    found = sweep(Question(model=model, engine="vllm"), tokens=[100, 5000], sequences=[1, 3])
    for _, sequences, count, total, cache in found.rows():
        asked = kvscope.predict(
            model, engine="vllm", tokens=count, sequences=sequences, settings={"max_model_len": count}
        )
        assert (total, cache) == (asked.total_bytes, asked.cache_bytes)


def test_order_and_dictionary() -> None:
    found = sweep(Question(model=kvscope.load_model(LLAMA), engine="logical"), tokens=[10, 5], sequences=[2, 1])
    assert [row[1:3] for row in found.rows()] == [(2, 10), (2, 5), (1, 10), (1, 5)]
    per_token = 32 * 2 * 8 * 128 * 2
    assert found.to_dict()["cache_bytes"] == [20 * per_token, 10 * per_token, 10 * per_token, 5 * per_token]


def test_an_empty_axis_is_refused() -> None:
    with pytest.raises(UsageError, match="tokens"):
        sweep(Question(model=kvscope.load_model(LLAMA), engine="logical"), tokens=[])
