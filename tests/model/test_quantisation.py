"""Bytes of quantised weights: what the libraries themselves packed, and layouts worked out by hand."""

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvscope.model.load import load_model
from kvscope.model.quantisation import quantised_weights
from kvscope.model.quantisation_formats import format_of
from kvscope.model.spec import ModelSpec, WeightGroup

GOLDEN = Path(__file__).parent.parent / "golden" / "quantised"
PACKED = json.loads((GOLDEN / "tiny-llama.json").read_text())
SIZES = {
    "int64": 8, "int32": 4, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "uint8": 1, "float8_e4m3fn": 1,
}  # fmt: skip
COMPRESSED = sorted(name for name in PACKED["cases"] if name.startswith("ct-") and name != "ct-w3-group64")
BITSANDBYTES = sorted(name for name in PACKED["cases"] if name.startswith("bnb-"))


def model_with(quantisation: dict[str, Any], **changes: Any) -> ModelSpec:
    return load_model({**PACKED["config"], **changes, "quantization_config": quantisation})


def total(model: ModelSpec) -> int | str:
    found = quantised_weights(model)
    return found if isinstance(found, str) else sum(group.num_bytes for group in found)


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_tensors_as_the_library_packs_them(name: str) -> None:
    case = PACKED["cases"][name]
    expected = sum(SIZES[dtype] * math.prod(shape) for dtype, shape in case["tensors"].values())
    assert total(model_with(case["quantization_config"])) == expected


def test_three_bits_across_words_are_not_guessed() -> None:
    """Releases differ in how they pack bits that do not divide a word."""
    case = PACKED["cases"]["ct-w3-group64"]
    assert "3-bit" in str(total(model_with(case["quantization_config"])))


@pytest.mark.parametrize("name", BITSANDBYTES)
def test_bitsandbytes_as_it_lies_in_memory(name: str) -> None:
    case = PACKED["cases"][name]
    assert total(model_with(case["quantization_config"])) == case["memory_bytes"]


@pytest.mark.parametrize("name", BITSANDBYTES)
def test_bitsandbytes_files_differ_by_the_text_of_the_state_alone(name: str) -> None:
    """In memory there is no such text, and with nested quantisation an offset of four bytes for each of 14 matrices."""
    case = PACKED["cases"][name]
    stored = sum(
        SIZES[dtype] * math.prod(shape)
        for tensor, (dtype, shape) in case["tensors"].items()
        if "quant_state" not in tensor and "weight_format" not in tensor
    )
    offsets = 14 * 4 if name == "bnb-nf4-double" else 0
    assert total(model_with(case["quantization_config"])) == stored + offsets


# A Llama of the packed config has in each of 2 layers [256, 256] twice, [128, 256] twice, [384, 256] twice and
# [256, 384]; and outside, in bfloat16, two matrices of 320 × 256 and 5 norms of 256: 330,240 B.
MATRICES = [(256, 256), (128, 256), (128, 256), (256, 256), (384, 256), (384, 256), (256, 384)]
OUTSIDE = 2 * 2 * 320 * 256 + 2 * 5 * 256


