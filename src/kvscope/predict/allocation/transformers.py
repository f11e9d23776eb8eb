"""The cache that transformers' ``generate`` keeps: DynamicCache(config). Rules of transformers 5.24.0, measured tensor
by tensor (tests/golden/transformers/README.md).

- Nothing is reserved: a tensor is as long as the tokens it holds.
- A sliding or chunked layer keeps the last window - 1 tokens. Straight after a prefill that is longer, the kept tensor
  is a view: its storage is the whole prompt's until the first decode step, which leaves a storage of window tokens.
- MLA keeps the latent ("keys") and the rotary key ("values"), each with one head.
- DeepSeek V4's compressing layers keep keys and values as one tensor; the inputs of the block that is being filled are
  a view of the last forward's (so the storage of a whole prompt, straight after it), and one entry per finished block.
- XLNet keeps hidden states like a window of mem_len + 1; Reformer keeps all, and bucket numbers.
- A convolution keeps as many columns as it has taps, from the first token on (a few forms: taps - 1); recurrent
  matrices are float32 whatever the model's format (a few forms: that format). Which: the tables below.
- RG-LRU's columns are a view with one more column behind it after a step of one token.
"""

from collections.abc import Mapping

from kvscope.dtypes import Dtype, dtype_named
from kvscope.errors import UsageError
from kvscope.model.spec import ChunkedAttention, FullAttention, HiddenStateMemory, LayerSpec, ModelSpec, SlidingWindow
from kvscope.predict.allocation.logical import cross_unknown
from kvscope.predict.allocation.setting_values import refuse_two_dtypes
from kvscope.predict.allocation.transformers_quantised import (
    check_cache_class,
    check_quantisable,
    packed_law,
    quantised_tensors,
    residual_unknown,
    static_tensor,
)
from kvscope.predict.allocation.transformers_settings import TransformersSettings, read_settings
from kvscope.predict.allocation.transformers_tensors import held_tensor, kept_tensors, late_buckets
from kvscope.predict.allocation.transformers_versions import Release, caches_of, read_release
from kvscope.predict.growth import GrowthLaw, constant
from kvscope.predict.kv_cache import kind_name
from kvscope.predict.prediction import (
    Asked,
    CacheTensor,
    Component,
    LayerCache,
    MemoryItem,
    Prediction,
    Status,
    Unknown,
)
from kvscope.predict.weights import needed_weights
from kvscope.scenario import Phase, SettingValue

VERSION = "transformers 5.24.0"
DEFAULT_DTYPE = "float32"
LOADED_DTYPES = ("bfloat16", "float16", "float32", "float64")
_LEFT_OUT: tuple[Component, ...] = ("compute_buffer", "output_buffer", "runtime", "host_cache")


