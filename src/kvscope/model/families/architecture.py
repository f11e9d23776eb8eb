"""What a family's reader returns, and the layers most families are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvscope.model.config_reader import MAX_HEADS, ConfigReader
from kvscope.model.spec import (
    CacheKind,
    ChunkedAttention,
    DenseFfn,
    FullAttention,
    LayerSpec,
    MoeFfn,
    SlidingWindow,
    WeightGroup,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model as its config describes it. ``weights`` None: the tensors of this family (or of its vision part) are not
    known, so no parameters are counted. ``family``: one name for all model_types (and GGUF architectures) of the same
    kind. ``layer_sources``: where a field of every layer came from; ``sources`` of single layers win over it."""

    family: str
    layers: tuple[LayerSpec, ...]
    weights: tuple[WeightGroup, ...] | None
    vocab_size: int
    hidden_size: int
    trained_context_tokens: int | None
    is_tied: bool | None = None
    layer_sources: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The common numbers of attention: ``hidden`` wide, ``q_heads`` queries, ``kv_heads`` keys and values."""

    hidden: int
    q_heads: int
    kv_heads: int
    head_dim: int

    @property
    def full(self) -> FullAttention:
        return FullAttention(num_kv_heads=self.kv_heads, key_dim=self.head_dim, value_dim=self.head_dim)


def read_heads(
    config: ConfigReader,
    *,
    hidden_key: str = "hidden_size",
    heads_key: str = "num_attention_heads",
    head_dim_key: bool = True,
    kv_heads_key: bool = True,
    rounds_down: bool = False,
) -> Heads:
    """hidden_size, num_attention_heads, num_key_value_heads (default: as many as query heads) and head_dim (default:
    hidden_size / heads). ``hidden_key``/``heads_key``: what the class itself calls them. ``head_dim_key``/
    ``kv_heads_key`` False: the class ignores such a key. ``rounds_down``: it takes heads that do not divide
    hidden_size."""
    hidden = config.number(hidden_key)
    q_heads = config.number(heads_key, field="num_q_heads", limit=MAX_HEADS)
    kv_heads = q_heads
    if kv_heads_key:
        kv_heads = config.number_or("num_key_value_heads", q_heads, heads_key, field="num_kv_heads")
        if kv_heads > MAX_HEADS:
            raise config.malformed("num_key_value_heads", f"a number up to {MAX_HEADS} was expected")
    else:
        config.sources["num_kv_heads"] = f"derived: {heads_key}"
    if head_dim_key and config.lookup("head_dim")[0] is not None:
        head_dim = config.number("head_dim", field="key_dim")
    elif hidden < q_heads or (hidden % q_heads and not rounds_down):
        raise config.malformed(hidden_key, f"{q_heads} heads do not divide a width of {hidden}")
    else:
        head_dim = hidden // q_heads
        config.sources["key_dim"] = f"derived: {hidden_key} / {heads_key}"
    if head_dim == 1:
        raise config.refuse("its heads are one element wide")  # a rotary embedding makes keys of two of them
    return Heads(hidden=hidden, q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim)


def read_context(config: ConfigReader, key: str = "max_position_embeddings") -> int | None:
    """The context the config declares, or None. Rope scaling never multiplies it: it is already the scaled one."""
    return config.optional(key, field="trained_context_tokens", smallest=1)


def typed_caches(
    config: ConfigReader, types: Sequence[str], full: FullAttention, window: int | None, chunk: int | None = None
) -> list[CacheKind]:
    """Caches of layers named "full_attention", "sliding_attention" or "chunked_attention". Raises
    UnsupportedArchitecture for another name."""
    caches: list[CacheKind] = []
    shape = {"num_kv_heads": full.num_kv_heads, "key_dim": full.key_dim, "value_dim": full.value_dim}
    for layer_type in types:
        if layer_type in ("full_attention", "attention"):
            caches.append(full)
        elif layer_type == "sliding_attention" and window is not None:
            caches.append(SlidingWindow(**shape, window_tokens=window))
        elif layer_type == "chunked_attention" and chunk is not None:
            caches.append(ChunkedAttention(**shape, chunk_tokens=chunk))
        else:
            raise config.refuse(f"its layer_types name a layer {layer_type!r}")
    return caches


def refuse_single_rotary(config: ConfigReader, head_dim: int, default_factor: float) -> None:
    """Refuse a partial rotary embedding over a single element, which transformers 5.24.0 broadcasts to two: its keys
    come out wider than head_dim."""
    rope = config.config.get("rope_parameters")
    stated = rope.get("partial_rotary_factor") if isinstance(rope, Mapping) else None
    for name in ("partial_rotary_factor", "rotary_pct"):
        stated = config.config.get(name) if stated is None else stated
    factor = default_factor if stated is None else stated
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 <= factor <= 1:
        raise config.malformed("partial_rotary_factor", "a number from 0 to 1 was expected")
    if int(head_dim * factor) == 1:
        raise config.refuse("its rotary embedding covers one element of a head")


def library_caches(config: ConfigReader, full: FullAttention, num_layers: int) -> list[CacheKind | None]:
    """What transformers' cache holds for layers whose attention has no window: DynamicCache goes by layer_types, else
    by the mere presence of sliding_window or attention_chunk_size in the config. None: the same as the layer."""
    types = config.layer_types(num_layers)
    window = config.optional("sliding_window", smallest=1)
    chunk = config.optional("attention_chunk_size", smallest=1)
    if types is None:
        name = "sliding_attention" if window else "chunked_attention" if chunk else "full_attention"
        types = (name,) * num_layers
    caches = typed_caches(config, types, full, window, chunk)
    return [None if cache == full else cache for cache in caches]


def attention_layers(
    caches: Sequence[CacheKind],
    q_heads: int,
    ffn: DenseFfn | MoeFfn | Sequence[DenseFfn | MoeFfn | None] | None,
    library: Sequence[CacheKind | tuple[CacheKind, ...] | None] | None = None,
) -> tuple[LayerSpec, ...]:
    """Layers with these caches; ``ffn`` for all, or one each; ``library``: what transformers keeps instead."""
    return tuple(
        LayerSpec(
            index=index,
            cache=cache,
            num_q_heads=q_heads,
            ffn=ffn[index] if isinstance(ffn, Sequence) else ffn,
            transformers_cache=None if library is None else library[index],
        )
        for index, cache in enumerate(caches)
    )


def full_attention_model(
    config: ConfigReader,
    family: str,
    heads: Heads,
    num_layers: int,
    width: int,
    weights: Sequence[WeightGroup],
    *,
    context: int | None,
    caches: Sequence[CacheKind] | None = None,
    library: Sequence[CacheKind | None] | None = None,
    tied: bool | None = None,
) -> Architecture:
    """A model of equal layers with a dense feed-forward of ``width``. ``caches``: one per layer (default: full
    attention). ``library``: what transformers keeps instead; None: its cache goes by stray keys of the config.
    ``tied``: where tie_word_embeddings alone does not say."""
    if caches is None:
        caches = [heads.full] * num_layers
    if library is None:
        library = library_caches(config, heads.full, num_layers)
    return Architecture(
        family=family,
        layers=attention_layers(caches, heads.q_heads, DenseFfn(width=width), library),
        weights=tuple(weights),
        vocab_size=config.number("vocab_size"),
        hidden_size=heads.hidden,
        trained_context_tokens=context,
        is_tied=config.flag("tie_word_embeddings") if tied is None else tied,
    )
