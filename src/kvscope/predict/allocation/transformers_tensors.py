"""What transformers' cache holds for each kind of layer, tensor by tensor. Rules of transformers 5.24.0, measured
(tests/golden/transformers/README.md); how the tensors become bytes at a length is in transformers.py.
"""

from dataclasses import dataclass, replace
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
from kvscope.predict.growth import GrowthLaw, round_up
from kvscope.predict.prediction import CacheTensor, Component
from kvscope.scenario import Phase

# Recurrent states that the library keeps in the model's own format; every other form is float32. Whole numbers stay so.
MODEL_DTYPE_FORMS = frozenset({"lightning", "short_conv", "xlstm", "cca", "ngram"})
# Forms of which no more columns are kept than the convolution needs: its taps - 1.
NEEDED_COLUMN_FORMS = frozenset({"rg_lru", "rwkv", "cca"})


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTensor:
    """``shape``: of one sequence; its ``token_axis`` (None: there is none) counts tokens. ``window``: the last
    window - 1 of them are kept (all where it is 1, whose slice starts at -0). ``block``: it counts finished blocks of
    so many tokens instead, or (``unfinished``) the tokens since the last. ``from_tokens``: absent below this length.
    ``padding``: (tokens, multiple): a longer prefill leaves a storage of a multiple. ``stepped``: the storage's shape
    after a step of a single token, if another. ``expanded``: after a prefill, one number per token stands for all of
    them and for all sequences. ``prefix``: positions that are there besides the tokens."""

    name: str
    component: Component
    shape: tuple[int, ...]
    dtype: Dtype
    token_axis: int | None = None
    window: int | None = None
    block: int | None = None
    unfinished: bool = False
    from_tokens: int = 0
    padding: tuple[int, int] | None = None
    stepped: tuple[int, ...] | None = None
    expanded: bool = False
    prefix: int = 0

    def law(self, sequences: int) -> GrowthLaw:
        """Bytes by shape at every length."""
        return _law(self, sequences)

    def storage_tokens(self, held: int, tokens: int, phase: Phase) -> int:
        """Places along the token axis that the storage behind ``held`` ones keeps alive."""
        if self.window is not None and self.window > 1:
            return tokens if phase == "prefill" else min(tokens, self.window)
        if self.block is not None and self.unfinished:
            return tokens if phase == "prefill" else held or min(tokens, self.block)
        if self.padding is not None and phase == "prefill" and held and tokens > self.padding[0]:
            return round_up(tokens, self.padding[1])
        return held


@lru_cache(maxsize=4096)
def _law(tensor: KeptTensor, sequences: int) -> GrowthLaw:
    row = [size for axis, size in enumerate(tensor.shape) if axis != tensor.token_axis]
    num_bytes = shape_bytes(row, tensor.dtype) * sequences
    if tensor.token_axis is None:
        return GrowthLaw(fixed_bytes=num_bytes, from_tokens=tensor.from_tokens)
    return GrowthLaw(
        fixed_bytes=num_bytes * tensor.prefix,
        bytes_per_token=num_bytes,
        cap_tokens=tensor.window - 1 if tensor.window is not None and tensor.window > 1 else None,
        step_tokens=tensor.block or 1,
        per_step=tensor.block is not None and not tensor.unfinished,
        unfinished=tensor.unfinished,
        from_tokens=tensor.from_tokens,
    )


