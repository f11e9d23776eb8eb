"""Mixture-of-experts families with full beside sliding or chunked layers.

Which norms, biases, windows and layers with experts each has is that of its class in transformers 5.24.0.
"""

from collections.abc import Sequence
from dataclasses import replace

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture, attention_layers, typed_caches
from kvscope.model.families.dense_decoder import LLAMA_NORMS, Decoder
from kvscope.model.families.moe import QK_NORMS, granite_experts
from kvscope.model.families.moe_decoder import (
    dense_mlp,
    layers_from,
    layers_named_sparse,
    layers_stepped,
    read_experts,
    read_moe_decoder,
    refuse_single_rotary_by_type,
    sparse_mlp,
    with_experts,
)
from kvscope.model.families.windowed_decoder import (
    CHUNKED,
    FULL,
    SLIDING,
    first_full,
    last_full,
    listed_caches,
    listed_types,
    pattern_period,
)
from kvscope.model.modules import attention, linear, parameter
from kvscope.model.spec import CacheKind, FullAttention, WeightGroup


def gpt_oss(config: ConfigReader) -> Architecture:
    """Sinks per head; biases in the router and the experts, whose matrices are [experts, in, out]."""
    decoder = read_moe_decoder(config)
    if decoder.heads.head_dim % 2:
        raise config.refuse("its heads are of an odd width")  # the rotary embedding makes keys of 4 out of 3
    experts = read_experts(config, "num_local_experts", width="intermediate_size")
    bias = config.flag("attention_bias")
    model = decoder.model(
        "gpt_oss",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        _sinks(decoder),
        sparse_mlp(decoder, experts, decoder.layers, router="router", router_bias=True, transposed=True, biased=True),
        decoder.norms(),
        caches=listed_caches(decoder, last_full(decoder, 2)),
    )
    return with_experts(model, experts)


def granitemoe_swa(config: ConfigReader) -> Architecture:
    decoder = read_moe_decoder(config)
    model = granite_experts(config, decoder, "granitemoe_swa", _sinks(decoder))
    return _with_caches(model, listed_caches(decoder, first_full(decoder, 4)))


def cohere2_moe(config: ConfigReader) -> Architecture:
    """One norm per layer; the first dense layers have a pattern and a width of their own."""
    decoder = read_moe_decoder(config)
    shared = config.number("num_shared_experts", smallest=0) * decoder.width
    routed = read_experts(config, "num_experts", width="intermediate_size")
    experts = replace(routed, shared_width=shared)
    num_dense = min(config.optional("first_k_dense_replace") or 0, decoder.num_layers)
    prefix = _pattern(num_dense, config.number("prefix_dense_sliding_window_pattern"))
    rest = _pattern(decoder.num_layers - num_dense, config.number("sliding_window_pattern"))
    sparse = layers_named_sparse(decoder, decoder.layers[num_dense:])
    dense_width = config.optional("prefix_dense_intermediate_size", smallest=1) or decoder.width
    bias = config.flag("attention_bias")
    model = decoder.model(
        "cohere2_moe",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        dense_mlp(decoder, sparse, width=dense_width),
        sparse_mlp(decoder, experts, sparse),
        decoder.norms(("input_layernorm",)),
        caches=listed_caches(decoder, [*prefix, *rest]),
    )
    return with_experts(model, experts, sparse, dense_width)


def _pattern(num_layers: int, period: int) -> list[str]:
    return [SLIDING if (index + 1) % period else FULL for index in range(num_layers)]


def exaone_moe(config: ConfigReader) -> Architecture:
    decoder = read_moe_decoder(config)
    experts = read_experts(config, "num_experts", shared_count="num_shared_experts")
    first = config.number("first_k_dense_replace", smallest=0)
    sparse = layers_named_sparse(decoder, decoder.layers[first:])
    model = decoder.model(
        "exaone_moe",
        decoder.outer(),
        decoder.attention(),
        decoder.head_norms(*QK_NORMS),
        dense_mlp(decoder, sparse),
        sparse_mlp(decoder, experts, sparse),
        decoder.norms(),
        caches=listed_caches(decoder, pattern_period(decoder)),
    )
    return with_experts(model, experts, sparse)


