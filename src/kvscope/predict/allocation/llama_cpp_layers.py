"""What llama.cpp keeps of each kind of layer, and the layers it would not run. Rules of xllamacpp 2026.10.11549
(llama.cpp b11549), found by starting it on generated files (tests/golden/gguf/README.md)."""

from dataclasses import dataclass

from kvscope.errors import UnsupportedArchitecture, UsageError
from kvscope.model.spec import (
    CacheKind,
    ChunkedAttention,
    FullAttention,
    HybridCache,
    LatentAttention,
    ModelSpec,
    NoCache,
    RecurrentState,
    SharedCache,
    SlidingWindow,
)
from kvscope.predict.allocation.llama_cpp_families import MIXED_LAYERS, graph_family, has_windows, needs_equal_widths
from kvscope.predict.allocation.llama_cpp_recurrent import state_of
from kvscope.predict.allocation.llama_cpp_settings import LlamaCppSettings
from kvscope.predict.kv_cache import kind_name

# Chunked attention is kept as a window of this many tokens, whatever the file says of its chunks.
CHUNK_WINDOW_TOKENS = 8192
# The engine's own words for formats that are called otherwise here.
_ENGINE_NAMES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
# Attention that llama.cpp keeps keys and values of, one layer's cells in one cache.
Cached = FullAttention | SlidingWindow
_KNOWN = (
    FullAttention
    | SlidingWindow
    | ChunkedAttention
    | LatentAttention
    | HybridCache
    | RecurrentState
    | SharedCache
    | NoCache
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What llama.cpp keeps of one token in one layer: ``heads`` keys of ``key_dim`` elements and values of
    ``value_dim`` (0: none, with a latent). ``is_windowed``: in the smaller cache of windowed layers."""

    heads: int
    key_dim: int
    value_dim: int
    is_windowed: bool = False


def held_by(model: ModelSpec, cache: CacheKind) -> Held | None:
    """None for a layer without cells: a recurrent one, one that shares another's, one without attention."""
    match cache:
        case HybridCache():
            return held_by(model, cache.attention)
        case LatentAttention():
            if cache.expanded is not None and model.source_kind == "gguf":
                return held_by(model, cache.expanded)
            return Held(heads=1, key_dim=cache.latent_dim + cache.rope_dim, value_dim=0)
        case FullAttention():
            return Held(heads=cache.num_kv_heads, key_dim=cache.key_dim, value_dim=cache.value_dim)
        case SlidingWindow() | ChunkedAttention():
            return Held(
                heads=cache.num_kv_heads,
                key_dim=cache.key_dim,
                value_dim=cache.value_dim,
                is_windowed=has_windows(model),
            )
        case _:
            return None


def row_shape(model: ModelSpec, cache: CacheKind) -> tuple[int, int, int]:
    """KV heads, key dim, value dim; zeros for a layer without."""
    held = held_by(model, cache)
    return (0, 0, 0) if held is None else (held.heads, held.key_dim, held.value_dim)


def held_latent(model: ModelSpec, cache: CacheKind) -> bool:
    """Whether the layer keeps one latent a token, and no values."""
    held = held_by(model, cache)
    return held is not None and held.value_dim == 0


def kept_attention(model: ModelSpec, cache: CacheKind) -> CacheKind:
    """The attention whose tokens are kept: a layer's own, or what its latent is expanded to."""
    if isinstance(cache, HybridCache):
        return cache.attention
    if isinstance(cache, LatentAttention) and cache.expanded is not None and model.source_kind == "gguf":
        return cache.expanded
    return NoCache() if isinstance(cache, RecurrentState) else cache


def window_of(model: ModelSpec) -> int | None:
    """The one window width of the model, or None where llama.cpp makes no sliding-window cache."""
    if not has_windows(model):
        return None
    widths = {width for layer in model.layers if (width := _window_tokens(layer.cache)) is not None}
    if len(widths) > 1:
        raise UnsupportedArchitecture(
            f"The layers of {model.name} have windows of different widths: {sorted(widths)}.",
            hint="llama.cpp keeps one sliding-window cache; its rule for several widths is not known.",
        )
    return widths.pop() if widths else None


def _window_tokens(cache: CacheKind) -> int | None:
    if isinstance(cache, ChunkedAttention):
        return CHUNK_WINDOW_TOKENS
    return cache.window_tokens if isinstance(cache, SlidingWindow) else None


def check_layers(model: ModelSpec) -> None:
    """Raises UnsupportedArchitecture for layers that llama.cpp would not load, or would cache in a way not known."""
    family = graph_family(model)
    for layer in model.layers:
        cache = layer.cache
        if not isinstance(cache, _KNOWN) or (isinstance(cache, LatentAttention) and cache.window_tokens is not None):
            raise UnsupportedArchitecture(
                f"Layer {layer.index} is {kind_name(cache)}; what llama.cpp reserves for it is not known here.",
                hint="Full, sliding-window, chunked and latent attention and recurrent states are known.",
            )
    caches = dict.fromkeys(layer.cache for layer in model.layers)
    shapes = {row_shape(model, cache) for cache in caches if not is_other(cache, model)}
    if len(shapes) > 1 and family.name not in MIXED_LAYERS and model.source_kind != "stated":
        raise UnsupportedArchitecture(
            f"The layers of {model.name} differ in key-value heads or head size; llama.cpp refuses such a "
            f"{model.architecture} file (check_tensor_dims).",
            hint=f"Layers of different shape are known for: {', '.join(sorted(MIXED_LAYERS))}.",
        )
    if (
        model.source_kind != "stated"
        and needs_equal_widths(family)
        and any(key_dim != value_dim for _, key_dim, value_dim in shapes)
    ):
        raise UnsupportedArchitecture(
            f"The keys and values of {model.name} differ in width; llama.cpp's graph of {family.name} does not run "
            "that.",
            hint="Check attention.key_length and attention.value_length.",
        )
    if has_states(model) and any(_window_tokens(layer.cache) is not None for layer in model.layers):
        raise UnsupportedArchitecture(
            f"{model.name} has both windowed and recurrent layers; what llama.cpp reserves for that is not known here."
        )


def has_states(model: ModelSpec) -> bool:
    """Whether any layer keeps a recurrent state."""
    return any(state_of(layer.cache) is not None for layer in model.layers)


def is_other(cache: CacheKind, model: ModelSpec) -> bool:
    """A layer that takes no part in the key-value cache: recurrent, sharing, or feed-forward alone in a hybrid."""
    if isinstance(cache, NoCache):
        return has_states(model)
    return isinstance(cache, RecurrentState | SharedCache)


def check_cache_types(model: ModelSpec, settings: LlamaCppSettings) -> None:
    """Raises UsageError, with the engine's reason, for cache types it refuses: two of them for one latent, quantised
    values without flash attention, or with it a format that does not divide a head. In the engine's order."""
    key_type, value_type = settings.cache_type_k.name, settings.cache_type_v.name
    if key_type != value_type and any(held_latent(model, layer.cache) for layer in model.layers):
        raise UsageError(
            f"llama.cpp refuses this: model does not support different K ({_ENGINE_NAMES.get(key_type, key_type)}) and "
            f"V ({_ENGINE_NAMES.get(value_type, value_type)}) cache types.",
            hint="Keys and values of latent attention are one tensor: set cache_type_k and cache_type_v to the same.",
        )
    if settings.cache_type_v.is_quantised and settings.flash_attn == "off":
        raise UsageError(
            "llama.cpp refuses this: quantized V cache requires flash_attn to be enabled.",
            hint="Set flash_attn to on or auto, or cache_type_v to f16.",
        )
    if settings.flash_attn == "off":
        return  # keys are read row by row then: only a whole row must be whole blocks
    for side, dtype in (("K", settings.cache_type_k), ("V", settings.cache_type_v)):
        for cache in dict.fromkeys(layer.cache for layer in model.layers):
            held = held_by(model, cache)
            if held is None:
                continue
            width = held.key_dim if side == "K" else held.value_dim or _latent_width(cache)
            if width % dtype.block_elements:
                raise UsageError(
                    f"llama.cpp refuses this: {side} cache type {dtype.name} with block size {dtype.block_elements} "
                    f"does not divide n_embd_head_{side.lower()}={width}.",
                    hint=f"Set cache_type_{side.lower()} to f16 or bf16.",
                )


def _latent_width(cache: CacheKind) -> int:
    """The values' width by the file's keys: llama.cpp holds it against the format though it keeps no values."""
    return cache.latent_dim if isinstance(cache, LatentAttention) else 0