def test_gptq_by_its_layout() -> None:
    """4-bit, groups of 128, [256 outputs, 256 inputs]: qweight [32, 256] and qzeros [2, 32] of int32, scales [2, 256]
    of float16, g_idx [256] of int32: 32,768 + 256 + 1,024 + 1,024 = 35,072 B."""
    assert OUTSIDE == 330_240
    form = format_of({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True})
    assert form.matrix(256, 256, 2) == 35_072
    expected = OUTSIDE
    for outputs, inputs in MATRICES * 2:
        expected += 4 * (inputs // 8) * outputs + 4 * (inputs // 128) * (outputs // 8) + 2 * (inputs // 128) * outputs
        expected += 4 * inputs
    assert total(model_with({"quant_method": "gptq", "bits": 4, "group_size": 128})) == expected


@pytest.mark.parametrize(
    ("bits", "group", "expected"),
    [
        (8, 128, 4 * 64 * 128 + 4 * 2 * 32 + 2 * 2 * 128 + 4 * 256),
        (4, -1, 4 * 32 * 128 + 4 * 16 + 2 * 128 + 4 * 256),  # one group: the whole row
        (3, 128, 4 * 24 * 128 + 4 * 2 * 12 + 2 * 2 * 128 + 4 * 256),  # 32 values in three words
        (2, 64, 4 * 16 * 128 + 4 * 4 * 8 + 2 * 4 * 128 + 4 * 256),
    ],
)
def test_gptq_of_other_widths(bits: int, group: int, expected: int) -> None:
    """[128 outputs, 256 inputs]."""
    form = format_of({"quant_method": "gptq", "bits": bits, "group_size": group})
    assert form.matrix(128, 256, 2) == expected


def test_awq_by_its_layout() -> None:
    """[128 outputs, 256 inputs], groups of 128: qweight [256, 16] and qzeros [2, 16] of int32, scales [2, 128] of
    float16: 16,384 + 128 + 512 = 17,024 B."""
    form = format_of({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True})
    assert form.matrix(128, 256, 2) == 17_024
    expected = OUTSIDE
    for outputs, inputs in MATRICES * 2:
        expected += 4 * inputs * (outputs // 8) + 4 * (inputs // 128) * (outputs // 8) + 2 * (inputs // 128) * outputs
    config = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
    assert total(model_with(config)) == expected
    assert form.matrix(128, 200, 2) is None


DEEPSEEK_FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def test_fp8_by_blocks() -> None:
    """[576, 7168] of DeepSeek-V3: 5 × 56 scales, the last row of blocks half full."""
    form = format_of(DEEPSEEK_FP8)
    assert form.matrix(576, 7168, 2) == 576 * 7168 + 4 * 5 * 56
    expected = OUTSIDE + sum(o * i + 4 * -(-o // 128) * -(-i // 128) for o, i in MATRICES * 2)
    assert total(model_with(DEEPSEEK_FP8)) == expected


def test_fp8_of_autofp8() -> None:
    config = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}
    assert total(model_with(config)) == OUTSIDE + sum(o * i + 8 for o, i in MATRICES * 2)
    config["activation_scheme"] = "dynamic"
    assert total(model_with(config)) == OUTSIDE + sum(o * i + 4 for o, i in MATRICES * 2)


def test_nvfp4_of_modelopt() -> None:
    """Two values in a byte, a byte for every 16, and two float32 of the matrix."""
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    assert total(model_with(config)) == OUTSIDE + sum(o * i // 2 + o * i // 16 + 8 for o, i in MATRICES * 2)
    config["kv_cache_scheme"] = {"num_bits": 8}  # type: ignore[assignment]
    assert "kv_cache_scheme" in str(total(model_with(config)))


def test_modules_that_are_left_as_they_are() -> None:
    """Every attention of both layers, or one MLP matrix of layer 1, stay in bfloat16."""
    attention = [(256, 256), (128, 256), (128, 256), (256, 256)]
    gain = {
        shape: 2 * math.prod(shape) - (math.prod(shape) + 4 * -(-shape[0] // 128) * -(-shape[1] // 128))
        for shape in MATRICES
    }
    plain = total(model_with(DEEPSEEK_FP8))
    assert isinstance(plain, int)
    for skips, expected in (
        (["lm_head", "self_attn"], plain),  # the end of no name: neither a module nor a regular expression for one
        (["lm_head", "model.layers.*.self_attn"], plain + 2 * sum(gain[shape] for shape in attention)),
        (["lm_head", "model.layers.1.mlp.down_proj"], plain + gain[256, 384]),
        (["lm_head", "down_proj"], plain + 2 * gain[256, 384]),
        (["lm_head", "model.layers.0"], plain + sum(gain[shape] for shape in MATRICES)),
        (["lm_head", "model.layers.0.input_layernorm", "model.norm"], plain),
    ):
        found = total(model_with({**DEEPSEEK_FP8, "modules_to_not_convert": skips}))
        if skips[1] == "self_attn":
            assert "fits no module" in str(found)
        else:
            assert found == expected, skips


def test_the_output_matrix_of_compressed_tensors_is_a_linear_layer_like_others() -> None:
    config = PACKED["cases"]["ct-FP8_DYNAMIC"]["quantization_config"]
    ignored = total(model_with(config))
    quantised = total(model_with({**config, "ignore": []}))
    assert isinstance(ignored, int)
    assert isinstance(quantised, int)
    assert ignored - quantised == 320 * 256 - 2 * 320  # a byte less for each element, a scale for each row
    pattern = total(model_with({**config, "ignore": ["re:.*lm_head"]}))
    assert pattern == ignored


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "hqq"}, "hqq"),
        ({"quant_method": None}, "not known"),
        ({}, "not known"),
        ({"quant_method": ["gptq"]}, "not known"),
        ({"quant_method": "gptq"}, "bits"),
        ({"quant_method": "gptq", "bits": "4"}, "bits"),
        ({"quant_method": "gptq", "bits": 5}, "5-bit"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "marlin"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*gate": {}}}, "dynamic"),
        ({"quant_method": "gptq", "bits": 4, "lm_head": True}, "lm_head"),
        ({"quant_method": "gptq", "bits": 4, "modules_in_block_to_quantize": [["q_proj"]]}, "modules_in_block"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"}, "gemv"),
        ({"quant_method": "awq", "bits": 4, "group_size": 100}, "cannot be packed"),
        ({"quant_method": "fp8"}, "weight_block_size"),
        ({**DEEPSEEK_FP8, "weight_block_size": [128]}, "two whole numbers"),
        ({**DEEPSEEK_FP8, "weight_block_size": [0, 128]}, "two whole numbers"),
        ({**DEEPSEEK_FP8, "scale_fmt": "ue8m0"}, "scale_fmt"),
        ({**DEEPSEEK_FP8, "modules_to_not_convert": "lm_head"}, "list of names"),
        ({**DEEPSEEK_FP8, "modules_to_not_convert": ["mlp.down_proj"]}, "does not name the output matrix"),
        ({**DEEPSEEK_FP8, "modules_to_not_convert": ["lm_head", "language_model.layers.0.mlp"]}, "fits no module"),
        ({**DEEPSEEK_FP8, "modules_to_not_convert": ["lm_head", "(a+)+b"]}, "not understood"),
        ({"quant_method": "compressed-tensors"}, "config group"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {}, "b": {}}}, "one config group"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"targets": ["Linear"]}}}, "no weights"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "W4A8_AWQ"),
        ({"quant_method": "bitsandbytes"}, "neither"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_storage": "bfloat16"}, "storage"),
    ],
)
def test_what_is_not_certain_is_said_and_not_counted(config: dict[str, Any], words: str) -> None:
    assert words in str(total(model_with(config)))