def afmoe(config: ConfigReader) -> Architecture:
    """A gate on attention's output; four norms; a bias per expert that is a parameter."""
    decoder = read_moe_decoder(config)
    experts = read_experts(config, "num_experts", shared_count="num_shared_experts")
    sparse = layers_from(decoder, "num_dense_layers")
    heads = decoder.heads
    bias = config.flag("attention_bias")
    gate = linear(
        decoder.path("self_attn.gate_proj"), heads.hidden, heads.q_heads * heads.head_dim, layers=decoder.layers
    )
    expert_bias = parameter(decoder.path("mlp.expert_bias"), (experts.count,), layers=sparse) if sparse else []
    period = config.number("global_attn_every_n_layers")
    model = decoder.model(
        "afmoe",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.head_norms(*QK_NORMS),
        gate,
        dense_mlp(decoder, sparse),
        sparse_mlp(decoder, experts, sparse, router="router.gate", is_router_linear=True),
        expert_bias,
        decoder.norms((*LLAMA_NORMS, "pre_mlp_layernorm", "post_mlp_layernorm")),
        caches=listed_caches(decoder, last_full(decoder, period)),
    )
    return with_experts(model, experts, sparse)


def mimo_v2_flash(config: ConfigReader) -> Architecture:
    """Sliding layers have twice as many key/value heads, and sinks; values are narrower than keys."""
    decoder = read_moe_decoder(config)
    refuse_single_rotary_by_type(decoder, {FULL: 0.334, SLIDING: 0.334})
    experts = read_experts(config, "n_routed_experts")
    sparse = layers_named_sparse(decoder, decoder.layers[1:])
    every_sixth = [FULL if i == 0 or (i + 1) % 6 == 0 else SLIDING for i in decoder.layers]
    types = listed_types(config, decoder.num_layers, every_sixth)
    value_dim = config.number("v_head_dim", field="value_dim")
    _check_mimo_keys(decoder, types, sparse, value_dim)
    caches = _mimo_caches(decoder, types, value_dim, _mimo_window(config))
    model = decoder.model(
        "mimo_v2_flash",
        decoder.outer(),
        *_mimo_attention(decoder, types, value_dim),
        dense_mlp(decoder, sparse),
        sparse_mlp(decoder, experts, sparse),
        decoder.norms(),
        caches=caches,
    )
    return with_experts(model, experts, sparse)


def _check_mimo_keys(decoder: Decoder, types: Sequence[str], sparse: Sequence[int], value_dim: int) -> None:
    """Refuse a published file whose own keys, which transformers does not read, say something else than it assumes."""
    given, heads = decoder.config.config, decoder.heads
    assumed = {
        "hybrid_layer_pattern": [int(name == SLIDING) for name in types],
        "moe_layer_freq": [int(index in sparse) for index in decoder.layers],
        "swa_num_attention_heads": heads.q_heads,
        "swa_num_key_value_heads": 2 * heads.kv_heads,
        "swa_head_dim": heads.head_dim,
        "swa_v_head_dim": value_dim,
    }
    for key, value in assumed.items():
        if given.get(key) is not None and given[key] != value:
            raise decoder.config.refuse(f"its {key} differs from what transformers makes of this file")


def _mimo_window(config: ConfigReader) -> int:
    """The published config states the previous tokens without the current one, as sliding_window_size."""
    previous = config.config.get("sliding_window_size")
    if previous is None:
        return config.number("sliding_window", field="window_tokens")
    return config.number("sliding_window_size", field="window_tokens") + 1


def _mimo_caches(decoder: Decoder, types: Sequence[str], value_dim: int, window: int) -> list[CacheKind]:
    heads = decoder.heads
    full = FullAttention(num_kv_heads=heads.kv_heads, key_dim=heads.head_dim, value_dim=value_dim)
    wide = FullAttention(num_kv_heads=2 * heads.kv_heads, key_dim=heads.head_dim, value_dim=value_dim)
    return [typed_caches(decoder.config, [name], wide if name == SLIDING else full, window)[0] for name in types]


def _mimo_attention(decoder: Decoder, types: Sequence[str], value_dim: int) -> list[list[WeightGroup]]:
    heads, bias, found = decoder.heads, decoder.config.flag("attention_bias"), []
    for name, kv_heads in ((FULL, heads.kv_heads), (SLIDING, 2 * heads.kv_heads)):
        layers = tuple(index for index in decoder.layers if types[index] == name)
        if layers:
            prefix = decoder.path("self_attn")
            found.append(
                attention(prefix, heads.hidden, heads.q_heads, kv_heads, heads.head_dim, value_dim,
                          qkv_bias=bias, layers=layers)
            )  # fmt: skip
            if name == SLIDING:
                found.append(parameter(f"{prefix}.sinks", (heads.q_heads,), layers=layers))
    return found


