"""Recurrent and hybrid families: what the measured cases in tests/golden/transformers cannot show."""

from typing import Any

import pytest

from kvscope.errors import MalformedFile, UnsupportedArchitecture
from kvscope.model.load import load_model
from kvscope.model.spec import (
    FullAttention,
    HybridCache,
    LatentAttention,
    ModelSpec,
    RecurrentState,
    SlidingWindow,
    StateTensor,
)
from kvscope.predict.memory import predict
from kvscope.predict.prediction import Prediction


def logical(model: ModelSpec, tokens: int = 32768) -> Prediction:
    return predict(model, engine="logical", tokens=tokens, dtype="bfloat16")


def kinds(model: ModelSpec) -> str:
    """One letter a layer: r recurrent, a attention, s sliding, l latent, h hybrid, - nothing."""
    letters = {RecurrentState: "r", FullAttention: "a", SlidingWindow: "s", LatentAttention: "l", HybridCache: "h"}
    return "".join(letters.get(type(layer.cache), "-") for layer in model.layers)


def test_a_stated_intermediate_size_of_mamba_wins_over_expand() -> None:
    """falcon-mamba-7b says expand 16 and intermediate_size 8192 for a hidden size of 4096."""
    config = {"model_type": "falcon_mamba", "hidden_size": 4096, "expand": 16, "num_hidden_layers": 1}
    stated, derived = load_model(config | {"intermediate_size": 8192}), load_model(config)
    assert isinstance(stated.layers[0].cache, RecurrentState)
    assert isinstance(derived.layers[0].cache, RecurrentState)
    assert stated.layers[0].cache.conv_channels == 8192
    assert derived.layers[0].cache.conv_channels == 65536
    assert stated.sources["intermediate_size"] == "config: intermediate_size"
    assert derived.sources["intermediate_size"] == "derived: expand × hidden_size"


def test_states_carry_what_other_engines_need() -> None:
    """llama.cpp, measured: R = (conv_kernel - 1) × (inner + 2 × groups × state) and S = state × inner, in floats."""
    model = load_model(
        {"model_type": "mamba2", "hidden_size": 64, "num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 10}
    )
    cache = model.layers[0].cache
    assert isinstance(cache, RecurrentState)
    assert (cache.form, cache.conv_channels, cache.conv_kernel) == ("mamba2", 128 + 2 * 2 * 10, 4)
    assert [state.num_elements for state in cache.states] == [10 * 128]


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"model_type": "qwen3_next"}, "float32"),
        ({"model_type": "kimi_linear"}, "float32"),
        ({"model_type": "minimax"}, "float32"),
        ({"model_type": "nemotron_h"}, "float32"),
        ({"model_type": "nemotron_h", "mamba_ssm_cache_dtype": "bfloat16"}, "bfloat16"),
        ({"model_type": "jamba"}, None),
        ({"model_type": "granitemoehybrid"}, None),
        ({"model_type": "mamba"}, None),
        ({"model_type": "xlstm"}, "float32"),
    ],
)
def test_recurrent_matrices_have_the_format_of_the_models_own_reference(
    config: dict[str, Any], dtype: str | None
) -> None:
    states = [
        s for layer in load_model(config).layers if isinstance(layer.cache, RecurrentState) for s in layer.cache.states
    ]
    assert states
    assert {state.dtype for state in states} == {dtype}


