"""llama.cpp's key-value cache on a CPU: cells, streams, and what each layer takes of them. Rules of xllamacpp
2026.10.11549 (llama.cpp b11549), measured byte for byte (tests/golden/llamacpp/README.md)."""

from dataclasses import dataclass

from kvscope.dtypes import Dtype, row_bytes
from kvscope.errors import UnsupportedArchitecture, UsageError
from kvscope.model.spec import CacheKind, FullAttention, LayerSpec, ModelSpec, NoCache, SlidingWindow
from kvscope.predict.allocation.llama_cpp_settings import VERSION, LlamaCppSettings
from kvscope.predict.growth import constant, round_up
from kvscope.predict.kv_cache import kind_name, needed_by_layer
from kvscope.predict.prediction import Buffer, CacheTensor, LayerCache, MemoryItem

# llama.cpp rounds its context up to this many cells (one cell holds one token), for every stream (rule 1).
CELL_MULTIPLE = 256
# llama.cpp's graphs of these families have no window, whatever the file says: every layer gets all cells.
_WINDOW_IGNORED = frozenset({"phi3"})
# Families whose layers may differ in shape, down to layers without key-value heads.
_MIXED_LAYERS = frozenset({"deci"})
# What llama.cpp caches in a way known here.
Cached = FullAttention | SlidingWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """How the context is cut into cells. ``context``: cells asked for in all, after rounding. ``per_stream``: cells of
    a full-attention cache in one stream; ``window``: of the sliding-window cache."""

    context: int
    per_stream: int
    window: int | None
    streams: int
    batch: int
    microbatch: int


