"""Short convolutions beside attention: LFM2, LFM2-MoE and LFM3, and ZAYA, which convolves queries and keys themselves.

Facts of transformers 5.24.0's classes.
"""

from collections.abc import Mapping, Sequence

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture, Heads, read_heads
from kvscope.model.families.hybrid_layers import (
    FULL,
    HYBRID,
    SLIDING,
    Ffn,
    build_layers,
    stated_types,
    trained_context,
    which,
)
from kvscope.model.families.recurrent_mixers import short_conv, short_conv_mixer
from kvscope.model.modules import Layers, attention, conv1d, embedding, fused_experts, head, linear, norm, norms
from kvscope.model.modules import parameter as weight
from kvscope.model.spec import (
    CacheKind,
    DenseFfn,
    HybridCache,
    MoeFfn,
    RecurrentState,
    SlidingWindow,
    StateTensor,
    WeightGroup,
)

CONV = "conv"
HYBRID_SLIDING = "hybrid_sliding"


def lfm2(config: ConfigReader) -> Architecture:
    """Layers of full_attn_idxs attend, the others convolve."""
    num_layers = config.num_layers()
    types = stated_types(config, num_layers)
    if types is None:
        indices = config.numbers("full_attn_idxs")
        types = tuple(FULL if indices is None or index in indices else CONV for index in range(num_layers))
        config.sources["layer_types"] = config.sources.get("full_attn_idxs", config.defaults.source)
    heads = read_heads(config)
    width = _lfm2_width(config)
    ffn = _gate_up_down("model.layers.{}.feed_forward", heads.hidden, width, tuple(range(num_layers)))
    return _lfm(config, "lfm2", types, heads, ffn, DenseFfn(width=width))


