"""Gemma 2, 3, 3n and 4: sliding beside full layers; later ones share caches between layers and have embeddings per
layer. Facts of the classes in transformers 5.24.0."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvscope.model.config_reader import MAX_LAYERS, ConfigReader
from kvscope.model.families.architecture import Architecture, attention_layers, read_context, read_heads, typed_caches
from kvscope.model.families.dense_decoder import LLAMA_NORMS, Decoder, read_decoder
from kvscope.model.families.windowed_decoder import (
    FULL,
    SLIDING,
    last_full,
    listed_caches,
    listed_types,
)
from kvscope.model.modules import embedding, fused_experts, gated_mlp, head, linear, norm, norms, parameter
from kvscope.model.spec import CacheKind, DenseFfn, FullAttention, MoeFfn, NoCache, SharedCache, WeightGroup

FOUR_NORMS = (*LLAMA_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")
GEMMA3_PERIOD = 6  # Gemma3TextConfig: every sixth layer is full


def gemma2(config: ConfigReader) -> Architecture:
    """Every second layer is full."""
    return _gemma2(config, "gemma2", FOUR_NORMS)


def vaultgemma(config: ConfigReader) -> Architecture:
    """Gemma 2 without the norms after attention and feed-forward."""
    return _gemma2(config, "vaultgemma", ("input_layernorm", "pre_feedforward_layernorm"))


def _gemma2(config: ConfigReader, family: str, norm_names: Sequence[str]) -> Architecture:
    config.refuse_keys("use_bidirectional_attention")
    decoder = read_decoder(config)
    bias = config.flag("attention_bias")
    return decoder.model(
        family,
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.gated_mlp(),
        decoder.norms(norm_names),
        caches=listed_caches(decoder, last_full(decoder, 2)),
    )


def gemma3_text(config: ConfigReader) -> Architecture:
    """Five sliding layers, then a full one, unless the config says otherwise."""
    decoder = read_decoder(config)
    bias = config.flag("attention_bias")
    types: Sequence[str] | None = config.layer_types(decoder.num_layers)
    if types is None:
        types = listed_types(config, decoder.num_layers, _gemma3_types(config, decoder))
    window = config.number("sliding_window", field="window_tokens")
    if config.flag("use_bidirectional_attention", default=False):
        window = _halved(config, window)
    return decoder.model(
        "gemma3",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.head_norms("self_attn.q_norm", "self_attn.k_norm"),
        decoder.gated_mlp(),
        decoder.norms(FOUR_NORMS),
        caches=typed_caches(config, types, decoder.heads.full, window),
    )


def _gemma3_types(config: ConfigReader, decoder: Decoder) -> Sequence[str]:
    period = config.optional("sliding_window_pattern", smallest=1)
    if period is None:
        # Older files carry the pattern under its private name only, which transformers itself does not read back.
        if config.config.get("_sliding_window_pattern", GEMMA3_PERIOD) != GEMMA3_PERIOD:
            raise config.refuse(
                "it gives _sliding_window_pattern but neither layer_types nor sliding_window_pattern",
                hint='Add "layer_types" to config.json, one of full_attention or sliding_attention per layer.',
            )
        period = GEMMA3_PERIOD
    return last_full(decoder, period)


def _halved(config: ConfigReader, window: int) -> int:
    """The window of attention in both directions counts both sides; the cache's is one side and the token itself."""
    config.sources["window_tokens"] = "derived: sliding_window // 2 + 1 (use_bidirectional_attention)"
    return window // 2 + 1


# -- layers that read another layer's cache ------------------------------------------------------------------------


def shared_caches(config: ConfigReader, types: Sequence[str], caches: Sequence[CacheKind]) -> list[CacheKind]:
    """The last num_kv_shared_layers read the cache of the last layer of their own type before them."""
    shared = config.number("num_kv_shared_layers", smallest=0)
    first = len(caches) - shared
    if first < 1 or set(types[first:]) - set(types[:first]):
        raise config.refuse(f"its last {shared} layers share caches, but no layer before them has one of their type")
    sources = {name: max(i for i in range(first) if types[i] == name) for name in set(types[:first])}
    return [
        cache if index < first else SharedCache(layer_index=sources[types[index]]) for index, cache in enumerate(caches)
    ]


