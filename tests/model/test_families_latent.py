"""Latent, indexed and compressed families: what the measured caches (tests/golden/transformers) cannot show."""

from typing import Any

import pytest

from kvscope.errors import KvscopeError, MalformedFile, MissingField, UnsupportedArchitecture
from kvscope.model.load import load_model
from kvscope.model.spec import FullAttention, IndexedAttention, LatentAttention, ModelSpec, SharedCache

# The dimensions of the published DeepSeek-V3 config.json; everything else is the class's default.
DEEPSEEK_V3 = {
    "hidden_size": 7168,
    "intermediate_size": 18_432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129_280,
}


def read(model_type: str, **fields: Any) -> ModelSpec:
    return load_model({"model_type": model_type, **fields})


def test_latent_layers_know_the_heads_that_other_engines_keep() -> None:
    """A key of a head is 128 elements from the latent and 64 rotary ones; a value is 128."""
    model = read("deepseek_v3", **DEEPSEEK_V3)
    heads = FullAttention(num_kv_heads=128, key_dim=192, value_dim=128)
    assert {layer.cache for layer in model.layers} == {LatentAttention(latent_dim=512, rope_dim=64, expanded=heads)}
    assert model.sources["layers[60].latent_dim"] == "config: kv_lora_rank"


def test_parameters_of_the_published_model() -> None:
    """By hand, per layer: attention 7168 × 1536 + 1536 + 1536 × 128 × 192 + 7168 × 576 + 512 + 512 × 128 × 256
    + 128 × 128 × 7168 = 187,107,328; two norms 14,336. Dense feed-forward 3 × 7168 × 18,432 = 396,361,728; mixture
    257 × 3 × 7168 × 2048 + 256 × 7168 = 11,320,164,352. 61 × 187,121,664 + 3 × 396,361,728 + 58 × 11,320,164,352
    + 2 × 129,280 × 7168 + 7168 = 671,026,404,352 (the model card says 671B)."""
    assert read("deepseek_v3", **DEEPSEEK_V3).num_parameters == 671_026_404_352


def test_kimi_k2_is_read_without_a_class_of_the_library() -> None:
    """The library has no kimi_k2: what its file leaves out is missing, not another model's default."""
    fields = {**DEEPSEEK_V3, "n_routed_experts": 384, "num_attention_heads": 64, "vocab_size": 163_840}
    assert read("kimi_k2", **fields).family == "deepseek2"
    with pytest.raises(MissingField, match="kv_lora_rank"):
        read("kimi_k2", **{key: value for key, value in fields.items() if key != "kv_lora_rank"})


def test_index_keys_have_the_models_own_format_where_it_is_known() -> None:
    """DeepSeek-V3.2: 128 float8 elements and one float32 scale for every 128."""
    indexed = read("deepseek_v32", num_hidden_layers=4).layers[0].cache
    assert isinstance(indexed, IndexedAttention)
    assert indexed.index_row_bytes == 132
    wide = read("glm_moe_dsa", num_hidden_layers=4, index_head_dim=129).layers[0].cache
    assert isinstance(wide, IndexedAttention)
    assert wide.index_row_bytes == 129 + 2 * 4
    other = read("hy_v4", num_hidden_layers=4).layers[0].cache
    assert isinstance(other, IndexedAttention)
    assert other.index_row_bytes is None


def test_a_layer_that_reads_anothers_latent_keeps_its_index_keys() -> None:
    text = {"num_hidden_layers": 3, "kv_source_layers": [0, 0, 0], "indexer_types": ["full", "full", "shared"]}
    model = read("mistral_large4", text_config=text)
    first, second, third = (layer.cache for layer in model.layers)
    assert isinstance(first, IndexedAttention)
    assert isinstance(first.main, LatentAttention)
    assert isinstance(second, IndexedAttention)
    assert second.main == third == SharedCache(layer_index=0)
    # Counted on MistralLarge4ForConditionalGeneration of this config, built on the meta device: with the tower that the
    # class assumes where the file has none.
    assert model.num_parameters == 34_269_650_464


def test_the_class_decides_which_parts_of_dots3_are_counted() -> None:
    text = {"num_hidden_layers": 3}
    alone = read("dots3_note_text", **text).num_parameters
    assert alone is not None
    assert read("dots3_note", text_config=text).num_parameters == alone
    whole = read("dots3_note", text_config=text, architectures=["Dots3NoteForConditionalGeneration"])
    assert whole.num_parameters is None


@pytest.mark.parametrize(
    ("model_type", "fields", "error", "says"),
    [
        ("deepseek_v3", {"layer_types": ["conv"] * 61}, UnsupportedArchitecture, "conv"),
        ("deepseek_v3", {"layer_types": ["sliding_attention"] * 61}, UnsupportedArchitecture, "sliding_attention"),
        ("deepseek_v3", {"kv_lora_rank": None}, MissingField, "kv_lora_rank"),
        ("deepseek_v3", {"per_layer_config": {"0": {"kv_lora_rank": 8}}}, UnsupportedArchitecture, "per_layer_config"),
        ("deepseek_v32", {"layer_types": ["full_attention"] * 61}, UnsupportedArchitecture, "indexed_attention"),
        ("deepseek_v32", {"q_lora_rank": None}, UnsupportedArchitecture, "q_lora_rank"),
        ("deepseek_v32", {"mlp_layer_types": ["dense"]}, MalformedFile, "mlp_layer_types"),
        ("glm_moe_dsa", {"indexer_types": ["half"] * 78}, MalformedFile, "indexer_types"),
        ("glm_moe_dsa", {"index_topk_pattern": "FX" * 39}, MalformedFile, "index_topk_pattern"),
        ("longcat_flash", {"qk_head_dim": 100}, UnsupportedArchitecture, "qk_head_dim"),
        ("longcat_flash", {"num_hidden_layers": 5}, UnsupportedArchitecture, "num_hidden_layers"),
        ("longcat_flash", {"num_layers": 5, "num_hidden_layers": 8}, UnsupportedArchitecture, "num_hidden_layers"),
        ("deepseek_v4", {"compress_ratios": [8] * 43}, UnsupportedArchitecture, "compress_ratios"),
        ("deepseek_v4", {"layer_types": ["full_attention"] * 43}, UnsupportedArchitecture, "full_attention"),
        ("deepseek_v4", {"layer_types": ["sliding_attention"]}, MalformedFile, "layer_types"),
        ("deepseek_v4", {"compress_rates": {"compressed_sparse_attention": 4}}, MalformedFile, "compress_rates"),
        ("mistral_large4", {"text_config": {"num_hidden_layers": 2, "kv_source_layers": [1, 1]}}, MalformedFile, "kv_"),
        ("dots3_note_text", {"per_layer_config": {"2": {"hidden_size": 8}}}, UnsupportedArchitecture, "hidden_size"),
        ("minimax_m3_vl_text", {"layer_types": ["sliding_attention"] * 60}, UnsupportedArchitecture, "minimax_m3"),
        ("minimax_m3_vl_text", {"sparse_attention_config": {"sparse_index_dim": 0}}, MalformedFile, "sparse_index_dim"),
    ],
)
def test_variants_that_nobody_checked_are_refused(
    model_type: str, fields: dict[str, Any], error: type[KvscopeError], says: str
) -> None:
    with pytest.raises(error, match=says):
        read(model_type, **fields)
