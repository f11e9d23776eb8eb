"""Families with sliding-window layers."""

from dataclasses import replace

from kvscope.model.config_reader import ConfigReader, every
from kvscope.model.families.architecture import Architecture, attention_layers, read_heads, typed_caches
from kvscope.model.families.dense import llama
from kvscope.model.modules import attention, embedding, gated_mlp, head, norm, norms
from kvscope.model.spec import CacheKind, DenseFfn, LayerSpec

GEMMA3_PERIOD = 6  # Gemma3TextConfig, transformers 5.24.0: every sixth layer is full


def mistral(config: ConfigReader) -> Architecture:
    """Llama's modules; every layer slides when the config has a sliding_window."""
    base = llama(config)
    window = config.optional("sliding_window", field="window_tokens", smallest=1)
    if window is None:
        return replace(base, family="mistral")
    heads = read_heads(config)
    caches = typed_caches(config, ["sliding_attention"] * len(base.layers), heads.full, window)
    return replace(base, family="mistral", layers=_with(base.layers, caches))


def gemma3_text(config: ConfigReader) -> Architecture:
    """Five sliding layers, then a full one, unless the config says otherwise."""
    num_layers = config.num_layers()
    heads = read_heads(config)
    width = config.number("intermediate_size", field="ffn.width")
    vocab = config.number("vocab_size")
    tied = config.flag("tie_word_embeddings")
    bias = config.flag("attention_bias")
    window = config.number("sliding_window", field="window_tokens")
    types = config.layer_types(num_layers)
    if types is None:
        types = _gemma3_types(config, num_layers)
    layers = tuple(range(num_layers))
    layer = "model.layers.{}"
    weights = [
        *embedding("model.embed_tokens", vocab, heads.hidden),
        *attention(f"{layer}.self_attn", heads.hidden, heads.q_heads, heads.kv_heads, heads.head_dim,
                   qkv_bias=bias, out_bias=bias, layers=layers),
        *norms([f"{layer}.self_attn.q_norm", f"{layer}.self_attn.k_norm"], heads.head_dim, layers=layers),
        *gated_mlp(f"{layer}.mlp", heads.hidden, width, layers=layers),
        *norms([f"{layer}.{name}_layernorm" for name in
                ("input", "post_attention", "pre_feedforward", "post_feedforward")], heads.hidden, layers=layers),
        *norm("model.norm", heads.hidden),
        *head("lm_head", heads.hidden, vocab, tied=tied),
    ]  # fmt: skip
    caches = typed_caches(config, types, heads.full, window)
    return Architecture(
        family="gemma3",
        layers=attention_layers(caches, heads.q_heads, DenseFfn(width=width)),
        weights=tuple(weights),
        vocab_size=vocab,
        hidden_size=heads.hidden,
        trained_context_tokens=config.optional("max_position_embeddings", field="trained_context_tokens"),
        is_tied=tied,
    )


def _gemma3_types(config: ConfigReader, num_layers: int) -> tuple[str, ...]:
    period = config.optional("sliding_window_pattern", smallest=1)
    if period is None:
        # Older files carry the pattern under its private name only, which transformers itself does not read back.
        if config.config.get("_sliding_window_pattern", GEMMA3_PERIOD) != GEMMA3_PERIOD:
            raise config.refuse(
                "it gives _sliding_window_pattern but neither layer_types nor sliding_window_pattern",
                hint='Add "layer_types" to config.json, one of full_attention or sliding_attention per layer.',
            )
        period = GEMMA3_PERIOD
    return tuple(every(period, num_layers, inside="sliding_attention", last="full_attention"))


def gemma3(config: ConfigReader) -> Architecture:
    """The text model inside a multimodal Gemma 3; its vision tower is not counted here."""
    return replace(gemma3_text(config.nested("text_config", "gemma3_text")), weights=None)


def _with(layers: tuple[LayerSpec, ...], caches: list[CacheKind]) -> tuple[LayerSpec, ...]:
    return tuple(
        replace(layer, cache=cache, transformers_cache=None) for layer, cache in zip(layers, caches, strict=True)
    )
