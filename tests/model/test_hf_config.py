"""config.json → ModelSpec, against transformers' own numbers and hand-derived ones."""

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvscope.errors import MalformedFile, MissingField, ModelError, ModelNotFound, UnsupportedArchitecture
from kvscope.model.class_defaults import class_defaults
from kvscope.model.hf_config import load_config, model_from_config
from kvscope.model.spec import ChunkedAttention, FullAttention, ModelSpec, SlidingWindow
from kvscope.predict.memory import predict

GOLDEN = Path(__file__).parent.parent / "golden" / "models"
TRANSFORMERS = json.loads((GOLDEN / "transformers.json").read_text())
CASES = {case["name"]: case for case in TRANSFORMERS["cases"]}
LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
GEMMA3: dict[str, Any] = {"model_type": "gemma3_text", "num_hidden_layers": 7}


def load(content: Any) -> ModelSpec:
    return model_from_config(content, source="test", where="config.json", name="test")


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-4b-it", "gemma-3-12b-it"])
def test_published_configs_give_the_hand_derived_numbers(name: str) -> None:
    expected = tomllib.loads((GOLDEN / name / "expected.toml").read_text())
    model = load_config(GOLDEN / name / "config.json")
    assert model.name == name
    for field in ("vocab_size", "hidden_size", "trained_context_tokens", "dtype"):
        assert getattr(model, field) == expected[field]
    assert model.num_parameters == expected.get("num_parameters")
    assert len(model.layers) == expected["num_layers"]
    assert sum(isinstance(layer.cache, FullAttention) for layer in model.layers) == expected["full_layers"]
    windows = {layer.cache.window_tokens for layer in model.layers if isinstance(layer.cache, SlidingWindow)}
    assert windows == ({expected["window_tokens"]} if "window_tokens" in expected else set())
    for tokens in (8192, 131_072):
        prediction = predict(model, engine="logical", tokens=tokens)
        assert prediction.cache_bytes == expected[f"cache_bytes_at_{tokens}"]
        assert prediction.bytes_per_token == expected["bytes_per_token"]


@pytest.mark.parametrize("form", ["config", "saved", "given"])
@pytest.mark.parametrize("name", CASES)
def test_layers_and_parameters_are_those_of_transformers(name: str, form: str) -> None:
    case = CASES[name]
    model = load(case[form])
    assert model.num_parameters == case["parameters"]
    for seen in case["observations"]:
        assert len(model.layers) == len(seen["layers"])
        for layer, (kind, tensors) in zip(model.layers, seen["layers"], strict=True):
            assert isinstance(layer.cache, FullAttention | SlidingWindow)
            assert isinstance(layer.cache, SlidingWindow) == (kind == "DynamicSlidingWindowLayer")
            held = seen["tokens"]
            if isinstance(layer.cache, SlidingWindow):
                held = min(held, layer.cache.window_tokens - 1)
            shape = [seen["sequences"], layer.cache.num_kv_heads, held]
            assert [[*shape, layer.cache.key_dim], [*shape, layer.cache.value_dim]] == [t[1] for t in tensors]


@pytest.mark.parametrize("name", ["llama", "llama__no_head_dim", "llama__mha", "llama__mqa_tied"])
def test_logical_cache_bytes_are_those_of_transformers(name: str) -> None:
    case = CASES[name]
    for seen in case["observations"]:
        measured = sum(tensor[2] for _, tensors in seen["layers"] for tensor in tensors)
        prediction = predict(
            load(case["config"]),
            engine="logical",
            tokens=seen["tokens"],
            sequences=seen["sequences"],
            dtype="float32",
        )
        assert prediction.cache_bytes == measured
        assert [[list(t.shape), t.num_bytes] for layer in prediction.layers for t in layer.tensors] == [
            [tensor[1], tensor[2]] for _, tensors in seen["layers"] for tensor in tensors
        ]


