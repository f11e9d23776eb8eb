"""Mixture-of-experts families whose attention is full, or slides in every layer when the config has a window.

Which norms, biases and layers with experts each has is that of its class in transformers 5.24.0. Those with full beside
sliding layers are in moe_windowed.py; those built otherwise (Aria, DBRX, JetMoE) in moe_other.py.
"""

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture, refuse_single_rotary
from kvscope.model.families.dense_decoder import Decoder
from kvscope.model.families.moe_decoder import (
    Experts,
    Layers,
    dense_mlp,
    layers_from,
    layers_named_sparse,
    layers_stepped,
    read_experts,
    read_moe_decoder,
    sparse_mlp,
    with_experts,
)
from kvscope.model.families.windowed_decoder import keyed_caches, listed_caches, read_window
from kvscope.model.modules import linear, norms, parameter
from kvscope.model.spec import WeightGroup

QK_NORMS = ("self_attn.q_norm", "self_attn.k_norm")


def mixtral(config: ConfigReader) -> Architecture:
    """Llama's attention, and experts in every layer; a window in every layer, or in none."""
    decoder = read_moe_decoder(config)
    experts = read_experts(config, "num_local_experts", width="intermediate_size")
    caches, library = keyed_caches(decoder, read_window(config))
    model = decoder.model(
        "mixtral",
        decoder.outer(),
        decoder.attention(),
        sparse_mlp(decoder, experts, decoder.layers),
        decoder.norms(),
        caches=caches,
        library=library,
    )
    return with_experts(model, experts)


def phimoe(config: ConfigReader) -> Architecture:
    """Layer norms with biases, and an optional bias on the output matrix."""
    decoder = read_moe_decoder(config)
    experts = read_experts(config, "num_local_experts", width="intermediate_size")
    bias = config.flag("attention_bias")
    caches, library = keyed_caches(decoder, read_window(config))
    model = decoder.model(
        "phimoe",
        decoder.outer(norm_bias=True, head_bias=config.flag("lm_head_bias")),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        sparse_mlp(decoder, experts, decoder.layers, router="router", is_router_linear=True),
        decoder.norms(bias=True),
        caches=caches,
        library=library,
    )
    return with_experts(model, experts)


def minimax_m2(config: ConfigReader) -> Architecture:
    """Norms over all query heads together, and over all key heads."""
    decoder = read_moe_decoder(config)
    experts = read_experts(config, "num_local_experts", width="intermediate_size")
    model = decoder.model(
        "minimax_m2",
        decoder.outer(),
        decoder.attention(),
        _wide_qk_norms(decoder),
        sparse_mlp(decoder, experts, decoder.layers),
        decoder.norms(),
    )
    return with_experts(model, experts)


def flex_olmo(config: ConfigReader) -> Architecture:
    """OLMo 2's norms: after attention and after the feed-forward only."""
    decoder = read_moe_decoder(config)
    experts = read_experts(config, "num_experts", width="intermediate_size")
    bias = config.flag("attention_bias")
    model = decoder.model(
        "flex_olmo",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        _wide_qk_norms(decoder),
        sparse_mlp(decoder, experts, decoder.layers),
        decoder.norms(("post_attention_layernorm", "post_feedforward_layernorm")),
    )
    return with_experts(model, experts)


def olmoe(config: ConfigReader) -> Architecture:
    """Its query norm is as wide as the model, so that head_dim can be nothing but hidden_size / heads."""
    decoder = read_moe_decoder(config)
    if decoder.heads.q_heads * decoder.heads.head_dim != decoder.heads.hidden:
        raise config.refuse("its heads together are not as wide as hidden_size")
    experts = read_experts(config, "num_experts", width="intermediate_size")
    bias = config.flag("attention_bias")
    model = decoder.model(
        "olmoe",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        _wide_qk_norms(decoder),
        sparse_mlp(decoder, experts, decoder.layers),
        decoder.norms(),
    )
    return with_experts(model, experts)


def granitemoe(config: ConfigReader) -> Architecture:
    """Granite's modules with experts in every layer."""
    return granite_experts(config, read_moe_decoder(config), "granitemoe")


def granitemoeshared(config: ConfigReader) -> Architecture:
    """As granitemoe, with an expert that every token uses."""
    return granite_experts(config, read_moe_decoder(config), "granitemoeshared")


