"""No engine: what the tokens themselves need. Every engine reserves this or more."""

from collections.abc import Mapping

from kvscope.dtypes import Dtype, dtype_named
from kvscope.errors import UsageError
from kvscope.model.spec import CacheKind, CrossAttention, LayerSpec, ModelSpec
from kvscope.predict.kv_cache import CachePart, kind_name, needed_parts
from kvscope.predict.prediction import Asked, Component, LayerCache, MemoryItem, Prediction, Unknown
from kvscope.predict.weights import needed_weights
from kvscope.scenario import SettingValue

VERSION = "no engine: what the tokens need"
DEFAULT_DTYPE = "float16"
_LEFT_OUT: tuple[Component, ...] = ("compute_buffer", "output_buffer", "runtime", "host_cache")


def predict_logical(
    model: ModelSpec, asked: Asked, settings: Mapping[str, SettingValue], dtype: str | None
) -> Prediction:
    """Weights and cache by shape. Raises UsageError for settings (there is no engine to set)."""
    if settings:
        raise UsageError(
            f"The engine 'logical' has no settings, but {', '.join(sorted(settings))} was given.",
            hint="Leave settings out, or name a real engine such as llama.cpp.",
        )
    tokens = asked.tokens if asked.tokens is not None else model.trained_context_tokens
    if tokens is None:
        raise UsageError("The model's files do not state a trained context.", hint="Say how many tokens to count.")
    element, because_dtype = _cache_dtype(model, dtype)
    weights, weights_unknown = needed_weights(model, dtype)
    layers, items = [], []
    for layer in model.layers:
        parts = needed_parts(layer.cache, element, element)
        tensors = tuple(part.tensor(tokens, asked.num_sequences) for part in parts)
        layers.append(LayerCache(index=layer.index, kind=kind_name(layer.cache), tensors=tensors))
        items += [_item(layer, part, tokens, asked.num_sequences, because_dtype) for part in parts]
    left_out = Unknown(
        what="engine", why="compute, output and runtime memory depend on the engine; total_bytes leaves them out"
    )
    cross = cross_unknown(tuple(layer.cache for layer in model.layers))
    return Prediction(
        model=model,
        scenario=asked.scenario("logical", VERSION, tokens, {}),
        effective={"context_tokens": None, "context_per_sequence_tokens": None, "cache_dtype": element.name},
        items=(*weights, *items),
        layers=tuple(layers),
        buffers=(),
        status="partial" if weights_unknown or cross else "exact",
        unknown=(*weights_unknown, *cross, left_out),
        missing=frozenset((*_LEFT_OUT, *(("weights",) if weights_unknown else ()))),
        notes=(because_dtype, *model.warnings),
    )


def cross_unknown(caches: tuple[CacheKind, ...]) -> tuple[Unknown, ...]:
    """What is not known of layers that attend to another input of unstated length."""
    layers = sum(isinstance(cache, CrossAttention) and cache.source_tokens is None for cache in caches)
    if not layers:
        return ()
    why = (
        f"{layers} layers keep keys and values of another input (image, audio, encoder text), whose length is not "
        "stated; they do not grow with the text, and are counted as of no such input"
    )
    return (Unknown(what="kv_cache", why=why),)


def _cache_dtype(model: ModelSpec, dtype: str | None) -> tuple[Dtype, str]:
    if dtype is not None:
        return dtype_named(dtype), f"cache elements are {dtype}, as asked"
    if model.dtype is not None:
        return dtype_named(model.dtype), f"cache elements are {model.dtype}, the format the model's file names"
    return dtype_named(DEFAULT_DTYPE), f"cache elements are taken as {DEFAULT_DTYPE}: the file names no single format"


def _item(layer: LayerSpec, part: CachePart, tokens: int, sequences: int, because: str) -> MemoryItem:
    law = part.law.times(sequences)
    times = f" × {sequences} sequences" if sequences > 1 else ""
    if part.token_axis is None:
        shape = " × ".join(map(str, part.shape))
        text = f"{part.name}: {shape} elements of {part.dtype}{times} = {law.bytes_at(tokens)} B, whatever the length"
    else:
        window = f" (window of {law.cap_tokens})" if law.cap_tokens is not None else ""
        unit = "entries" if law.per_step else "tokens"
        held = law.held_tokens(tokens)
        text = f"{part.name}: {part.law.bytes_per_token} B × {held} {unit}{window}{times} = {law.bytes_at(tokens)} B"
    return MemoryItem(
        component=part.component, layer_index=layer.index, needed=law, allocated=law, because=f"{text}; {because}"
    )
