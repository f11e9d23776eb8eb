"""Mixture-of-experts families: what the measured cases in tests/golden/transformers cannot show, such as published
files, older names, refusals and what the layers' feed-forwards say."""

from typing import Any

import pytest
from tiny_decoders import TINY, TOKENS, load, needed_bytes

from kvscope.errors import MalformedFile, MissingField, UnsupportedArchitecture
from kvscope.model.spec import ChunkedAttention, DenseFfn, FullAttention, ModelSpec, MoeFfn, SlidingWindow

TINY_MOE: dict[str, Any] = {**TINY, "moe_intermediate_size": 16, "num_experts_per_tok": 2}


def sparse_layers(model: ModelSpec) -> list[int]:
    return [layer.index for layer in model.layers if isinstance(layer.ffn, MoeFfn)]


def sliding_layers(model: ModelSpec) -> list[int]:
    return [layer.index for layer in model.layers if isinstance(layer.cache, SlidingWindow)]


@pytest.mark.parametrize(
    ("num_layers", "num_experts", "cache_bytes", "parameters"),
    [
        # Half the layers full, half capped at 128 tokens; 8 heads × 64 × 2 × 2 B = 2,048 B a token.
        # Parameters: as published (20.9 and 116.8 billion).
        (24, 32, 12 * 2048 * (TOKENS + 128), 20_914_757_184),
        (36, 128, 18 * 2048 * (TOKENS + 128), 116_829_156_672),
    ],
)
def test_gpt_oss(num_layers: int, num_experts: int, cache_bytes: int, parameters: int) -> None:
    model = load("gpt_oss", num_hidden_layers=num_layers, num_local_experts=num_experts)
    assert needed_bytes(model) == cache_bytes
    assert cache_bytes in (808_452_096, 1_212_678_144)
    assert model.num_parameters == parameters
    assert model.layers[0].ffn == MoeFfn(num_experts=num_experts, experts_per_token=4, width=2880)


def test_minimax_m2_keeps_every_token_in_62_layers() -> None:
    # 62 layers × 8 heads × 128 × 2 × 2 B a token. The model card: 229 billion parameters.
    model = load("minimax_m2")
    assert needed_bytes(model) == 62 * 8 * 128 * 2 * 2 * TOKENS == 8_321_499_136
    assert model.num_parameters is not None
    assert round(model.num_parameters / 1e9) == 229


SCOUT = {
    "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_local_experts": 16, "vocab_size": 202048,
    "attention_chunk_size": 8192, "no_rope_layers": [],
}  # fmt: skip


def test_llama_4_scout_in_its_multimodal_wrapper() -> None:
    # 36 of 48 layers see a chunk of 8,192 tokens, every fourth all; 8 heads × 128 × 2 × 2 B = 4,096 B a token
    model = load("llama4", text_config={"model_type": "llama4_text", **SCOUT})
    assert needed_bytes(model) == 4096 * (36 * 8192 + 12 * TOKENS) == 2_818_572_288
    assert sparse_layers(model) == list(range(48))


def test_llama_4_layers_with_and_without_positions() -> None:
    keys = {**TINY_MOE, "attention_chunk_size": 16, "num_local_experts": 4}
    listed = load("llama4_text", **keys, no_rope_layers=[1, 1, 0, 1, 1, 1], interleave_moe_layer_step=2)
    chunked = [layer.index for layer in listed.layers if isinstance(layer.cache, ChunkedAttention)]
    assert chunked == [0, 1, 3, 4, 5]
    assert sparse_layers(listed) == [1, 3, 5]
    without = load("llama4_text", **{**keys, "attention_chunk_size": None})
    assert all(isinstance(layer.cache, FullAttention) for layer in without.layers)
    with pytest.raises(MalformedFile, match="no_rope_layers"):
        load("llama4_text", **keys, no_rope_layers=[1, 0])