def granite_experts(config: ConfigReader, decoder: Decoder, family: str, *extra: list[WeightGroup]) -> Architecture:
    """Granite's experts, with one fused shared feed-forward beside them where shared_intermediate_size is not 0."""
    experts = read_experts(config, "num_local_experts", width="intermediate_size")
    shared = config.optional("shared_intermediate_size") or 0
    bias = config.flag("attention_bias")
    weights: list[WeightGroup] = []
    if shared:
        weights += linear(
            decoder.path("shared_mlp.input_linear"), decoder.heads.hidden, 2 * shared, layers=decoder.layers
        )
        weights += linear(decoder.path("shared_mlp.output_linear"), shared, decoder.heads.hidden, layers=decoder.layers)
    model = decoder.model(
        family,
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        sparse_mlp(decoder, experts, decoder.layers, module="block_sparse_moe", router="router"),
        weights,
        decoder.norms(),
        *extra,
    )
    whole = Experts(count=experts.count, per_token=experts.per_token, width=experts.width, shared_width=shared)
    return with_experts(model, whole)


def dots1(config: ConfigReader) -> Architecture:
    """Layers from max_window_layers on slide where the config has a window (Dots1Config, transformers 5.24.0)."""
    decoder = read_moe_decoder(config)
    experts = read_experts(config, "n_routed_experts", shared_count="n_shared_experts")
    sparse = layers_from(decoder)
    bias = config.flag("attention_bias")
    window = read_window(config)
    first = decoder.num_layers if window is None else config.number("max_window_layers", smallest=0)
    pattern = ["sliding_attention" if index >= first else "full_attention" for index in decoder.layers]
    model = decoder.model(
        "dots1",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.head_norms(*QK_NORMS),
        dense_mlp(decoder, sparse),
        sparse_mlp(decoder, experts, sparse),
        decoder.norms(),
        caches=listed_caches(decoder, pattern),
    )
    return with_experts(model, experts, sparse)


def ernie4_5_moe(config: ConfigReader) -> Architecture:
    """One bias switch for every matrix, the output matrix too; experts in every moe_layer_interval-th layer."""
    decoder = read_moe_decoder(config)
    experts = read_experts(config, "moe_num_experts", per_token="moe_k", shared_count="moe_num_shared_experts")
    sparse = _ernie_sparse_layers(decoder)
    bias = config.flag("use_bias")
    statics = (
        parameter(decoder.path("mlp.gate.moe_statics.e_score_correction_bias"), (1, experts.count), layers=sparse)
        if sparse
        else []
    )
    model = decoder.model(
        "ernie4_5_moe",
        decoder.outer(head_bias=bias),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        dense_mlp(decoder, sparse, bias=bias),
        sparse_mlp(decoder, experts, sparse, shared_bias=bias),
        statics,
        decoder.norms(),
    )
    return with_experts(model, experts, sparse)


def _ernie_sparse_layers(decoder: Decoder) -> Layers:
    config = decoder.config
    interval = config.number("moe_layer_interval")
    first = config.number("moe_layer_start_index", smallest=0)
    last = config.number("moe_layer_end_index", smallest=-1)
    last = decoder.num_layers - 1 if last == -1 else last
    return tuple(index for index in decoder.layers if (index + 1) % interval == 0 and first <= index <= last)


def glm4_moe(config: ConfigReader) -> Architecture:
    """The output projection has no bias; layers for predicting several tokens are not loaded."""
    return _glm4_moe(config, "glm4_moe", rotary=0.5)


def sarvam_moe(config: ConfigReader) -> Architecture:
    """As GLM-4-MoE, with rotary embeddings over whole heads."""
    return _glm4_moe(config, "sarvam_moe", rotary=1.0)


def _glm4_moe(config: ConfigReader, family: str, rotary: float) -> Architecture:
    """``rotary``: the part of a head with rotary positions where the config does not say."""
    decoder = read_moe_decoder(config)
    refuse_single_rotary(config, decoder.heads.head_dim, rotary)
    experts = read_experts(config, "n_routed_experts", shared_count="n_shared_experts")
    sparse = layers_from(decoder)
    model = decoder.model(
        family,
        decoder.outer(),
        decoder.attention(qkv_bias=config.flag("attention_bias")),
        decoder.head_norms(*QK_NORMS) if config.flag("use_qk_norm") else [],
        dense_mlp(decoder, sparse),
        sparse_mlp(decoder, experts, sparse),
        decoder.norms(),
    )
    return with_experts(model, experts, sparse)


def solar_open(config: ConfigReader) -> Architecture:
    """Experts in every layer."""
    decoder = read_moe_decoder(config, width_key="moe_intermediate_size")
    experts = read_experts(config, "n_routed_experts", shared_count="n_shared_experts")
    model = decoder.model(
        "solar_open",
        decoder.outer(),
        decoder.attention(qkv_bias=config.flag("attention_bias")),
        sparse_mlp(decoder, experts, decoder.layers),
        decoder.norms(),
    )
    return with_experts(model, experts)