def _caching_layers(caches: Sequence[CacheKind]) -> set[int]:
    return {index for index, cache in enumerate(caches) if not isinstance(cache, SharedCache | NoCache)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _AttentionShape:
    """Attention of some layers: its heads; whether it makes keys, and values beside them."""

    full: FullAttention
    makes_keys: bool
    makes_values: bool


def _attention_weights(
    prefix: str, hidden: int, q_heads: int, shapes: Sequence[_AttentionShape], *, bias: bool
) -> list[WeightGroup]:
    """q_proj and o_proj everywhere; k_proj, v_proj and k_norm where the layer keeps keys of its own."""
    found: list[WeightGroup] = []
    for shape in dict.fromkeys(shapes):
        layers = tuple(index for index, other in enumerate(shapes) if other == shape)
        dim, rows = shape.full.key_dim, shape.full.num_kv_heads * shape.full.key_dim
        found += linear(f"{prefix}.q_proj", hidden, q_heads * dim, bias=bias, layers=layers)
        found += linear(f"{prefix}.o_proj", q_heads * dim, hidden, bias=bias, layers=layers)
        found += norm(f"{prefix}.q_norm", dim, layers=layers)
        if shape.makes_keys:
            found += linear(f"{prefix}.k_proj", hidden, rows, bias=bias, layers=layers)
            found += norm(f"{prefix}.k_norm", dim, layers=layers)
        if shape.makes_values:
            found += linear(f"{prefix}.v_proj", hidden, rows, bias=bias, layers=layers)
    return found


def _mlps(prefix: str, hidden: int, widths: Sequence[int]) -> list[WeightGroup]:
    """Gated feed-forwards whose width differs by layer."""
    found: list[WeightGroup] = []
    for width in dict.fromkeys(widths):
        layers = tuple(index for index, other in enumerate(widths) if other == width)
        found += gated_mlp(prefix, hidden, width, layers=layers)
    return found


def _per_layer_embeddings(config: ConfigReader, hidden: int, num_layers: int) -> list[WeightGroup]:
    """Embeddings of every token for every layer, and what mixes them in. Empty where their width is 0 (Gemma 4)."""
    width = config.number("hidden_size_per_layer_input", smallest=0)
    if not width:
        return []
    layers, layer = tuple(range(num_layers)), "model.layers.{}"
    rows = config.number("vocab_size_per_layer_input")
    return [
        *embedding("model.embed_tokens_per_layer", rows, num_layers * width),
        *linear("model.per_layer_model_projection", hidden, num_layers * width),
        *norm("model.per_layer_projection_norm", width),
        *linear(f"{layer}.per_layer_input_gate", hidden, width, layers=layers),
        *linear(f"{layer}.per_layer_projection", width, hidden, layers=layers),
        *norm(f"{layer}.post_per_layer_input_norm", hidden, layers=layers),
    ]


def gemma3n_text(config: ConfigReader) -> Architecture:
    """Every fifth layer is full; the last ones share caches; several streams of hidden states (AltUp), low-rank
    residuals (Laurel), embeddings per layer."""
    config.refuse_keys("use_bidirectional_attention")
    num_layers, heads = config.num_layers(), read_heads(config)
    vocab, tied = config.number("vocab_size"), config.flag("tie_word_embeddings")
    widths = config.per_layer("intermediate_size", num_layers, smallest=1)
    pattern = [SLIDING if (index + 1) % 5 else FULL for index in range(num_layers)]
    types = listed_types(config, num_layers, pattern)
    window = config.number("sliding_window", field="window_tokens")
    caches = shared_caches(config, types, typed_caches(config, types, heads.full, window))
    own = _caching_layers(caches)
    shapes = [_AttentionShape(full=heads.full, makes_keys=i in own, makes_values=i in own) for i in range(num_layers)]
    bias, layer = config.flag("attention_bias"), "model.layers.{}"
    weights = [
        *embedding("model.embed_tokens", vocab, heads.hidden),
        *_attention_weights(f"{layer}.self_attn", heads.hidden, heads.q_heads, shapes, bias=bias),
        *_mlps(f"{layer}.mlp", heads.hidden, widths),
        *norms([f"{layer}.{name}" for name in FOUR_NORMS], heads.hidden, layers=tuple(range(num_layers))),
        *_streams(config, heads.hidden, tuple(range(num_layers))),
        *_per_layer_embeddings(config, heads.hidden, num_layers),
        *norm("model.norm", heads.hidden),
        *head("lm_head", heads.hidden, vocab, tied=tied),
    ]
    return Architecture(
        family="gemma3n",
        layers=attention_layers(caches, heads.q_heads, [DenseFfn(width=width) for width in widths]),
        weights=tuple(weights),
        vocab_size=vocab,
        hidden_size=heads.hidden,
        trained_context_tokens=read_context(config),
        is_tied=tied,
    )


def _streams(config: ConfigReader, hidden: int, layers: tuple[int, ...]) -> list[WeightGroup]:
    """AltUp and Laurel."""
    streams = config.number("altup_num_inputs", limit=MAX_LAYERS)
    rank, layer = config.number("laurel_rank"), "model.layers.{}"
    others = tuple(range(streams - 1))
    outer = [
        group
        for name in ("altup_projections", "altup_unembed_projections")
        for group in (linear(f"model.{name}.{{}}", hidden, hidden, layers=others) if others else [])
    ]
    return [
        *parameter(f"{layer}.altup.correct_output_scale", (hidden,), layers=layers),
        *linear(f"{layer}.altup.correction_coefs", streams, streams, layers=layers),
        *linear(f"{layer}.altup.prediction_coefs", streams, streams * streams, layers=layers),
        *linear(f"{layer}.altup.modality_router", hidden, streams, layers=layers),
        *norm(f"{layer}.altup.router_norm", hidden, layers=layers),
        *linear(f"{layer}.laurel.linear_left", hidden, rank, layers=layers),
        *linear(f"{layer}.laurel.linear_right", rank, hidden, layers=layers),
        *norm(f"{layer}.laurel.post_laurel_norm", hidden, layers=layers),
        *outer,
    ]


# -- Gemma 4 -------------------------------------------------------------------------------------------------------


def gemma4_text(config: ConfigReader) -> Architecture:
    """Full layers have a head_dim, and perhaps key heads, of their own; the last layers may share caches; embeddings
    per layer; experts beside the dense feed-forward where enable_moe_block is set."""
    return _gemma4(config, has_extras=True)


def gemma4_unified_text(config: ConfigReader) -> Architecture:
    """Gemma 4 without embeddings per layer and without experts."""
    return _gemma4(config, has_extras=False)


def gemma4_draft(config: ConfigReader, *, has_extras: bool) -> Architecture:
    """The layers of a draft model: each reads the cache of the model it drafts for, and keeps none of its own."""
    num_layers = config.num_layers()
    if config.optional("num_kv_shared_layers") not in (None, 0, num_layers):
        raise config.refuse("only some of a draft model's layers share caches")
    return _gemma4(config, has_extras=has_extras, is_draft=True)


def _gemma4(config: ConfigReader, *, has_extras: bool, is_draft: bool = False) -> Architecture:
    decoder = read_decoder(config)
    num_layers, heads, hidden = decoder.num_layers, decoder.heads, decoder.heads.hidden
    types = list(listed_types(config, num_layers, last_full(decoder, 6)))
    types[-1] = FULL  # the class forces it
    fulls = _gemma4_heads(decoder, types)
    window = config.number("sliding_window", field="window_tokens")
    if config.word("use_bidirectional_attention") == "all":
        window = _halved(config, window)
    caches = [typed_caches(config, [name], full, window)[0] for name, full in zip(types, fulls, strict=True)]
    caches = [NoCache()] * num_layers if is_draft else shared_caches(config, types, caches)
    own, key_is_value = _caching_layers(caches), config.flag("attention_k_eq_v")
    shapes = [
        _AttentionShape(full=full, makes_keys=i in own, makes_values=i in own and not (key_is_value and name == FULL))
        for i, (full, name) in enumerate(zip(fulls, types, strict=True))
    ]
    double = config.flag("use_double_wide_mlp")
    widths = [decoder.width * (2 if double and index not in own else 1) for index in range(num_layers)]
    experts, moe = _gemma4_experts(decoder) if has_extras else ([], None)
    model = decoder.model(
        "gemma4",
        decoder.outer(),
        _attention_weights(
            decoder.path("self_attn"), hidden, heads.q_heads, shapes, bias=config.flag("attention_bias")
        ),
        _mlps(decoder.path("mlp"), hidden, widths),
        decoder.norms(FOUR_NORMS),
        _per_layer_embeddings(config, hidden, num_layers) if has_extras else [],
        experts,
        caches=caches,
    )
    ffns = [DenseFfn(width=width) if moe is None else replace(moe, shared_width=width) for width in widths]
    return replace(model, layers=attention_layers(caches, heads.q_heads, ffns))


def _gemma4_heads(decoder: Decoder, types: Sequence[str]) -> list[FullAttention]:
    """Heads of every layer. A saved config states what differs in per_layer_config, by the layer's number as text; one
    as published has global_head_dim and num_global_key_value_heads for the full layers."""
    config = decoder.config
    if "per_layer_config" in config.config:  # even null: the class then adds nothing of its own
        return _overridden_heads(decoder)
    shape = decoder.heads.full
    dim, kv_heads = config.config.get("global_head_dim", 512), None
    if "global_head_dim" in config.config:
        dim = config.number("global_head_dim")
    if config.flag("attention_k_eq_v"):
        kv_heads = config.optional("num_global_key_value_heads", smallest=1)
    full = replace(shape, key_dim=dim, value_dim=dim, num_kv_heads=kv_heads or shape.num_kv_heads)
    return [full if name == FULL else shape for name in types]


def _overridden_heads(decoder: Decoder) -> list[FullAttention]:
    config, found = decoder.config, [decoder.heads.full] * decoder.num_layers
    for index, values in config.per_layer_config(decoder.num_layers).items():
        if unknown := set(values) - {"head_dim", "num_key_value_heads"}:
            raise config.refuse(f"its per_layer_config changes {', '.join(sorted(map(str, unknown)))}")
        place = f"{config.prefix}per_layer_config.{index}."
        layer = ConfigReader(values, "", where=config.where, prefix=place)
        shape = found[index]
        dim = layer.number("head_dim") if "head_dim" in values else shape.key_dim
        heads = layer.number("num_key_value_heads") if "num_key_value_heads" in values else shape.num_kv_heads
        found[index] = replace(shape, key_dim=dim, value_dim=dim, num_kv_heads=heads)
    return found


def _gemma4_experts(decoder: Decoder) -> tuple[list[WeightGroup], MoeFfn | None]:
    config, hidden, layers = decoder.config, decoder.heads.hidden, decoder.layers
    if not config.flag("enable_moe_block"):
        return [], None
    moe = MoeFfn(
        num_experts=config.number("num_experts", field="ffn.num_experts"),
        experts_per_token=config.number("top_k_experts", field="ffn.experts_per_token"),
        width=config.number("moe_intermediate_size"),
    )
    extra_norms = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
    weights = [
        *parameter(decoder.path("router.scale"), (hidden,), layers=layers),
        *parameter(decoder.path("router.per_expert_scale"), (moe.num_experts,), layers=layers),
        *linear(decoder.path("router.proj"), hidden, moe.num_experts, layers=layers),
        *fused_experts(decoder.path("experts"), moe.num_experts, hidden, moe.width, layers=layers),
        *decoder.norms(extra_norms),
    ]
    return weights, moe