def _lfm2_width(config: ConfigReader) -> int:
    """intermediate_size, as adjusted by block_auto_adjust_ff_dim: two thirds, times a factor, rounded up."""
    width = config.number("block_ff_dim" if config.given("block_ff_dim") else "intermediate_size", field="ffn.width")
    if not config.flag("block_auto_adjust_ff_dim"):
        return width
    config.sources["ffn.width"] = f"derived: {config.sources['ffn.width']}, adjusted"
    width = int(2 * width / 3)
    factor = config.lookup("block_ffn_dim_multiplier")[0]
    if factor is None:
        return width
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 1e6:
        raise config.malformed("block_ffn_dim_multiplier", "a number above 0 was expected")
    multiple = config.number("block_multiple_of")
    return -(-int(factor * width) // multiple) * multiple


def lfm2_moe(config: ConfigReader) -> Architecture:
    """LFM2 with experts after num_dense_layers layers; layer_types must be stated."""
    num_layers = config.num_layers()
    types = _required_types(config, num_layers)
    heads = read_heads(config)
    num_dense = min(config.number("num_dense_layers", smallest=0), num_layers)
    dense, sparse = tuple(range(num_dense)), tuple(range(num_dense, num_layers))
    prefix = "model.layers.{}.feed_forward"
    weights: list[WeightGroup] = []
    kinds: list[Ffn] = []
    if dense:
        width = config.number("intermediate_size", field="ffn.width")
        weights += _gate_up_down(prefix, heads.hidden, width, dense)
        kinds += [DenseFfn(width=width)] * num_dense
    if sparse:
        num_experts, width = config.number("num_experts"), config.number("moe_intermediate_size")
        weights += weight(f"{prefix}.gate.weight", (num_experts, heads.hidden), layers=sparse)
        weights += fused_experts(f"{prefix}.experts", num_experts, heads.hidden, width, layers=sparse)
        per_token = config.number("num_experts_per_tok")
        moe = MoeFfn(num_experts=num_experts, experts_per_token=per_token, width=width)
        kinds += [moe] * len(sparse)
    return _lfm(config, "lfm2_moe", types, heads, weights, kinds)


def _required_types(config: ConfigReader, num_layers: int) -> tuple[str, ...]:
    types = stated_types(config, num_layers)
    if types is None:
        raise config.refuse("it names no layer_types, which its class does not derive")
    return types


def lfm3(config: ConfigReader) -> Architecture:
    """Convolution, full and sliding attention in turn."""
    num_layers = config.num_layers()
    types = stated_types(config, num_layers)
    if types is None:
        config.sources["layer_types"] = config.defaults.source
        types = tuple(_lfm3_type(index) for index in range(num_layers))
    heads = read_heads(config)
    width = config.number("intermediate_size", field="ffn.width")
    every = tuple(range(num_layers))
    weights = _gate_up_down("model.layers.{}.feed_forward", heads.hidden, width, every)
    if config.flag("use_sandwich_norm"):
        names = ("post_operator_norm", "post_ffn_norm")
        weights += norms([f"model.layers.{{}}.{name}" for name in names], heads.hidden, layers=every)
    return _lfm(config, "lfm3", types, heads, weights, DenseFfn(width=width))


def _lfm3_type(index: int) -> str:
    """Lfm3Config's pattern of four, of which the first layer of all convolves."""
    if index % 4 == 2:
        return FULL
    return SLIDING if index % 4 == 0 and index > 0 else CONV


def _gate_up_down(prefix: str, hidden: int, width: int, layers: Layers) -> list[WeightGroup]:
    return [
        *linear(f"{prefix}.w1", hidden, width, layers=layers),
        *linear(f"{prefix}.w3", hidden, width, layers=layers),
        *linear(f"{prefix}.w2", width, hidden, layers=layers),
    ]


def _lfm(
    config: ConfigReader,
    family: str,
    types: Sequence[str],
    heads: Heads,
    ffn_weights: list[WeightGroup],
    ffns: Ffn | Sequence[Ffn],
) -> Architecture:
    hidden, vocab, kernel = heads.hidden, config.number("vocab_size"), config.number("conv_L_cache")
    tied = config.flag("tie_embedding" if config.given("tie_embedding") else "tie_word_embeddings")
    conv_bias = config.flag("conv_bias")
    every = tuple(range(len(types)))
    layer = "model.layers.{}"
    caches: dict[str, CacheKind] = {CONV: short_conv(hidden, kernel), FULL: heads.full}
    if family == "lfm3" and SLIDING in types:
        caches[SLIDING] = windowed(config, heads)
    weights = [
        *embedding("model.embed_tokens", vocab, hidden),
        *norms([f"{layer}.operator_norm", f"{layer}.ffn_norm"], hidden, layers=every),
        *short_conv_mixer(f"{layer}.conv", hidden, kernel, bias=conv_bias, layers=which(types, CONV)),
        *_lfm_attention(config, family, heads, which(types, FULL, SLIDING)),
        *ffn_weights,
        *norm("model.embedding_norm", hidden),
        *head("lm_head", hidden, vocab, tied=tied),
    ]
    return Architecture(
        family=family,
        layers=build_layers(config, types, caches, heads.q_heads, ffns),
        weights=tuple(weights),
        vocab_size=vocab,
        hidden_size=hidden,
        trained_context_tokens=trained_context(config),
        is_tied=tied,
    )


def windowed(config: ConfigReader, heads: Heads) -> SlidingWindow:
    """These heads over the last sliding_window tokens."""
    full = heads.full
    return SlidingWindow(
        num_kv_heads=full.num_kv_heads,
        key_dim=full.key_dim,
        value_dim=full.value_dim,
        window_tokens=config.number("sliding_window", field="window_tokens"),
    )


def _lfm_attention(config: ConfigReader, family: str, heads: Heads, layers: Layers) -> list[WeightGroup]:
    if not layers:
        return []
    prefix = "model.layers.{}.self_attn"
    is_third = family == "lfm3"
    bias = is_third and config.flag("attention_bias")
    names = ("q_norm", "k_norm") if is_third else ("q_layernorm", "k_layernorm")
    weights = [
        *attention(prefix, heads.hidden, heads.q_heads, heads.kv_heads, heads.head_dim, qkv_bias=bias,
                   out_bias=bias, layers=layers, out="o_proj" if is_third else "out_proj"),
        *norms([f"{prefix}.{name}" for name in names], heads.head_dim, layers=layers),
    ]  # fmt: skip
    if is_third and config.flag("use_attention_gate"):
        weights += linear(f"{prefix}.g_proj", heads.hidden, heads.q_heads, layers=layers)
    return weights


def zaya(config: ConfigReader) -> Architecture:
    """Compressed convolutional attention: queries and keys pass two convolutions in time, half of each value is the
    previous token's, and a router of its own MLP chooses one expert."""
    num_layers = config.num_layers()
    heads = read_heads(config)
    types = stated_types(config, num_layers) or (HYBRID,) * num_layers
    config.sources.setdefault("layer_types", config.defaults.source)
    bias = config.flag("attention_bias")
    num_experts = config.number("num_experts")
    width = config.number("moe_intermediate_size", field="ffn.width")
    vocab, tied = config.number("vocab_size"), config.flag("tie_word_embeddings")
    recurrent = _zaya_state(config, heads)
    caches: dict[str, CacheKind] = {HYBRID: HybridCache(attention=heads.full, recurrent=recurrent)}
    if HYBRID_SLIDING in types:
        caches[HYBRID_SLIDING] = HybridCache(attention=windowed(config, heads), recurrent=recurrent)
    every = tuple(range(num_layers))
    ffn = MoeFfn(num_experts=num_experts, experts_per_token=config.number("num_experts_per_tok"), width=width)
    weights = [
        *weight("model.input_hidden_states_scale", (heads.hidden,)),
        *weight("model.input_hidden_states_bias", (heads.hidden,)),
        *embedding("model.embed_tokens", vocab, heads.hidden),
        *_zaya_attention(config, heads, bias, every),
        *_zaya_router(config, heads.hidden, num_experts, num_layers),
        *fused_experts("model.layers.{}.mlp.experts", num_experts, heads.hidden, width, layers=every),
        *_zaya_norms(heads.hidden, every),
        *norm("model.norm", heads.hidden),
        *head("lm_head", heads.hidden, vocab, tied=tied, bias=config.flag("lm_head_bias")),
    ]
    return Architecture(
        family="zaya",
        layers=build_layers(config, types, caches, heads.q_heads, ffn),
        weights=tuple(weights),
        vocab_size=vocab,
        hidden_size=heads.hidden,
        trained_context_tokens=trained_context(config),
        is_tied=tied,
    )


def _zaya_state(config: ConfigReader, heads: Heads) -> RecurrentState:
    """The columns that both convolutions still need, and the last token's half of the values."""
    channels = (heads.q_heads + heads.kv_heads) * heads.head_dim
    columns = config.number("cca_time0") - 1 + config.number("cca_time1") - 1
    delayed = heads.kv_heads * heads.head_dim // 2
    return RecurrentState(
        form="cca",
        conv_channels=channels,
        conv_kernel=columns + 1,
        states=(StateTensor(name="delayed_values", shape=(delayed,)),),
    )


def _zaya_attention(config: ConfigReader, heads: Heads, bias: bool, layers: Layers) -> list[WeightGroup]:
    prefix = "model.layers.{}.self_attn"
    queries, keys = heads.q_heads * heads.head_dim, heads.kv_heads * heads.head_dim
    channels = queries + keys
    widths: Mapping[str, int] = {
        "q_proj": queries,
        "k_proj": keys,
        "v_proj_current": keys // 2,
        "v_proj_delayed": keys // 2,
    }
    kernel = config.number("cca_time1")
    return [
        *(
            group
            for name, outputs in widths.items()
            for group in linear(f"{prefix}.qkv_proj.{name}", heads.hidden, outputs, bias=bias, layers=layers)
        ),
        *conv1d(f"{prefix}.qkv_proj.conv_qk_depthwise", channels, config.number("cca_time0"), bias=True, layers=layers),
        *weight(f"{prefix}.qkv_proj.conv_qk_grouped.weight", (channels, heads.head_dim, kernel), layers=layers),
        *weight(f"{prefix}.qkv_proj.conv_qk_grouped.bias", (channels,), layers=layers),
        *weight(f"{prefix}.qk_norm.temp", (heads.kv_heads,), layers=layers),
        *linear(f"{prefix}.o_proj", queries, heads.hidden, bias=bias, layers=layers),
    ]


def _zaya_router(config: ConfigReader, hidden: int, num_experts: int, num_layers: int) -> list[WeightGroup]:
    """One class more than experts: the token passes by. Layers after the first add the previous router's state."""
    prefix, width = "model.layers.{}.mlp.gate", config.number("router_hidden_size")
    every = tuple(range(num_layers))
    later = weight(f"{prefix}.router_states_scale", (width,), layers=every[1:]) if num_layers > 1 else []
    return [
        *linear(f"{prefix}.down_proj", hidden, width, bias=True, layers=every),
        *later,
        *norm(f"{prefix}.router_mlp.norm", width, layers=every),
        *linear(f"{prefix}.router_mlp.fc1", width, width, bias=True, layers=every),
        *linear(f"{prefix}.router_mlp.fc2", width, width, bias=True, layers=every),
        *linear(f"{prefix}.router_mlp.out_proj", width, num_experts + 1, layers=every),
    ]


def _zaya_norms(hidden: int, layers: Layers) -> list[WeightGroup]:
    parts = ("hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias")
    return [
        *norms([f"model.layers.{{}}.{n}_layernorm" for n in ("input", "post_attention")], hidden, layers=layers),
        *(
            group
            for place in ("post_attention", "post_mlp")
            for part in parts
            for group in weight(f"model.layers.{{}}.{place}_residual_scale.{part}", (hidden,), layers=layers)
        ),
    ]