@lru_cache(maxsize=1024)  # a model has few different layers, and is asked about many times
def kept_tensors(cache: CacheKind, dtype: Dtype) -> tuple[KeptTensor, ...]:
    """The tensors of one layer's cache, for one sequence."""
    match cache:
        case FullAttention():
            pair = _pair(cache.num_kv_heads, cache.key_dim, cache.value_dim, dtype, None)
            return (
                tuple(replace(tensor, prefix=cache.prefix_tokens) for tensor in pair) if cache.prefix_tokens else pair
            )
        case SlidingWindow():
            return _pair(cache.num_kv_heads, cache.key_dim, cache.value_dim, dtype, cache.window_tokens)
        case ChunkedAttention():
            return _pair(cache.num_kv_heads, cache.key_dim, cache.value_dim, dtype, cache.chunk_tokens)
        case LatentAttention():
            return _pair(1, cache.latent_dim, cache.rope_dim, dtype, cache.window_tokens)
        case IndexedAttention():
            return (*kept_tensors(cache.main, dtype), *_index(cache, dtype))
        case CompressedAttention():
            return _compressed(cache, dtype)
        case RecurrentState():
            return _recurrent(cache, dtype)
        case HybridCache():
            return (*kept_tensors(cache.attention, dtype), *_recurrent(cache.recurrent, dtype))
        case CrossAttention():
            return _cross(cache, dtype)
        case SharedCache() | NoCache():
            return ()
        case HiddenStateMemory():
            return _hidden_states(cache, dtype)
        case _:
            assert_never(cache)


def _pair(heads: int, key_dim: int, value_dim: int, dtype: Dtype, window: int | None) -> tuple[KeptTensor, ...]:
    return tuple(
        KeptTensor(name=name, component="kv_cache", shape=(heads, 0, width), dtype=dtype, token_axis=1, window=window)
        for name, width in (("keys", key_dim), ("values", value_dim))
    )


def _cross(cache: CrossAttention, dtype: Dtype) -> tuple[KeptTensor, ...]:
    """EncoderDecoderCache's other half, as long as the other input is; nothing where that is not stated."""
    if cache.source_tokens is None:
        return ()
    return tuple(
        KeptTensor(name=name, component="kv_cache", shape=(cache.num_kv_heads, cache.source_tokens, width), dtype=dtype)
        for name, width in (("cross_keys", cache.key_dim), ("cross_values", cache.value_dim))
    )


def _rows(name: str, width: int, dtype: Dtype, component: Component = "kv_cache") -> KeptTensor:
    """A tensor [tokens, width]."""
    return KeptTensor(name=name, component=component, shape=(0, width), dtype=dtype, token_axis=0)


def _compressed(cache: CompressedAttention, dtype: Dtype) -> tuple[KeptTensor, ...]:
    """DeepseekV4HCACache and, with overlapping entries and an index, DeepseekV4CSACache."""
    keys = KeptTensor(
        name="keys",
        component="kv_cache",
        shape=(1, 0, cache.entry_dim),
        dtype=dtype,
        token_axis=1,
        window=cache.window_tokens,
    )
    if cache.rate_tokens is None:
        return (keys,)
    tensors, rate, factor = [keys], cache.rate_tokens, 2 if cache.overlaps else 1
    rows: list[tuple[str, int, Component]] = [("compressor", cache.entry_dim, "kv_cache")]
    if cache.index_dim is not None:
        rows.append(("indexer", cache.index_dim, "index_cache"))
    for name, width, component in rows:
        for buffer in ("buffer_kv", "buffer_gate"):
            inputs = _rows(f"{buffer}.{name}", factor * width, dtype)
            tensors.append(replace(inputs, block=rate, unfinished=True))
        tensors.append(replace(_rows(f"compressed_kv.{name}", width, dtype, component), block=rate))
        if cache.overlaps:
            # The gate has had a float32 bias added.
            for kept, element in (("overlap_kv", dtype), ("overlap_gate", dtype_named("float32"))):
                last = KeptTensor(
                    name=f"{kept}.{name}", component="kv_cache", shape=(rate, width), dtype=element, from_tokens=rate
                )
                tensors.append(last)
    return tuple(tensors)


