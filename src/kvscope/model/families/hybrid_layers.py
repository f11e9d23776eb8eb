"""What the readers of models that mix kinds of layers have in common: whose turn it is, and the layers made of that."""

from collections.abc import Mapping, Sequence

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Heads
from kvscope.model.modules import Layers, attention
from kvscope.model.spec import CacheKind, DenseFfn, LayerSpec, MoeFfn, WeightGroup

Ffn = DenseFfn | MoeFfn | None

LINEAR, FULL, SLIDING, HYBRID = "linear_attention", "full_attention", "sliding_attention", "hybrid"
# transformers 5.24.0, configuration_utils: layer types of older files under their present names.
PRESENT_NAMES = {
    "mamba": LINEAR,
    "attention": FULL,
    "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
}


def stated_types(config: ConfigReader, num_layers: int, key: str = "layer_types") -> tuple[str, ...] | None:
    """The config's own list of layer types under their present names, one per layer, or None."""
    types = config.words(key)
    if types is None:
        return None
    if len(types) != num_layers:
        raise config.malformed(key, f"{len(types)} entries for {num_layers} layers")
    config.sources["layer_types"] = config.sources[key]
    return tuple(PRESENT_NAMES.get(name, name) for name in types)


def only_derived(config: ConfigReader, types: Sequence[str], formula: str) -> tuple[str, ...]:
    """Types that the class derives itself and accepts no list of: a stated list must say the same."""
    config.sources["layer_types"] = f"derived: {formula}"
    for key in ("layer_types", "layers_block_type"):
        stated = config.config.get(key)
        if stated is not None and (
            not isinstance(stated, list) or [PRESENT_NAMES.get(str(name), name) for name in stated] != list(types)
        ):
            raise config.refuse(f"its {config.prefix}{key} are not those of {formula}")
    return tuple(types)


def which(types: Sequence[str], *names: str) -> Layers:
    """The numbers of the layers of these types."""
    return tuple(index for index, name in enumerate(types) if name in names)


def build_layers(
    config: ConfigReader,
    types: Sequence[str],
    caches: Mapping[str, CacheKind],
    q_heads: int,
    ffns: Ffn | Sequence[Ffn],
    library: Mapping[str, CacheKind | tuple[CacheKind, ...]] | None = None,
) -> tuple[LayerSpec, ...]:
    """Layers by the name of their type. ``library``: what transformers keeps for a type, where that is another kind.
    Raises UnsupportedArchitecture for a type that ``caches`` does not name."""
    unknown = [name for name in types if name not in caches]
    if unknown:
        raise config.refuse(f"its layer types name a layer {unknown[0]!r}")
    return tuple(
        LayerSpec(
            index=index,
            cache=caches[name],
            num_q_heads=0 if name in (LINEAR, "conv", "moe", "mlp") else q_heads,
            ffn=ffns[index] if isinstance(ffns, Sequence) else ffns,
            transformers_cache=None if library is None else library.get(name),
        )
        for index, name in enumerate(types)
    )


def attention_weights(prefix: str, heads: Heads, *, layers: Layers, bias: bool = False) -> list[WeightGroup]:
    """q_proj, k_proj, v_proj, o_proj of these layers, if there are any."""
    if not layers:
        return []
    return attention(
        prefix, heads.hidden, heads.q_heads, heads.kv_heads, heads.head_dim,
        qkv_bias=bias, out_bias=bias, layers=layers,
    )  # fmt: skip


def trained_context(config: ConfigReader) -> int | None:
    """The declared context, or None. Recurrent families often declare none."""
    return config.optional("max_position_embeddings", field="trained_context_tokens")
