"""A GGUF's layers: each with its cache and its feed-forward, from the keys of its architecture.

Which layer is of which kind follows llama.cpp b11549's reading of the same keys (tests/golden/llamacpp/README.md).
"""

from dataclasses import dataclass

from kvscope.model.gguf_keys import Keys
from kvscope.model.gguf_states import read_state
from kvscope.model.gguf_tensors import LayerTensors, feed_forward
from kvscope.model.layer_kinds import Family, sliding_layers
from kvscope.model.spec import (
    CacheKind,
    ChunkedAttention,
    FullAttention,
    HybridCache,
    LatentAttention,
    LayerSpec,
    NoCache,
    RecurrentState,
    SharedCache,
    SlidingWindow,
)

HEADS, KV_HEADS = "attention.head_count", "attention.head_count_kv"
KEY_DIM, VALUE_DIM = "attention.key_length", "attention.value_length"
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
SHARED = "attention.shared_kv_layers"
INTERVAL, DEFAULT_INTERVAL = "full_attention_interval", 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heads:
    """Per layer; ``kv_source``: where the key-value heads came from."""

    query: tuple[int, ...]
    kv: tuple[int, ...]
    kv_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Windows:
    """``tokens`` None: no layer has a window. ``source``: where the pattern came from, ``width_source`` the width."""

    tokens: int | None
    slides: tuple[bool, ...]
    source: str
    width_source: str = ""


def read_layers(
    keys: Keys, family: Family, num_layers: int, hidden_size: int, tensors: LayerTensors
) -> tuple[LayerSpec, ...]:
    """Raises MissingField, MalformedFile, UnsupportedArchitecture."""
    if family.recurrent == "all":
        heads = _Heads(query=(0,) * num_layers, kv=(0,) * num_layers, kv_source=f"{family.name} has no attention")
    else:
        heads = _read_heads(keys, num_layers)
    widths = _widths(keys, family, num_layers)
    is_recurrent = _recurrent_layers(keys, family, heads, widths, num_layers)
    state = read_state(keys, family, hidden_size, heads.query) if family.state is not None else None
    caches = _attention_caches(keys, family, heads, hidden_size, num_layers) if family.recurrent != "all" else None
    layers = []
    for index in range(num_layers):
        attention: CacheKind = NoCache() if caches is None else caches[index]
        cache = _layer_cache(keys, family, index, attention, state if is_recurrent[index] else None)
        width = None if widths is None else widths[index]
        ffn = feed_forward(keys, tensors, index, width)
        layers.append(LayerSpec(index=index, cache=cache, num_q_heads=heads.query[index], ffn=ffn))
        _note_layer(keys, family, index, cache, heads)
    return tuple(layers)


def _layer_cache(
    keys: Keys, family: Family, index: int, attention: CacheKind, state: RecurrentState | None
) -> CacheKind:
    if state is None:
        return attention
    if family.recurrent != "both":
        return state
    if not isinstance(attention, FullAttention):
        raise keys.malformed(KV_HEADS, f"layer {index} has no key-value heads; in {family.name} every layer has some")
    return HybridCache(attention=attention, recurrent=state)


def _read_heads(keys: Keys, num_layers: int) -> _Heads:
    query = keys.per_layer(HEADS, "num_q_heads", num_layers)
    kv = keys.optional_per_layer(KV_HEADS, num_layers)
    if kv is None:
        source = f"derived: equal to {keys.name(HEADS)} (key absent)"
        return _Heads(query=query, kv=query, kv_source=source)
    for index, (queries, shared) in enumerate(zip(query, kv, strict=True)):
        if queries and shared and queries % shared:  # ggml asserts it
            problem = f"{queries} query heads of layer {index} cannot share {shared} key heads"
            raise keys.malformed(KV_HEADS, f"{problem}; a divisor of {queries} was expected")
    return _Heads(query=query, kv=kv, kv_source=keys.where(KV_HEADS))


def _widths(keys: Keys, family: Family, num_layers: int) -> tuple[int, ...] | None:
    key = "feed_forward_length"
    is_optional = family.recurrent != "none" or keys.optional("expert_feed_forward_length")
    if is_optional:
        return keys.optional_per_layer(key, num_layers)
    return keys.per_layer(key, "ffn.width", num_layers)


