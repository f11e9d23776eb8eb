"""Dense families with sliding-window layers.

Which norms, biases and windows each has is that of its class in transformers 5.24.0. Gemma is in gemma.py; those whose
layers hold more than attention's cache are in windowed_other.py.
"""

from collections.abc import Sequence

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture
from kvscope.model.families.dense_decoder import Decoder, read_decoder
from kvscope.model.families.windowed_decoder import (
    FULL,
    SLIDING,
    first_full,
    keyed_caches,
    last_full,
    listed_caches,
    pattern_period,
    read_window,
)
from kvscope.model.modules import linear, norms, parameter
from kvscope.model.spec import CacheKind, WeightGroup


def mistral(config: ConfigReader) -> Architecture:
    """Llama's modules without biases; every layer slides when the config has a sliding_window."""
    return _mistral(config, "mistral")


def ministral3(config: ConfigReader) -> Architecture:
    """As Mistral."""
    return _mistral(config, "ministral3")


def _mistral(config: ConfigReader, family: str) -> Architecture:
    decoder = read_decoder(config)
    caches, library = keyed_caches(decoder, read_window(config))
    return decoder.model(
        family,
        decoder.outer(),
        decoder.attention(),
        decoder.gated_mlp(),
        decoder.norms(),
        caches=caches,
        library=library,
    )


def ministral(config: ConfigReader) -> Architecture:
    """Mistral whose layers go by layer_types: all slide unless listed otherwise."""
    decoder = read_decoder(config)
    everywhere = FULL if read_window(config) is None else SLIDING
    return _llama_like(decoder, "ministral", [everywhere] * decoder.num_layers)


def cwm(config: ConfigReader) -> Architecture:
    """Every fourth layer is full, beginning with the first."""
    decoder = read_decoder(config)
    return _llama_like(decoder, "cwm", first_full(decoder, 4), mlp_bias=config.flag("mlp_bias"))


def _llama_like(decoder: Decoder, family: str, pattern: Sequence[str], *, mlp_bias: bool = False) -> Architecture:
    """No biases in attention; norms before attention and before the feed-forward."""
    return decoder.model(
        family,
        decoder.outer(),
        decoder.attention(),
        decoder.gated_mlp(bias=mlp_bias),
        decoder.norms(),
        caches=listed_caches(decoder, pattern),
    )


def granite_swa(config: ConfigReader) -> Architecture:
    """Granite with one sink per head; every fourth layer is full, beginning with the first."""
    decoder = read_decoder(config)
    bias = config.flag("attention_bias")
    return decoder.model(
        "granite_swa",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        parameter(decoder.path("self_attn.sinks"), (decoder.heads.q_heads,), layers=decoder.layers),
        decoder.gated_mlp(bias=config.flag("mlp_bias")),
        decoder.norms(),
        caches=listed_caches(decoder, first_full(decoder, 4)),
    )


def phi3(config: ConfigReader) -> Architecture:
    """Phi-3 and Phi-4 mini: fused matrices; every layer slides when the config has a sliding_window."""
    decoder = read_decoder(config)
    heads = decoder.heads
    rows = (heads.q_heads + 2 * heads.kv_heads) * heads.head_dim
    caches, library = keyed_caches(decoder, read_window(config))
    return decoder.model(
        "phi3",
        decoder.outer(),
        linear(decoder.path("self_attn.qkv_proj"), heads.hidden, rows, layers=decoder.layers),
        linear(decoder.path("self_attn.o_proj"), heads.q_heads * heads.head_dim, heads.hidden, layers=decoder.layers),
        decoder.fused_mlp(),
        decoder.norms(),
        caches=caches,
        library=library,
    )


def olmo3(config: ConfigReader) -> Architecture:
    """Norms after attention and feed-forward, and over all heads together; every fourth layer is full."""
    decoder = read_decoder(config)
    heads, bias = decoder.heads, config.flag("attention_bias")
    wide: list[WeightGroup] = [
        *norms([decoder.path("self_attn.q_norm")], heads.q_heads * heads.head_dim, layers=decoder.layers),
        *norms([decoder.path("self_attn.k_norm")], heads.kv_heads * heads.head_dim, layers=decoder.layers),
    ]
    return decoder.model(
        "olmo3",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        wide,
        decoder.gated_mlp(),
        decoder.norms(("post_attention_layernorm", "post_feedforward_layernorm")),
        caches=listed_caches(decoder, last_full(decoder, 4)),
    )


def exaone4(config: ConfigReader) -> Architecture:
    """Norms after attention and feed-forward, and per head."""
    decoder = read_decoder(config)
    return decoder.model(
        "exaone4",
        decoder.outer(),
        decoder.attention(),
        decoder.head_norms("self_attn.q_norm", "self_attn.k_norm"),
        decoder.gated_mlp(),
        decoder.norms(("post_attention_layernorm", "post_feedforward_layernorm")),
        caches=listed_caches(decoder, pattern_period(decoder)),
    )


def cohere2(config: ConfigReader) -> Architecture:
    """One norm per layer; every fourth layer is full."""
    decoder = read_decoder(config)
    bias = config.flag("attention_bias")
    return decoder.model(
        "cohere2",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.gated_mlp(),
        decoder.norms(("input_layernorm",)),
        caches=_cohere2_caches(decoder),
    )


def _cohere2_caches(decoder: Decoder) -> list[CacheKind]:
    """Older files give the period instead of a list of layer types."""
    period = decoder.config.optional("sliding_window_pattern", smallest=1) or 4
    return listed_caches(decoder, last_full(decoder, period))
