"""The cache of real models of many kinds, counted by the engine while it runs, against the prediction: with ==.

Each is asked twice: for one token (the cache straight after the prefill, whose views keep a whole prompt alive) and for
several. The configs are those of tests/golden/transformers, with a vocabulary for bytes; the weights are random.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvscope.engine.base import ChatRequest, Message
from kvscope.engine.transformers import TransformersEngine
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.predict.memory import predict

sys.path.append(str(Path(__file__).parent))
from transformers_models import Child, folder_of, golden_config, llama_config

pytestmark = pytest.mark.engine

# Full attention; grouped by old means; sliding windows, in all layers or some; chunks; latents, with an index or
# compressed; convolutions and recurrent states alone, between and within attention layers; states kept in modules; a
# cache class of its own; layers that share.
KINDS = (
    "llama",
    "gpt2",
    "mistral",
    "gemma3_text",
    "gpt_oss",
    "llama4_text",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "mamba",
    "mamba2",
    "jamba",
    "bamba",
    "qwen3_next",
    "lfm2",
    "falcon_h1",
    "nemotron_h",
    "recurrent_gemma",
    "minimax",
    "gemma3n_text",
    "xlstm",
)
Loaded = Callable[..., tuple[TransformersEngine, ModelSpec]]


@pytest.fixture
def loaded(tmp_path_factory: pytest.TempPathFactory, transformers_child: Child) -> Loaded:
    """A function that loads a config into the child that all tests share."""

    def load(config: dict[str, Any], **settings: Any) -> tuple[TransformersEngine, ModelSpec]:
        model = load_model(folder_of(tmp_path_factory.mktemp("models"), config))
        engine = TransformersEngine(model=model, settings={"num_threads": 1, "dtype": "float32", **settings})
        transformers_child.give_to(engine)
        engine.load()
        return engine, model

    return load


def ask(engine: TransformersEngine, text: str, output_tokens: int, *, reuse: bool = False) -> Any:
    messages = (Message(role="user", content=text),)
    return engine.generate(ChatRequest(messages=messages, max_output_tokens=output_tokens, reuse_prefix=reuse))


def counted(engine: TransformersEngine) -> tuple[float, float]:
    stated = engine.statistics()
    return stated["cache_tensor_bytes"], stated["cache_storage_bytes"]


def predicted(model: ModelSpec, tokens: int, *, dtype: str = "float32", phase: Any = "decode", **settings: Any) -> Any:
    found = predict(model, engine="transformers", tokens=tokens, phase=phase, dtype=dtype, settings=settings)
    return found.cache_bytes, found.kv_cache_storage_bytes


# Kinds of which parts stay float32 in a model that is not.
MIXED = ("llama", "jamba", "qwen3_next", "lfm2", "deepseek_v4", "xlstm")


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float32") for name in KINDS), *((name, "bfloat16") for name in MIXED)]
)
def test_what_the_engine_counts_is_what_was_predicted(loaded: Loaded, name: str, dtype: str) -> None:
    engine, model = loaded(golden_config(name), dtype=dtype)
    short = ask(engine, "Why?", 1)
    assert counted(engine) == predicted(model, short.prompt_tokens, dtype=dtype, phase="prefill")
    longer = ask(engine, "Why does memory grow when a conversation gets longer?", 5)
    # The last token is never fed back.
    assert counted(engine) == predicted(model, longer.prompt_tokens + 4, dtype=dtype)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_next"])
def test_a_static_cache(loaded: Loaded, name: str) -> None:
    engine, model = loaded(golden_config(name), cache_implementation="static", max_cache_len=200)
    answer = ask(engine, "Why?", 3)
    expected = predicted(model, answer.prompt_tokens + 2, cache_implementation="static", max_cache_len=200)
    assert counted(engine) == expected


def test_a_cache_without_windows(loaded: Loaded) -> None:
    engine, model = loaded(golden_config("mistral"), cache="dynamic_full")
    answer = ask(engine, "Why?" * 20, 3)
    held = answer.prompt_tokens + 2
    assert counted(engine) == predicted(model, held, cache_implementation="dynamic_full")
    # 6 layers × keys and values × 2 KV heads × 24 wide × 4 bytes.
    assert counted(engine)[0] == 6 * 2 * 2 * 24 * 4 * held


def test_an_fp8_cache(loaded: Loaded) -> None:
    engine, model = loaded(llama_config(), cache="quantized", backend="fp8")
    answer = ask(engine, "Why?", 3)
    settings = {"cache_implementation": "quantized", "backend": "fp8", "prompt_tokens": answer.prompt_tokens}
    assert counted(engine)[0] == predicted(model, answer.prompt_tokens + 2, **settings)[0]


def test_tensors_are_listed_by_shape(loaded: Loaded) -> None:
    engine, _ = loaded(llama_config())
    answer = ask(engine, "Why?", 3)
    held = answer.prompt_tokens + 2
    assert engine.cache_tensors()[:2] == (
        ("layers.0.keys", (1, 4, held, 32), "float32"),
        ("layers.0.values", (1, 4, held, 32), "float32"),
    )


def test_a_cleared_cache_holds_nothing(loaded: Loaded) -> None:
    engine, _ = loaded(llama_config())
    ask(engine, "Why?", 2)
    assert counted(engine)[0] > 0
    assert engine.clear_cache() is None
    assert counted(engine) == (0, 0)
    assert engine.cache_tensors() == ()


# Kinds whose layers can all be cut back, and others; without experts, whose kernels know no double precision, and
# without an index, whose scores are zero for many tokens at once, so that the best of them are any.
CUT_BACK = {"llama": {}, "gpt2": {}, "deepseek_v3": {"first_k_dense_replace": 6}}
NOT_CUT_BACK = ("mistral", "gemma3n_text", "mamba", "lfm2", "falcon_h1", "recurrent_gemma")


@pytest.mark.parametrize("name", [*CUT_BACK, *NOT_CUT_BACK])
def test_an_answer_from_a_reused_beginning_is_the_same(loaded: Loaded, name: str) -> None:
    # In double precision: which token is the likeliest must not hang on the order of a sum.
    engine, _ = loaded(golden_config(name, **CUT_BACK.get(name, {})), dtype="float64")
    beginning = "The same beginning of both prompts, "
    ask(engine, beginning + "and one end.", 4)
    again = ask(engine, beginning + "the other end!", 8, reuse=True)
    anew = ask(engine, beginning + "the other end!", 8)
    assert [event.text for event in again.events] == [event.text for event in anew.events]
    assert anew.cached_tokens == 0
    # Template and beginning, where every layer can be cut back. Windows here are of 16 tokens and have moved on.
    assert again.cached_tokens == (len("<|im_start|>user\n" + beginning) if name in CUT_BACK else 0)


@pytest.mark.parametrize("name", ["llama", "mistral", "llama4_text", "deepseek_v3", "gemma3n_text"])
def test_a_prompt_in_chunks_gives_the_same_answer(loaded: Loaded, name: str) -> None:
    text = "A prompt that is longer than its chunks, and longer than a window."
    whole, _ = loaded(golden_config(name))
    expected = [event.text for event in ask(whole, text, 6).events]
    chunked, model = loaded(golden_config(name), prefill_chunk_tokens=7)
    answer = ask(chunked, text, 6)
    assert [event.text for event in answer.events] == expected
    assert counted(chunked) == predicted(model, answer.prompt_tokens + 5)
