"""Gated delta nets beside attention: Qwen3-Next, Qwen3.5, OLMo-Hybrid and Lara Mini.

Facts of transformers 5.24.0's classes.
"""

from collections.abc import Sequence

from kvscope.model.config_reader import ConfigReader, every
from kvscope.model.families.architecture import Architecture, Heads, read_heads
from kvscope.model.families.hybrid_conv import windowed
from kvscope.model.families.hybrid_layers import (
    FULL,
    LINEAR,
    SLIDING,
    Ffn,
    attention_weights,
    build_layers,
    stated_types,
    trained_context,
    which,
)
from kvscope.model.families.recurrent_mixers import DeltaNet, delta_net_mixer, read_delta_net
from kvscope.model.modules import (
    Layers,
    conv1d,
    embedding,
    fused_experts,
    gated_mlp,
    head,
    linear,
    norm,
    norms,
    parameter,
)
from kvscope.model.spec import CacheKind, DenseFfn, MoeFfn, WeightGroup


def qwen3_next(config: ConfigReader) -> Architecture:
    """Three delta nets, then gated attention; experts by mlp_only_layers and decoder_sparse_step."""
    num_layers = config.num_layers()
    step, dense_only = config.number("decoder_sparse_step"), config.numbers("mlp_only_layers") or ()
    num_experts = config.number("num_experts", smallest=0)
    sparse = [num_experts > 0 and index not in dense_only and (index + 1) % step == 0 for index in range(num_layers)]
    return _qwen(config, "qwen3_next", sparse, fused=True)


def qwen3_5_text(config: ConfigReader) -> Architecture:
    """Qwen3-Next's layers with separate projections and one dense feed-forward."""
    return _qwen(config, "qwen3_5", [False] * config.num_layers(), fused=False)


def qwen3_5_moe_text(config: ConfigReader) -> Architecture:
    """The same with experts in every layer."""
    return _qwen(config, "qwen3_5_moe", [True] * config.num_layers(), fused=False)


def interval_types(config: ConfigReader, num_layers: int, attending: str = FULL) -> tuple[str, ...]:
    """layer_types, else attention at the end of every full_attention_interval (4 where it is not stated)."""
    types = stated_types(config, num_layers)
    if types is not None:
        return types
    stated = config.given("full_attention_interval")
    config.sources["layer_types"] = "derived: full_attention_interval" if stated else config.defaults.source
    period = config.number("full_attention_interval") if stated else 4
    return tuple(every(period, num_layers, inside=LINEAR, last=attending))


def _qwen(config: ConfigReader, family: str, sparse: Sequence[bool], *, fused: bool) -> Architecture:
    num_layers = config.num_layers()
    heads = read_heads(config)
    types = interval_types(config, num_layers)
    net = read_delta_net(config, heads.hidden)
    ffn_weights, ffns = qwen_ffn(config, heads.hidden, sparse)
    weights = [
        *delta_net_mixer("model.layers.{}.linear_attn", net, fused=fused, layers=which(types, LINEAR)),
        *gated_attention(config, heads, which(types, FULL)),
        *ffn_weights,
    ]
    caches: dict[str, CacheKind] = {LINEAR: net.cache, FULL: heads.full}
    return _model(config, family, types, caches, heads, ffns, weights)


def gated_attention(config: ConfigReader, heads: Heads, layers: Layers, *, gate: bool = True) -> list[WeightGroup]:
    """Attention with norms per head, whose q_proj makes an output gate too (``gate``): twice as wide."""
    if not layers:
        return []
    prefix, bias = "model.layers.{}.self_attn", config.flag("attention_bias")
    queries, keys = heads.q_heads * heads.head_dim, heads.kv_heads * heads.head_dim
    return [
        *linear(f"{prefix}.q_proj", heads.hidden, 2 * queries if gate else queries, bias=bias, layers=layers),
        *linear(f"{prefix}.k_proj", heads.hidden, keys, bias=bias, layers=layers),
        *linear(f"{prefix}.v_proj", heads.hidden, keys, bias=bias, layers=layers),
        *linear(f"{prefix}.o_proj", queries, heads.hidden, bias=bias, layers=layers),
        *norms([f"{prefix}.q_norm", f"{prefix}.k_norm"], heads.head_dim, layers=layers),
    ]