def flint(config: ConfigReader) -> Architecture:
    """Full attention in the first two layers, every fourth and the last; dense in the first two."""
    decoder = read_moe_decoder(config)
    shared = config.number("shared_expert_intermediate_size", smallest=0)
    experts = replace(read_experts(config, "num_experts"), shared_width=shared, shared="shared_expert")
    sparse = layers_stepped(decoder, dense=(0, 1))
    bias = config.flag("attention_bias")
    last = decoder.num_layers - 1
    pattern = [FULL if i < 2 or i % 4 == 1 or i == last else SLIDING for i in decoder.layers]
    model = decoder.model(
        "flint",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        _sinks(decoder),
        decoder.head_norms(*QK_NORMS),
        dense_mlp(decoder, sparse),
        sparse_mlp(decoder, experts, sparse),
        decoder.norms(),
        caches=listed_caches(decoder, pattern),
    )
    return with_experts(model, experts, sparse)


def kolibri1(config: ConfigReader) -> Architecture:
    """Experts in every layer, four norms."""
    decoder = read_moe_decoder(config, width_key="moe_intermediate_size")
    shared = config.number("shared_expert_intermediate_size", smallest=0)
    experts = replace(read_experts(config, "num_experts"), shared_width=shared)
    model = decoder.model(
        "kolibri1",
        decoder.outer(),
        decoder.attention(),
        decoder.head_norms(*QK_NORMS),
        sparse_mlp(decoder, experts, decoder.layers),
        decoder.norms((*LLAMA_NORMS, "post_self_attn_layernorm", "post_mlp_layernorm")),
        caches=listed_caches(decoder, last_full(decoder, 5)),
    )
    return with_experts(model, experts)


def mellum(config: ConfigReader) -> Architecture:
    """Full attention and experts everywhere unless layer_types or mlp_layer_types says so."""
    decoder = read_moe_decoder(config)
    experts = read_experts(config, "num_experts")
    sparse = layers_named_sparse(decoder, decoder.layers)
    bias = config.flag("attention_bias")
    model = decoder.model(
        "mellum",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.head_norms(*QK_NORMS),
        dense_mlp(decoder, sparse),
        sparse_mlp(decoder, experts, sparse),
        decoder.norms(),
        caches=listed_caches(decoder, [FULL] * decoder.num_layers),
    )
    return with_experts(model, experts, sparse)


def llama4_text(config: ConfigReader) -> Architecture:
    """Layers with rotary positions see their chunk of tokens; those without (every fourth) see all."""
    decoder = read_moe_decoder(config)
    experts = read_experts(config, "num_local_experts", width="intermediate_size")
    experts = replace(experts, shared_width=decoder.width, shared="shared_expert")
    sparse = _llama4_sparse_layers(decoder)
    dense_width = config.number("intermediate_size_mlp")
    chunk = config.optional("attention_chunk_size", field="window_tokens", smallest=1)
    types = listed_types(config, decoder.num_layers, _llama4_types(decoder, chunk))
    bias = config.flag("attention_bias")
    model = decoder.model(
        "llama4",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        dense_mlp(decoder, sparse, width=dense_width, module="feed_forward"),
        sparse_mlp(
            decoder, experts, sparse, module="feed_forward", router="router", is_router_linear=True, transposed=True
        ),
        decoder.norms(),
        caches=typed_caches(config, types, decoder.heads.full, None, chunk),
    )
    return with_experts(model, experts, sparse, dense_width)


def _llama4_types(decoder: Decoder, chunk: int | None) -> Sequence[str]:
    config = decoder.config
    rotary = config.numbers("no_rope_layers")  # 1: the layer has rotary positions, whatever the key is called
    if not rotary:
        interval = config.number("no_rope_layer_interval")
        rotary = tuple(int((index + 1) % interval != 0) for index in decoder.layers)
    if len(rotary) != decoder.num_layers:
        raise config.malformed("no_rope_layers", f"{len(rotary)} entries for {decoder.num_layers} layers")
    return [CHUNKED if has and chunk is not None else FULL for has in rotary]


def _llama4_sparse_layers(decoder: Decoder) -> tuple[int, ...]:
    stated = decoder.config.numbers("moe_layers")
    if stated is not None:
        return tuple(index for index in decoder.layers if index in stated)
    step = decoder.config.number("interleave_moe_layer_step")
    return decoder.layers[step - 1 :: step]


def _sinks(decoder: Decoder) -> list[WeightGroup]:
    """One learnt number per query head, to which attention may turn instead of to a token."""
    return parameter(decoder.path("self_attn.sinks"), (decoder.heads.q_heads,), layers=decoder.layers)


def _with_caches(model: Architecture, caches: Sequence[CacheKind]) -> Architecture:
    layers = attention_layers(caches, model.layers[0].num_q_heads, [layer.ffn for layer in model.layers])
    return replace(model, layers=layers)