def test_nemotron_reads_its_pattern_and_ignores_num_hidden_layers() -> None:
    model = load_model({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*EM", "num_hidden_layers": 99})
    assert kinds(model) == "r-ra-r"
    assert model.sources["layer_types"] == "config: hybrid_override_pattern"
    with pytest.raises(MalformedFile, match="hybrid_override_pattern"):
        load_model({"model_type": "nemotron_h", "hybrid_override_pattern": "M?"})


def test_an_old_name_of_a_head_width_is_not_overlooked() -> None:
    """Nemotron-H's own code called it attention_head_dim; the library's class has head_dim 128 instead."""
    assert load_model({"model_type": "nemotron_h", "attention_head_dim": 128}).layers
    with pytest.raises(UnsupportedArchitecture, match="attention_head_dim"):
        load_model({"model_type": "nemotron_h", "attention_head_dim": 64})


# The published Kimi-Linear-48B-A3B: layers counted from 1, and the delta layers' numbers in an object of their own.
KIMI_48B: dict[str, Any] = {
    "model_type": "kimi_linear", "first_k_dense_replace": 1, "head_dim": 72, "hidden_size": 2304,
    "intermediate_size": 9216, "kv_lora_rank": 512, "moe_intermediate_size": 1024, "moe_layer_freq": 1,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [n for n in range(1, 27) if n % 4],
        "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
    },
    "num_attention_heads": 32, "num_experts": 256, "num_experts_per_token": 8, "num_hidden_layers": 27,
    "num_key_value_heads": 32, "num_shared_experts": 1, "q_lora_rank": None, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "tie_word_embeddings": False, "vocab_size": 163840,
    "model_max_length": 1048576,
}  # fmt: skip


def test_published_kimi_linear() -> None:
    """Latent: 7 × (512 + 64) × 2 B × 32,768 tokens. Delta: 20 × (3 × 32 × 128 × 3 columns × 2 B + 32 × 128 × 128 ×
    4 B) = 20 × (73,728 + 2,097,152)."""
    model = load_model(KIMI_48B)
    assert kinds(model) == "rrrlrrrlrrrlrrrlrrrlrrrlrrl"
    prediction = logical(model)
    assert prediction.component_bytes("kv_cache") == 7 * 576 * 2 * 32768
    assert prediction.component_bytes("recurrent_state") == 20 * (73_728 + 2_097_152)
    assert model.trained_context_tokens == 1_048_576
    assert model.num_parameters is not None
    assert 48e9 < model.num_parameters < 50e9  # "48B" in its name
    missing = {**KIMI_48B["linear_attn_config"], "kda_layers": [1, 2]}
    with pytest.raises(MalformedFile, match="full_attn_layers"):
        load_model(KIMI_48B | {"linear_attn_config": missing})


def test_minimax_under_its_own_names() -> None:
    """MiniMax-M1: one softmax layer in eight. KV: 10 × 2 × 8 × 128 × 2 B × 32,768. State: 70 × 64 × 128 × 128 × 4 B.
    Its makers count 456 billion parameters."""
    config = {
        "model_type": "minimax_m1", "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10, "head_dim": 128,
        "hidden_size": 6144, "intermediate_size": 9216, "max_position_embeddings": 10_240_000,
        "num_attention_heads": 64, "num_experts_per_tok": 2, "num_hidden_layers": 80, "num_key_value_heads": 8,
        "num_local_experts": 32, "shared_intermediate_size": 0, "sliding_window": None, "vocab_size": 200_064,
        "tie_word_embeddings": False,
    }  # fmt: skip
    model = load_model(config)
    prediction = logical(model)
    assert prediction.component_bytes("kv_cache") == 10 * 2 * 8 * 128 * 2 * 32768
    assert prediction.component_bytes("recurrent_state") == 70 * 64 * 128 * 128 * 4
    assert model.num_parameters is not None
    assert round(model.num_parameters / 1e9) == 456
    with pytest.raises(MalformedFile, match="attn_type_list"):
        load_model(config | {"attn_type_list": [0, 1]})
    with pytest.raises(UnsupportedArchitecture, match="shared_intermediate_size"):
        load_model(config | {"shared_intermediate_size": 128})


def test_a_window_of_minimax_is_used_by_its_attention_and_not_by_the_librarys_cache() -> None:
    model = load_model({"model_type": "minimax", "num_hidden_layers": 2, "sliding_window": 100})
    layer = model.layers[0]
    assert isinstance(layer.cache, SlidingWindow)
    assert layer.cache.window_tokens == 100
    assert isinstance(layer.transformers_cache, FullAttention)


def test_layers_that_share_weights_keep_caches_of_their_own() -> None:
    config: dict[str, Any] = {"model_type": "zamba2", "num_hidden_layers": 4, "hidden_size": 64, "n_mamba_heads": 4}
    config |= {"num_attention_heads": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]}
    model = load_model(config)
    assert kinds(model) == "rhrh"
    # transformers 5.24.0 ties the blocks only where the word embeddings are tied: then one block of q, k, v
    # (128 × 128 each), o (64 × 128), gate and up (2 × 256 × 64), down (64 × 256) and two norms (128 + 64) is spared,
    # and the head (32000 × 64), but not the second adapter (each block holds its layers' own).
    untied = load_model(config | {"tie_word_embeddings": False})
    assert model.num_parameters is not None
    assert untied.num_parameters is not None
    block = 3 * 128 * 128 + 64 * 128 + 512 * 64 + 64 * 256 + 192
    adapters = 2 * (128 * 64 + 512 * 128)  # an untied second block holds both layers' adapters again
    assert untied.num_parameters - model.num_parameters == block + adapters + 32000 * 64


def test_a_layer_that_runs_again_keeps_another_cache() -> None:
    config: dict[str, Any] = {"model_type": "dory", "num_hidden_layers": 6, "n_input_layers": 1, "n_output_layers": 2}
    assert kinds(load_model(config | {"n_recurrent_loops": 3})) == "sssass" + "ssa" * 2
    assert kinds(load_model(config | {"recurrent_kv_cache_mode": "last_loop"})) == "sssass"
    doubled = ["sliding_attention", "mlp"] * 5 + ["full_attention", "mlp"]
    released = {"num_hidden_layers": 12, "n_input_layers": 2, "n_output_layers": 4, "layer_types": doubled}
    assert kinds(load_model({"model_type": "dory", **released})) == "sssssa" + "sss"
    with pytest.raises(MalformedFile, match="sections"):
        load_model(config | {"n_input_layers": 5})