def test_which_layers_have_experts() -> None:
    assert sparse_layers(load("qwen3_moe", **TINY_MOE, num_experts=4, decoder_sparse_step=2)) == [1, 3, 5]
    assert sparse_layers(load("qwen3_moe", **TINY_MOE, num_experts=4, mlp_only_layers=[0, 3])) == [1, 2, 4, 5]
    ernie = {key: value for key, value in TINY_MOE.items() if key != "num_experts_per_tok"}
    by_interval = load("ernie4_5_moe", **ernie, moe_num_experts=4, moe_k=2, moe_layer_interval=2, moe_layer_end_index=3)
    assert sparse_layers(by_interval) == [1, 3]
    assert sparse_layers(load("glm4_moe", **TINY_MOE, n_routed_experts=4, first_k_dense_replace=2)) == [2, 3, 4, 5]
    none = load("glm4_moe", **TINY_MOE, n_routed_experts=4, first_k_dense_replace=9)
    assert sparse_layers(none) == []
    assert not [group for group in none.weights if "experts" in group.name]
    types = ["dense", "sparse", "dense", "dense", "dense", "sparse"]
    named = load("hy_v3", **TINY_MOE, num_experts=4, mlp_layer_types=types)
    assert sparse_layers(named) == [1, 5]
    assert named.layers[0].ffn == DenseFfn(width=40)
    assert named.layers[1].ffn == MoeFfn(num_experts=4, experts_per_token=2, width=16, shared_width=16)


@pytest.mark.parametrize("types", [["dense"] * 5, ["dense"] * 5 + ["blue"]])
def test_unclear_kinds_of_feed_forward_are_refused(types: list[str]) -> None:
    with pytest.raises((MalformedFile, UnsupportedArchitecture), match="mlp_layer_types"):
        load("hy_v3", **TINY_MOE, num_experts=4, mlp_layer_types=types)


def test_windows_that_qwen_drops_or_keeps() -> None:
    keys = {**TINY_MOE, "num_experts": 4, "sliding_window": 16}
    assert sliding_layers(load("qwen2_moe", **keys, max_window_layers=4)) == []
    assert sliding_layers(load("qwen2_moe", **keys, max_window_layers=4, use_sliding_window=True)) == [0, 2]
    assert sliding_layers(load("qwen3_moe", **keys)) == []
    assert sliding_layers(load("qwen3_moe", **keys, use_sliding_window=True)) == [0, 1, 2, 3, 4, 5]


def test_a_window_only_in_transformers_cache() -> None:
    """Attention of Granite's experts has no window; transformers' cache slides by a stray key all the same."""
    model = load("granitemoe", **TINY_MOE, num_local_experts=4, sliding_window=16)
    assert isinstance(model.layers[0].cache, FullAttention)
    assert isinstance(model.layers[0].transformers_cache, SlidingWindow)


def test_names_of_the_original_sarvam_config() -> None:
    model = load("sarvam_moe", **TINY_MOE, num_experts=4, num_shared_experts=2, use_qkv_bias=True)
    assert model.layers[1].ffn == MoeFfn(num_experts=4, experts_per_token=2, width=16, shared_width=32)
    assert any(group.name.endswith("q_proj.bias") for group in model.weights)


def test_mimo_doubles_the_key_heads_of_sliding_layers() -> None:
    keys = {**TINY_MOE, "n_routed_experts": 4, "v_head_dim": 6, "head_dim": 12}
    model = load("mimo_v2_flash", **keys, sliding_window_size=128)
    assert model.layers[0].cache == FullAttention(num_kv_heads=2, key_dim=12, value_dim=6)
    assert model.layers[1].cache == SlidingWindow(num_kv_heads=4, key_dim=12, value_dim=6, window_tokens=129)
    for contradiction in ({"hybrid_layer_pattern": [0] * 6}, {"swa_num_key_value_heads": 2}, {"swa_head_dim": 8}):
        with pytest.raises(UnsupportedArchitecture, match=next(iter(contradiction))):
            load("mimo_v2_flash", **keys, **contradiction)


