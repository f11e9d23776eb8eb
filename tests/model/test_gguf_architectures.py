"""GGUF keys of architectures that are no plain transformer, and what people have met in real files. Each expected
number is derived beside it; the engine's own figures are in tests/predict/test_llama_cpp_generated.py."""

from pathlib import Path
from typing import Any

import pytest
from gguf_writer import GgufWriter, Tensor

from kvscope.errors import MalformedFile, MissingField, UnsupportedArchitecture
from kvscope.model.gguf import load_gguf
from kvscope.model.spec import (
    ChunkedAttention,
    DenseFfn,
    FullAttention,
    HybridCache,
    LatentAttention,
    ModelSpec,
    MoeFfn,
    NoCache,
    RecurrentState,
    SharedCache,
    SlidingWindow,
    StateTensor,
)
from kvscope.predict.memory import predict
from kvscope.predict.prediction import Prediction

MAMBA2 = {"ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 32, "ssm.group_count": 2}


def keys(architecture: str, num_layers: int, **own: Any) -> dict[str, Any]:
    """Metadata with ``own`` keys (given with the architecture left out and "_" for "." where a keyword needs it)."""
    common: dict[str, Any] = {
        "block_count": num_layers,
        "context_length": 8192,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
    }
    prefixed = {f"{architecture}.{key}": value for key, value in {**common, **own}.items() if value is not None}
    return {"general.architecture": architecture, **prefixed, "tokenizer.ggml.tokens": ["a", "b"]}


def load(folder: Path, metadata: dict[str, Any]) -> ModelSpec:
    path = folder / "model.gguf"
    path.write_bytes(GgufWriter(metadata, [Tensor("token_embd.weight", (64, 2), 0, 512)]).to_bytes())
    return load_gguf(path)


def on_llama_cpp(model: ModelSpec, **settings: Any) -> Prediction:
    return predict(model, engine="llama.cpp", settings=settings)


def test_lfm2_reads_its_whole_array_of_heads(tmp_path: Path) -> None:
    """6 attention layers × 8 × (64 + 64) × 2 B = 12,288 B a token, × 32,768 = 402,653,184; the first entry alone would
    give 0. Beside it each of the 10 others keeps 2,048 × (3 - 1) floats."""
    heads = [0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0]
    own = {
        "embedding_length": 2048,
        "attention.head_count": 32,
        "attention.head_count_kv": heads,
        "attention.key_length": 64,
        "attention.value_length": 64,
        "shortconv.l_cache": 3,
    }
    model = load(tmp_path, keys("lfm2", 16, **own))
    found = on_llama_cpp(model, n_ctx=32768)
    assert found.component_bytes("kv_cache") == 402_653_184
    assert found.bytes_per_token == 12_288
    assert found.component_bytes("recurrent_state") == 10 * 2048 * 2 * 4
    assert model.warnings == ()


def test_qwen35moe_grows_in_every_fourth_layer_only(tmp_path: Path) -> None:
    """10 of 40 layers × 2 heads × (256 + 256) × 2 B = 20,480 B a token, not 81,920."""
    own = {
        "attention.head_count": 16,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "full_attention_interval": 4,
        "expert_count": 256,
        "expert_used_count": 8,
        "expert_feed_forward_length": 512,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 4096,
        "ssm.state_size": 128,
        "ssm.group_count": 16,
    }
    model = load(tmp_path, keys("qwen35moe", 40, **own))
    assert [layer.index for layer in model.layers if isinstance(layer.cache, FullAttention)] == list(range(3, 40, 4))
    assert model.layers[0].ffn == MoeFfn(num_experts=256, experts_per_token=8, width=512)
    found = on_llama_cpp(model, n_ctx=4096)
    assert found.bytes_per_token == 20_480
    # 30 layers × ((4 - 1) × (4,096 + 2 × 16 × 128) + 4,096 × 128) floats, for one sequence
    assert found.bytes_per_sequence == 30 * (3 * 8192 + 4096 * 128) * 4


def test_an_88_layer_hybrid_is_read_beyond_64_entries(tmp_path: Path) -> None:
    """KV heads sum to 16 over 88 layers: 16 × (128 + 128) × 2 B = 8,192 B a token; × 32,768 = 268,435,456."""
    heads = [0] * 88
    heads[70] = heads[80] = 8
    own = {
        "attention.head_count": 32,
        "attention.head_count_kv": heads,
        "attention.key_length": 128,
        "attention.value_length": 128,
        "feed_forward_length": [0 if index % 2 or heads[index] else 96 for index in range(88)],
        **MAMBA2,
    }
    found = on_llama_cpp(load(tmp_path, keys("nemotron_h", 88, **own)), n_ctx=32768)
    assert found.component_bytes("kv_cache") == 268_435_456


def test_an_implausible_context_is_warned_about_and_kept(tmp_path: Path) -> None:
    """40 layers × 8 × (128 + 128) × 2 B = 163,840 B a token (not 204,800: 5,120 / 32 is not the head size);
    × 1,024,000 = 167,772,160,000; at 131,072 it is 21,474,836,480."""
    own = {
        "context_length": 1_024_000,
        "embedding_length": 5120,
        "attention.head_count": 32,
        "attention.head_count_kv": 8,
        "attention.key_length": 128,
        "attention.value_length": 128,
        "rope.freq_base": 1_000_000.0,
    }
    model = load(tmp_path, keys("llama", 40, **own))
    assert len(model.warnings) == 1
    assert "1,024,000" in model.warnings[0]
    assert on_llama_cpp(model).component_bytes("kv_cache") == 167_772_160_000
    found = on_llama_cpp(model, n_ctx=131_072)
    assert found.component_bytes("kv_cache") == 21_474_836_480
    assert found.bytes_per_token == 163_840
    plausible = load(tmp_path, keys("llama", 40, **{**own, "context_length": 131_072}))
    assert plausible.warnings == ()


def test_gpt_oss_has_its_own_head_size(tmp_path: Path) -> None:
    """24 layers × 8 × (64 + 64) × 2 B = 49,152 B a token, not the 34,560 of 2,880 / 64 = 45."""
    own = {
        "embedding_length": 2880,
        "attention.head_count": 64,
        "attention.head_count_kv": 8,
        "attention.key_length": 64,
        "attention.value_length": 64,
        "attention.sliding_window": 128,
        "expert_count": 32,
        "expert_used_count": 4,
        "expert_feed_forward_length": 2880,
    }
    model = load(tmp_path, keys("gpt-oss", 24, **own))
    found = predict(model, engine="logical", tokens=100)
    assert found.bytes_per_token == 49_152


def test_attention_free_models_need_no_attention_keys(tmp_path: Path) -> None:
    """rwkv7: nothing per token; per layer 2 shifts × 64 and 4 heads × 16 × 16 floats."""
    own = {"attention.head_count": None, "attention.head_count_kv": None, "wkv.head_size": 16}
    model = load(tmp_path, keys("rwkv7", 3, **own))
    state = RecurrentState(
        form="rwkv",
        states=(StateTensor(name="token_shift", shape=(2, 64)), StateTensor(name="wkv_state", shape=(4, 16, 16))),
    )
    assert {layer.cache for layer in model.layers} == {state}
    found = on_llama_cpp(model, n_ctx=32768)
    assert found.component_bytes("kv_cache") == 0
    assert found.bytes_per_token == 0
    assert found.component_bytes("recurrent_state") == 3 * (2 * 64 + 4 * 16 * 16) * 4
    assert model.warnings == ()


def test_no_cache_in_a_model_that_is_not_recurrent_is_warned_about(tmp_path: Path) -> None:
    model = load(tmp_path, keys("deci", 3, **{"attention.head_count_kv": 0, "attention.key_length": 16}))
    assert all(layer.cache == NoCache() for layer in model.layers)
    assert len(model.warnings) == 1
    assert "0 B per token" in model.warnings[0]


@pytest.mark.parametrize(
    ("n_ctx", "expected"),
    [(4096, 398_458_880), (8192, 482_344_960), (32_768, 985_661_440), (131_072, 2_998_927_360)],
)
def test_gemma4_has_two_head_sizes_and_two_head_counts(tmp_path: Path, n_ctx: int, expected: int) -> None:
    """5 full layers × 2 × (512 + 512) × 2 B = 20,480 B a token, and 25 sliding layers × 8 × (256 + 256) × 2 B × 1,536
    cells (window 1,024 + microbatch 512) = 314,572,800 B."""
    slides = ([True] * 5 + [False]) * 5
    own = {
        "embedding_length": 2816,
        "context_length": 262_144,
        "attention.head_count": 16,
        "attention.head_count_kv": [8 if slide else 2 for slide in slides],
        "attention.key_length": 512,
        "attention.value_length": 512,
        "attention.key_length_swa": 256,
        "attention.value_length_swa": 256,
        "attention.sliding_window": 1024,
        "attention.sliding_window_pattern": slides,
    }
    found = on_llama_cpp(load(tmp_path, keys("gemma4", 30, **own)), n_ctx=n_ctx)
    assert found.component_bytes("kv_cache") == expected


def test_swa_full_costs_memory(tmp_path: Path) -> None:
    """Command R7B: 24 of 32 layers slide over 4,096. With the whole context in them they hold 31,232 cells (31,000 in
    steps of 256) instead of 4,608 (4,096 + 512): 24 × 8 × (128 + 128) × 2 B × 26,624 more."""
    own = {
        "embedding_length": 4096,
        "attention.head_count": 32,
        "attention.head_count_kv": 8,
        "attention.key_length": 128,
        "attention.value_length": 128,
        "attention.sliding_window": 4096,
    }
    model = load(tmp_path, keys("cohere2", 32, **own))
    whole = on_llama_cpp(model, n_ctx=31_000, swa_full=True).component_bytes("kv_cache")
    least = on_llama_cpp(model, n_ctx=31_000).component_bytes("kv_cache")
    assert whole is not None
    assert least is not None
    assert whole - least == 98_304 * 26_624


def test_latent_attention_with_and_without_its_own_keys(tmp_path: Path) -> None:
    """kv_lora_rank 512 + 64 rotary elements: 1,152 B a token and layer; without the _mla keys 4 heads × (192 + 128)."""
    own = {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": 512,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
        "rope.dimension_count": 64,
    }
    model = load(tmp_path, keys("deepseek2", 2, **own))
    assert model.layers[0].cache == LatentAttention(latent_dim=512, rope_dim=64)
    assert on_llama_cpp(model, n_ctx=512).component_bytes("kv_cache") == 2 * 1152 * 512
    absent = {"attention.key_length_mla": None, "attention.value_length_mla": None}
    wide = {"attention.head_count_kv": 4, "attention.key_length": 192, "attention.value_length": 128}
    expanded = load(tmp_path, keys("deepseek2", 2, **{**own, **absent, **wide}))
    assert on_llama_cpp(expanded, n_ctx=512).component_bytes("kv_cache") == 2 * 4 * (192 + 128) * 2 * 512
    with pytest.raises(MalformedFile, match="only one of"):
        load(tmp_path, keys("deepseek2", 2, **{**own, "attention.value_length_mla": None}))
    with pytest.raises(MalformedFile, match="kv_lora_rank 512"):
        load(tmp_path, keys("deepseek2", 2, **{**own, "attention.key_length": 512}))


def test_layers_of_every_other_kind(tmp_path: Path) -> None:
    state = RecurrentState(
        form="mamba2",
        conv_channels=128 + 2 * 2 * 32,
        conv_kernel=4,
        states=(StateTensor(name="ssm_state", shape=(128, 32)),),
    )
    full = FullAttention(num_kv_heads=2, key_dim=16, value_dim=16)
    hybrid = load(tmp_path, keys("falcon-h1", 2, **MAMBA2))
    assert {layer.cache for layer in hybrid.layers} == {HybridCache(attention=full, recurrent=state)}
    nemotron = load(
        tmp_path,
        keys("nemotron_h", 3, **{**MAMBA2, "attention.head_count_kv": [0, 2, 0], "feed_forward_length": [0, 0, 96]}),
    )
    assert [layer.cache for layer in nemotron.layers] == [state, full, NoCache()]
    assert [layer.ffn for layer in nemotron.layers] == [None, None, DenseFfn(width=96)]
    chunked = load(tmp_path, keys("llama4", 4, **{"attention.chunk_size": 512}))
    chunk = ChunkedAttention(num_kv_heads=2, key_dim=16, value_dim=16, chunk_tokens=512)
    assert [layer.cache for layer in chunked.layers] == [chunk, chunk, chunk, full]
    sharing = load(
        tmp_path,
        keys("gemma4", 5, **{"attention.sliding_window": 256, "attention.shared_kv_layers": 2,
                             "attention.key_length_swa": 16, "attention.value_length_swa": 16,
                             "attention.sliding_window_pattern": [True, True, False, True, False]}),
    )  # fmt: skip
    slides = SlidingWindow(num_kv_heads=2, key_dim=16, value_dim=16, window_tokens=256)
    expected = [slides, slides, full, SharedCache(layer_index=1), SharedCache(layer_index=2)]
    assert [layer.cache for layer in sharing.layers] == expected


def test_draft_layers_are_no_part_of_the_model(tmp_path: Path) -> None:
    own = {"nextn_predict_layers": 1, "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
    model = load(tmp_path, keys("glm4moe", 4, **{**own, "attention.head_count_kv": [2, 2, 2, 1]}))
    assert len(model.layers) == 3
    assert {layer.cache for layer in model.layers} == {FullAttention(num_kv_heads=2, key_dim=16, value_dim=16)}
    with pytest.raises(MalformedFile, match="4 of 4 layers"):
        load(tmp_path, keys("glm4moe", 4, **{**own, "nextn_predict_layers": 4}))


@pytest.mark.parametrize(
    ("architecture", "own", "error", "says"),
    [
        ("gemma2", {"attention.sliding_window": 0}, MalformedFile, "sliding_window"),
        ("cohere2", {}, MissingField, "cohere2.attention.sliding_window"),
        ("gemma4", {"attention.sliding_window": 256}, MissingField, "sliding_window_pattern"),
        (
            "gemma4",
            {"attention.sliding_window": 256, "attention.sliding_window_pattern": [True, True, True, False]},
            MissingField,
            "key_length_swa",
        ),
        ("mimo2", {"attention.sliding_window": 9, "attention.sliding_window_pattern": 2}, MalformedFile, "pattern"),
        ("rwkv7", {"wkv.head_size": 24}, MalformedFile, "24 do not divide"),
        ("mamba", {**MAMBA2, "ssm.inner_size": 192}, MalformedFile, "twice the embedding_length"),
        ("rwkv7", {}, MissingField, "rwkv7.wkv.head_size"),
        ("rwkv6", {"wkv.head_size": 16, "token_shift_count": 1}, MalformedFile, "token_shift_count"),
        ("mamba2", {**MAMBA2, "ssm.group_count": None}, MissingField, "mamba2.ssm.group_count"),
        ("qwen35", {**MAMBA2, "full_attention_interval": 0}, MalformedFile, "full_attention_interval"),
        ("qwen35", {**MAMBA2, "attention.head_count_kv": [2, 2, 2, 0]}, MalformedFile, "no key-value heads"),
        ("falcon-h1", {**MAMBA2, "attention.head_count_kv": [2, 0, 2, 2]}, MalformedFile, "layer 1 has no key-value"),
        ("nemotron_h", MAMBA2, MalformedFile, "a feed-forward"),
        ("lfm2", {"attention.head_count_kv": [0, 2, 0, 2], "shortconv.l_cache": 0}, MalformedFile, "l_cache"),
        ("qwen2", {"expert_count": 8}, UnsupportedArchitecture, "qwen2.expert_count = 8"),
        ("qwen3next", {**MAMBA2, "attention.recurrent_layers": [1, 0]}, UnsupportedArchitecture, "recurrent_layers"),
        ("deepseek2", {"attention.indexer.top_k": 64}, UnsupportedArchitecture, "indexer"),
        ("gemma3", {"attention.shared_kv_layers": 2}, UnsupportedArchitecture, "shared_kv_layers"),
    ],
)
def test_what_the_engine_would_not_run_or_nobody_checked_is_refused(
    tmp_path: Path, architecture: str, own: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        load(tmp_path, keys(architecture, 4, **own))


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitecture, match="adapter"):
        load(tmp_path, keys("llama", 2) | {"general.type": "adapter"})


def test_keys_behind_a_large_vocabulary_are_read(tmp_path: Path) -> None:
    """248,000 tokens of 40 characters, 11.9 MB, before every number that matters."""
    metadata = keys("llama", 2)
    tokens = {"tokenizer.ggml.tokens": [f"{number:040}" for number in range(248_000)]}
    behind = {key: value for key, value in metadata.items() if key != "tokenizer.ggml.tokens"}
    model = load(tmp_path, tokens | behind)
    assert (model.vocab_size, len(model.layers), model.hidden_size) == (248_000, 2, 64)