def plan_cells(model: ModelSpec, settings: LlamaCppSettings) -> Cells:
    """Cells, streams and batch sizes (rules 1, 2, 3 and 9 of the measurements)."""
    asked = settings.n_ctx or model.trained_context_tokens
    if asked is None:
        raise UsageError("The model's files do not state a trained context.", hint="Set n_ctx.")
    slots = settings.n_parallel
    context = round_up(asked, CELL_MULTIPLE)
    if settings.kv_unified:
        per_stream, streams = context, 1
    else:
        per_stream, streams = round_up(context // slots, CELL_MULTIPLE), slots
        context = per_stream * slots
    batch = min(settings.n_batch, asked)
    microbatch = min(settings.n_ubatch, batch)
    if settings.embedding:
        # An embedding needs all its tokens in one microbatch, so llama.cpp makes the two equal.
        batch = microbatch
    window = _window(model)
    window_cells = None
    if window is not None:
        shared = window * (slots if settings.kv_unified else 1)
        window_cells = (
            per_stream if settings.swa_full else min(per_stream, round_up(shared + microbatch, CELL_MULTIPLE))
        )
    return Cells(
        context=context,
        per_stream=per_stream,
        window=window_cells,
        streams=streams,
        batch=batch,
        microbatch=microbatch,
    )


def _window(model: ModelSpec) -> int | None:
    """The one window width of the model, or None where llama.cpp makes no sliding-window cache."""
    if model.family in _WINDOW_IGNORED:
        return None
    widths = {layer.cache.window_tokens for layer in model.layers if isinstance(layer.cache, SlidingWindow)}
    if len(widths) > 1:
        raise UnsupportedArchitecture(
            f"The layers of {model.name} have windows of different widths: {sorted(widths)}.",
            hint="llama.cpp keeps one sliding-window cache; its rule for several widths is not known.",
        )
    return widths.pop() if widths else None


def check_head_dims(model: ModelSpec, settings: LlamaCppSettings) -> None:
    """Raises UsageError, with the engine's reason, when a quantised format does not divide a head."""
    for side, dtype in (("K", settings.cache_type_k), ("V", settings.cache_type_v)):
        for layer in model.layers:
            if not isinstance(layer.cache, Cached):
                continue
            width = layer.cache.key_dim if side == "K" else layer.cache.value_dim
            if width % dtype.block_elements:
                raise UsageError(
                    f"llama.cpp refuses this: {side} cache type {dtype.name} with block size {dtype.block_elements} "
                    f"does not divide n_embd_head_{side.lower()}={width}.",
                    hint=f"Set cache_type_{side.lower()} to f16 or bf16.",
                )


def slot_limit(model: ModelSpec, cells: Cells) -> int:
    """Tokens one sequence may hold: the server caps a slot at the trained context."""
    trained = model.trained_context_tokens
    return cells.per_stream if trained is None else min(cells.per_stream, trained)


def check_layers(model: ModelSpec) -> None:
    """Raises UnsupportedArchitecture for layers that llama.cpp would not load, or would cache in a way not known."""
    for layer in model.layers:
        if not isinstance(layer.cache, Cached | NoCache):
            raise UnsupportedArchitecture(
                f"Layer {layer.index} is {kind_name(layer.cache)}; what llama.cpp reserves for it is not known here.",
                hint="Full and sliding-window attention are known.",
            )
    shapes = {_row_shape(layer.cache) for layer in model.layers}
    if len(shapes) > 1 and model.family not in _MIXED_LAYERS:
        raise UnsupportedArchitecture(
            f"The layers of {model.name} differ in key-value heads or head size; llama.cpp refuses such a "
            f"{model.architecture} file (check_tensor_dims).",
            hint=f"Layers of different shape are known for: {', '.join(sorted(_MIXED_LAYERS))}.",
        )


def layer_cache(model: ModelSpec, layer: LayerSpec, settings: LlamaCppSettings, cells: Cells) -> LayerCache:
    """The tensors that hold one layer's keys and values."""
    keys, values, num_cells = _cell_rows(model, layer.cache, settings, cells)
    tensors = tuple(
        CacheTensor(
            name=name,
            shape=(cells.streams, row.heads, num_cells, row.width),
            dtype=row.dtype.name,
            num_bytes=num_cells * cells.streams * row.num_bytes,
        )
        for name, row in (("keys", keys), ("values", values))
        if row.num_bytes
    )
    return LayerCache(index=layer.index, kind=kind_name(layer.cache), tensors=tensors)


def layer_item(
    model: ModelSpec, layer: LayerSpec, settings: LlamaCppSettings, cells: Cells, tokens: int, sequences: int
) -> MemoryItem:
    """Needed and allocated bytes of one layer's cache, with the sum written out."""
    total = layer_cache(model, layer, settings, cells).cache_bytes
    needed = needed_by_layer(layer.cache, settings.cache_type_k, settings.cache_type_v).times(sequences)
    because = "no key-value heads in this layer: nothing is cached"
    if total:
        keys, values, num_cells = _cell_rows(model, layer.cache, settings, cells)
        streams = f" × {cells.streams} streams" if cells.streams > 1 else ""
        each = f" in each of {sequences} sequences" if sequences > 1 else ""
        because = (
            f"{num_cells} cells{streams} × (K: {keys.text} + V: {values.text}) = {total} B; "
            f"{tokens} tokens{each} need {needed.bytes_at(tokens)} B"
        )
    return MemoryItem(
        component="kv_cache",
        layer_index=layer.index,
        needed=needed,
        allocated=constant(total),
        because=f"{because}; {VERSION}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One token's keys or values in one layer."""

    heads: int
    width: int
    dtype: Dtype

    @property
    def num_bytes(self) -> int:
        return row_bytes(self.dtype, self.heads * self.width)

    @property
    def text(self) -> str:
        return f"{self.heads} × {self.width} {self.dtype.name} = {self.num_bytes} B"


def _row_shape(cache: CacheKind) -> tuple[int, int, int]:
    """KV heads, key dim, value dim; zeros for a layer without."""
    return (cache.num_kv_heads, cache.key_dim, cache.value_dim) if isinstance(cache, Cached) else (0, 0, 0)


def _cell_rows(model: ModelSpec, cache: CacheKind, settings: LlamaCppSettings, cells: Cells) -> tuple[_Row, _Row, int]:
    """One cell's keys and values, and the number of cells per stream."""
    heads, key_dim, value_dim = _row_shape(cache)
    keys = _Row(heads=heads, width=key_dim, dtype=settings.cache_type_k)
    values = _Row(heads=heads, width=value_dim, dtype=settings.cache_type_v)
    if settings.flash_attn == "off":
        # Values are stored transposed then, every layer as wide as the widest of the model, even one without heads.
        widest = max(width * count for count, _, width in (_row_shape(layer.cache) for layer in model.layers))
        if widest != heads * value_dim:
            values = _Row(heads=1, width=widest, dtype=settings.cache_type_v)
    if isinstance(cache, SlidingWindow) and cells.window is not None:
        return keys, values, cells.window
    return keys, values, cells.per_stream


def cache_buffers(model: ModelSpec, settings: LlamaCppSettings, cells: Cells) -> list[Buffer]:
    """The caches as the engine's log names them: one "full", or "non-SWA" and "SWA"."""
    groups: dict[str, list[LayerCache]] = {"full": []} if cells.window is None else {"non-SWA": [], "SWA": []}
    for layer in model.layers:
        kind = "SWA" if isinstance(layer.cache, SlidingWindow) else "non-SWA"
        groups["full" if cells.window is None else kind].append(layer_cache(model, layer, settings, cells))
    buffers = []
    for kind, layers in groups.items():
        sizes = [(tensor.name, tensor.num_bytes) for layer in layers for tensor in layer.tensors]
        k_bytes = sum(num_bytes for name, num_bytes in sizes if name == "keys")
        v_bytes = sum(num_bytes for name, num_bytes in sizes if name == "values")
        details = {
            "cells": cells.window if kind == "SWA" and cells.window is not None else cells.per_stream,
            "streams": cells.streams,
            "layers": len(layers),
            "k_bytes": k_bytes,
            "v_bytes": v_bytes,
        }
        buffers.append(Buffer(name="kv_cache", kind=kind, num_bytes=k_bytes + v_bytes, details=details))
    return buffers


def cells_of_used_caches(model: ModelSpec, cells: Cells) -> tuple[int, ...]:
    """Cells of each cache that some layer reads: a cache without layers takes no part in the graph."""
    if cells.window is None:
        return (cells.per_stream,)
    has_full = any(isinstance(layer.cache, FullAttention) for layer in model.layers)
    return (cells.per_stream, cells.window) if has_full else (cells.window,)
