"""transformers' QuantizedCache and StaticCache. Rules of transformers 5.24.0 with optimum-quanto 0.2.7 and hqq 0.2.8,
measured (tests/golden/transformers_caches.json); for each of keys and values, N = sequences × heads × tokens × width:

- static: max_cache_len tokens from the first forward on; a sliding layer min(window, max_cache_len);
- quanto and hqq: the whole prefill is packed at once, N × bits / 8 B, and N / group scales and as many zero points in
  the model's format; later tokens stay in the model's format until there are residual_length of them, then all of them
  are packed too;
- fp8: N B and one float32 scale per tensor; nothing stays unpacked.
"""

from fractions import Fraction

from kvscope.dtypes import Dtype, dtype_named, row_bytes
from kvscope.errors import UsageError
from kvscope.model.spec import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    ModelSpec,
    NoCache,
    SharedCache,
    SlidingWindow,
)
from kvscope.predict.allocation.transformers_settings import TransformersSettings
from kvscope.predict.allocation.transformers_tensors import KeptTensor, shape_bytes
from kvscope.predict.growth import GrowthLaw, constant
from kvscope.predict.kv_cache import kind_name
from kvscope.predict.prediction import CacheTensor, Unknown

# What DynamicCache() holds without a config: keys and values of every token, for each layer that asks.
_PLAIN = (FullAttention, SlidingWindow, ChunkedAttention, LatentAttention, CrossAttention, SharedCache, NoCache)
# Models whose class brings a cache of its own and takes no other (5.24.0).
_OWN_CACHE = ("minimax", "xlstm")


def check_cache_class(model: ModelSpec, settings: TransformersSettings) -> None:
    """Raises UsageError for a cache that the model's class cannot work with, seen by running it (5.24.0)."""
    if settings.implementation in ("dynamic", "offloaded"):
        return
    if model.architecture in _OWN_CACHE:
        raise UsageError(
            f"{model.architecture} brings a cache of its own: transformers gives it no {settings.implementation} one.",
            hint="Use cache_implementation dynamic.",
        )
    for layer in model.layers:
        kept = layer.cache if layer.transformers_cache is None else layer.transformers_cache
        other = [each for each in (kept if isinstance(kept, tuple) else (kept,)) if not isinstance(each, _PLAIN)]
        if settings.implementation == "dynamic_full" and other:
            raise UsageError(
                "DynamicCache() without a config holds keys and values alone, and layer "
                f"{layer.index} ({kind_name(other[0])}) needs more: transformers fails on it.",
                hint="Use cache_implementation dynamic.",
            )


def check_quantisable(model: ModelSpec, backend: str) -> None:
    """The library quantises the caches of models whose layers are all full attention; MLA's, with one head each, too
    where numbers are packed one by one (fp8). Raises UsageError."""
    for layer in model.layers:
        kept = layer.cache if layer.transformers_cache is None else layer.transformers_cache
        if not isinstance(kept, FullAttention) and not (backend == "fp8" and isinstance(kept, LatentAttention)):
            raise UsageError(
                "transformers refuses this: QuantizedCache is only supported for models with only full attention "
                f"layers, and layer {layer.index} is another.",
                hint="Use cache_implementation dynamic.",
            )


def static_tensor(tensor: KeptTensor, max_cache_len: int, num_sequences: int) -> CacheTensor:
    """A tensor of a static cache: as long as it will ever be, whatever is in it."""
    shape = list(tensor.shape)
    if tensor.token_axis is not None:
        if tensor.block is not None or tensor.padding is not None:
            raise UsageError("transformers has no static cache for compressed layers or kept hidden states.")
        shape[tensor.token_axis] = max_cache_len if tensor.window is None else min(tensor.window, max_cache_len)
    return CacheTensor(
        name=tensor.name,
        shape=(num_sequences, *shape),
        dtype=tensor.dtype.name,
        num_bytes=shape_bytes(shape, tensor.dtype) * num_sequences,
        component=tensor.component,
    )


