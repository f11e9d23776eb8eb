"""Bytes per token of each kind of cache, against public reports and hand-derived numbers."""

from dataclasses import replace
from typing import Any

import pytest

from kvscope.dtypes import dtype_named
from kvscope.errors import UnsupportedArchitecture, UsageError
from kvscope.model.hf_config import model_from_config
from kvscope.model.spec import (
    CacheKind,
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    FullAttention,
    HiddenStateMemory,
    HybridCache,
    IndexedAttention,
    LatentAttention,
    ModelSpec,
    NoCache,
    RecurrentState,
    SharedCache,
    SlidingWindow,
    StateTensor,
)
from kvscope.predict.kv_cache import kind_name, needed_by_layer, needed_parts
from kvscope.predict.memory import predict

HEADS = {"num_kv_heads": 8, "key_dim": 128, "value_dim": 128}
MLA = LatentAttention(latent_dim=512, rope_dim=64)
# falcon-mamba-7b: 8,192 channels of 16 numbers, convolution of 4 taps
MAMBA = RecurrentState(
    form="mamba", conv_channels=8192, conv_kernel=4, states=(StateTensor(name="ssm_state", shape=(8192, 16)),)
)
# Qwen3-Next-80B: 16 key and 32 value heads of 128, convolution over 2 × 2,048 + 4,096 channels
DELTA_NET = RecurrentState(
    form="gated_delta_net",
    conv_channels=8192,
    conv_kernel=4,
    states=(StateTensor(name="state", shape=(32, 128, 128), dtype="float32"),),
)


@pytest.mark.parametrize(
    ("cache", "dtype", "tokens", "expected"),
    [
        # 8 × (128 + 128) × 2 B = 4,096 B per token
        (FullAttention(**HEADS), "f16", 8192, 4096 * 8192),
        # q8_0: 34 B per 32 elements: 8 × 256 / 32 × 34 = 2,176 B (ollama/ollama#6276: 53 % of f16, not half)
        (FullAttention(**HEADS), "q8_0", 32_768, 2176 * 32_768),
        (FullAttention(num_kv_heads=2, key_dim=192, value_dim=128), "bf16", 10, 2 * (192 + 128) * 2 * 10),
        (SlidingWindow(**HEADS, window_tokens=512), "f16", 511, 4096 * 511),
        (SlidingWindow(**HEADS, window_tokens=512), "f16", 100_000, 4096 * 512),
        (ChunkedAttention(**HEADS, chunk_tokens=8192), "f16", 100_000, 4096 * 8192),
        # (512 + 64) × 2 B = 1,152 B (the 70,272 B per token of 61 layers in unslothai/unsloth#4757)
        (LatentAttention(latent_dim=512, rope_dim=64), "f16", 163_840, 1152 * 163_840),
        # q8_0 latent: 576 / 32 × 34 = 612 B per token and layer (ikawrakow/ik_llama.cpp#259)
        (LatentAttention(latent_dim=512, rope_dim=64), "q8_0", 32_768, 612 * 32_768),
        (SharedCache(layer_index=3), "f16", 100, 0),
        (NoCache(), "f16", 100, 0),
    ],
)
def test_needed_bytes(cache: CacheKind, dtype: str, tokens: int, expected: int) -> None:
    element = dtype_named(dtype)
    assert needed_by_layer(cache, element, element).bytes_at(tokens) == expected