def predict_transformers(
    model: ModelSpec, asked: Asked, settings: Mapping[str, SettingValue], dtype: str | None
) -> Prediction:
    """Weights and cache of ``model.generate()``: of its default cache, or of the one that ``cache_implementation``
    names. Raises UsageError, UnknownName."""
    read = read_settings(settings)
    if dtype is not None:
        refuse_two_dtypes(dtype, read.dtype)
    dtype = dtype or read.dtype
    tokens = asked.tokens if asked.tokens is not None else read.max_cache_len or model.trained_context_tokens
    if tokens is None:
        raise UsageError("The model's files do not state a trained context.", hint="Say how many tokens to count.")
    if read.implementation == "quantized":
        check_quantisable(model, read.backend)
    check_cache_class(model, read)
    _check_prompt_cache(model, read)
    element = _loaded_dtype(dtype or model.dtype or DEFAULT_DTYPE)
    release = read_release(asked.engine_version)
    weights, weights_unknown = needed_weights(model, element.name)
    doubtful = (
        *release.unknown,
        *_doubtful_buckets(model, tokens, asked.phase),
        *_prompt_unknown(model, tokens, asked.phase),
        *residual_unknown(read, tokens),
        *_offload_unknown(read),
        *_chunks_unknown(model, read, tokens, asked.phase),
        *_dtype_unknown(model, dtype),
    )
    status: Status = "estimated" if doubtful else "exact"
    layers, items = [], []
    for layer in model.layers:
        held = _layer_tensors(layer, read, release, element, tokens, asked)
        layers.append(LayerCache(index=layer.index, kind=kind_name(layer.cache), tensors=tuple(t for t, _ in held)))
        items += [_item(layer, tensor, law, status) for tensor, law in held]
    cross = cross_unknown(tuple(layer.cache for layer in model.layers))
    left_out = Unknown(
        what="engine", why="activations and the Python process depend on the run; total_bytes leaves them out"
    )
    return Prediction(
        model=model,
        scenario=asked.scenario("transformers", asked.engine_version or VERSION, tokens, read.as_asked),
        effective={
            "context_tokens": read.max_cache_len,
            "context_per_sequence_tokens": read.max_cache_len,
            "cache_dtype": element.name,
            "cache_implementation": read.implementation,
        },
        items=(*weights, *items),
        layers=tuple(layers),
        buffers=(),
        status="partial" if weights_unknown or cross else status,
        unknown=(*weights_unknown, *cross, *doubtful, left_out),
        missing=frozenset((*_LEFT_OUT, *(("weights",) if weights_unknown else ()))),
        notes=(*_notes(read, tokens), *model.warnings),
    )


def _loaded_dtype(name: str) -> Dtype:
    """torch makes the parameters and the cache of a model in a format that it can compute in."""
    found = dtype_named(name)
    if found.name not in LOADED_DTYPES:
        raise UsageError(
            f"transformers loads no model in {found.name}.", hint=f"Give a dtype: {', '.join(LOADED_DTYPES)}."
        )
    return found


_Held = tuple[CacheTensor, tuple[GrowthLaw, GrowthLaw]]


def _layer_tensors(
    layer: LayerSpec, settings: TransformersSettings, release: Release, dtype: Dtype, tokens: int, asked: Asked
) -> list[_Held]:
    """Tensors of one layer, each with the laws of what is needed and of what is allocated."""
    found: list[_Held] = []
    sequences = asked.num_sequences
    for cache in caches_of(layer, release):
        if settings.implementation == "dynamic_full" and isinstance(cache, SlidingWindow | ChunkedAttention):
            # DynamicCache() without a config keeps every token of every layer.
            cache = FullAttention(num_kv_heads=cache.num_kv_heads, key_dim=cache.key_dim, value_dim=cache.value_dim)
        for kept in kept_tensors(cache, dtype):
            if isinstance(cache, HiddenStateMemory) and asked.phase == "decode":
                kept = late_buckets(kept, cache, tokens)
            needed = kept.law(sequences)
            if settings.is_static:
                assert settings.max_cache_len is not None
                # A state is as it is in a dynamic cache: it does not grow with the tokens.
                tensor = (
                    held_tensor(kept, tokens, sequences, asked.phase)
                    if kept.token_axis is None
                    else static_tensor(kept, settings.max_cache_len, sequences)
                )
                found.append((tensor, (needed, constant(tensor.num_bytes))))
            elif settings.implementation == "quantized":
                for tensor in quantised_tensors(kept, settings, tokens, sequences):
                    law = packed_law(tensor, kept, settings, sequences)
                    found.append((tensor, (law, constant(tensor.num_bytes))))
            else:
                found.append((held_tensor(kept, tokens, sequences, asked.phase), (needed, needed)))
    return found


def _dtype_unknown(model: ModelSpec, dtype: str | None) -> tuple[Unknown, ...]:
    if dtype is not None or model.dtype is not None:
        return ()
    why = (
        f"neither the question nor the model's files name the format it is loaded in; {DEFAULT_DTYPE} is taken, the "
        "library's own where nothing is said. Give dtype"
    )
    return (Unknown(what="dtype", why=why),)


