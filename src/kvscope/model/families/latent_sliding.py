"""Latent attention whose sliding layers have a size of their own: Dots 3 Note."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture
from kvscope.model.families.latent import assemble, layer_norms, spaced_sparse
from kvscope.model.families.latent_indexed import index_cache, indexer
from kvscope.model.families.mla import Mla, Moe, feed_forward, mla_attention, mlp_layer_types, read_mla, read_moe
from kvscope.model.modules import linear, norm
from kvscope.model.spec import CacheKind, WeightGroup

# Dots3NoteTextConfig, transformers 5.24.0: what the sliding layers have instead, and under which name.
SLIDING_DEFAULTS = {
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "head_dim": 256,
    "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}
OVERRIDABLE = frozenset((*SLIDING_DEFAULTS, "qk_rope_head_dim"))
SLIDING_WINDOW = 512


def dots3_note_text(config: ConfigReader) -> Architecture:
    """Indexed (or full) latent attention on layers 0, 1 and every fourth from 1 on; sliding latent attention of its own
    size elsewhere. The library keeps index keys as float32."""
    count = config.num_layers()
    types, overrides = _dots3_types(config, count), _dots3_overrides(config, count)
    if overrides is None:
        sliding = _dots3_sliding(config)
        overrides = {index: sliding for index, name in enumerate(types) if name == "sliding_attention"}
    sizes = [_sized(config, overrides.get(index)) for index in range(count)]
    base = read_mla(config)
    width = config.number("intermediate_size", field="ffn.width")
    sparse = mlp_layer_types(config, _dots3_sparse(config, count))
    ffn_weights, ffn = feed_forward("model.layers.{}.mlp", base.hidden, width, _dots3_experts(config), sparse)
    weights = [*_dots3_attention(config, types, sizes), *ffn_weights, *layer_norms(base, count)]
    caches, library = _dots3_caches(config, types, sizes)
    found = assemble(config, "dots3_note", weights, caches, ffn, base, library)
    layers = [replace(layer, num_q_heads=size.q_heads) for layer, size in zip(found.layers, sizes, strict=True)]
    return replace(found, layers=tuple(layers))


def dots3_note(config: ConfigReader) -> Architecture:
    """The text model. Its parameters are counted as the library's causal language model, which is text alone; those of
    the multimodal class are not known."""
    found = dots3_note_text(config.nested("text_config", "dots3_note_text"))
    classes = config.words("architectures") or ()
    return replace(found, weights=None) if "Dots3NoteForConditionalGeneration" in classes else found


def _dots3_types(config: ConfigReader, count: int) -> tuple[str, ...]:
    stated = config.lookup("use_dsa")[0]
    uses_index = config.flag("use_dsa") if stated is not None else None
    if uses_index is None and not config.given("per_layer_config"):
        uses_index = True
    types = config.layer_types(count)
    if types is None:
        slides = config.flag("use_sliding_window", default=True)
        full = "full_attention" if uses_index is False else "indexed_attention"
        types = tuple(
            full if not slides or index < 2 or index % 4 == 1 else "sliding_attention" for index in range(count)
        )
    types = tuple("indexed_attention" if name == "deepseek_sparse_attention" else name for name in types)
    if not set(types) <= {"full_attention", "indexed_attention", "sliding_attention"}:
        raise config.refuse("it has layers that are not full, indexed or sliding")
    if uses_index is None:
        return types
    old, new = ("full_attention", "indexed_attention") if uses_index else ("indexed_attention", "full_attention")
    return tuple(new if name == old else name for name in types)


def _dots3_sliding(config: ConfigReader) -> dict[str, int]:
    found = {}
    for key, default in SLIDING_DEFAULTS.items():
        stated = config.optional(f"swa_{key}", smallest=1)
        found[key] = default if stated is None else stated
    rope = config.optional("swa_qk_rope_head_dim", smallest=1)
    found["qk_rope_head_dim"] = found["head_dim"] - found["qk_nope_head_dim"] if rope is None else rope
    return found


def _dots3_overrides(config: ConfigReader, count: int) -> dict[int, Mapping[str, Any]] | None:
    """per_layer_config: what single layers have instead. None: the file has none."""
    if not config.given("per_layer_config"):
        return None
    found = config.per_layer_config(count)
    changed = {key for values in found.values() for key in values}
    if not changed <= OVERRIDABLE:
        raise config.refuse(f"its per_layer_config changes {', '.join(sorted(changed - OVERRIDABLE))}")
    return found


def _sized(config: ConfigReader, override: Mapping[str, Any] | None) -> Mla:
    merged = {**config.config, **(override or {})}
    found = read_mla(ConfigReader(merged, config.model_type, where=config.where, prefix=config.prefix))
    if found.q_rank is None:
        raise config.refuse("its q_lora_rank is null, and its queries are made from a latent")
    return found


def _dots3_sparse(config: ConfigReader, count: int) -> list[bool]:
    if not isinstance(config.config.get("moe_layer_freq"), list):
        return spaced_sparse(config)
    flags, dense = config.numbers("moe_layer_freq") or (), config.optional("first_k_dense_replace")
    if len(flags) < count:
        raise config.malformed("moe_layer_freq", f"{len(flags)} entries for {count} layers")
    return [index >= (1 if dense is None else dense) and bool(flags[index]) for index in range(count)]


def _dots3_experts(config: ConfigReader) -> Moe:
    given = config.given("moe_shared_expert_intermediate_size")
    shared = config.number("moe_shared_expert_intermediate_size" if given else "shared_experts_intermediate_size")
    return replace(read_moe(config), shared_width=shared * config.number("n_shared_experts"))


def _dots3_attention(config: ConfigReader, types: Sequence[str], sizes: Sequence[Mla]) -> list[WeightGroup]:
    prefix, bias = "model.layers.{}.self_attn", config.flag("attention_bias")
    heads, index_dim = config.number("index_n_heads"), config.number("index_head_dim")
    weights: list[WeightGroup] = []
    for mla in dict.fromkeys(sizes):
        layers = tuple(index for index, size in enumerate(sizes) if size == mla)
        indexed = tuple(index for index in layers if types[index] == "indexed_attention")
        assert mla.q_rank is not None
        weights += [
            *mla_attention(prefix, mla, bias=bias, layers=layers),
            *norm(f"{prefix}.k_rope_only_layernorm", mla.rope, layers=layers),
            *linear(f"{prefix}.g_proj", mla.hidden, mla.q_heads, layers=layers),
            *indexer(f"{prefix}.indexer", mla.hidden, mla.q_rank, heads, index_dim, layers=indexed),
        ]
    return weights


def _dots3_caches(
    config: ConfigReader, types: Sequence[str], sizes: Sequence[Mla]
) -> tuple[list[CacheKind], list[CacheKind | None]]:
    window = config.optional("sliding_window", smallest=1) or config.optional("sliding_window_size", smallest=1)
    caches: list[CacheKind] = []
    library: list[CacheKind | None] = []
    for name, mla in zip(types, sizes, strict=True):
        if name == "indexed_attention":
            caches.append(index_cache(config, mla.cache, float8=False))
            library.append(index_cache(config, mla.cache, float8=False, dtype="float32"))
            continue
        sliding = replace(mla.cache, window_tokens=window or SLIDING_WINDOW)
        caches.append(sliding if name == "sliding_attention" else mla.cache)
        library.append(None)
    return caches, library