@pytest.mark.parametrize(
    ("cache", "dtype", "tokens", "expected"),
    [
        # DeepSeek-V3.2: 1,152 B of latent + 128 float8 elements and a float32 scale; × 61 layers = 2,566,520,832
        (IndexedAttention(main=MLA, index_dim=128, index_row_bytes=132), "bf16", 32_768, 32_768 * 1284),
        (IndexedAttention(main=MLA, index_dim=128), "bf16", 1000, 1000 * (1152 + 256)),
        (IndexedAttention(main=SharedCache(layer_index=0), index_dim=128), "bf16", 1000, 1000 * 256),
        # A window of 128 entries of 1,024 B, no more.
        (CompressedAttention(entry_dim=512, window_tokens=128, rate_tokens=None), "bf16", 1001, 131_072),
        # … and 1,001 // 128 = 7 entries, and 128 tokens' values and gates: 131,072 + 7,168 + 2 × 128 × 1,024
        (CompressedAttention(entry_dim=512, window_tokens=128, rate_tokens=128), "bf16", 1001, 400_384),
        # Rate 4: 250 entries of 1,024 B and index keys of 256 B; inputs of 4 tokens twice as wide, and half of those
        # of the block before: 131,072 + 250 × 1,280 + 2 × 3 × 4 × (1,024 + 256)
        (
            CompressedAttention(entry_dim=512, window_tokens=128, rate_tokens=4, index_dim=128, overlaps=True),
            "bf16",
            1001,
            481_792,
        ),
        # 3 columns × 8,192 × 2 B + 8,192 × 16 × 2 B; × 64 layers = 19,922,944
        (MAMBA, "bf16", 32_768, 311_296),
        (MAMBA, "bf16", 1, 311_296),
        # 3 × 8,192 × 2 B + 32 × 128 × 128 × 4 B; × 36 layers = 77,266,944
        (DELTA_NET, "bf16", 32_768, 2_146_304),
        (HybridCache(attention=FullAttention(**HEADS), recurrent=MAMBA), "bf16", 10, 10 * 4096 + 311_296),
        # 8 × (128 + 128) × 2 B × 6,404 image tokens, whatever the text's length
        (CrossAttention(**HEADS, source_tokens=6404), "bf16", 5, 26_230_784),
        (HiddenStateMemory(width=64, memory_tokens=32), "f32", 100, 8192),
        (HiddenStateMemory(width=64, memory_tokens=None), "f32", 100, 25_600),
        # 2 heads × 2 hashes of int64 per token, from 17 tokens on
        (HiddenStateMemory(width=32, memory_tokens=None, extra_row_bytes=32, extra_from_tokens=17), "f32", 16, 2048),
        (HiddenStateMemory(width=32, memory_tokens=None, extra_row_bytes=32, extra_from_tokens=17), "f32", 17, 2720),
    ],
)
def test_needed_bytes_of_kinds_with_several_tensors(cache: CacheKind, dtype: str, tokens: int, expected: int) -> None:
    element = dtype_named(dtype)
    assert sum(part.law.bytes_at(tokens) for part in needed_parts(cache, element, element)) == expected


def test_a_cross_attention_of_unstated_length_has_no_part() -> None:
    element = dtype_named("bf16")
    assert needed_parts(CrossAttention(**HEADS, source_tokens=None), element, element) == ()


def test_a_format_that_does_not_divide_a_row_is_refused() -> None:
    element = dtype_named("f16")
    with pytest.raises(UsageError, match="blocks of 32"):
        needed_by_layer(FullAttention(num_kv_heads=1, key_dim=16, value_dim=16), dtype_named("q4_0"), element)


def test_every_kind_has_a_name() -> None:
    kinds: list[CacheKind] = [
        FullAttention(**HEADS),
        SlidingWindow(**HEADS, window_tokens=1),
        ChunkedAttention(**HEADS, chunk_tokens=1),
        MLA,
        IndexedAttention(main=MLA, index_dim=1),
        CompressedAttention(entry_dim=1, window_tokens=1, rate_tokens=1),
        MAMBA,
        DELTA_NET,
        HybridCache(attention=FullAttention(**HEADS), recurrent=MAMBA),
        CrossAttention(**HEADS, source_tokens=1),
        HiddenStateMemory(width=1, memory_tokens=1),
        SharedCache(layer_index=0),
        NoCache(),
    ]
    assert len({kind_name(kind) for kind in kinds}) == len(kinds)