def _recurrent_layers(
    keys: Keys, family: Family, heads: _Heads, widths: tuple[int, ...] | None, num_layers: int
) -> tuple[bool, ...]:
    match family.recurrent:
        case "none":
            return (False,) * num_layers
        case "all" | "both":
            return (True,) * num_layers
        case "no_kv_heads":
            return tuple(kv == 0 for kv in heads.kv)
        case "no_kv_heads_no_ffn":
            if widths is None:
                widths = keys.per_layer("feed_forward_length", "which layers are recurrent", num_layers)
            if any(kv and width for kv, width in zip(heads.kv, widths, strict=True)):
                raise keys.malformed(
                    KV_HEADS, "a layer has key-value heads and a feed-forward; one of them was expected"
                )
            return tuple(kv == 0 and width == 0 for kv, width in zip(heads.kv, widths, strict=True))
        case "interval":
            interval = keys.optional(INTERVAL)
            if interval == 0:
                raise keys.malformed(INTERVAL, "the value is 0; a whole number from 1 up was expected")
            found = sliding_layers(interval or DEFAULT_INTERVAL, num_layers)
            if not all(is_recurrent or kv for is_recurrent, kv in zip(found, heads.kv, strict=True)):
                raise keys.malformed(KV_HEADS, "an attention layer has no key-value heads")
            return found


def _attention_caches(
    keys: Keys, family: Family, heads: _Heads, hidden_size: int, num_layers: int
) -> tuple[CacheKind, ...]:
    if family.is_latent:
        return _latent_caches(keys, heads)
    windows = _read_windows(keys, family, num_layers)
    dims = _head_dims(keys, hidden_size, heads)
    swa = dims
    if f"{KEY_DIM}_swa" in family.handled:
        swa = keys.number(f"{KEY_DIM}_swa", "heads.key_dim_swa"), keys.number(f"{VALUE_DIM}_swa", "heads.value_dim_swa")
    caches: list[CacheKind] = []
    for index, kv_heads in enumerate(heads.kv):
        slides = windows.slides[index]
        key_dim, value_dim = swa if slides else dims
        width = windows.tokens if slides else None
        caches.append(_cache(family, kv_heads, key_dim, value_dim, width))
        source = windows.source
        keys.sources[f"layers[{index}].cache"] = source
        if slides and windows.width_source:
            name = "chunk_tokens" if family.windows == "chunked" else "window_tokens"
            keys.sources[f"layers[{index}].{name}"] = windows.width_source
    return _share(keys, family, caches, windows.slides)


def _cache(family: Family, kv_heads: int, key_dim: int, value_dim: int, width: int | None) -> CacheKind:
    if kv_heads == 0:
        return NoCache()
    if width is None:
        return FullAttention(num_kv_heads=kv_heads, key_dim=key_dim, value_dim=value_dim)
    if family.windows == "chunked":
        return ChunkedAttention(num_kv_heads=kv_heads, key_dim=key_dim, value_dim=value_dim, chunk_tokens=width)
    return SlidingWindow(num_kv_heads=kv_heads, key_dim=key_dim, value_dim=value_dim, window_tokens=width)


def _share(keys: Keys, family: Family, caches: list[CacheKind], slides: tuple[bool, ...]) -> tuple[CacheKind, ...]:
    """The last ``shared_kv_layers`` layers read an earlier layer's cache: sliding ones that of the last but one of the
    layers before them, full ones that of the last."""
    shared = keys.optional(SHARED) or 0
    if family.own_layers is not None:
        shared = max(0, len(caches) - family.own_layers)
    if not shared:
        return tuple(caches)
    own = len(caches) - shared
    if own < 2 or not slides[own - 2] or slides[own - 1]:
        raise keys.malformed(
            SHARED,
            f"{shared} of {len(caches)} layers would share, but the two before them are not one sliding, one full",
        )
    return (*caches[:own], *(SharedCache(layer_index=own - (2 if slides[i] else 1)) for i in range(own, len(caches))))