@pytest.mark.parametrize(
    "pattern", ["re:(a+)+$", "re:(a|b)*c", "re:.*.*.*.*x", "re:" + "a" * 400, "re:(", "re:(.*a){12}"]
)
def test_patterns_that_would_take_for_ever_are_not_tried(pattern: str) -> None:
    config = {**PACKED["cases"]["ct-FP8_DYNAMIC"]["quantization_config"], "ignore": ["lm_head", pattern]}
    began = time.process_time()
    assert "pattern" in str(total(model_with(config)))
    assert time.process_time() - began < 0.5


def experts(model: ModelSpec, *groups: WeightGroup) -> ModelSpec:
    return replace(model, weights=(*model.weights, *groups))


def test_experts_are_matrices_of_their_own() -> None:
    """Four experts of width 192 in a model 256 wide: gate and up are [192, 256] each with 2 × 2 scales of blocks, not
    one [384, 256] with 3 × 2."""
    config = {**DEEPSEEK_FP8, "modules_to_not_convert": ["lm_head", "mlp.gate"]}
    model = model_with(config)
    gate_up = WeightGroup(
        name="model.layers.{}.mlp.experts.gate_up_proj", shape=(4, 384, 256), kind="experts", layers=(0, 1)
    )
    down = WeightGroup(name="model.layers.{}.mlp.experts.down_proj", shape=(4, 256, 192), kind="experts", layers=(0, 1))
    router = WeightGroup(name="model.layers.{}.mlp.gate.weight", shape=(4, 256), kind="linear", layers=(0, 1))
    without = total(experts(model, router))
    both = total(experts(model, router, gate_up, down))
    assert isinstance(both, int)
    assert isinstance(without, int)
    one = 2 * (192 * 256 + 4 * 2 * 2) + 256 * 192 + 4 * 2 * 2
    assert both - without == 2 * 4 * one
    turned = replace(gate_up, shape=(4, 256, 384))  # inputs first, as some models keep them
    assert total(experts(model, router, turned, replace(down, shape=(4, 192, 256)))) == both


def test_experts_and_routers_of_which_nothing_is_said() -> None:
    model = model_with(DEEPSEEK_FP8)
    router = WeightGroup(name="model.layers.{}.mlp.gate.weight", shape=(4, 256), kind="linear", layers=(0, 1))
    assert "does not say whether" in str(total(experts(model, router)))
    stack = WeightGroup(name="model.layers.{}.mlp.experts.down_proj", shape=(4, 256, 192), kind="experts", layers=(0,))
    gptq = model_with({"quant_method": "gptq", "bits": 4})
    assert "stores experts" in str(total(experts(gptq, stack)))
    some = {**DEEPSEEK_FP8, "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.experts.3.down_proj"]}
    assert "fits no module" in str(total(experts(model_with(some), stack)))


def test_a_long_list_of_modules_is_fast() -> None:
    """As the lists of published fp8 models: every norm and router of every layer."""
    names = [
        f"model.layers.{i}.{name}" for i in range(2000) for name in ("input_layernorm", "post_attention_layernorm")
    ]
    model = model_with({**DEEPSEEK_FP8, "modules_to_not_convert": ["lm_head", *names]})
    began = time.process_time()
    assert isinstance(total(model), int)
    assert time.process_time() - began < 0.2


def test_nothing_is_known_without_the_tensors_or_their_format() -> None:
    config = {**PACKED["config"], "quantization_config": DEEPSEEK_FP8}
    del config["dtype"]
    assert "format of what is not quantised" in str(total(load_model(config)))
    assert "tensors of llama are not known" in str(total(replace(load_model(config), weights=())))
