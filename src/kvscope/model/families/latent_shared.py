"""Indexed latent attention whose layers may share a cache: Mistral Large 4, whose every few layers have no rotary part.

Facts of transformers 5.24.0's MistralLarge4TextConfig. The multimodal model around it is in multimodal.py.
"""

from collections.abc import Sequence
from dataclasses import replace

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture
from kvscope.model.families.latent import assemble, layer_norms, leading_dense
from kvscope.model.families.latent_indexed import check_indexed, index_cache, indexer, scheduled_indexers
from kvscope.model.families.mla import Mla, feed_forward, mlp_layer_types, read_mla, read_moe
from kvscope.model.modules import Layers, linear, norm, parameter
from kvscope.model.spec import CacheKind, SharedCache, WeightGroup

NO_ROPE_INTERVAL = 4


def mistral_large4_text(config: ConfigReader, prefix: str = "model") -> Architecture:
    """Layers without rope keep a latent and no rotary key; a layer may read an earlier one's latent, and keeps its
    index keys if it has an index. Queries are one dense projection."""
    count, mla = config.num_layers(), replace(read_mla(config), q_rank=None)
    check_indexed(config, count)
    full, ropes, sources = scheduled_indexers(config), _ropes(config, count), _sources(config, count)
    sparse = mlp_layer_types(config, leading_dense(config))
    width, experts = config.number("intermediate_size", field="ffn.width"), read_moe(config, num_experts_wins=True)
    ffn_weights, ffn = feed_forward(f"{prefix}.layers.{{}}.mlp", mla.hidden, width, experts, sparse)
    weights = [
        *_attention(config, f"{prefix}.layers.{{}}.self_attn", mla, ropes, sources),
        *_indexers(config, f"{prefix}.layers.{{}}.self_attn.indexer", mla.hidden, full),
        *ffn_weights,
        *layer_norms(mla, count, prefix),
        *parameter(f"{prefix}.rotary_emb.alpha", (mla.rope // 2,), dtype="float32"),
    ]
    caches = [_cache(config, mla, index, ropes[index], sources[index], full[index]) for index in range(count)]
    return assemble(config, "mistral_large4", weights, caches, ffn, mla, prefix=prefix)


def _ropes(config: ConfigReader, count: int) -> list[bool]:
    """no_rope_layers (1: with rope), else every no_rope_layer_interval-th (4) layer has none."""
    flags = config.numbers("no_rope_layers")
    if flags is not None:
        if len(flags) < count:
            raise config.malformed("no_rope_layers", f"{len(flags)} entries for {count} layers")
        return [bool(flag) for flag in flags[:count]]
    interval = config.optional("no_rope_layer_interval", smallest=1) or NO_ROPE_INTERVAL
    return [(index + 1) % interval != 0 for index in range(count)]


def _sources(config: ConfigReader, count: int) -> list[int]:
    """kv_source_layers: whose latent each layer reads; by default its own."""
    sources = config.numbers("kv_source_layers")
    if sources is None:
        return list(range(count))
    if len(sources) != count or any(s > index or sources[s] != s for index, s in enumerate(sources)):
        raise config.malformed("kv_source_layers", f"for each of {count} layers, an earlier one that keeps its own")
    return list(sources)


def _cache(config: ConfigReader, mla: Mla, index: int, has_rope: bool, source: int, has_index: bool) -> CacheKind:
    main: CacheKind = SharedCache(layer_index=source)
    if source == index:
        main = mla.cache if has_rope else replace(mla.cache, rope_dim=0)
    return index_cache(config, main, float8=False) if has_index else main


def _attention(
    config: ConfigReader, prefix: str, mla: Mla, ropes: Sequence[bool], sources: Sequence[int]
) -> list[WeightGroup]:
    every, bias = tuple(range(len(ropes))), config.flag("attention_bias")
    weights = [
        *linear(f"{prefix}.q_proj", mla.hidden, mla.q_heads * mla.query, layers=every),
        *linear(f"{prefix}.o_proj", mla.q_heads * mla.value, mla.hidden, bias=bias, layers=every),
        *_softmax_scaling(prefix, mla.q_heads, every),
    ]
    for has_rope in (True, False):
        layers = tuple(index for index in every if ropes[index] == has_rope)
        rope, nope = (mla.rope, mla.nope) if has_rope else (0, mla.nope + mla.rope)
        if layers:
            weights += linear(f"{prefix}.kv_b_proj", mla.kv_rank, mla.q_heads * (nope + mla.value), layers=layers)
        if own := tuple(index for index in layers if sources[index] == index):
            weights += linear(f"{prefix}.kv_a_proj_with_mqa", mla.hidden, mla.kv_rank + rope, bias=bias, layers=own)
            weights += norm(f"{prefix}.kv_a_layernorm", mla.kv_rank, layers=own)
    return weights


def _softmax_scaling(prefix: str, heads: int, layers: Layers) -> list[WeightGroup]:
    names = [f"{prefix}.softmax_scaling.{name}" for name in ("scale", "bias")]
    return [group for name in names for group in parameter(name, (heads,), layers=layers)]


def _indexers(config: ConfigReader, prefix: str, hidden: int, full: Sequence[bool]) -> list[WeightGroup]:
    heads, width = config.number("index_n_heads"), config.number("index_head_dim")
    layers = tuple(index for index, is_full in enumerate(full) if is_full)
    if not layers:
        return []
    return [
        *indexer(prefix, hidden, hidden, heads, width, layers=layers),
        *norm(f"{prefix}.q_input_norm", hidden, bias=True, layers=layers),
        *_softmax_scaling(prefix, heads, layers),
    ]
