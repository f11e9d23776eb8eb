"""Weights without an engine: tensors as stored, else what the config implies."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec, TensorInfo, WeightGroup
from kvscope.predict.memory import predict
from kvscope.predict.weights import needed_weights

GOLDEN = Path(__file__).parent.parent / "golden"
SAVED = GOLDEN / "safetensors"
PACKED = json.loads((GOLDEN / "quantised" / "tiny-llama.json").read_text())

# The published config of gpt-oss-20b, what is read of it; total_size of the published index: 13,761,264,768 B. The
# 120b: 36 layers and 128 experts, 65,248,815,744 B.
GPT_OSS = {
    "model_type": "gpt_oss", "attention_bias": True, "head_dim": 64, "hidden_size": 2880, "intermediate_size": 2880,
    "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 24, "num_local_experts": 32,
    "num_experts_per_tok": 4, "sliding_window": 128, "max_position_embeddings": 131072, "vocab_size": 201088,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "tie_word_embeddings": False,
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
        ],
        "quant_method": "mxfp4",
    },
}  # fmt: skip


def weights_bytes(model: ModelSpec, dtype: str | None = None) -> int | str:
    items, unknown = needed_weights(model, dtype)
    if unknown:
        assert items == ()
        return unknown[0].why
    (item,) = items
    assert item.needed == item.allocated
    assert f"{item.needed.bytes_at(0)} B" in item.because
    return item.needed.bytes_at(0)


def test_stored_tensors_go_before_everything_else() -> None:
    """bfloat16 files: the format asked for is the cache's, and changes no file."""
    model = load_model(SAVED / "tiny-llama-sharded")
    assert weights_bytes(model) == weights_bytes(model, "float32") == 39_232


def test_a_stored_copy_of_tied_embeddings_is_loaded_once() -> None:
    """As stored with its own output matrix: 64 × 32 elements of four bytes more in the file, not in memory."""
    model = load_model(SAVED / "tiny-llama-tied")
    assert weights_bytes(model) == 17_568 * 4
    head = TensorInfo(name="lm_head.weight", dtype="float32", shape=(64, 32), num_bytes=8192)
    stored = replace(model, tensors=(*model.tensors, head))
    assert weights_bytes(stored) == 17_568 * 4
    assert "lm_head.weight, a copy" in needed_weights(stored, None)[0][0].because
    assert weights_bytes(replace(stored, is_tied=False)) == 17_568 * 4 + 8192
    assert weights_bytes(replace(stored, source_kind="gguf")) == 17_568 * 4 + 8192


@pytest.mark.parametrize(
    ("dtype", "expected"), [(None, 17_568 * 4), ("bfloat16", 17_568 * 2), ("float8_e4m3fn", 17_568)]
)
def test_a_config_alone(dtype: str | None, expected: int) -> None:
    assert weights_bytes(load_model(SAVED / "tiny-llama-tied" / "config.json"), dtype) == expected


def test_a_tensor_that_keeps_its_own_format() -> None:
    """A router of 4 × 32 elements in float32 beside 17,568 parameters in bfloat16: two bytes more for each of 128."""
    model = load_model(SAVED / "tiny-llama-tied" / "config.json")
    router = WeightGroup(name="model.layers.0.mlp.gate.weight", shape=(4, 32), kind="other", dtype="float32")
    model = replace(model, weights=(*model.weights, router), num_parameters=17_568 + 128)
    assert weights_bytes(model, "bfloat16") == 17_568 * 2 + 128 * 4
    assert weights_bytes(model, "float32") == (17_568 + 128) * 4


def test_what_is_not_said_is_not_counted() -> None:
    config = json.loads((SAVED / "tiny-llama-tied" / "config.json").read_text())
    del config["dtype"]
    assert "format" in str(weights_bytes(load_model(config)))
    assert weights_bytes(load_model(config), "float16") == 17_568 * 2
    model = replace(load_model(config), weights=(), num_parameters=None)
    assert "number of parameters" in str(weights_bytes(model, "float16"))


@pytest.mark.parametrize(("layers", "experts", "total"), [(24, 32, 13_761_264_768), (36, 128, 65_248_815_744)])
def test_gpt_oss_takes_what_its_published_index_says(layers: int, experts: int, total: int) -> None:
    config: dict[str, Any] = {**GPT_OSS, "num_hidden_layers": layers, "num_local_experts": experts}
    config["layer_types"] = ["sliding_attention", "full_attention"] * (layers // 2)
    assert weights_bytes(load_model(config)) == total


def test_quantised_weights_are_counted_packed() -> None:
    """4-bit weights of compressed-tensors: the sum over the tensors that the library made."""
    case = PACKED["cases"]["ct-W4A16"]
    sizes = {"int32": 4, "bfloat16": 2, "int64": 8}
    total = 0
    for dtype, shape in case["tensors"].values():
        elements = 1
        for side in shape:
            elements *= side
        total += elements * sizes[dtype]
    model = load_model({**PACKED["config"], "quantization_config": case["quantization_config"]})
    assert weights_bytes(model) == total
    items, _ = needed_weights(model, None)
    assert "14 tensors quantised (compressed-tensors)" in items[0].because


def test_a_quantiser_nobody_knows_leaves_the_weights_out() -> None:
    model = load_model({**PACKED["config"], "quantization_config": {"quant_method": "aqlm"}})
    assert "aqlm" in str(weights_bytes(model))


@pytest.mark.parametrize("engine", ["llama.cpp", "ollama"])
def test_safetensors_are_not_what_llama_cpp_loads(engine: str) -> None:
    """The tensors of the original files say nothing of the converted one: other formats, other names."""
    found = predict(load_model(SAVED / "tiny-llama-sharded"), engine=engine, tokens=100)
    assert not [item for item in found.items if item.component == "weights"]
    assert found.component_bytes("weights") is None


def test_a_folder_s_weights_in_a_prediction() -> None:
    found = predict(load_model(SAVED / "tiny-llama-sharded"), engine="transformers", tokens=100)
    assert found.component_bytes("weights") == 39_232