def _head_dims(keys: Keys, hidden_size: int, heads: _Heads) -> tuple[int, int]:
    found = []
    for name, key in (("key_dim", KEY_DIM), ("value_dim", VALUE_DIM)):
        if keys.has(key):
            found.append(keys.number(key, f"heads.{name}"))
            continue
        first = heads.query[0]
        if first == 0 or hidden_size % first:
            raise keys.malformed(HEADS, f"{first} heads do not divide {hidden_size}, and {keys.name(key)} is absent")
        found.append(hidden_size // first)
        keys.sources[f"heads.{name}"] = f"derived: embedding_length {hidden_size} / head_count {first}"
    return found[0], found[1]


def _latent_caches(keys: Keys, heads: _Heads) -> tuple[CacheKind, ...]:
    """MLA. With the ``_mla`` keys a file has one latent of key_length = kv_lora_rank + rotary elements a token; without
    them llama.cpp keeps the per-head keys and values that are computed from it."""
    latent = keys.number("attention.kv_lora_rank", "latent_dim")
    rope = keys.number("rope.dimension_count", "rope_dim")
    key_dim = keys.number(KEY_DIM, "heads.key_dim")
    value_dim = keys.number(VALUE_DIM, "heads.value_dim")
    stated = [keys.optional(f"{key}_mla") for key in (KEY_DIM, VALUE_DIM)]
    if (stated[0] is None) != (stated[1] is None):
        raise keys.malformed(f"{KEY_DIM}_mla", "only one of key_length_mla and value_length_mla is there")
    is_compressed = bool(stated[0])
    if is_compressed and (key_dim, value_dim) != (latent + rope, latent):
        problem = f"{key_dim} and {value_dim}; kv_lora_rank {latent} (+ {rope} rotary elements for keys) was expected"
        raise keys.malformed(KEY_DIM, f"key and value length are {problem}")
    if is_compressed and set(heads.kv) - {0, 1}:
        raise keys.malformed(KV_HEADS, f"{max(heads.kv)} heads; one latent was expected")
    caches: list[CacheKind] = []
    for index, kv_heads in enumerate(heads.kv):
        expanded = None
        if not is_compressed:
            expanded = FullAttention(num_kv_heads=kv_heads, key_dim=key_dim, value_dim=value_dim)
        keys.sources[f"layers[{index}].cache"] = f"{keys.where('attention.kv_lora_rank')}: latent attention"
        caches.append(LatentAttention(latent_dim=latent, rope_dim=rope, expanded=expanded) if kv_heads else NoCache())
    return tuple(caches)


def _read_windows(keys: Keys, family: Family, num_layers: int) -> _Windows:
    none = (False,) * num_layers
    if family.windowed_depth not in (None, num_layers):
        source = f"llama.cpp gives windows only to {family.name} models of {family.windowed_depth} layers"
        return _Windows(tokens=None, slides=none, source=source)
    if family.windows == "none" or (family.windows == "chunked" and keys.optional(WINDOW) == 0):
        return _Windows(tokens=None, slides=none, source=f"every layer of {family.name} is full attention")
    tokens, width_source = _window_tokens(keys, family)
    if tokens is None:
        return _Windows(tokens=None, slides=none, source=f"{width_source}: every layer is full attention")
    if family.windows == "all":
        slides, source = (True,) * num_layers, f"every layer of {family.name} slides"
    elif keys.has(PATTERN) or family.windows == "stated":
        slides, source = _stated_pattern(keys, family, num_layers), keys.where(PATTERN)
    else:
        source = f"every {family.period}th layer of {family.name} is full, the others slide"
        slides = sliding_layers(family.period, num_layers)
    return _Windows(tokens=tokens, slides=slides, source=source, width_source=width_source)


def _window_tokens(keys: Keys, family: Family) -> tuple[int | None, str]:
    """The window's (or chunk's) width and where it came from; None: there is no window, and why."""
    key = "attention.chunk_size" if family.windows == "chunked" else WINDOW
    value = keys.optional(key)
    if family.window_is_optional and not value:
        return None, f"no {keys.name(key)}" if value is None else f"{keys.name(key)} = 0"
    if value is None and family.default_window is not None:
        return family.default_window, f"llama.cpp's value for {family.name} (no {keys.name(key)})"
    return keys.number(key, "window_tokens"), keys.where(key)


def _stated_pattern(keys: Keys, family: Family, num_layers: int) -> tuple[bool, ...]:
    """A period (every n-th layer is full) or one truth value per layer (true: slides)."""
    value = keys.value(PATTERN, "its sliding layers")
    if isinstance(value, tuple) or family.windows == "stated":
        return keys.truths(PATTERN, "its sliding layers", num_layers)
    period = keys.whole(value, PATTERN)
    if period < 2:
        raise keys.malformed(PATTERN, f"the period is {period}; 2 or more was expected")
    return sliding_layers(period, num_layers)


def _note_layer(keys: Keys, family: Family, index: int, cache: CacheKind, heads: _Heads) -> None:
    sources = keys.sources
    prefix = f"layers[{index}]"
    if keys.has("feed_forward_length"):
        sources[f"{prefix}.ffn.width"] = keys.where("feed_forward_length")
    if family.recurrent != "all":
        sources[f"{prefix}.num_q_heads"] = keys.where(HEADS)
        sources[f"{prefix}.num_kv_heads"] = heads.kv_source
    if isinstance(cache, RecurrentState):
        sources[f"{prefix}.cache"] = f"{family.name}: a {family.state} state (layer kind: {family.recurrent})"
    for name in ("key_dim", "value_dim"):
        suffix = "_swa" if isinstance(cache, SlidingWindow) and f"heads.{name}_swa" in sources else ""
        if f"heads.{name}{suffix}" in sources and not isinstance(cache, RecurrentState):
            sources[f"{prefix}.{name}"] = sources[f"heads.{name}{suffix}"]