# What the file of defaults leaves null because the class derives it, as transformers itself derived it.
DERIVED = {
    "llama": {
        "head_dim": 128,
        "num_key_value_heads": 32,
        "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
    },
    "gemma3_text": {
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 4 + ["sliding_attention"] * 2,
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        },
    },
}
# Keys of the stated defaults that say nothing of layers, heads or weights.
NO_MEMORY = {"_name_or_path", "attention_dropout", "bos_token_id", "dtype", "eos_token_id", "initializer_range",
             "model_type", "pad_token_id", "rms_norm_eps", "transformers_version", "use_cache"}  # fmt: skip


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_class_defaults_are_those_of_transformers(model_type: str) -> None:
    stated = TRANSFORMERS["defaults"][model_type]
    found = class_defaults(model_type)
    assert found is not None
    assert found.library == f"transformers {TRANSFORMERS['transformers']}"
    ours = {**found.values, **DERIVED[model_type]}
    assert all(found.values[key] is None for key in DERIVED[model_type])
    missing = set(stated) - set(ours) - NO_MEMORY
    assert missing <= {"_sliding_window_pattern"}  # private: the class does not read it back
    for key in set(stated) & set(ours):
        assert ours[key] == stated[key], key


def test_a_bare_model_type_means_the_class_defaults() -> None:
    model = load({"model_type": "llama"})
    assert model.layers[0].cache == FullAttention(num_kv_heads=32, key_dim=128, value_dim=128)
    assert model.num_parameters == 6_738_415_616  # the 6.74B of Llama 2 7B, whose dimensions are the defaults
    assert model.sources["hidden_size"] == "class default of transformers 5.24.0 LlamaConfig"
    gemma = load({"model_type": "gemma3_text"})
    assert [layer.index for layer in gemma.layers if isinstance(layer.cache, FullAttention)] == [5, 11, 17, 23]


def test_sources_name_file_and_key() -> None:
    sources = load(LLAMA | {"num_key_value_heads": 2}).sources
    assert sources["layers[0].num_kv_heads"] == "config.json: num_key_value_heads"
    assert sources["layers[1].key_dim"].startswith("derived: hidden_size / num_attention_heads")
    nested = load({"model_type": "gemma3", "text_config": GEMMA3 | {"head_dim": 32}}).sources
    assert nested["layers[0].key_dim"] == "config.json: text_config.head_dim"


def test_a_stated_head_dim_wins_over_the_division() -> None:
    assert load(LLAMA | {"head_dim": 24}).layers[0].cache == FullAttention(num_kv_heads=4, key_dim=24, value_dim=24)