def hunyuan_v1_moe(config: ConfigReader) -> Architecture:
    """One shared expert as wide as a routed one; every layer has the same number of them."""
    config.refuse_keys("use_cla")  # layers that share keys in the remote code, which transformers does not have
    for key in ("num_experts", "moe_topk", "intermediate_size"):
        _refuse_unequal(config, key)
    decoder = read_moe_decoder(config)
    top = config.config.get("moe_topk", config.defaults.values.get("moe_topk"))
    experts = Experts(
        count=config.number("num_experts", field="ffn.num_experts"),
        per_token=int(top[0]) if isinstance(top, list) else config.number("moe_topk", field="ffn.experts_per_token"),
        width=decoder.width,
        shared_width=decoder.width,
        shared="shared_mlp",
    )
    bias = config.flag("attention_bias")
    model = decoder.model(
        "hunyuan_v1_moe",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.head_norms("self_attn.query_layernorm", "self_attn.key_layernorm"),
        sparse_mlp(decoder, experts, decoder.layers, router="gate.wg", is_router_linear=True),
        decoder.norms(),
    )
    return with_experts(model, experts)


def _refuse_unequal(config: ConfigReader, key: str) -> None:
    """Refuse a list, one entry per layer, whose entries differ."""
    value = config.config.get(key)
    if isinstance(value, list) and (key != "moe_topk" or len(set(config.numbers(key) or ())) != 1):
        raise config.refuse(f"its {key} is a list")


def hy_v3(config: ConfigReader) -> Architecture:
    """Hunyuan 3: a dense first layer unless mlp_layer_types says otherwise."""
    decoder = read_moe_decoder(config)
    experts = read_experts(config, "num_experts", shared_count="num_shared_experts")
    sparse = layers_named_sparse(decoder, decoder.layers[1:])
    bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
    model = decoder.model(
        "hy_v3",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.head_norms(*QK_NORMS),
        dense_mlp(decoder, sparse, bias=mlp_bias),
        sparse_mlp(decoder, experts, sparse, shared_bias=mlp_bias),
        decoder.norms(),
    )
    return with_experts(model, experts, sparse)


def qwen2_moe(config: ConfigReader) -> Architecture:
    """With use_sliding_window, layers 0, 2, 4, … below max_window_layers slide; without, a sliding_window is dropped
    (Qwen2MoeConfig, transformers 5.24.0)."""
    decoder = read_moe_decoder(config)
    shared = config.number("shared_expert_intermediate_size", smallest=0)
    routed = read_experts(config, "num_experts")
    experts = Experts(
        count=routed.count, per_token=routed.per_token, width=routed.width, shared_width=shared, shared="shared_expert"
    )
    sparse = layers_stepped(decoder)
    uses_window = config.flag("use_sliding_window")
    last = config.number("max_window_layers", smallest=0) if uses_window else 0
    pattern = ["sliding_attention" if i % 2 == 0 and i < last else "full_attention" for i in decoder.layers]
    model = decoder.model(
        "qwen2_moe",
        decoder.outer(),
        decoder.attention(qkv_bias=config.flag("qkv_bias")),
        dense_mlp(decoder, sparse),
        sparse_mlp(decoder, experts, sparse),
        linear(decoder.path("mlp.shared_expert_gate"), decoder.heads.hidden, 1, layers=sparse) if sparse else [],
        decoder.norms(),
        caches=listed_caches(decoder, pattern, has_window=uses_window),
    )
    return with_experts(model, experts, sparse)


def qwen3_moe(config: ConfigReader) -> Architecture:
    """With use_sliding_window every layer slides; without, a sliding_window is dropped."""
    decoder = read_moe_decoder(config)
    experts = read_experts(config, "num_experts")
    sparse = layers_stepped(decoder)
    bias = config.flag("attention_bias")
    caches, library = keyed_caches(decoder, read_window(config) if config.flag("use_sliding_window") else None)
    model = decoder.model(
        "qwen3_moe",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.head_norms(*QK_NORMS),
        dense_mlp(decoder, sparse),
        sparse_mlp(decoder, experts, sparse),
        decoder.norms(),
        caches=caches,
        library=library,
    )
    return with_experts(model, experts, sparse)


def _wide_qk_norms(decoder: Decoder) -> list[WeightGroup]:
    """One norm over all query heads together, one over all key heads."""
    heads, layers = decoder.heads, decoder.layers
    return [
        *norms([decoder.path("self_attn.q_norm")], heads.q_heads * heads.head_dim, layers=layers),
        *norms([decoder.path("self_attn.k_norm")], heads.kv_heads * heads.head_dim, layers=layers),
    ]
