"""Bytes a layer's cache needs, one formula per kind of cache. Engine-free: what an engine reserves on top, and what it
keeps otherwise, is in allocation/.

A layer's cache is a tuple of parts; a part is one tensor that grows with the tokens or stays as it is.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import assert_never

from kvscope.dtypes import Dtype, dtype_named, row_bytes
from kvscope.model.spec import (
    CacheKind,
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    FullAttention,
    HiddenStateMemory,
    HybridCache,
    IndexedAttention,
    LatentAttention,
    NoCache,
    RecurrentState,
    SharedCache,
    SlidingWindow,
)
from kvscope.predict.growth import GrowthLaw, constant
from kvscope.predict.prediction import CacheTensor, Component

Attention = FullAttention | SlidingWindow | ChunkedAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePart:
    """One tensor of a layer's cache, for one sequence. ``shape``: without the sequences; the token dimension, if it has
    one, is ``token_axis`` (and its entry 0 here). ``law``: its bytes at every length. ``prefix_tokens``: positions that
    are there besides the tokens."""

    name: str
    component: Component
    dtype: str
    shape: tuple[int, ...]
    law: GrowthLaw
    token_axis: int | None = None
    prefix_tokens: int = 0

    def tensor(self, tokens: int, num_sequences: int) -> CacheTensor:
        """The tensor at this length, for ``num_sequences`` equal sequences."""
        shape = list(self.shape)
        if self.token_axis is not None:
            shape[self.token_axis] = self.prefix_tokens + self.law.held_tokens(tokens)
        return CacheTensor(
            name=self.name,
            shape=(num_sequences, *shape),
            dtype=self.dtype,
            num_bytes=self.law.bytes_at(tokens) * num_sequences,
            component=self.component,
        )


@lru_cache(maxsize=1024)  # a model has few different layers, and is asked about many times
def needed_parts(
    cache: CacheKind, key_dtype: Dtype, value_dtype: Dtype, state_dtype: Dtype | None = None
) -> tuple[CachePart, ...]:
    """What one layer must keep for one sequence.

    Keys and values: num_kv_heads × (key_dim + value_dim) elements per token; a window or chunk stops the growth at its
    width. MLA: latent_dim + rope_dim elements per token (DeepSeek-V2, arXiv 2405.04434, section 2.1). A convolution of
    k taps: its last k - 1 columns. ``state_dtype``: the format of recurrent state whose model leaves it open (default:
    ``key_dtype``). Raises UsageError when a quantised format does not divide a row.
    """
    state_dtype = state_dtype or key_dtype
    match cache:
        case FullAttention():
            return _keys_and_values(cache, key_dtype, value_dtype, None)
        case SlidingWindow():
            return _keys_and_values(cache, key_dtype, value_dtype, cache.window_tokens)
        case ChunkedAttention():
            return _keys_and_values(cache, key_dtype, value_dtype, cache.chunk_tokens)
        case LatentAttention():
            return (token_part("latent", 1, cache.latent_dim + cache.rope_dim, key_dtype, cap=cache.window_tokens),)
        case IndexedAttention():
            return (*needed_parts(cache.main, key_dtype, value_dtype, state_dtype), _index_keys(cache, key_dtype))
        case CompressedAttention():
            return _compressed(cache, key_dtype)
        case RecurrentState():
            return _recurrent(cache, state_dtype)
        case HybridCache():
            return (
                *needed_parts(cache.attention, key_dtype, value_dtype, state_dtype),
                *_recurrent(cache.recurrent, state_dtype),
            )
        case CrossAttention():
            return _cross(cache, key_dtype, value_dtype)
        case HiddenStateMemory():
            return _hidden_states(cache, key_dtype)
        case SharedCache() | NoCache():
            return ()
        case _:
            assert_never(cache)


def token_part(
    name: str,
    heads: int,
    width: int,
    dtype: Dtype,
    *,
    cap: int | None = None,
    component: Component = "kv_cache",
    prefix: int = 0,
) -> CachePart:
    """A tensor [heads, tokens, width], at most ``cap`` tokens long, with ``prefix`` positions before them."""
    row = row_bytes(dtype, heads * width)
    law = GrowthLaw(fixed_bytes=row * prefix, bytes_per_token=row, cap_tokens=cap)
    return CachePart(
        name=name,
        component=component,
        dtype=dtype.name,
        shape=(heads, 0, width),
        law=law,
        token_axis=1,
        prefix_tokens=prefix,
    )


def fixed_part(
    name: str, shape: tuple[int, ...], dtype: Dtype, *, component: Component = "recurrent_state"
) -> CachePart:
    """A tensor whose shape does not depend on the tokens."""
    elements = 1
    for size in shape:
        elements *= size
    return CachePart(
        name=name, component=component, dtype=dtype.name, shape=shape, law=constant(row_bytes(dtype, elements))
    )


def _keys_and_values(cache: Attention, key_dtype: Dtype, value_dtype: Dtype, cap: int | None) -> tuple[CachePart, ...]:
    prefix = cache.prefix_tokens if isinstance(cache, FullAttention) else 0
    return (
        token_part("keys", cache.num_kv_heads, cache.key_dim, key_dtype, cap=cap, prefix=prefix),
        token_part("values", cache.num_kv_heads, cache.value_dim, value_dtype, cap=cap, prefix=prefix),
    )


def _index_keys(cache: IndexedAttention, dtype: Dtype) -> CachePart:
    row = cache.index_row_bytes if cache.index_row_bytes is not None else row_bytes(dtype, cache.index_dim)
    name = dtype.name if cache.index_row_bytes is None else "float8_e4m3fn"
    return CachePart(
        name="index_keys",
        component="index_cache",
        dtype=name,
        shape=(0, cache.index_dim),
        law=GrowthLaw(bytes_per_token=row),
        token_axis=0,
    )


def _compressed(cache: CompressedAttention, dtype: Dtype) -> tuple[CachePart, ...]:
    """The window, one entry (and index key) per finished block, and the inputs of the block that is being filled: as
    much as a whole block needs, since it fills and empties as tokens come. An input is a value and a gate per element;
    overlapping entries need twice as wide ones, and half of the block before."""
    parts = [token_part("window", 1, cache.entry_dim, dtype, cap=cache.window_tokens)]
    if cache.rate_tokens is None:
        return tuple(parts)
    rate = cache.rate_tokens
    rows: list[tuple[str, str, int, Component]] = [("compressed", "block_inputs", cache.entry_dim, "kv_cache")]
    if cache.index_dim is not None:
        rows.append(("index_keys", "index_block_inputs", cache.index_dim, "index_cache"))
    for entries, inputs, width, component in rows:
        law = GrowthLaw(bytes_per_token=row_bytes(dtype, width), step_tokens=rate, per_step=True)
        parts.append(
            CachePart(name=entries, component=component, dtype=dtype.name, shape=(0, width), law=law, token_axis=0)
        )
        blocks_of_one_width = 3 if cache.overlaps else 1
        parts.append(fixed_part(inputs, (2, blocks_of_one_width, rate, width), dtype))
    return tuple(parts)


def _hidden_states(cache: HiddenStateMemory, dtype: Dtype) -> tuple[CachePart, ...]:
    parts = [
        CachePart(
            name="hidden_states",
            component="kv_cache",
            dtype=dtype.name,
            shape=(0, cache.width),
            law=GrowthLaw(bytes_per_token=row_bytes(dtype, cache.width), cap_tokens=cache.memory_tokens),
            token_axis=0,
        )
    ]
    if cache.extra_row_bytes:
        law = GrowthLaw(
            bytes_per_token=cache.extra_row_bytes, cap_tokens=cache.memory_tokens, from_tokens=cache.extra_from_tokens
        )
        shape = (cache.extra_row_bytes // 8, 0)
        parts.append(CachePart(name="buckets", component="kv_cache", dtype="int64", shape=shape, law=law, token_axis=1))
    return tuple(parts)


def _recurrent(cache: RecurrentState, dtype: Dtype) -> tuple[CachePart, ...]:
    parts = []
    if cache.conv_channels:
        conv = dtype_named(cache.conv_dtype) if cache.conv_dtype else dtype
        parts.append(fixed_part("conv_state", (cache.conv_channels, cache.conv_kernel - 1), conv))
    for state in cache.states:
        element = dtype_named(state.dtype) if state.dtype else dtype
        parts.append(fixed_part(state.name, state.shape, element))
    return tuple(parts)


def _cross(cache: CrossAttention, key_dtype: Dtype, value_dtype: Dtype) -> tuple[CachePart, ...]:
    if cache.source_tokens is None:
        return ()
    return (
        fixed_part(
            "cross_keys", (cache.num_kv_heads, cache.source_tokens, cache.key_dim), key_dtype, component="kv_cache"
        ),
        fixed_part(
            "cross_values",
            (cache.num_kv_heads, cache.source_tokens, cache.value_dim),
            value_dtype,
            component="kv_cache",
        ),
    )


def needed_by_layer(cache: CacheKind, key_dtype: Dtype, value_dtype: Dtype) -> GrowthLaw:
    """One law for the whole attention cache of a layer whose parts grow together (keys and values, or one latent): for
    engines that allocate them in one cell. Layers of other kinds have several laws: see ``needed_parts``."""
    laws = [part.law for part in needed_parts(cache, key_dtype, value_dtype)]
    caps = {law.cap_tokens for law in laws}
    if not laws:
        return constant(0)
    assert len(caps) == 1, "parts that grow differently have no common law"
    return GrowthLaw(
        fixed_bytes=sum(law.fixed_bytes for law in laws),
        bytes_per_token=sum(law.bytes_per_token for law in laws),
        cap_tokens=caps.pop(),
    )


def kind_name(cache: CacheKind) -> str:
    """The kind's name in JSON and on screen."""
    match cache:
        case FullAttention():
            return "full_attention"
        case SlidingWindow():
            return "sliding_window"
        case ChunkedAttention():
            return "chunked_attention"
        case LatentAttention():
            return "latent_attention"
        case IndexedAttention():
            return f"{kind_name(cache.main)}_indexed"
        case CompressedAttention():
            return "compressed_attention"
        case RecurrentState():
            return f"recurrent_{cache.form}"
        case HybridCache():
            return f"{kind_name(cache.attention)}+{kind_name(cache.recurrent)}"
        case CrossAttention():
            return "cross_attention"
        case HiddenStateMemory():
            return "hidden_state_memory"
        case SharedCache():
            return "shared_cache"
        case NoCache():
            return "no_cache"
        case _:
            assert_never(cache)
