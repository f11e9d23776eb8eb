"""Dense families beyond what the measured caches show: every tensor by name, what each layer really needs, published
models with code of their own, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.errors import MalformedFile, UnsupportedArchitecture
from kvscope.model.hf_config import model_from_config
from kvscope.model.spec import FullAttention, HiddenStateMemory, ModelSpec, NoCache, SlidingWindow
from kvscope.predict.memory import predict

GOLDEN = Path(__file__).parent.parent / "golden" / "models"
PARAMETERS = json.loads((GOLDEN / "dense_parameters.json").read_text())["models"]
SMALL = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "intermediate_size": 96,
    "vocab_size": 128,
}


def load(content: Any) -> ModelSpec:
    return model_from_config(content, source="test", where="config.json", name="test")


def windows(model: ModelSpec) -> list[int | None]:
    return [layer.cache.window_tokens if isinstance(layer.cache, SlidingWindow) else None for layer in model.layers]


@pytest.mark.parametrize("model_type", PARAMETERS)
def test_every_tensor_is_named_and_shaped_as_in_transformers(model_type: str) -> None:
    """``named_parameters()`` of the class, transformers 5.24.0, for a small config."""
    case = PARAMETERS[model_type]
    ours = {}
    for group in load(case["config"]).weights:
        for layer in group.layers or (None,):
            name = group.name if layer is None else group.name.replace("{}", str(layer), 1)
            assert name not in ours
            ours[name] = list(group.shape)
    assert ours == dict(case["tensors"])


def test_heads_that_do_not_divide_the_width_are_rounded_down_only_where_the_class_does() -> None:
    """Qwen2 has no check of its own in transformers 5.24.0: 42 wide with 4 heads is head_dim 10. Llama's raises."""
    odd = SMALL | {"hidden_size": 42, "num_key_value_heads": 2}
    cache = load(odd | {"model_type": "qwen2"}).layers[0].cache
    assert cache == FullAttention(num_kv_heads=2, key_dim=10, value_dim=10)
    for config in (odd | {"model_type": "llama"}, odd | {"model_type": "qwen2", "num_attention_heads": 43}):
        with pytest.raises(MalformedFile, match="heads do not divide"):
            load(config)


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_qwen_windows_need_use_sliding_window_and_begin_at_max_window_layers(model_type: str) -> None:
    qwen = SMALL | {"model_type": model_type, "num_key_value_heads": 2, "sliding_window": 16}
    assert windows(load(qwen)) == [None] * 4
    on = qwen | {"use_sliding_window": True}
    assert windows(load(on)) == [None] * 4  # max_window_layers defaults to 28
    assert windows(load(on | {"max_window_layers": 3})) == [None, None, None, 16]
    assert windows(load(on | {"max_window_layers": 0, "sliding_window": None})) == [None] * 4
    types = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    assert windows(load(on | {"layer_types": types})) == [16, None, None, 16]
    # Qwen2Config/Qwen3Config: without the flag the window is dropped, and the library cannot build such layers.
    with pytest.raises(UnsupportedArchitecture, match="sliding_attention"):
        load(qwen | {"layer_types": types})


def test_smollm3_slides_where_it_has_no_rotary_positions() -> None:
    smollm3 = SMALL | {"model_type": "smollm3", "sliding_window": 16, "use_sliding_window": True}
    assert windows(load(smollm3)) == [None, None, None, 16]  # every fourth layer has none
    assert windows(load(smollm3 | {"no_rope_layers": [0, 1, 1, 0]})) == [16, None, None, 16]
    assert windows(load(smollm3 | {"no_rope_layer_interval": 2})) == [None, 16, None, 16]
    assert windows(load(smollm3 | {"use_sliding_window": False})) == [None] * 4
    with pytest.raises(MalformedFile, match="3 entries for 4 layers"):
        load(smollm3 | {"no_rope_layers": [0, 1, 1]})
    with pytest.raises(MalformedFile, match="no_rope_layer_interval"):
        load(smollm3 | {"no_rope_layer_interval": 0})


