"""Many scenarios at once: each equal to predict() with ==."""

import random
import time
from pathlib import Path
from typing import Any

import pytest

import kvscope
from kvscope.errors import KvscopeError, UsageError
from kvscope.model.spec import ModelSpec
from kvscope.predict.question import Question
from kvscope.predict.sweep import sweep

GOLDEN = Path(__file__).parent.parent / "golden" / "models"
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


POOLED = ["llama-3.1-8b", "gemma-3-12b-it", "qwen3-next-80b-a3b"]
MODELS = sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))


def pooled(engine: str, tokens: int, sequences: int, dtype: str | None, **asked: Any) -> kvscope.Prediction:
    """predict() of an engine that is set up for exactly these tokens."""
    name = "max_model_len" if engine == "vllm" else "context_length"
    settings = {**asked.pop("settings", {}), name: max(tokens, 1)}
    return kvscope.predict(engine=engine, tokens=tokens, sequences=sequences, dtype=dtype, settings=settings, **asked)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("name", POOLED)
def test_100_000_scenarios_of_an_engine_with_a_pool(engine: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As exact as predict(), which is asked a few times; in a second of this process's own time."""
    model = kvscope.load_model(str(GOLDEN / name / "config.json"))
    asked: list[int] = []
    own_ask = Question.ask

    def ask(question: Question) -> kvscope.Prediction:
        asked.append(1)
        return own_ask(question)

    monkeypatch.setattr(Question, "ask", ask)
    tokens = [*range(2000), *range(2001, 262_001, 65)][:5000]
    started = time.process_time()
    found = sweep(
        Question(model=model, engine=engine),
        tokens=tokens,
        sequences=range(1, 11),
        cache_dtypes=("bfloat16", "float16"),
    )
    took = time.process_time() - started
    assert (len(found), took < 1) == (100_000, True), took
    assert len(asked) < 300
    monkeypatch.undo()
    rows = list(found.rows())
    borders = [row for row in rows if row[2] in (0, 1, 15, 16, 17, 31, 32, 128, 129, 1024) and row[1] == 3]
    for dtype, sequences, count, total, cache in (*random.Random(name).sample(rows, 60), *borders):
        one = pooled(engine, count, sequences, dtype, model=model)
        assert (total, cache) == (one.total_bytes, one.cache_bytes), (dtype, sequences, count)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_on_an_engine_with_a_pool(engine: str, name: str) -> None:
    """Every published config, with the engine's other settings, at lengths at random and beside every border."""
    model = kvscope.load_model(str(GOLDEN / name / "config.json"))
    draw = random.Random(name + engine)
    tokens = sorted({*range(40), *draw.sample(range(10**5), 40), *(2**n + d for n in range(5, 18) for d in (-1, 0, 1))})
    choices: dict[str, list[dict[str, Any]]] = {
        "vllm": [{}, {"block_size": 32}, {"max_num_batched_tokens": 300}, {"enable_prefix_caching": False},
                 {"disable_hybrid_kv_cache_manager": True}, {"device": "cuda"}, {"tensor_parallel_size": 2},
                 {"kv_offloading_size": 1}, {"num_gpu_blocks_override": 10**6}],
        "sglang": [{}, {"page_size": 64}, {"max_total_tokens": 10**6}, {"max_mamba_cache_size": 7}],
    }  # fmt: skip
    for settings in choices[engine]:
        question = Question(model=model, engine=engine, settings=settings)
        try:
            found = sweep(question, tokens=tokens, sequences=[1, 2, 7])
        except KvscopeError as error:
            # What is refused here is refused there.
            with pytest.raises(type(error)):
                [pooled(engine, count, 1, None, model=model, settings=settings) for count in (tokens[0], tokens[-1])]
            continue
        for _, sequences, count, total, cache in draw.sample(list(found.rows()), 25):
            one = pooled(engine, count, sequences, None, model=model, settings=settings)
            assert (total, cache) == (one.total_bytes, one.cache_bytes), (settings, sequences, count)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_pool_takes_the_memory_that_it_is_given(engine: str) -> None:
    model = kvscope.load_model(MISTRAL)
    found = sweep(Question(model=model, engine=engine, available_bytes=10**10), tokens=[1, 100, 5000], sequences=[1, 3])
    for _, sequences, count, total, cache in found.rows():
        asked = pooled(engine, count, sequences, None, model=model, available_bytes=10**10)
        assert (total, cache) == (asked.total_bytes, asked.cache_bytes)
    assert len(set(found.total_bytes)) == 1


@pytest.mark.parametrize("engine", ["logical", "transformers", "llama.cpp", "vllm", "sglang"])
@pytest.mark.parametrize("axis", [{"tokens": [10, -5, 20]}, {"sequences": [4, 0, 2]}])
def test_numbers_that_predict_refuses_are_refused(engine: str, axis: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(axis))):
        sweep(Question(model=kvscope.load_model(LLAMA), engine=engine), **{"tokens": [10], **axis})


def test_order_and_dictionary() -> None:
    found = sweep(Question(model=kvscope.load_model(LLAMA), engine="logical"), tokens=[10, 5], sequences=[2, 1])
    assert [row[1:3] for row in found.rows()] == [(2, 10), (2, 5), (1, 10), (1, 5)]
    per_token = 32 * 2 * 8 * 128 * 2
    assert found.to_dict()["cache_bytes"] == [20 * per_token, 10 * per_token, 10 * per_token, 5 * per_token]


def test_an_empty_axis_is_refused() -> None:
    with pytest.raises(UsageError, match="tokens"):
        sweep(Question(model=kvscope.load_model(LLAMA), engine="logical"), tokens=[])