def test_the_state_of_a_short_convolution_is_its_columns_alone() -> None:
    model = load_model({"model_type": "lfm2", "hidden_size": 64, "num_hidden_layers": 2, "full_attn_idxs": [1]})
    assert model.layers[0].cache == RecurrentState(form="short_conv", conv_channels=64, conv_kernel=3)
    assert logical(model).component_bytes("recurrent_state") == 64 * 2 * 2


def test_rwkv_keeps_one_token_of_each_half_and_three_sums() -> None:
    model = load_model({"model_type": "rwkv", "hidden_size": 64, "num_hidden_layers": 2})
    assert logical(model).component_bytes("recurrent_state") == 2 * (2 * 64 * 2 + 3 * 64 * 4)
    assert model.trained_context_tokens == 1024


def test_hashed_ngrams_take_the_next_primes_as_rows() -> None:
    """Base 10, two heads: tables of 11 and 13 rows, padded to 128; each row 8 / 2 elements."""
    config = {
        "model_type": "qwen4_exp_text", "num_hidden_layers": 1, "layer_types": ["linear_attention"], "hidden_size": 8,
        "indexer_n_heads": 1, "indexer_kv_heads": 1, "indexer_head_dim": 4, "ple_layer_ids": [1], "ngram_size": 2,
        "heads_per_ngram": 2, "ngram_vocab_size_base": 10,
    }  # fmt: skip
    model = load_model(config)
    tables = [group.shape for group in model.weights if "ngram_embedding" in group.name]
    assert tables == [(128, 4)]
    wide = load_model(config | {"make_ngram_vocab_size_divisible_by": 1})
    assert [group.shape for group in wide.weights if "ngram_embedding" in group.name] == [(24, 4)]
    cache = model.layers[0].cache
    assert isinstance(cache, RecurrentState)
    assert cache.states[1:] == (
        StateTensor(name="ngram_conv_state", shape=(8 * 4, 3 * 2)),
        StateTensor(name="ngram_token_ids", shape=(1,), dtype="int64"),
    )


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "rwkv", "attention_hidden_size": 32}, "attention_hidden_size"),
        ({"model_type": "xlstm", "weight_mode": "fused"}, "weight_mode"),
        ({"model_type": "xlstm", "hidden_size": 96}, "qk_dim_factor"),
        ({"model_type": "xlstm", "num_blocks": 3}, "num_blocks"),
        ({"model_type": "recurrent_gemma", "lru_width": 64}, "lru_width"),
        ({"model_type": "jamba", "layer_types": ["full_attention"] * 32}, "layer_types"),
        ({"model_type": "granitemoehybrid", "num_hidden_layers": 1, "layer_types": ["sliding_attention"]}, "sliding"),
        ({"model_type": "lfm2_moe"}, "layer_types"),
        ({"model_type": "zamba2", "num_hidden_layers": 6}, "layers_block_type"),
        ({"model_type": "olmo_hybrid", "num_hidden_layers": 1}, "layer_types"),
        ({"model_type": "kimi_linear", "moe_layer_freq": 2}, "moe_layer_freq"),
        ({"model_type": "nemotron_h", "mamba_ssm_cache_dtype": "int8"}, "int8"),
        ({"model_type": "qwen3_5", "hidden_size": 64}, "text_config"),
        ({"model_type": "mamba", "per_layer_config": {"0": {"state_size": 8}}}, "per_layer_config"),
    ],
)
def test_what_nobody_has_checked_is_refused_by_name(config: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedArchitecture, match=named):
        load_model(config)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"model_type": "mamba2", "num_heads": 3}, "num_heads"),
        ({"model_type": "bamba", "mamba_d_head": 5}, "mamba_n_heads"),
        ({"model_type": "jamba", "attn_layer_offset": 8}, "attn_layer_offset"),
        ({"model_type": "recurrent_gemma", "block_types": ["recurrent", "other"]}, "block_types"),
        ({"model_type": "zamba", "n_mamba_heads": 3}, "n_mamba_heads"),
        ({"model_type": "dory", "recurrent_kv_cache_mode": "none"}, "recurrent_kv_cache_mode"),
        ({"model_type": "dory", "n_recurrent_loops": 10_000}, "n_recurrent_loops"),
        ({"model_type": "lfm2", "block_ffn_dim_multiplier": True}, "block_ffn_dim_multiplier"),
        ({"model_type": "xlstm", "qk_dim_factor": "half"}, "qk_dim_factor"),
    ],
)
def test_numbers_that_do_not_fit_together_are_named(config: dict[str, Any], key: str) -> None:
    with pytest.raises(MalformedFile, match=key):
        load_model(config)
