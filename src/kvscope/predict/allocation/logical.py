"""No engine: what the tokens themselves need. Every engine reserves this or more."""

from collections.abc import Mapping

from kvscope.dtypes import Dtype, dtype_named
from kvscope.errors import UnsupportedArchitecture, UsageError
from kvscope.model.spec import FullAttention, LayerSpec, ModelSpec, NoCache, SlidingWindow
from kvscope.predict.kv_cache import kind_name, needed_by_layer
from kvscope.predict.prediction import Asked, CacheTensor, Component, LayerCache, MemoryItem, Prediction, Unknown
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
    layers = tuple(_layer_cache(layer, element, tokens, asked.num_sequences) for layer in model.layers)
    items = [_cache_item(layer, element, tokens, asked.num_sequences, because_dtype) for layer in model.layers]
    left_out = Unknown(
        what="engine", why="compute, output and runtime memory depend on the engine; total_bytes leaves them out"
    )
    return Prediction(
        model=model,
        scenario=asked.scenario("logical", VERSION, tokens, {}),
        effective={"context_tokens": None, "context_per_sequence_tokens": None, "cache_dtype": element.name},
        items=(*weights, *items),
        layers=layers,
        buffers=(),
        status="partial" if weights_unknown else "exact",
        unknown=(*weights_unknown, left_out),
        missing=frozenset((*_LEFT_OUT, *(("weights",) if weights_unknown else ()))),
        notes=(because_dtype,),
    )


def _cache_dtype(model: ModelSpec, dtype: str | None) -> tuple[Dtype, str]:
    if dtype is not None:
        return dtype_named(dtype), f"cache elements are {dtype}, as asked"
    if model.dtype is not None:
        return dtype_named(model.dtype), f"cache elements are {model.dtype}, the format the model's file names"
    return dtype_named(DEFAULT_DTYPE), f"cache elements are taken as {DEFAULT_DTYPE}: the file names no single format"


def _cache_item(layer: LayerSpec, element: Dtype, tokens: int, sequences: int, because: str) -> MemoryItem:
    law = needed_by_layer(layer.cache, element, element).times(sequences)
    held = law.held_tokens(tokens)
    sequence_text = f" × {sequences} sequences" if sequences > 1 else ""
    window = f" (window of {law.cap_tokens})" if law.cap_tokens is not None else ""
    per_token = law.bytes_per_token // sequences
    return MemoryItem(
        component="kv_cache",
        layer_index=layer.index,
        needed=law,
        allocated=law,
        because=f"{per_token} B per token × {held} tokens{window}{sequence_text} = {law.bytes_at(tokens)} B; {because}",
    )


def _layer_cache(layer: LayerSpec, element: Dtype, tokens: int, sequences: int) -> LayerCache:
    cache = layer.cache
    kind = kind_name(cache)
    if isinstance(cache, NoCache):
        return LayerCache(index=layer.index, kind=kind, tensors=())
    if not isinstance(cache, FullAttention | SlidingWindow):
        raise UnsupportedArchitecture(
            f"Layer {layer.index} is {kind}; kvscope does not know its tensors yet.",
            hint="Full and sliding-window attention are known.",
        )
    held = needed_by_layer(cache, element, element).held_tokens(tokens)
    sides = (("keys", cache.key_dim), ("values", cache.value_dim))
    tensors = tuple(
        CacheTensor(
            name=name,
            shape=(sequences, cache.num_kv_heads, held, width),
            dtype=element.name,
            num_bytes=sequences * held * (element.block_bytes * cache.num_kv_heads * width // element.block_elements),
        )
        for name, width in sides
    )
    return LayerCache(index=layer.index, kind=kind, tensors=tensors)