def test_biases_are_counted() -> None:
    """LlamaAttention and LlamaMLP: with biases, q, k, v, o and gate, up, down each add their output width."""
    plain = load(LLAMA | {"intermediate_size": 96}).num_parameters
    biased = load(LLAMA | {"intermediate_size": 96, "attention_bias": True, "mlp_bias": True}).num_parameters
    assert plain is not None
    assert biased == plain + 2 * (64 + 64 + 64 + 64 + 96 + 96 + 64)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "bert"}, "bert"),
        ({"model_type": "llama-but-not-quite"}, "llama-but-not-quite"),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma2"}}, "gemma2"),
        (LLAMA | {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        (LLAMA | {"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        (LLAMA | {"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        (LLAMA | {"num_experts": 8}, "num_experts"),
        (LLAMA | {"per_layer_config": {"0": {"num_key_value_heads": 1}}}, "per_layer_config"),
        ({"model_type": "gemma2", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (GEMMA3 | {"_sliding_window_pattern": 4}, "_sliding_window_pattern"),
        (GEMMA3 | {"layer_types": ["chunked_attention"] * 7}, "chunked_attention"),
    ],
)
def test_what_would_change_the_cache_is_refused_by_name(config: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedArchitecture, match=named):
        load(config)


def test_attention_to_both_sides_halves_gemma3s_window() -> None:
    """Gemma3TextConfig, transformers 5.24.0: sliding_window // 2 + 1 with use_bidirectional_attention."""
    windows = {
        layer.cache.window_tokens
        for layer in load(GEMMA3 | {"use_bidirectional_attention": True, "sliding_window": 64}).layers
        if isinstance(layer.cache, SlidingWindow)
    }
    assert windows == {33}


def test_absent_in_other_words_is_fine() -> None:
    assert load(LLAMA | {"sliding_window": None, "layer_types": None, "attention_chunk_size": None}).layers


@pytest.mark.parametrize(
    ("key", "kind"), [("sliding_window", SlidingWindow), ("attention_chunk_size", ChunkedAttention)]
)
def test_a_stray_window_is_not_the_models_but_transformers_cache_goes_by_it(key: str, kind: type) -> None:
    """Llama's attention has no window; DynamicCache of transformers 5.24.0 keeps one where the config has the key."""
    for layer in load(LLAMA | {key: 16}).layers:
        assert layer.cache == FullAttention(num_kv_heads=4, key_dim=16, value_dim=16)
        assert isinstance(layer.transformers_cache, kind)


@pytest.mark.parametrize(
    ("config", "where"),
    [
        (LLAMA | {"hidden_size": 65}, "hidden_size"),
        (LLAMA | {"hidden_size": "64"}, "hidden_size"),
        (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers"),
        (LLAMA | {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        (LLAMA | {"num_attention_heads": 0}, "num_attention_heads"),
        (LLAMA | {"head_dim": -8}, "head_dim"),
        (LLAMA | {"head_dim": 0}, "head_dim"),
        (LLAMA | {"num_key_value_heads": 0}, "num_key_value_heads"),
        (LLAMA | {"vocab_size": 0}, "vocab_size"),
        (LLAMA | {"vocab_size": math.nan}, "vocab_size"),
        (LLAMA | {"intermediate_size": math.inf}, "intermediate_size"),
        (LLAMA | {"max_position_embeddings": 0}, "max_position_embeddings"),
        (LLAMA | {"attention_chunk_size": 0}, "attention_chunk_size"),
        (LLAMA | {"sliding_window": 0}, "sliding_window"),
        (LLAMA | {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        (LLAMA | {"dtype": "float13"}, "dtype"),
        (GEMMA3 | {"layer_types": ["full_attention"]}, "layer_types"),
        (GEMMA3 | {"layer_types": "full_attention"}, "layer_types"),
        (GEMMA3 | {"sliding_window_pattern": 0}, "sliding_window_pattern"),
        (GEMMA3 | {"sliding_window": 1.5}, "sliding_window"),
        ({"model_type": "gemma3", "text_config": 3}, "text_config"),
        (["model_type"], "top level"),
    ],
)
def test_impossible_values_name_their_key(config: Any, where: str) -> None:
    with pytest.raises(MalformedFile) as caught:
        load(config)
    assert caught.value.where == where


def test_a_config_without_model_type() -> None:
    with pytest.raises(MissingField, match="model_type"):
        load({"hidden_size": 64})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"[1]", "object"),
        (b"[" * 10**6, "nested too deeply"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(MalformedFile, match=problem):
        load_config(path)


def test_a_config_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        load_config(tmp_path / "config.json")


def test_fingerprint_is_of_the_content_not_of_its_spelling() -> None:
    reordered = dict(reversed(LLAMA.items()))
    assert load(LLAMA).fingerprint == load(reordered).fingerprint
    assert load(LLAMA).fingerprint != load(LLAMA | {"vocab_size": 7}).fingerprint


@pytest.mark.parametrize("number", ["9" * 5000, "-" + "9" * 5000])
def test_a_number_that_python_refuses_to_read(tmp_path: Path, number: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(f'{{"model_type": "llama", "hidden_size": {number}}}')
    with pytest.raises(MalformedFile, match="more digits"):
        load_config(path)


def test_a_number_that_python_refuses_to_write() -> None:
    for key in ("hidden_size", "tie_word_embeddings", "sliding_window"):
        with pytest.raises(ModelError, match="thousands of digits"):
            load(LLAMA | {key: 10**5000})


def test_half_a_character_in_a_name_can_be_printed() -> None:
    """JSON can hold it, as an escape; text that is printed and recorded cannot."""
    assert load(LLAMA | {"_name_or_path": "m\ud83d"}).name == "m?"
