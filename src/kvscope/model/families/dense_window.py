"""Dense families that are full attention unless their config turns a window on."""

import math
from collections.abc import Sequence

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture, library_caches, typed_caches
from kvscope.model.families.dense_decoder import LLAMA_NORMS, Decoder, read_decoder
from kvscope.model.modules import linear, parameter
from kvscope.model.spec import CacheKind, SlidingWindow, WeightGroup


def qwen_window_caches(config: ConfigReader, decoder: Decoder) -> list[CacheKind]:
    """Qwen2Config and Qwen3Config, transformers 5.24.0: without use_sliding_window a sliding_window is dropped; with
    it, the layers from max_window_layers on slide, unless layer_types says which."""
    window = None
    if config.flag("use_sliding_window"):
        window = config.optional("sliding_window", field="window_tokens", smallest=1)
    types: Sequence[str] | None = config.layer_types(decoder.num_layers)
    if types is None:
        first = decoder.num_layers if window is None else config.number("max_window_layers", smallest=0)
        types = ["sliding_attention" if index >= first else "full_attention" for index in range(decoder.num_layers)]
    return typed_caches(config, types, decoder.heads.full, window)


def qwen2(config: ConfigReader) -> Architecture:
    """Biases on queries, keys and values, always."""
    decoder = read_decoder(config, rounds_down=True)
    return decoder.model(
        "qwen2",
        decoder.outer(),
        decoder.attention(qkv_bias=True),
        decoder.gated_mlp(),
        decoder.norms(),
        caches=qwen_window_caches(config, decoder),
    )


def qwen3(config: ConfigReader) -> Architecture:
    """Norms over each head's query and key."""
    decoder = read_decoder(config, rounds_down=True)
    bias = config.flag("attention_bias")
    return decoder.model(
        "qwen3",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.head_norms("self_attn.q_norm", "self_attn.k_norm"),
        decoder.gated_mlp(),
        decoder.norms(),
        caches=qwen_window_caches(config, decoder),
    )


def smollm3(config: ConfigReader) -> Architecture:
    """With use_sliding_window, the layers without rotary positions slide (SmolLM3Config, transformers 5.24.0)."""
    decoder = read_decoder(config, rounds_down=True)
    bias = config.flag("attention_bias")
    window = config.optional("sliding_window", field="window_tokens", smallest=1)
    types: Sequence[str] | None = config.layer_types(decoder.num_layers)
    if types is None:
        slides = config.flag("use_sliding_window") and window is not None
        has_rope = _rope_layers(config, decoder.num_layers)
        types = ["full_attention" if rope or not slides else "sliding_attention" for rope in has_rope]
    return decoder.model(
        "smollm3",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.gated_mlp(bias=config.flag("mlp_bias")),
        decoder.norms(),
        caches=typed_caches(config, types, decoder.heads.full, window),
    )


def _rope_layers(config: ConfigReader, num_layers: int) -> Sequence[bool]:
    stated = config.numbers("no_rope_layers")
    if stated is None:
        interval = config.number("no_rope_layer_interval")
        return [(index + 1) % interval != 0 for index in range(num_layers)]
    if len(stated) < num_layers:
        raise config.malformed("no_rope_layers", f"{len(stated)} entries for {num_layers} layers")
    return [has_rope != 0 for has_rope in stated[:num_layers]]


def uniform_window(config: ConfigReader, decoder: Decoder) -> tuple[list[CacheKind], list[CacheKind | None]]:
    """Every layer slides where the config has a sliding_window; transformers' cache goes by layer_types, if given."""
    window = config.optional("sliding_window", field="window_tokens", smallest=1)
    full = decoder.heads.full
    library = library_caches(config, full, decoder.num_layers)
    if window is None:
        return [full] * decoder.num_layers, library
    slides = SlidingWindow(
        num_kv_heads=full.num_kv_heads, key_dim=full.key_dim, value_dim=full.value_dim, window_tokens=window
    )
    kept = [full if cache is None else cache for cache in library]
    return [slides] * decoder.num_layers, [None if cache == slides else cache for cache in kept]


def starcoder2(config: ConfigReader) -> Architecture:
    """Layer norms with biases, and a feed-forward of two matrices; a window in every layer, or in none."""
    decoder = read_decoder(config, rounds_down=True)
    bias = config.flag("use_bias")
    caches, library = uniform_window(config, decoder)
    return decoder.model(
        "starcoder2",
        decoder.outer(norm_bias=True),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.plain_mlp("c_fc", "c_proj", bias=bias),
        decoder.norms(bias=True),
        caches=caches,
        library=library,
    )


def doge(config: ConfigReader) -> Architecture:
    """Dynamic masks need a small matrix of the values; keep_window_size masks tokens but keeps them."""
    decoder = read_decoder(config, rounds_down=True)
    heads, layers, bias = decoder.heads, decoder.layers, config.flag("attention_bias")
    values = heads.kv_heads * heads.head_dim
    caches, library = uniform_window(config, decoder)
    return decoder.model(
        "doge",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        parameter(decoder.path("self_attn.A"), (heads.kv_heads,), layers=layers),
        linear(decoder.path("self_attn.dt_proj"), values, heads.kv_heads, bias=bias, layers=layers),
        decoder.head_norms("self_attn.q_norm", "self_attn.k_norm"),
        decoder.gated_mlp(bias=config.flag("mlp_bias")),
        _doge_experts(config, decoder) if config.flag("is_moe") else [],
        decoder.norms(),
        parameter(decoder.path("input_residual"), (heads.hidden,), layers=layers),
        parameter(decoder.path("post_attention_residual"), (heads.hidden,), layers=layers),
        caches=caches,
        library=library,
    )


def _doge_experts(config: ConfigReader, decoder: Decoder) -> list[WeightGroup]:
    """Experts of one row each, found by two keys: beside the dense feed-forward, which is shared by all."""
    experts, hidden = config.number("num_experts"), decoder.heads.hidden
    weights = linear(decoder.path("mlp.router_gate"), hidden, 2 * math.isqrt(experts), layers=decoder.layers)
    for name in ("down_embed", "up_embed"):
        weights += parameter(decoder.path(f"mlp.{name}.weight"), (experts, hidden), layers=decoder.layers)
    return weights


def cohere_compass_text(config: ConfigReader) -> Architecture:
    """Command R without query and key norms; layers slide where layer_types says so."""
    decoder = read_decoder(config, rounds_down=True)
    bias = config.flag("attention_bias")
    types = config.layer_types(decoder.num_layers) or ("full_attention",) * decoder.num_layers
    window = config.optional("sliding_window", field="window_tokens", smallest=1)
    return decoder.model(
        "cohere-compass",
        decoder.outer(),
        decoder.attention(qkv_bias=bias, out_bias=bias),
        decoder.gated_mlp(),
        decoder.norms(LLAMA_NORMS[:1]),
        caches=typed_caches(config, types, decoder.heads.full, window),
    )