def gemma3_27b() -> Any:
    """The dimensions of a public report (unslothai/unsloth#4757): 62 layers, 16 KV heads of 128, window 1024."""
    config = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 62,
        "hidden_size": 5376,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "intermediate_size": 21_504,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
    }
    return model_from_config(config, source="test", where="config.json", name="gemma-3-27b")


def test_a_public_report_of_a_sliding_window_model() -> None:
    """10 global layers × 8,192 B × 131,072 + 52 local × 8,192 × 1,024 = 11,173,625,856 B; with llama.cpp's 1,536 cells
    per local layer 11,391,729,664 B; a flat formula says eight times as much."""
    assert predict(gemma3_27b(), engine="logical", tokens=131_072, dtype="float16").cache_bytes == 11_173_625_856
    allocated = predict(gemma3_27b(), engine="llama.cpp", settings={"n_ctx": 131_072})
    assert allocated.cache_bytes == 11_391_729_664


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # ollama/ollama#9685: at 2,048 tokens window layers save little: 10 × 8,192 × 2,048 + 52 × 8,192 × 1,536
        ({"n_ctx": 2048}, 822_083_584),
        # ollama/ollama#9678: 20,000 is padded to 20,224 cells; q8_0 rows of 4,352 B: (10 × 20,224 + 52 × 1,536) × 4,352
        ({"n_ctx": 20_000, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 1_227_751_424),
    ],
)
def test_public_reports_of_llama_cpp_caches(settings: dict[str, Any], expected: int) -> None:
    assert predict(gemma3_27b(), engine="llama.cpp", settings=settings).cache_bytes == expected


def test_without_flash_attention_every_layers_values_are_as_wide_as_the_widest(golden_model: Any) -> None:
    """deci with KV heads [2, 0, 2, 0] of 16: K stays 2 layers × 2048 × 64 B = 0.25 MiB, V becomes 4 × 2048 × 64 B."""
    model = golden_model("tiny-deci")
    sizes = {}
    for flash_attn in ("on", "off"):
        found = predict(model, engine="llama.cpp", settings={"n_ctx": 2048, "flash_attn": flash_attn})
        (buffer,) = [b for b in found.buffers if b.name == "kv_cache"]
        sizes[flash_attn] = (buffer.details["k_bytes"], buffer.details["v_bytes"])
    assert sizes == {"on": (262_144, 262_144), "off": (262_144, 524_288)}


def test_a_llama_file_with_unequal_layers_is_refused_as_llama_cpp_does(smollm2: ModelSpec) -> None:
    """The engine: tensor 'blk.1.attn_k.weight' has wrong shape (it reads one number of KV heads for all layers)."""
    odd = replace(smollm2.layers[3], cache=FullAttention(num_kv_heads=1, key_dim=64, value_dim=64))
    model = replace(smollm2, layers=(*smollm2.layers[:3], odd, *smollm2.layers[4:]))
    with pytest.raises(UnsupportedArchitecture, match="differ in key-value heads"):
        predict(model, engine="llama.cpp")
    # What the tokens need is a plain sum all the same: 29 × 768 + 256 B per token.
    assert predict(model, engine="logical", tokens=10).cache_bytes == 10 * (29 * 768 + 256)


@pytest.mark.parametrize(
    "cache",
    [
        IndexedAttention(main=MLA, index_dim=128),
        CompressedAttention(entry_dim=512, window_tokens=128, rate_tokens=4),
        HiddenStateMemory(width=576, memory_tokens=None),
        replace(MLA, window_tokens=512),
    ],
)
def test_kinds_without_a_rule_of_the_engine_are_refused(smollm2: ModelSpec, cache: CacheKind) -> None:
    model = replace(smollm2, layers=(*smollm2.layers[:-1], replace(smollm2.layers[-1], cache=cache)))
    with pytest.raises(UnsupportedArchitecture, match="Layer 29"):
        predict(model, engine="llama.cpp")
