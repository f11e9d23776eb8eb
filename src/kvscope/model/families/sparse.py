"""Families of ordinary attention that first chooses blocks of tokens by an index: MiniMax M3."""

from collections.abc import Mapping
from typing import Any

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture, attention_layers, read_heads
from kvscope.model.modules import (
    Layers,
    attention,
    embedding,
    fused_experts,
    head,
    linear,
    norm,
    norms,
    parameter,
)
from kvscope.model.spec import CacheKind, DenseFfn, IndexedAttention, MoeFfn, WeightGroup

SPARSE = "minimax_m3_sparse"


def minimax_m3_vl_text(config: ConfigReader) -> Architecture:
    """Layers of type minimax_m3_sparse keep one index key per token beside their keys and values."""
    count, heads = config.num_layers(), read_heads(config)
    own = _sparse_config(config)
    indexed = _indexed_layers(config, own, count)
    index_heads = _flat_or_older(config, own, "index_n_heads", "sparse_num_index_heads")
    index_dim = _flat_or_older(config, own, "index_head_dim", "sparse_index_dim")
    vocab, tied = config.number("vocab_size"), config.flag("tie_word_embeddings")
    every, layer = tuple(range(count)), "model.layers.{}"
    ffn_weights, ffn = _feed_forward(config, f"{layer}.mlp", heads.hidden, count)
    weights = [
        *embedding("model.embed_tokens", vocab, heads.hidden),
        *attention(f"{layer}.self_attn", heads.hidden, heads.q_heads, heads.kv_heads, heads.head_dim, layers=every),
        *norms([f"{layer}.self_attn.q_norm", f"{layer}.self_attn.k_norm"], heads.head_dim, layers=every),
        *_indexer(f"{layer}.self_attn.indexer", heads.hidden, index_heads, index_dim, indexed),
        *ffn_weights,
        *norms([f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"], heads.hidden, layers=every),
        *norm("model.norm", heads.hidden),
        *head("lm_head", heads.hidden, vocab, tied=tied),
    ]
    with_index = IndexedAttention(main=heads.full, index_dim=index_dim)
    caches: list[CacheKind] = [with_index if index in indexed else heads.full for index in every]
    return Architecture(
        family="minimax_m3",
        layers=attention_layers(caches, heads.q_heads, ffn),
        weights=tuple(weights),
        vocab_size=vocab,
        hidden_size=heads.hidden,
        trained_context_tokens=config.optional("max_position_embeddings", field="trained_context_tokens"),
        is_tied=tied,
    )


def _sparse_config(config: ConfigReader) -> Mapping[str, Any]:
    """sparse_attention_config, the older form of the index's fields."""
    own = config.config.get("sparse_attention_config")
    if own is None:
        return {}
    if not isinstance(own, Mapping):
        raise config.malformed("sparse_attention_config", "a JSON object was expected")
    return own


def _flat_or_older(config: ConfigReader, own: Mapping[str, Any], key: str, older: str) -> int:
    """A number whose older name, where it is given, wins."""
    if older not in own:
        return config.number(key, field="index_dim" if key == "index_head_dim" else key)
    value = own[older]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise config.malformed(f"sparse_attention_config.{older}", "a whole number from 1 up was expected")
    return value


def _indexed_layers(config: ConfigReader, own: Mapping[str, Any], count: int) -> Layers:
    types = config.layer_types(count)
    if types is None:
        flags = own.get("sparse_attention_freq")
        if flags is None:
            return ()
        if not isinstance(flags, list | tuple) or len(flags) != count:
            raise config.malformed("sparse_attention_config.sparse_attention_freq", f"{count} entries were expected")
        config.sources["layer_types"] = "derived: sparse_attention_config.sparse_attention_freq"
        return tuple(index for index, flag in enumerate(flags) if flag)
    if not set(types) <= {SPARSE, "full_attention"}:
        raise config.refuse(f"it has layers that are neither {SPARSE} nor full_attention")
    return tuple(index for index, name in enumerate(types) if name == SPARSE)


def _indexer(prefix: str, hidden: int, heads: int, width: int, layers: Layers) -> list[WeightGroup]:
    if not layers:
        return []
    return [
        *linear(f"{prefix}.q_proj", hidden, heads * width, layers=layers),
        *linear(f"{prefix}.k_proj", hidden, width, layers=layers),
        *norms([f"{prefix}.q_norm", f"{prefix}.k_norm"], width, layers=layers),
    ]


def _feed_forward(
    config: ConfigReader, prefix: str, hidden: int, count: int
) -> tuple[list[WeightGroup], list[DenseFfn | MoeFfn]]:
    """Mixtures of experts, and dense layers where mlp_layer_types (or the older moe_layer_freq) says so."""
    is_sparse = _mixtures(config, count)
    mixtures = tuple(index for index in range(count) if is_sparse[index])
    dense = tuple(index for index in range(count) if not is_sparse[index])
    wide, shared = config.number("dense_intermediate_size"), config.number("shared_intermediate_size")
    kind = MoeFfn(
        num_experts=config.number("num_local_experts", field="ffn.num_experts"),
        experts_per_token=config.number("num_experts_per_tok", field="ffn.experts_per_token"),
        width=config.number("intermediate_size", field="ffn.width"),
        shared_width=shared,
    )
    weights: list[WeightGroup] = []
    if mixtures:
        weights += parameter(f"{prefix}.gate.weight", (kind.num_experts, hidden), layers=mixtures)
        weights += fused_experts(f"{prefix}.experts", kind.num_experts, hidden, kind.width, layers=mixtures)
        weights += _fused_mlp(f"{prefix}.shared_experts", hidden, shared, mixtures)
    if dense:
        weights += _fused_mlp(prefix, hidden, wide, dense)
    return weights, [kind if flag else DenseFfn(width=wide) for flag in is_sparse]


def _fused_mlp(prefix: str, hidden: int, width: int, layers: Layers) -> list[WeightGroup]:
    return [
        *linear(f"{prefix}.gate_up_proj", hidden, 2 * width, layers=layers),
        *linear(f"{prefix}.down_proj", width, hidden, layers=layers),
    ]


def _mixtures(config: ConfigReader, count: int) -> list[bool]:
    types = config.words("mlp_layer_types")
    if types is not None:
        if len(types) != count or not set(types) <= {"sparse", "dense"}:
            raise config.malformed("mlp_layer_types", f'one "sparse" or "dense" for each of {count} layers expected')
        return [name == "sparse" for name in types]
    flags = config.numbers("moe_layer_freq")
    if flags is None:
        return [True] * count
    if len(flags) != count:
        raise config.malformed("moe_layer_freq", f"{len(flags)} entries for {count} layers")
    return [bool(flag) for flag in flags]