def _hidden_states(cache: HiddenStateMemory, dtype: Dtype) -> tuple[KeptTensor, ...]:
    window = None if cache.memory_tokens is None else cache.memory_tokens + 1
    tensors = [replace(_rows("hidden_states", cache.width, dtype), window=window, padding=cache.padding)]
    if cache.extra_row_bytes:
        extra = _rows("buckets", cache.extra_row_bytes // 8, dtype_named("int64"))
        tensors.append(replace(extra, window=window, padding=cache.padding, from_tokens=cache.extra_from_tokens))
    return tuple(tensors)


def late_buckets(tensor: KeptTensor, cache: HiddenStateMemory, tokens: int) -> KeptTensor:
    """Reformer's bucket numbers after single tokens that follow a prompt too short to be hashed: every token is hashed
    once ``extra_always_tokens`` are reached, and the numbers are float32. Up to ``extra_from_tokens`` the prompt was
    surely that short."""
    if tensor.name != "buckets" or tokens > cache.extra_from_tokens:
        return tensor
    return replace(tensor, dtype=dtype_named("float32"), from_tokens=cache.extra_always_tokens)


def _index(cache: IndexedAttention, dtype: Dtype) -> tuple[KeptTensor, ...]:
    index_dtype = dtype_named(cache.index_dtype) if cache.index_dtype else dtype
    keys = _rows("indexer_keys", cache.index_dim, index_dtype, "index_cache")
    if not cache.position_rows:
        return (keys,)
    positions = _rows("indexer_position_ids", cache.position_rows, dtype_named("int64"), "index_cache")
    return (keys, replace(positions, expanded=True))


def _recurrent(cache: RecurrentState, dtype: Dtype) -> tuple[KeptTensor, ...]:
    tensors = []
    if cache.conv_channels:
        conv = dtype_named(cache.conv_dtype) if cache.conv_dtype else dtype
        columns = cache.conv_kernel - 1 if cache.form in NEEDED_COLUMN_FORMS else cache.conv_kernel
        stepped = (cache.conv_channels, columns + 1) if cache.form == "rg_lru" else None
        shape = (cache.conv_channels, columns)
        tensors.append(
            KeptTensor(name="conv_states", component="recurrent_state", shape=shape, dtype=conv, stepped=stepped)
        )
    own_dtype = dtype if cache.form in MODEL_DTYPE_FORMS else dtype_named("float32")
    for state in cache.states:
        element = dtype_named(state.dtype) if state.dtype == "int64" else own_dtype
        tensors.append(KeptTensor(name=state.name, component="recurrent_state", shape=state.shape, dtype=element))
    return tuple(tensors)


@lru_cache(maxsize=4096)
def held_tensor(tensor: KeptTensor, tokens: int, sequences: int, phase: Phase) -> CacheTensor:
    """The tensor by shape, and what its storage keeps alive."""
    shape, storage = list(tensor.shape), list(tensor.shape)
    if tensor.token_axis is not None:
        held = tensor.law(sequences).held_tokens(tokens)
        shape[tensor.token_axis] = tensor.prefix + held
        storage[tensor.token_axis] = tensor.prefix + tensor.storage_tokens(held, tokens, phase)
    elif tokens < tensor.from_tokens:
        shape = storage = [0 for _ in shape]
    elif tensor.stepped is not None and (phase == "decode" or tokens == 1):
        storage = list(tensor.stepped)
    storage_bytes = shape_bytes(storage, tensor.dtype) * sequences
    if tensor.expanded and phase == "prefill":
        storage_bytes = shape_bytes([tokens], tensor.dtype)
    return CacheTensor(
        name=tensor.name,
        shape=(sequences, *shape),
        dtype=tensor.dtype.name,
        num_bytes=shape_bytes(shape, tensor.dtype) * sequences,
        component=tensor.component,
        storage_bytes=storage_bytes,
    )


def shape_bytes(shape: list[int], dtype: Dtype) -> int:
    """Bytes of a tensor of this shape."""
    elements = 1
    for size in shape:
        elements *= size
    return row_bytes(dtype, elements)
