"""The cache that transformers' ``generate`` keeps: DynamicCache(config). Rules of transformers 5.24.0, measured tensor
by tensor (tests/golden/transformers/README.md).

- Nothing is reserved: a tensor is as long as the tokens it holds.
- A sliding or chunked layer keeps the last window - 1 tokens. Straight after a prefill that is longer, the kept tensor
  is a view: its storage is the whole prompt's until the first decode step, which leaves a storage of window tokens.
- MLA keeps the latent ("keys") and the rotary key ("values"), each with one head.
- A convolution keeps as many columns as it has taps, from the first token on; recurrent matrices are float32 whatever
  the model's format.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from kvscope.dtypes import Dtype, dtype_named, row_bytes
from kvscope.errors import UsageError
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
    LayerSpec,
    ModelSpec,
    NoCache,
    RecurrentState,
    SharedCache,
    SlidingWindow,
)
from kvscope.predict.allocation.logical import cross_unknown
from kvscope.predict.growth import GrowthLaw, constant
from kvscope.predict.kv_cache import kind_name
from kvscope.predict.prediction import Asked, CacheTensor, Component, LayerCache, MemoryItem, Prediction, Unknown
from kvscope.predict.weights import needed_weights
from kvscope.scenario import Phase, SettingValue

VERSION = "transformers 5.24.0"
DEFAULT_DTYPE = "float32"
# Recurrent states that the library keeps in the model's own format; every other form is float32.
MODEL_DTYPE_FORMS = frozenset({"lightning", "short_conv"})
_LEFT_OUT: tuple[Component, ...] = ("compute_buffer", "output_buffer", "runtime", "host_cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """``tokens_axis`` of ``shape`` counts tokens; ``cap``: at most so many are kept; ``window``: the storage's."""

    name: str
    component: Component
    shape: tuple[int, ...]
    dtype: Dtype
    token_axis: int | None = None
    window: int | None = None


def predict_transformers(
    model: ModelSpec, asked: Asked, settings: Mapping[str, SettingValue], dtype: str | None
) -> Prediction:
    """Weights and cache of ``model.generate()``'s default cache."""
    if settings:
        raise UsageError(f"transformers has no setting {', '.join(sorted(settings))} that kvscope knows.")
    tokens = asked.tokens if asked.tokens is not None else model.trained_context_tokens
    if tokens is None:
        raise UsageError("The model's files do not state a trained context.", hint="Say how many tokens to count.")
    element = dtype_named(dtype or model.dtype or DEFAULT_DTYPE)
    weights, weights_unknown = needed_weights(model, element.name)
    layers, items = [], []
    for layer in model.layers:
        tensors = [
            (tensor, _held(tensor, tokens, asked.num_sequences, asked.phase))
            for tensor in _layer_tensors(layer, element)
        ]
        layers.append(
            LayerCache(index=layer.index, kind=kind_name(layer.cache), tensors=tuple(held for _, held in tensors))
        )
        items += [_item(layer, tensor, held, tokens, asked.num_sequences) for tensor, held in tensors]
    cross = cross_unknown(tuple(layer.cache for layer in model.layers))
    left_out = Unknown(
        what="engine", why="activations and the Python process depend on the run; total_bytes leaves them out"
    )
    return Prediction(
        model=model,
        scenario=asked.scenario("transformers", asked.engine_version or VERSION, tokens, {}),
        effective={"context_tokens": None, "context_per_sequence_tokens": None, "cache_dtype": element.name},
        items=(*weights, *items),
        layers=tuple(layers),
        buffers=(),
        status="partial" if weights_unknown or cross else "exact",
        unknown=(*weights_unknown, *cross, left_out),
        missing=frozenset((*_LEFT_OUT, *(("weights",) if weights_unknown else ()))),
        notes=model.warnings,
    )


def _layer_tensors(layer: LayerSpec, dtype: Dtype) -> tuple[_Tensor, ...]:
    caches = layer.cache if layer.transformers_cache is None else layer.transformers_cache
    if not isinstance(caches, tuple):
        return _tensors(caches, dtype)
    return tuple(tensor for cache in caches for tensor in _tensors(cache, dtype))


