"""Families with windowed, chunked or shared layers: what the measured cases in tests/golden/transformers cannot show,
such as published files, older names, refusals and where a value came from."""

import pytest
from tiny_decoders import TINY, TOKENS, load, needed_bytes

from kvscope.errors import MalformedFile, UnsupportedArchitecture
from kvscope.model.load import load_model
from kvscope.model.spec import (
    ChunkedAttention,
    FullAttention,
    HybridCache,
    ModelSpec,
    NoCache,
    SharedCache,
    SlidingWindow,
)


def kinds(model: ModelSpec) -> str:
    """One letter per layer: Full, Sliding, Chunked, R for one that reads another's."""
    letters = {FullAttention: "F", SlidingWindow: "S", ChunkedAttention: "C", SharedCache: "R"}
    return "".join(letters[type(layer.cache)] for layer in model.layers)


MISTRAL_7B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip


def test_mistral_7b_keeps_its_window() -> None:
    # v0.1: 32 layers × 4,096 tokens × 8 heads × 128 × 2 (keys, values) × 2 B
    model = load("mistral", **MISTRAL_7B, sliding_window=4096)
    assert needed_bytes(model) == 32 * 4096 * 8 * 128 * 2 * 2 == 536_870_912
    # v0.3 has no window: every token
    assert needed_bytes(load("mistral", **MISTRAL_7B, sliding_window=None)) == 32 * TOKENS * 8 * 128 * 2 * 2
    # Two embeddings of 32,000 × 4,096; per layer q and o (4,096²), k and v (1,024 × 4,096), three matrices of
    # 14,336 × 4,096, two norms; a last norm. The model card: 7.24 billion.
    layer = 2 * 4096**2 + 2 * 1024 * 4096 + 3 * 14336 * 4096 + 2 * 4096
    assert model.num_parameters == 2 * 32000 * 4096 + 32 * layer + 4096 == 7_241_732_096


def test_mistral_without_the_key_has_the_window_of_its_class() -> None:
    model = load("mistral", **MISTRAL_7B)
    assert kinds(model) == "S" * 32
    assert model.sources["layers[0].window_tokens"].startswith("class default of transformers 5")


def test_phi_3_mini_with_a_window_beyond_its_context() -> None:
    # 32 layers × 32,768 tokens × 32 heads × 96 × 2 × 2 B: the window of 262,144 is never full
    model = load(
        "phi3", hidden_size=3072, intermediate_size=8192, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=32, vocab_size=32064, sliding_window=262144,
    )  # fmt: skip
    assert needed_bytes(model) == 32 * TOKENS * 32 * 96 * 2 * 2 == 12_884_901_888
    assert model.num_parameters == 3_821_079_552  # the model card: 3.8 billion; safetensors index: this number


def test_gemma_2_2b_slides_in_every_second_layer() -> None:
    # 26 layers, half of them capped at 4,096 tokens; 4 heads × 256 × 2 × 2 B = 4,096 B a token
    model = load("gemma2", num_hidden_layers=26)
    assert kinds(model) == "SF" * 13
    assert needed_bytes(model) == 13 * 4096 * (TOKENS + 4096) == 1_962_934_272
    assert model.num_parameters == 2_614_341_888  # as published
    assert model.sources["layers[0].cache"] == "derived: the pattern of Gemma2Config, transformers 5.24.0"


def test_gemma_3n_counts_only_layers_with_a_cache_of_their_own() -> None:
    # 20 of 35 layers: every fifth of them full (4), the rest capped at 512; 2 heads × 256 × 2 × 2 B = 2,048 B a token
    model = load("gemma3n_text")
    assert kinds(model) == "SSSSF" * 4 + "R" * 15
    assert needed_bytes(model) == 2048 * (4 * TOKENS + 16 * 512) == 285_212_672
    # Layers 20 to 34: the sliding ones read layer 18, the full ones layer 19.
    assert {layer.cache.layer_index for layer in model.layers if isinstance(layer.cache, SharedCache)} == {18, 19}
    assert model.layers[24].cache == SharedCache(layer_index=19)


def test_layers_cannot_share_a_cache_that_no_layer_before_them_has() -> None:
    types = ["sliding_attention"] * 4 + ["full_attention"] * 2
    with pytest.raises(UnsupportedArchitecture, match="share caches"):
        load("gemma4_text", **TINY, layer_types=types, num_kv_shared_layers=2)


def test_a_bidirectional_window_counts_both_sides() -> None:
    # Gemma3TextConfig: 16 // 2 + 1 = 9, from the file's own number whether it was saved or written by hand
    model = load("gemma3_text", **TINY, sliding_window=16, use_bidirectional_attention=True)
    cache = model.layers[0].cache
    assert isinstance(cache, SlidingWindow)
    assert cache.window_tokens == 9
    assert "// 2" in model.sources["layers[0].window_tokens"]


def test_gemma_4_reads_heads_of_single_layers_and_refuses_what_else_they_change() -> None:
    overrides = {"5": {"head_dim": 16, "num_key_value_heads": 1}}
    model = load("gemma4_text", **TINY, per_layer_config=overrides)
    assert model.layers[5].cache == FullAttention(num_kv_heads=1, key_dim=16, value_dim=16)
    with pytest.raises(UnsupportedArchitecture, match="intermediate_size"):
        load("gemma4_text", **TINY, per_layer_config={"5": {"intermediate_size": 8}})
    with pytest.raises(MalformedFile, match="per_layer_config"):
        load("gemma4_text", **TINY, per_layer_config={"6": {"head_dim": 16}})