def qwen_ffn(
    config: ConfigReader, hidden: int, sparse: Sequence[bool], *, gate: bool = True
) -> tuple[list[WeightGroup], list[Ffn]]:
    """Gated MLPs, and in ``sparse`` layers experts with one shared expert, behind a gate of its own if ``gate``."""
    prefix = "model.layers.{}.mlp"
    dense_layers = tuple(index for index, is_sparse in enumerate(sparse) if not is_sparse)
    sparse_layers = tuple(index for index, is_sparse in enumerate(sparse) if is_sparse)
    weights: list[WeightGroup] = []
    kinds: dict[bool, Ffn] = {}
    if dense_layers:
        width = config.number("intermediate_size", field="ffn.width")
        weights += gated_mlp(prefix, hidden, width, layers=dense_layers)
        kinds[False] = DenseFfn(width=width)
    if sparse_layers:
        num_experts = config.number("num_experts")
        width, shared = config.number("moe_intermediate_size"), config.number("shared_expert_intermediate_size")
        weights += parameter(f"{prefix}.gate.weight", (num_experts, hidden), layers=sparse_layers)
        weights += fused_experts(f"{prefix}.experts", num_experts, hidden, width, layers=sparse_layers)
        weights += gated_mlp(f"{prefix}.shared_expert", hidden, shared, layers=sparse_layers)
        if gate:
            weights += linear(f"{prefix}.shared_expert_gate", hidden, 1, layers=sparse_layers)
        per_token = config.number("num_experts_per_tok")
        kinds[True] = MoeFfn(num_experts=num_experts, experts_per_token=per_token, width=width, shared_width=shared)
    return weights, [kinds[is_sparse] for is_sparse in sparse]


def _model(
    config: ConfigReader,
    family: str,
    types: Sequence[str],
    caches: dict[str, CacheKind],
    heads: Heads,
    ffns: Ffn | Sequence[Ffn],
    weights: list[WeightGroup],
    layer_norms: Sequence[WeightGroup] | None = None,
) -> Architecture:
    """``layer_norms`` None: input_layernorm and post_attention_layernorm in every layer."""
    vocab, tied = config.number("vocab_size"), config.flag("tie_word_embeddings")
    if layer_norms is None:
        names = [f"model.layers.{{}}.{name}_layernorm" for name in ("input", "post_attention")]
        layer_norms = norms(names, heads.hidden, layers=tuple(range(len(types))))
    return Architecture(
        family=family,
        layers=build_layers(config, types, caches, heads.q_heads, ffns),
        weights=(
            *embedding("model.embed_tokens", vocab, heads.hidden),
            *weights,
            *layer_norms,
            *norm("model.norm", heads.hidden),
            *head("lm_head", heads.hidden, vocab, tied=tied),
        ),
        vocab_size=vocab,
        hidden_size=heads.hidden,
        trained_context_tokens=trained_context(config),
        is_tied=tied,
    )


LARA_PATTERN = (LINEAR, SLIDING, LINEAR, FULL, SLIDING)  # LaraMiniConfig


def lara_mini(config: ConfigReader) -> Architecture:
    """Delta nets, sliding and full attention in turn; experts in every layer."""
    num_layers = config.num_layers()
    types = stated_types(config, num_layers)
    if types is None:
        config.sources["layer_types"] = config.defaults.source
        types = tuple(LARA_PATTERN[index % len(LARA_PATTERN)] for index in range(num_layers))
    heads = read_heads(config)
    net = read_delta_net(config, heads.hidden)
    ffn_weights, ffns = qwen_ffn(config, heads.hidden, [True] * num_layers, gate=False)
    weights = [
        *delta_net_mixer("model.layers.{}.linear_attn", net, fused=False, layers=which(types, LINEAR)),
        *gated_attention(config, heads, which(types, FULL, SLIDING), gate=False),
        *ffn_weights,
    ]
    caches: dict[str, CacheKind] = {LINEAR: net.cache, FULL: heads.full}
    if SLIDING in types:
        caches[SLIDING] = windowed(config, heads)
    return _model(config, "lara_mini", types, caches, heads, ffns, weights)