@pytest.mark.parametrize(
    ("model_type", "keys"),
    [
        ("mimo_v2_flash", {"n_routed_experts": 4, "v_head_dim": 4, "head_dim": 4}),  # 4 × 0.334: one element
        ("glm4_moe", {"n_routed_experts": 4, "head_dim": 2}),
        ("laguna", {"num_experts": 4, "head_dim": 2}),
    ],
)
def test_rotary_embeddings_of_one_element_are_refused(model_type: str, keys: dict[str, Any]) -> None:
    """transformers broadcasts them to two, and its keys come out wider than head_dim."""
    with pytest.raises(UnsupportedArchitecture, match="one element"):
        load(model_type, **{**TINY_MOE, **keys})


def test_hunyuan_with_lists_per_layer() -> None:
    keys = {key: value for key, value in TINY_MOE.items() if key != "num_experts_per_tok"}
    same = load("hunyuan_v1_moe", **keys, num_experts=4, moe_topk=[2] * 6)
    assert same.layers[0].ffn == MoeFfn(num_experts=4, experts_per_token=2, width=40, shared_width=40)
    with pytest.raises(UnsupportedArchitecture, match="num_experts"):
        load("hunyuan_v1_moe", **keys, num_experts=[4] * 6, moe_topk=2)
    with pytest.raises(UnsupportedArchitecture, match="moe_topk"):
        load("hunyuan_v1_moe", **keys, num_experts=4, moe_topk=[1, 2] * 3)
    with pytest.raises(UnsupportedArchitecture, match="use_cla"):
        load("hunyuan_v1_moe", **keys, num_experts=4, moe_topk=2, use_cla=True)


def test_a_missing_number_of_experts_is_not_a_zero() -> None:
    with pytest.raises(MissingField, match="n_routed_experts"):
        load("dots1", **TINY_MOE, n_shared_experts=1)


def test_dbrx_reads_its_nested_configs() -> None:
    model = load(
        "dbrx", d_model=32, n_heads=4, n_layers=2, vocab_size=97, attn_config={"kv_n_heads": 2},
        ffn_config={"ffn_hidden_size": 24, "moe_num_experts": 3, "moe_top_k": 2},
    )  # fmt: skip
    assert model.layers[0].cache == FullAttention(num_kv_heads=2, key_dim=8, value_dim=8)
    assert model.layers[0].ffn == MoeFfn(num_experts=3, experts_per_token=2, width=24)
    with pytest.raises(UnsupportedArchitecture, match="tie_word_embeddings"):
        load("dbrx", d_model=32, n_heads=4, n_layers=2, tie_word_embeddings=True)


def test_jetmoe_has_as_many_query_heads_per_key_head_as_experts_compute() -> None:
    model = load("jetmoe", **TINY_MOE, num_local_experts=4, kv_channels=8)
    assert model.layers[0].num_q_heads == 2 * 2


STEP = {
    **TINY_MOE, "moe_num_experts": 4, "moe_top_k": 2, "num_nextn_predict_layers": 2, "sliding_window": 16,
    "layer_types": [*["full_attention", "sliding_attention"] * 3, "full_attention", "full_attention"],
    "moe_layers_enum": "2,3,5",
}  # fmt: skip


def test_step_with_the_keys_of_its_published_file() -> None:
    model = load("step3p7", text_config={**STEP, "attention_other_setting": {"num_attention_heads": 6}})
    assert sliding_layers(model) == [1, 3, 5]
    assert [layer.num_q_heads for layer in model.layers] == [4, 6, 4, 6, 4, 6]
    assert sparse_layers(model) == [2, 3, 5]
    with pytest.raises(UnsupportedArchitecture, match="head_dim"):
        load("step3p7", text_config={**STEP, "attention_other_setting": {"head_dim": 16}})


def test_gates_of_laguna() -> None:
    per_head = load("laguna", **TINY_MOE, num_experts=4)
    per_element = load("laguna", **TINY_MOE, num_experts=4, gating="per-element")
    # 6 layers × 32 wide × (4 heads × 8 elements − 4 heads)
    assert per_element.num_parameters - per_head.num_parameters == 6 * 32 * (32 - 4)  # type: ignore[operator]
    with pytest.raises(UnsupportedArchitecture, match="gating"):
        load("laguna", **TINY_MOE, num_experts=4, gating="none")
