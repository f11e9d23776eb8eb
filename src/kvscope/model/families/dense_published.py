"""Dense families published with code of their own, which transformers itself does not have: Phi-3-small, and the pruned
Llamas of NVIDIA's architecture search (nemotron-nas, "DeciLM"). Their facts are those of the published code and of
vLLM's phi3_small.py and nemotron_nas.py."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvscope.model.config_reader import ConfigReader, short
from kvscope.model.families.architecture import (
    Architecture,
    Heads,
    attention_layers,
    full_attention_model,
    read_context,
    read_heads,
)
from kvscope.model.modules import attention, embedding, gated_mlp, head, linear, norm, norms
from kvscope.model.spec import CacheKind, DenseFfn, FullAttention, NoCache, WeightGroup

TIED_BY_DEFAULT = True  # PretrainedConfig of transformers 4.x, where a remote class says nothing
FFN_MULTIPLE = 256  # DeciLM rounds a feed-forward's width up to whole multiples


def phi3small(config: ConfigReader) -> Architecture:
    """Block-sparse attention chooses which tokens to look at, but every token's keys and values are kept."""
    heads, num_layers = read_heads(config), config.num_layers()
    vocab, hidden = config.number("vocab_size"), heads.hidden
    width = config.number("ff_intermediate_size", "intermediate_size", field="ffn.width")
    tied = config.flag("tie_word_embeddings", default=TIED_BY_DEFAULT)
    layers, layer = tuple(range(num_layers)), "model.layers.{}"
    qkv = (heads.q_heads + 2 * heads.kv_heads) * heads.head_dim
    weights = [
        *embedding("model.embed_tokens", vocab, hidden),
        *linear(f"{layer}.self_attn.query_key_value", hidden, qkv, bias=True, layers=layers),
        *linear(f"{layer}.self_attn.dense", heads.q_heads * heads.head_dim, hidden, bias=True, layers=layers),
        *linear(f"{layer}.mlp.up_proj", hidden, 2 * width, bias=True, layers=layers),
        *linear(f"{layer}.mlp.down_proj", width, hidden, bias=True, layers=layers),
        *norms([f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"], hidden, bias=True, layers=layers),
        *norm("model.final_layernorm", hidden, bias=True),
        *head("lm_head", hidden, vocab, tied=tied),
    ]
    return full_attention_model(
        config,
        "phi3small",
        heads,
        num_layers,
        width,
        weights,
        context=read_context(config),
        library=[None] * num_layers,
        tied=tied,
    )


@dataclass(frozen=True, slots=True)
class _Block:
    """One entry of block_configs. None: that half of the layer is left out."""

    kv_heads: int | None
    width: int | None


def nemotron_nas(config: ConfigReader) -> Architecture:
    """Llama with, in every layer, its own number of KV heads and width, or without attention or feed-forward at all."""
    num_layers, hidden = config.num_layers(), config.number("hidden_size")
    q_heads = config.number("num_attention_heads", field="num_q_heads")
    head_dim = config.number_or("head_dim", hidden // q_heads, "hidden_size / num_attention_heads", field="key_dim")
    vocab, tied = config.number("vocab_size"), config.flag("tie_word_embeddings", default=TIED_BY_DEFAULT)
    blocks = _blocks(config, num_layers, hidden, q_heads)
    caches: list[CacheKind] = []
    for block in blocks:
        found = NoCache() if block.kv_heads is None else FullAttention(
            num_kv_heads=block.kv_heads, key_dim=head_dim, value_dim=head_dim
        )  # fmt: skip
        caches.append(found)
    widths = [None if block.width is None else DenseFfn(width=block.width) for block in blocks]
    weights: list[WeightGroup] = [
        *embedding("model.embed_tokens", vocab, hidden),
        *_block_weights(config, blocks, Heads(hidden=hidden, q_heads=q_heads, kv_heads=0, head_dim=head_dim)),
        *norm("model.norm", hidden),
        *head("lm_head", hidden, vocab, tied=tied),
    ]
    config.sources["layer_types"] = f"{config.where}: block_configs"
    return Architecture(
        family="nemotron-nas",
        layers=attention_layers(caches, q_heads, widths),
        weights=tuple(weights),
        vocab_size=vocab,
        hidden_size=hidden,
        trained_context_tokens=read_context(config),
        is_tied=tied,
        layer_sources={"num_kv_heads": "derived: num_attention_heads / block_configs.attention.n_heads_in_group"},
    )


def _block_weights(config: ConfigReader, blocks: Sequence[_Block], heads: Heads) -> list[WeightGroup]:
    bias, mlp_bias = config.flag("attention_bias", default=False), config.flag("mlp_bias", default=False)
    layer, weights = "model.layers.{}", []
    for kv_heads in sorted({block.kv_heads for block in blocks if block.kv_heads is not None}):
        layers = tuple(index for index, block in enumerate(blocks) if block.kv_heads == kv_heads)
        weights += norm(f"{layer}.input_layernorm", heads.hidden, layers=layers)
        weights += attention(f"{layer}.self_attn", heads.hidden, heads.q_heads, kv_heads, heads.head_dim,
                             qkv_bias=bias, out_bias=bias, layers=layers)  # fmt: skip
    for width in sorted({block.width for block in blocks if block.width is not None}):
        layers = tuple(index for index, block in enumerate(blocks) if block.width == width)
        weights += norm(f"{layer}.post_attention_layernorm", heads.hidden, layers=layers)
        weights += gated_mlp(f"{layer}.mlp", heads.hidden, width, bias=mlp_bias, layers=layers)
    return weights


def _blocks(config: ConfigReader, num_layers: int, hidden: int, q_heads: int) -> list[_Block]:
    stated = config.config.get("block_configs")
    if not isinstance(stated, list) or len(stated) != num_layers:
        raise config.malformed("block_configs", f"a list of {num_layers} objects was expected, one per layer")
    found = []
    for index, entry in enumerate(stated):
        place = f"block_configs.{index}"
        if not isinstance(entry, Mapping):
            raise config.malformed(place, "an object was expected")
        attention_part, ffn_part = _half(config, entry, place, "attention"), _half(config, entry, place, "ffn")
        found.append(
            _Block(
                kv_heads=_kv_heads(attention_part, q_heads) if attention_part else None,
                width=_ffn_width(ffn_part, hidden) if ffn_part else None,
            )
        )
    return found


def _half(config: ConfigReader, entry: Mapping[str, Any], place: str, name: str) -> ConfigReader | None:
    """One half of a layer, or None where it does nothing. Variants that nobody has checked are refused."""
    part = entry.get(name)
    if not isinstance(part, Mapping):
        raise config.malformed(f"{place}.{name}", "an object was expected")
    reader = ConfigReader(part, "", where=config.where, prefix=f"{config.prefix}{place}.{name}.")
    reader.refuse_keys("replace_with_linear", "sparsify", "window_length", "num_sink_tokens", "unshifted_sink")
    return None if reader.flag("no_op", default=False) else reader


def _kv_heads(part: ConfigReader, q_heads: int) -> int:
    group = part.number("n_heads_in_group")
    if q_heads % group:
        raise part.malformed("n_heads_in_group", f"{group} does not divide {q_heads} heads")
    return q_heads // group


def _ffn_width(part: ConfigReader, hidden: int) -> int:
    """ffn_mult × 2/3 of the width, rounded up; newer files state intermediate_size instead."""
    mult, _ = part.lookup("ffn_mult")
    if mult is None:
        return part.number("intermediate_size")
    if isinstance(mult, bool) or not isinstance(mult, int | float) or not 0 < mult <= 1024:
        raise part.malformed("ffn_mult", f"the value is {short(mult)}; a number from 0 to 1024 was expected")
    return -(-int(2 * mult * hidden / 3) // FFN_MULTIPLE) * FFN_MULTIPLE