def test_falcon_40b_needs_its_own_kv_heads_but_transformers_keeps_a_copy_per_query_head() -> None:
    falcon = {"model_type": "falcon", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1,
              "vocab_size": 128, "num_kv_heads": 2}  # fmt: skip
    new = load(falcon | {"new_decoder_architecture": True}).layers[0]
    assert new.cache == FullAttention(num_kv_heads=2, key_dim=16, value_dim=16)
    assert new.transformers_cache == FullAttention(num_kv_heads=4, key_dim=16, value_dim=16)
    old = load(falcon).layers[0]  # multi_query: one head, whatever num_kv_heads says
    assert old.cache == FullAttention(num_kv_heads=1, key_dim=16, value_dim=16)
    assert old.transformers_cache is None
    with pytest.raises(UnsupportedArchitecture, match="num_kv_heads"):
        load(falcon | {"multi_query": False})


def test_gpt_neo_needs_a_window_where_transformers_keeps_all() -> None:
    neo = {"model_type": "gpt_neo", "hidden_size": 64, "num_heads": 4, "num_layers": 3, "window_size": 8,
           "attention_types": [[["global", "local"], 1], [["local"], 1]]}  # fmt: skip
    model = load(neo)
    assert windows(model) == [None, 8, 8]
    full = FullAttention(num_kv_heads=4, key_dim=16, value_dim=16)
    assert [layer.transformers_cache for layer in model.layers] == [None, full, full]
    # 1 full layer of 100 tokens and 2 of 8, against 3 of 100: 4 heads × 2 × 16 elements × 4 B = 512 B a token
    assert predict(model, engine="logical", tokens=100, dtype="float32").cache_bytes == 512 * 116
    assert predict(model, engine="transformers", tokens=100, dtype="float32").cache_bytes == 512 * 300


@pytest.mark.parametrize(
    "types", [3, [3], [[["global"]]], [["global", 3]], [[["global"], -3]], [[["other"], 3]], [[["global"], 2]],
              [[["global"], 10**12]]]
)  # fmt: skip
def test_gpt_neo_layers_that_cannot_be(types: Any) -> None:
    with pytest.raises(MalformedFile, match="attention_types"):
        load({"model_type": "gpt_neo", "num_layers": 3, "attention_types": types})