@pytest.mark.parametrize("model_type", ["mistral", "gemma2", "exaone4", "olmo3", "phi3", "modernbert-decoder"])
def test_fields_of_single_layers_are_refused_where_nobody_reads_them(model_type: str) -> None:
    with pytest.raises(UnsupportedArchitecture, match="per_layer_config"):
        load(model_type, **TINY, per_layer_config={"1": {"num_key_value_heads": 1}})


def test_exaone_4_patterns_in_numbers_and_letters() -> None:
    assert kinds(load("exaone4", **TINY, sliding_window=16, sliding_window_pattern=3)) == "SSFSSF"
    assert kinds(load("exaone4", **TINY, sliding_window=16, sliding_window_pattern="LLG")) == "SSFSSF"
    assert kinds(load("exaone4", **TINY, sliding_window=None)) == "FFFFFF"
    with pytest.raises(UnsupportedArchitecture, match="sliding_window_pattern"):
        load("exaone4", **TINY, sliding_window=16, sliding_window_pattern="LLX")


def test_cohere_2_reads_the_period_of_older_files() -> None:
    assert kinds(load("cohere2", **TINY, sliding_window_pattern=2)) == "SFSFSF"
    assert kinds(load("cohere2", **TINY)) == "SSSFSS"


def test_cwm_and_granite_begin_with_a_full_layer() -> None:
    assert kinds(load("cwm", **TINY)) == kinds(load("granite_swa", **TINY)) == "FSSSFS"


def test_an_unknown_kind_of_layer_is_refused_by_name() -> None:
    types = ["sliding_attention"] * 5 + ["spiral_attention"]
    with pytest.raises(UnsupportedArchitecture, match="spiral_attention"):
        load("olmo3", **TINY, layer_types=types)


def test_sliding_layers_without_a_window_are_refused() -> None:
    types = ["sliding_attention"] * 6
    with pytest.raises(UnsupportedArchitecture, match="sliding_attention"):
        load("ministral", **TINY, layer_types=types, sliding_window=None)


def test_a_list_of_another_length_is_refused() -> None:
    with pytest.raises(MalformedFile, match="layer_types"):
        load("gemma2", **TINY, layer_types=["full_attention"] * 5)


def test_runs_of_a_reasoning_model_must_add_up() -> None:
    # Two layers × 2 outer cycles × (3 inner + 1) = 16 runs, each with its own cache
    by_hand = load("hrm_text", **{**TINY, "num_hidden_layers": 2}, H_cycles=2, L_cycles=3)
    saved = load("hrm_text", **{**TINY, "num_hidden_layers": 16}, num_layers_per_stack=2, H_cycles=2, L_cycles=3)
    assert len(by_hand.layers) == len(saved.layers) == 16
    assert by_hand.num_parameters == saved.num_parameters
    with pytest.raises(UnsupportedArchitecture, match="H_cycles"):
        load("hrm_text", **{**TINY, "num_hidden_layers": 15}, num_layers_per_stack=2, H_cycles=2, L_cycles=3)


INKLING = {key: value for key, value in TINY.items() if key != "intermediate_size"} | {
    "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8, "moe_intermediate_size": 16,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "unpadded_vocab_size": 90,
}  # fmt: skip


def test_looped_layers_keep_one_cache_for_each_pass() -> None:
    loop = {"core_start": 2, "core_end": 4, "num_passes": 3, "gate_rank": 8}
    model = load("inkling2_loop_text", **INKLING, loop_config=loop)
    assert len(model.layers) == 6 + 2 * 2
    cache = model.layers[0].cache
    assert isinstance(cache, HybridCache)
    # Convolutions over 2 × 8 keys, as many values, and twice the width of 32: 96 channels
    assert (cache.recurrent.conv_channels, cache.recurrent.conv_dtype) == (96, "float32")


def test_a_loop_outside_the_model_is_refused() -> None:
    with pytest.raises(UnsupportedArchitecture, match="loops"):
        load("inkling2_loop_text", **INKLING, loop_layer_index_start=2, loop_layer_index_end=8)


def test_one_field_under_two_names_must_say_one_thing() -> None:
    with pytest.raises(MalformedFile, match="another name"):
        load("inkling2_text", **INKLING, sliding_window=16, sliding_window_size=32)
    load("inkling2_text", **INKLING, sliding_window=16, sliding_window_size=16)


def test_a_draft_model_keeps_no_cache_of_its_own() -> None:
    """Gemma 4's assistant: every layer reads the large model's keys and values."""
    text = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "num_hidden_layers": 6}
    model = load_model({"model_type": "gemma4_assistant", "text_config": text})
    assert {type(layer.cache) for layer in model.layers} == {NoCache}
    assert any("drafts for" in warning for warning in model.warnings)
    with pytest.raises(UnsupportedArchitecture, match="only some"):
        load_model({"model_type": "gemma4_assistant", "text_config": {**text, "num_kv_shared_layers": 2}})
    with pytest.raises(UnsupportedArchitecture, match="hidden_size_per_layer_input"):
        load_model({"model_type": "gemma4_assistant"})  # its class's own defaults, which the library refuses too