def _offload_unknown(settings: TransformersSettings) -> tuple[Unknown, ...]:
    if not settings.is_offloaded:
        return ()
    why = (
        "an offloaded cache has the same tensors, all but the layer at work in host memory; it was not measured, since "
        "it needs a GPU"
    )
    return (Unknown(what="kv_cache", why=why),)


def _chunks_unknown(model: ModelSpec, settings: TransformersSettings, tokens: int, phase: Phase) -> tuple[Unknown, ...]:
    """A window's storage straight after a prefill in chunks: of the last chunk and what was kept before it."""
    chunk = settings.prefill_chunk_tokens
    windowed = any(isinstance(layer.cache, SlidingWindow | ChunkedAttention) for layer in model.layers)
    if chunk is None or chunk >= tokens or phase != "prefill" or not windowed:
        return ()
    why = (
        "a prompt in chunks leaves the storage of its last chunk behind a sliding layer; that of the whole prompt is "
        "counted, the most it can be"
    )
    return (Unknown(what="kv_cache_storage", why=why),)


def _notes(settings: TransformersSettings, tokens: int) -> tuple[str, ...]:
    if settings.max_cache_len is not None and tokens > settings.max_cache_len:
        return (f"{tokens} tokens do not fit: the static cache has places for {settings.max_cache_len}.",)
    return ()


def _doubtful_buckets(model: ModelSpec, tokens: int, phase: Phase) -> tuple[Unknown, ...]:
    """Reformer's bucket numbers at lengths where their format, or whether there are any, depends on the prompt's."""
    memories = [layer.cache for layer in model.layers if isinstance(layer.cache, HiddenStateMemory)]
    unsure = [memory for memory in memories if memory.extra_row_bytes and tokens > memory.extra_from_tokens]
    if not unsure or phase == "prefill":
        return ()
    why = (
        f"a prompt of {unsure[0].extra_from_tokens} tokens or more is assumed; after a shorter one bucket numbers come "
        "later, and as float32"
    )
    return (Unknown(what="kv_cache", why=why),)


def _check_prompt_cache(model: ModelSpec, settings: TransformersSettings) -> None:
    """Raises UsageError for a cache that was not measured with layers that treat a prompt otherwise than the rest."""
    if settings.implementation != "dynamic" and _prompt_caches(model):
        raise UsageError(
            f"What a {settings.implementation} cache holds for {model.architecture} is not known here.",
            hint="Use cache_implementation dynamic.",
        )


def _prompt_caches(model: ModelSpec) -> list[FullAttention]:
    caches = [layer.cache for layer in model.layers if isinstance(layer.cache, FullAttention)]
    return [cache for cache in caches if cache.prefix_tokens or cache.window_after_prompt is not None]


def _prompt_unknown(model: ModelSpec, tokens: int, phase: Phase) -> tuple[Unknown, ...]:
    """Layers whose bytes after the first step depend on how many of the tokens were the prompt's."""
    why = ""
    for cache in _prompt_caches(model) if phase == "decode" else ():
        if cache.prefix_tokens:
            why = f"{VERSION} cannot decode {model.architecture} with a cache; this is what it would hold"
        elif cache.window_after_prompt is not None and tokens > cache.window_after_prompt:
            why = (
                f"of the tokens after the prompt the last {cache.window_after_prompt - 1} are kept, and of the prompt "
                "all; how long it was is not said, so all tokens are counted: the most it can be"
            )
    return (Unknown(what="kv_cache", why=why),) if why else ()


def _item(layer: LayerSpec, tensor: CacheTensor, laws: tuple[GrowthLaw, GrowthLaw], status: Status) -> MemoryItem:
    shape = " × ".join(map(str, tensor.shape))
    return MemoryItem(
        component=tensor.component,
        layer_index=layer.index,
        needed=laws[0],
        allocated=laws[1],
        status=status,
        because=f"{tensor.name}: {shape} elements of {tensor.dtype} = {tensor.num_bytes} B; {VERSION}",
    )