def test_gpt1_needs_a_cache_that_transformers_does_not_keep() -> None:
    model = load({"model_type": "openai-gpt"})
    assert model.layers[0].cache == FullAttention(num_kv_heads=12, key_dim=64, value_dim=64)
    assert model.layers[0].transformers_cache == NoCache()
    assert model.num_parameters == 116_534_784  # the 117M of the paper


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        # Published totals of the checkpoints whose dimensions are the class defaults, or given here.
        ({"model_type": "gpt2"}, 124_439_808),
        ({"model_type": "gptj"}, 6_050_882_784),
        ({"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
          "num_key_value_heads": 8}, 8_190_735_360),
        ({"model_type": "olmo2", "vocab_size": 100352}, 7_298_617_344),
        ({"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112}, 176_247_271_424),
        ({"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432}, 6_649_286_656),
        ({"model_type": "stablelm"}, 2_795_443_200),
        ({"model_type": "starcoder2", "num_hidden_layers": 30}, 3_030_371_328),
    ],
)  # fmt: skip
def test_parameters_of_published_models(config: dict[str, Any], parameters: int) -> None:
    assert load(config).num_parameters == parameters


PHI3_SMALL = {
    "model_type": "phi3small", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 32, "ff_intermediate_size": 14336, "vocab_size": 100352, "max_position_embeddings": 8192,
    "dense_attention_every_n_layers": 2, "blocksparse_num_local_blocks": 16, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_phi3_small_keeps_every_token_in_its_sparse_layers_too() -> None:
    """Each layer: 8 KV heads × (128 + 128) × 2 B = 4,096 B a token. Weights of a layer: 4096 × 6144 + 6144,
    4096 × 4096 + 4096, 4096 × 28672 + 28672, 14336 × 4096 + 4096, two norms of 2 × 4096 = 218,163,200; × 32; the tied
    embeddings 100352 × 4096, the last norm 2 × 4096."""
    model = load(PHI3_SMALL)
    assert predict(model, engine="logical", tokens=32_768).cache_bytes == 32 * 4096 * 32_768 == 4_294_967_296
    assert model.num_parameters == 218_163_200 * 32 + 100_352 * 4096 + 2 * 4096
    assert model.is_tied


def nas(*blocks: dict[str, Any], **config: Any) -> dict[str, Any]:
    return {"model_type": "nemotron-nas", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": None,
            "intermediate_size": None, "vocab_size": 100, "tie_word_embeddings": False,
            "num_hidden_layers": len(blocks), "block_configs": list(blocks), **config}  # fmt: skip


ATTENTION = {"n_heads_in_group": 2, "no_op": False, "replace_with_linear": False}
FFN = {"ffn_mult": 1.0, "no_op": False}


def test_nemotron_nas_layers_have_heads_and_widths_of_their_own() -> None:
    no_op = {"n_heads_in_group": None, "no_op": True}
    model = load(nas({"attention": ATTENTION, "ffn": FFN}, {"attention": no_op, "ffn": FFN | {"ffn_mult": 6.1}},
                     {"attention": ATTENTION | {"n_heads_in_group": 4}, "ffn": {"no_op": True}}))  # fmt: skip
    assert [layer.cache for layer in model.layers] == [
        FullAttention(num_kv_heads=2, key_dim=16, value_dim=16),
        NoCache(),
        FullAttention(num_kv_heads=1, key_dim=16, value_dim=16),
    ]
    # 2 × 1.0 × 64 / 3 = 42 and 2 × 6.1 × 64 / 3 = 260, each up to whole multiples of 256
    assert [layer.ffn.width if layer.ffn else None for layer in model.layers] == [256, 512, None]
    # layer 0: q, o 2 × 64 × 64; k, v 2 × 64 × 32; 3 × 64 × 256; 2 norms. Layer 1: 3 × 64 × 512; 1 norm.
    # Layer 2: q, o; k, v 2 × 64 × 16; 1 norm. Embeddings and head 2 × 100 × 64; last norm.
    first, second, third = 8192 + 4096 + 49_152 + 128, 98_304 + 64, 8192 + 2048 + 64
    assert model.num_parameters == first + second + third + 12_800 + 64


@pytest.mark.parametrize(
    "block",
    [
        {"attention": ATTENTION | {"replace_with_linear": True}, "ffn": FFN},
        {"attention": ATTENTION | {"window_length": 512}, "ffn": FFN},
        {"attention": ATTENTION | {"num_sink_tokens": 4}, "ffn": FFN},
        {"attention": ATTENTION, "ffn": FFN | {"replace_with_linear": True}},
        {"attention": ATTENTION, "ffn": FFN | {"sparsify": ["0.5"]}},
    ],
)
def test_nemotron_nas_variants_that_nobody_has_checked_are_refused(block: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedArchitecture, match="block_configs"):
        load(nas(block))


@pytest.mark.parametrize(
    "block",
    [3, {}, {"attention": ATTENTION}, {"attention": ATTENTION | {"n_heads_in_group": 3}, "ffn": FFN},
     {"attention": ATTENTION | {"n_heads_in_group": 0}, "ffn": FFN},
     {"attention": ATTENTION, "ffn": FFN | {"ffn_mult": -1}}, {"attention": ATTENTION, "ffn": FFN | {"ffn_mult": "2"}}],
)  # fmt: skip
def test_nemotron_nas_blocks_that_cannot_be_name_their_place(block: Any) -> None:
    with pytest.raises(MalformedFile, match=r"block_configs\.0"):
        load(nas(block))
    with pytest.raises(MalformedFile, match="a list of 3 objects"):
        load(nas(block) | {"num_hidden_layers": 3})


def test_old_and_new_names_of_the_same_model_read_alike() -> None:
    common = {"vocab_size": 128, "num_hidden_layers": 2}
    pairs = [
        ({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256},
         {"model_type": "gpt2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "max_position_embeddings": 256}),
        (SMALL | {"model_type": "exaone", "num_key_value_heads": 2, "num_layers": 4, "num_hidden_layers": 4},
         SMALL | {"model_type": "exaone", "num_key_value_heads": 2}),
        (SMALL | {"model_type": "internlm3", "num_key_value_heads": 2, "qkv_bias": True, "bias": True},
         SMALL | {"model_type": "internlm3", "num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}),
        (common | {"model_type": "falcon", "n_embed": 64, "num_attention_heads": 4},
         common | {"model_type": "falcon", "hidden_size": 64, "num_attention_heads": 4}),
        ({"model_type": "fuyu", **SMALL}, {"model_type": "fuyu", "text_config": SMALL}),
    ]  # fmt: skip
    for old, new in pairs:
        assert (load(old).layers, load(old).weights) == (load(new).layers, load(new).weights), old["model_type"]


def test_xlnet_remembers_hidden_states() -> None:
    xlnet = {"model_type": "xlnet", "d_model": 64, "n_head": 4, "n_layer": 2}
    assert load(xlnet).layers[0].cache == HiddenStateMemory(width=64, memory_tokens=512)
    assert load(xlnet | {"mem_len": None}).layers[0].cache == HiddenStateMemory(width=64, memory_tokens=None)
    assert load(xlnet | {"mem_len": 0}).layers[0].cache == HiddenStateMemory(width=64, memory_tokens=None)
    assert load(xlnet | {"use_mems_eval": False}).layers[0].cache == NoCache()
    assert load(xlnet).trained_context_tokens is None


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (SMALL | {"model_type": "helium", "head_dim": 32}, "heads together"),
        (SMALL | {"model_type": "gemma", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (SMALL | {"model_type": "internlm3", "attention_bias": True, "mlp_bias": False}, "bias"),
        (SMALL | {"model_type": "iquestcoder", "use_sliding_window": True}, "use_sliding_window"),
        (SMALL | {"model_type": "apertus1p5_text", "tie_word_embeddings": True, "output_vocab_size": 100}, "tied"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention"),
        ({"model_type": "mpt", "attn_config": {"attn_type": "multiquery_attention"}}, "multiquery_attention"),
        ({"model_type": "fuyu", "text_config": {"model_type": "llama"}}, "llama"),
        ({"model_type": "xlnet", "reuse_len": 16}, "reuse_len"),
        (SMALL | {"model_type": "stablelm", "num_attention_heads": 16, "num_key_value_heads": 16}, "one element"),
    ],
)  # fmt: skip
def test_variants_that_would_change_the_memory_unseen_are_refused(config: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedArchitecture, match=named):
        load(config)


@pytest.mark.parametrize("fields", [{}, {"is_decoder": False}, {"is_decoder": True, "add_cross_attention": True}])
def test_an_encoder_is_no_decoder(fields: dict[str, bool]) -> None:
    """bert-base's file says neither which class it is loaded as nor that anything is cached: it is refused."""
    with pytest.raises(UnsupportedArchitecture):
        load({"model_type": "bert", **fields})
    known = load({"model_type": "bert", "is_decoder": True})
    # BERT base, counted by the library with BertLMHeadModel(BertConfig(is_decoder=True)): 109,514,298.
    assert known.num_parameters == 109_514_298


def test_two_numbers_under_two_names_of_a_field_are_refused() -> None:
    """Which of them the library takes depends on their order in the file."""
    experts = {"model_type": "qwen3_moe", "num_experts": 4, "num_local_experts": 6}
    with pytest.raises(MalformedFile, match="another name"):
        load(experts)
    same = load({**experts, "num_local_experts": 4})
    assert same.num_parameters == load({"model_type": "qwen3_moe", "num_experts": 4}).num_parameters


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", **SMALL, "head_dim": 1},  # rotary embedding: keys of two elements
        {"model_type": "gpt_oss", "head_dim": 3},  # and of four out of three
        {"model_type": "dbrx", "hidden_size": 64},  # its experts keep the default width
        {"model_type": "zamba2", "layer_types": ["hybrid"] * 54},  # shared blocks placed by the class's own default
        {"model_type": "xlnet", "bi_data": True},
        {"model_type": "moshi", "architectures": ["MoshiForConditionalGeneration"]},
    ],
)
def test_what_the_library_makes_otherwise_than_the_file_says_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedArchitecture):
        load(config)