def _tensors(cache: CacheKind, dtype: Dtype) -> tuple[_Tensor, ...]:
    match cache:
        case FullAttention():
            return _pair(cache.num_kv_heads, cache.key_dim, cache.value_dim, dtype, None)
        case SlidingWindow():
            return _pair(cache.num_kv_heads, cache.key_dim, cache.value_dim, dtype, cache.window_tokens)
        case ChunkedAttention():
            return _pair(cache.num_kv_heads, cache.key_dim, cache.value_dim, dtype, cache.chunk_tokens)
        case LatentAttention():
            return _pair(1, cache.latent_dim, cache.rope_dim, dtype, cache.window_tokens)
        case IndexedAttention():
            index = _Tensor(
                name="indexer_keys", component="index_cache", shape=(0, cache.index_dim), dtype=dtype, token_axis=0
            )
            return (*_tensors(cache.main, dtype), index)
        case CompressedAttention():
            raise NotImplementedError
        case RecurrentState():
            return _recurrent(cache, dtype)
        case HybridCache():
            return (*_tensors(cache.attention, dtype), *_recurrent(cache.recurrent, dtype))
        case CrossAttention() | SharedCache() | NoCache():
            return ()
        case HiddenStateMemory():
            raise NotImplementedError
        case _:
            assert_never(cache)


def _pair(heads: int, key_dim: int, value_dim: int, dtype: Dtype, window: int | None) -> tuple[_Tensor, ...]:
    return tuple(
        _Tensor(name=name, component="kv_cache", shape=(heads, 0, width), dtype=dtype, token_axis=1, window=window)
        for name, width in (("keys", key_dim), ("values", value_dim))
    )


def _recurrent(cache: RecurrentState, dtype: Dtype) -> tuple[_Tensor, ...]:
    tensors = []
    if cache.conv_channels:
        conv = dtype_named(cache.conv_dtype) if cache.conv_dtype else dtype
        shape = (cache.conv_channels, cache.conv_kernel)
        tensors.append(_Tensor(name="conv_states", component="recurrent_state", shape=shape, dtype=conv))
    own_dtype = dtype if cache.form in MODEL_DTYPE_FORMS else dtype_named("float32")
    tensors += [
        _Tensor(name=state.name, component="recurrent_state", shape=state.shape, dtype=own_dtype)
        for state in cache.states
    ]
    return tuple(tensors)


def _held(tensor: _Tensor, tokens: int, sequences: int, phase: Phase) -> CacheTensor:
    """The tensor by shape, and what its storage keeps alive."""
    shape, storage = list(tensor.shape), list(tensor.shape)
    if tensor.token_axis is not None:
        shape[tensor.token_axis] = storage[tensor.token_axis] = tokens
        if tensor.window is not None:
            shape[tensor.token_axis] = min(tokens, tensor.window - 1)
            storage[tensor.token_axis] = tokens if phase == "prefill" else min(tokens, tensor.window)
    return CacheTensor(
        name=tensor.name,
        shape=(sequences, *shape),
        dtype=tensor.dtype.name,
        num_bytes=_bytes(shape, tensor.dtype) * sequences,
        component=tensor.component,
        storage_bytes=_bytes(storage, tensor.dtype) * sequences,
    )


def _bytes(shape: list[int], dtype: Dtype) -> int:
    elements = 1
    for size in shape:
        elements *= size
    return row_bytes(dtype, elements)


def _item(layer: LayerSpec, tensor: _Tensor, held: CacheTensor, tokens: int, sequences: int) -> MemoryItem:
    if tensor.token_axis is None:
        law = constant(held.num_bytes)
    else:
        row = [size for axis, size in enumerate(tensor.shape) if axis != tensor.token_axis]
        cap = None if tensor.window is None else tensor.window - 1
        law = GrowthLaw(bytes_per_token=_bytes(row, tensor.dtype) * sequences, cap_tokens=cap)
    shape = " × ".join(map(str, held.shape))
    return MemoryItem(
        component=tensor.component,
        layer_index=layer.index,
        needed=law,
        allocated=law,
        because=f"{tensor.name}: {shape} elements of {held.dtype} = {held.num_bytes} B; {VERSION}",
    )
