"""Compute and output buffers beyond the recorded observations: shapes, doubts and borders."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvscope.model.hf_config import model_from_config
from kvscope.model.spec import ModelSpec
from kvscope.predict.buffers import output_buffer, rotation_sizes
from kvscope.predict.memory import predict


def terms(model: ModelSpec, **settings: Any) -> list[int]:
    """The terms of the compute buffer: whatever the context, then what the context and the logits add."""
    found = predict(model, engine="llama.cpp", settings={"n_ctx": 2048, **settings})
    return [item.allocated.fixed_bytes for item in found.items if item.component == "compute_buffer"]


def compute(model: ModelSpec, **settings: Any) -> int:
    return sum(terms(model, **settings))


def test_smollm2_written_out(smollm2: ModelSpec) -> None:
    """512 tokens at once, 2,048 cells: inputs 32 + 9 × 4 × 512, mask 2 × 2048 × 512, five rows of 576 floats, three of
    1536: 32 + 18,432 + 2,097,152 + 5,898,240 + 9,437,184 = 17,451,040 B, as measured."""
    assert compute(smollm2) == 17_451_040
    assert 32 + 9 * 4 * 512 + 2 * 2048 * 512 + 5 * 4 * 576 * 512 + 3 * 4 * 1536 * 512 == 17_451_040


def test_what_the_context_adds_is_a_term_of_its_own(smollm2: ModelSpec) -> None:
    """The mask of 512 tokens, two bytes for each of the cells beyond 256; without flash attention four bytes, and four
    for each of nine heads' scores."""
    assert terms(smollm2) == [17_451_040 - 2 * (2048 - 256) * 512, 2 * (2048 - 256) * 512]
    # 8,192 cells against 4,096, both with scores as the widest step
    long, short = (terms(smollm2, n_ctx=n_ctx, flash_attn="off") for n_ctx in (8192, 4096))
    assert long[0] == short[0]
    assert long[1] - short[1] == (4 + 4 * 9) * 4096 * 512
    assert terms(smollm2, n_ctx=256) == [compute(smollm2, n_ctx=256)]


def test_logits_of_every_position_are_a_term_of_their_own(smollm2: ModelSpec) -> None:
    """Embedding mode: the buffer as recorded, of which 512 rows of logits replace the widest step of before."""
    found = terms(smollm2, embedding=True)
    assert len(found) == 3
    assert found[0] == terms(smollm2)[0]
    # 512 rows of 49,152 logits take the place of one, beside one row as wide as the model more
    assert found[2] > (512 - 1) * 49_152 * 4 - 3 * 4 * 1536 * 512


def real_shape(model_type: str, hidden: int, ffn: int, heads: int, kv_heads: int, head_dim: int) -> ModelSpec:
    """A model of real dimensions, as if its config had come as a GGUF."""
    config = {
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "num_hidden_layers": 7,
        "sliding_window": None if model_type == "llama" else 512,
        "vocab_size": 288,
    }
    return replace(model_from_config(config, source="t", where="c", name="t"), source_kind="gguf")


# MiB as the engine logged them for generated models of these dimensions (two decimals), n_ubatch 512.
LOGGED = [
    (("llama", 2048, 8192, 32, 8, 64), {"n_ctx": 2048}, "70.02"),
    (("llama", 2048, 8192, 32, 8, 64), {"n_ctx": 8192}, "76.02"),
    (("llama", 2048, 8192, 32, 8, 64), {"n_ctx": 2048, "flash_attn": "off"}, "158.01"),
    (("llama", 4096, 14336, 32, 8, 128), {"n_ctx": 2048}, "126.02"),
    (("llama", 4096, 14336, 32, 8, 128), {"n_ctx": 2048, "flash_attn": "off"}, "184.01"),
    (("llama", 4096, 14336, 32, 8, 128), {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, "126.10"),
    (("llama", 4096, 11008, 32, 32, 128), {"n_ctx": 8192}, "112.52"),
    (("llama", 5120, 14336, 32, 8, 128), {"n_ctx": 2048}, "136.02"),
    (("gemma3_text", 1152, 6912, 4, 1, 256), {"n_ctx": 2048}, "54.78"),
    (("gemma3_text", 1152, 6912, 4, 1, 256), {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, "55.31"),
    (("llama", 256, 512, 4, 2, 64), {"n_ctx": 2048}, "7.52"),
    (("llama", 5120, 14336, 32, 8, 128), {"n_ctx": 2048, "flash_attn": "off"}, "194.01"),
    (("gemma3_text", 5376, 21504, 32, 16, 128), {"n_ctx": 2048, "flash_attn": "off"}, "210.52"),
]


@pytest.mark.parametrize(("shape", "settings", "mib"), LOGGED)
def test_dimensions_of_real_models(shape: Any, settings: dict[str, Any], mib: str) -> None:
    assert f"{compute(real_shape(*shape), **settings) / 2**20:.2f}" == mib


def test_a_model_without_tensors_is_an_estimate_and_says_why() -> None:
    found = predict(real_shape("llama", 256, 512, 4, 2, 64), engine="llama.cpp", settings={"n_ctx": 2048})
    item = next(item for item in found.items if item.component == "compute_buffer")
    assert item.status == "estimated"
    assert any(entry.what == "compute_buffer" and entry.why.startswith("estimated: ") for entry in found.unknown)
    assert found.missing == {"runtime", "weights"}  # an estimate is still a number


def test_a_cache_without_layers_takes_no_part_in_the_graph(gemma3: ModelSpec) -> None:
    """Two layers, both sliding: the engine logged 19.27 MiB at 2,048 and at 8,192, with a vocabulary of 288."""
    model = replace(gemma3, layers=gemma3.layers[:2], vocab_size=288)
    sizes = [compute(model, n_ctx=n_ctx) for n_ctx in (2048, 8192)]
    assert [f"{size / 2**20:.2f}" for size in sizes] == ["19.27", "19.27"]


def test_rotations() -> None:
    """n_rot_k and n_rot_v as the engine logs them: 64/64 for heads of 64, 256/64 for 256, none for 32."""
    found = {
        d: (rotation_sizes(d, is_value=False), rotation_sizes(d, is_value=True)) for d in (32, 64, 96, 128, 256, 576)
    }
    assert found == {
        32: (None, None),
        64: (64, 64),
        96: (None, None),
        128: (128, 64),
        256: (256, 64),
        576: (64, 64),
    }


def test_output_buffer(smollm2: ModelSpec, golden_model: Callable[[str], ModelSpec]) -> None:
    assert output_buffer(smollm2, 1, embedding=False)[0] == 49_152 * 4
    assert output_buffer(smollm2, 2, embedding=True)[0] == (49_152 + 576) * 4 * 2  # 397,824, as measured
    assert output_buffer(golden_model("gemma3-270m-q4_k_m"), 4, embedding=False)[0] == 4_194_304
