"""Bytes a layer's cache needs per token, one formula per kind of cache. Engine-free: what an engine reserves on top is
in allocation/."""

from typing import assert_never

from kvscope.dtypes import Dtype, row_bytes
from kvscope.errors import UnsupportedArchitecture
from kvscope.model.spec import (
    CacheKind,
    ChunkedAttention,
    FullAttention,
    LatentAttention,
    NoCache,
    RecurrentState,
    SharedCache,
    SlidingWindow,
)
from kvscope.predict.growth import GrowthLaw, constant

Attention = FullAttention | SlidingWindow | ChunkedAttention


def needed_by_layer(cache: CacheKind, key_dtype: Dtype, value_dtype: Dtype) -> GrowthLaw:
    """The law of one layer's cache for one sequence, in bytes of its tokens.

    Keys and values: num_kv_heads × (key_dim + value_dim) elements per token. A window or chunk stops the growth at its
    width. Raises UnsupportedArchitecture for recurrent state, whose format is the engine's choice; UsageError when a
    quantised format does not divide the row.
    """
    match cache:
        case FullAttention():
            return GrowthLaw(bytes_per_token=token_bytes(cache, key_dtype, value_dtype))
        case SlidingWindow():
            return GrowthLaw(bytes_per_token=token_bytes(cache, key_dtype, value_dtype), cap_tokens=cache.window_tokens)
        case ChunkedAttention():
            return GrowthLaw(bytes_per_token=token_bytes(cache, key_dtype, value_dtype), cap_tokens=cache.chunk_tokens)
        case LatentAttention():
            return GrowthLaw(bytes_per_token=row_bytes(key_dtype, cache.latent_dim + cache.rope_dim))
        case RecurrentState():
            raise UnsupportedArchitecture(
                "Recurrent state is kept in a format that the engine chooses; kvscope has no rule for it yet.",
                hint="Use a model whose layers are attention layers.",
            )
        case SharedCache() | NoCache():
            return constant(0)
        case _:
            assert_never(cache)


def token_bytes(cache: Attention, key_dtype: Dtype, value_dtype: Dtype) -> int:
    """Bytes of one token's keys and values in one layer."""
    keys = row_bytes(key_dtype, cache.num_kv_heads * cache.key_dim)
    return keys + row_bytes(value_dtype, cache.num_kv_heads * cache.value_dim)


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
        case RecurrentState():
            return "recurrent_state"
        case SharedCache():
            return "shared_cache"
        case NoCache():
            return "no_cache"
        case _:
            assert_never(cache)