def quantised_tensors(
    tensor: KeptTensor, settings: TransformersSettings, tokens: int, num_sequences: int
) -> tuple[CacheTensor, ...]:
    """The packed tokens of keys or values, their scales and zero points, and the tokens not packed yet."""
    assert tensor.token_axis is not None
    unpacked = 0 if settings.backend == "fp8" else unpacked_tokens(settings, tokens)
    shape = list(tensor.shape)
    shape[tensor.token_axis] = tokens - unpacked
    elements = num_sequences * shape_bytes(shape, dtype_named("uint8"))
    found = [_packed(tensor, settings, elements)]
    if settings.backend == "fp8":
        found.append(_plain(f"{tensor.name}.scale", (1,), dtype_named("float32")))
    else:
        scales = elements // settings.q_group_size
        found.append(_plain(f"{tensor.name}.scale", (scales,), tensor.dtype))
        found.append(_plain(f"{tensor.name}.zero", (scales,), tensor.dtype))
    if unpacked:
        shape[tensor.token_axis] = unpacked
        found.append(_plain(tensor.name, (num_sequences, *shape), tensor.dtype))
    return tuple(found)


def packed_law(tensor: CacheTensor, kept: KeptTensor, settings: TransformersSettings, num_sequences: int) -> GrowthLaw:
    """What the tokens need of one of these tensors once all are packed: so much for each token, or nothing of those
    that wait to be packed. A tensor whose share of a token is no whole number of bytes has no slope: its bytes now."""
    row = num_sequences
    for axis, size in enumerate(kept.shape):
        row *= 1 if axis == kept.token_axis else size
    if tensor.name == kept.name:
        return constant(0)
    per_token = Fraction(row * settings.nbits, 8)
    if not tensor.name.endswith(".packed"):
        if settings.backend == "fp8":
            return constant(tensor.num_bytes)
        per_token = Fraction(row * row_bytes(kept.dtype, 1), settings.q_group_size)
    if per_token.denominator != 1:
        return constant(tensor.num_bytes)
    return GrowthLaw(bytes_per_token=int(per_token))


def unpacked_tokens(settings: TransformersSettings, tokens: int) -> int:
    """Tokens still in the model's format: those since the last packing. Without the prompt's length, the most."""
    if settings.prompt_tokens is None:
        return min(tokens, settings.residual_length - 1)
    if settings.prompt_tokens > tokens:
        raise UsageError(f"prompt_tokens is {settings.prompt_tokens}, more than the {tokens} tokens held.")
    return (tokens - settings.prompt_tokens) % settings.residual_length


def residual_unknown(settings: TransformersSettings, tokens: int) -> tuple[Unknown, ...]:
    """What cannot be said without the prompt's length."""
    if settings.implementation != "quantized" or settings.backend == "fp8" or settings.prompt_tokens is not None:
        return ()
    most = unpacked_tokens(settings, tokens)
    why = (
        f"0 to {most} tokens are not packed yet, by the length of the prompt; counted with {most}. Set prompt_tokens "
        "to be exact"
    )
    return (Unknown(what="kv_cache", why=why),) if most else ()


def _packed(tensor: KeptTensor, settings: TransformersSettings, elements: int) -> CacheTensor:
    if settings.backend != "fp8" and elements % settings.q_group_size:
        raise UsageError(
            f"transformers refuses this: {elements} elements of {tensor.name} are not a whole number of groups of "
            f"{settings.q_group_size}.",
            hint="Choose a q_group_size that divides heads × head dim.",
        )
    num_bytes = elements * settings.nbits // 8
    return _plain(f"{tensor.name}.packed", (num_bytes,), dtype_named("uint8"))


def _plain(name: str, shape: tuple[int, ...], dtype: Dtype) -> CacheTensor:
    elements = 1
    for size in shape:
        elements *= size
    return CacheTensor(name=name, shape=shape, dtype=dtype.name, num_bytes=row_bytes(dtype, elements))