def olmo_hybrid(config: ConfigReader) -> Architecture:
    """OLMo 2's attention in every fourth layer, delta nets elsewhere; the two normalise in different places."""
    num_layers = config.num_layers()
    heads = read_heads(config)
    types = stated_types(config, num_layers)
    if types is None:
        config.sources["layer_types"] = config.defaults.source
        types = tuple(every(4, num_layers, inside=LINEAR, last=FULL))
        if FULL not in types:
            types = (*types[:-1], FULL)
    net = _olmo_net(config, heads)
    width = config.number("intermediate_size", field="ffn.width")
    linear_layers, full_layers = which(types, LINEAR), which(types, FULL)
    if not linear_layers or not full_layers:
        raise config.refuse("its layer_types are all of one kind, which its class does not allow")
    prefix = "model.layers.{}.self_attn"
    weights = [
        *_olmo_mixer("model.layers.{}.linear_attn", net, linear_layers),
        *attention_weights(prefix, heads, bias=config.flag("attention_bias"), layers=full_layers),
        *norm(f"{prefix}.q_norm", heads.q_heads * heads.head_dim, layers=full_layers),
        *norm(f"{prefix}.k_norm", heads.kv_heads * heads.head_dim, layers=full_layers),
        *gated_mlp("model.layers.{}.mlp", heads.hidden, width, layers=tuple(range(num_layers))),
    ]
    layer_norms = [
        group
        for layers, places in (
            (linear_layers, ("input", "post_attention")),
            (full_layers, ("post_attention", "post_feedforward")),
        )
        for group in norms([f"model.layers.{{}}.{p}_layernorm" for p in places], heads.hidden, layers=layers)
    ]
    caches: dict[str, CacheKind] = {LINEAR: net.cache, FULL: heads.full}
    return _model(config, "olmo_hybrid", types, caches, heads, DenseFfn(width=width), weights, layer_norms)


def _olmo_net(config: ConfigReader, heads: Heads) -> DeltaNet:
    key_heads = config.number_or("linear_num_key_heads", heads.q_heads, "num_attention_heads")
    key_dim = config.number_or(
        "linear_key_head_dim", int(0.75 * heads.hidden / key_heads), "0.75 × hidden_size / linear_num_key_heads"
    )
    if key_dim < 1:
        raise config.malformed("linear_num_key_heads", f"{key_heads} heads in a width of {heads.hidden}")
    return DeltaNet(
        hidden=heads.hidden,
        key_heads=key_heads,
        value_heads=config.number_or("linear_num_value_heads", heads.q_heads, "num_attention_heads"),
        key_dim=key_dim,
        value_dim=config.number_or("linear_value_head_dim", 2 * key_dim, "2 × linear_key_head_dim"),
        kernel=config.number("linear_conv_kernel_dim"),
    )


def _olmo_mixer(prefix: str, net: DeltaNet, layers: Layers) -> list[WeightGroup]:
    widths = {
        "q_proj": net.keys,
        "k_proj": net.keys,
        "v_proj": net.values,
        "a_proj": net.value_heads,
        "b_proj": net.value_heads,
        "g_proj": net.values,
    }
    return [
        *(
            group
            for name, width in widths.items()
            for group in linear(f"{prefix}.{name}", net.hidden, width, layers=layers)
        ),
        *conv1d(f"{prefix}.conv1d", net.conv_channels, net.kernel, layers=layers),
        *parameter(f"{prefix}.A_log", (net.value_heads,), layers=layers),
        *parameter(f"{prefix}.dt_bias", (net.value_heads,), layers=layers),
        *norm(f"{prefix}.o_norm", net.value_dim, layers=layers),
        *linear(f"{prefix}.o_proj", net.values, net.hidden, layers=layers),
    ]
