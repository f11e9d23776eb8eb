"""llama.cpp's key-value cache on a CPU: cells, streams, and what each layer takes of them. Rules of xllamacpp
2026.10.11549 (llama.cpp b11549), measured byte for byte (tests/golden/llamacpp/README.md)."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.dtypes import Dtype, row_bytes
from kvscope.errors import UsageError
from kvscope.model.spec import CacheKind, LayerSpec, ModelSpec, RecurrentState, SharedCache
from kvscope.predict.allocation.llama_cpp_layers import (
    has_states,
    held_by,
    held_latent,
    is_other,
    kept_attention,
    row_shape,
    window_of,
)
from kvscope.predict.allocation.llama_cpp_recurrent import state_tensors
from kvscope.predict.allocation.llama_cpp_settings import VERSION, LlamaCppSettings
from kvscope.predict.growth import constant, round_up
from kvscope.predict.kv_cache import kind_name, needed_by_layer
from kvscope.predict.prediction import Buffer, CacheTensor, LayerCache, MemoryItem

# llama.cpp rounds its context up to this many cells (one cell holds one token), for every stream (rule 1).
CELL_MULTIPLE = 256


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
    window = window_of(model)
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


def slot_limit(model: ModelSpec, settings: LlamaCppSettings, cells: Cells) -> int:
    """Tokens one sequence may hold: the server caps a slot at the trained context, and at kv_unified_per_slot."""
    caps = (model.trained_context_tokens, settings.slot_tokens)
    return min([cells.per_stream, *(cap for cap in caps if cap is not None)])


def layer_caches(model: ModelSpec, settings: LlamaCppSettings, cells: Cells) -> tuple[LayerCache, ...]:
    """Every layer's tensors; equal layers are worked out once."""
    known: dict[CacheKind, LayerCache] = {}
    for layer in model.layers:
        if layer.cache not in known:
            known[layer.cache] = _layer_cache(model, layer, settings, cells)
    return tuple(
        LayerCache(index=layer.index, kind=same.kind, tensors=same.tensors)
        for layer in model.layers
        for same in (known[layer.cache],)
    )


def _layer_cache(model: ModelSpec, layer: LayerSpec, settings: LlamaCppSettings, cells: Cells) -> LayerCache:
    """The tensors that hold one layer's keys and values, and its recurrent state."""
    tensors: tuple[CacheTensor, ...] = ()
    if not is_other(layer.cache, model):
        keys, values, num_cells = _cell_rows(model, layer.cache, settings, cells)
        names = ("latent", "values") if held_latent(model, layer.cache) else ("keys", "values")
        tensors = tuple(
            CacheTensor(
                name=name,
                shape=(cells.streams, row.heads, num_cells, row.width),
                dtype=row.dtype.name,
                num_bytes=num_cells * cells.streams * row.num_bytes,
            )
            for name, row in zip(names, (keys, values), strict=True)
            if row.num_bytes
        )
    states = state_tensors(layer.cache, settings.n_parallel)
    return LayerCache(index=layer.index, kind=kind_name(layer.cache), tensors=(*tensors, *states))


def layer_items(
    model: ModelSpec,
    layers: Sequence[LayerCache],
    settings: LlamaCppSettings,
    cells: Cells,
    tokens: int,
    sequences: int,
) -> list[MemoryItem]:
    """Needed and allocated bytes of every layer's keys and values; equal layers are worked out once."""
    known: dict[CacheKind, MemoryItem] = {}
    items = []
    for layer, held in zip(model.layers, layers, strict=True):
        if layer.cache not in known:
            known[layer.cache] = _layer_item(model, layer, held, settings, cells, tokens, sequences)
        same = known[layer.cache]
        items.append(
            MemoryItem(
                component="kv_cache",
                layer_index=layer.index,
                needed=same.needed,
                allocated=same.allocated,
                because=same.because,
            )
        )
    return items


def _layer_item(
    model: ModelSpec,
    layer: LayerSpec,
    held: LayerCache,
    settings: LlamaCppSettings,
    cells: Cells,
    tokens: int,
    sequences: int,
) -> MemoryItem:
    """Needed and allocated bytes of one layer's keys and values, with the sum written out."""
    cached = [tensor for tensor in held.tensors if tensor.component == "kv_cache"]
    total = sum(tensor.num_bytes for tensor in cached)
    needed = constant(0)
    because = _why_nothing(layer.cache)
    if total:
        attention = kept_attention(model, layer.cache)
        needed = needed_by_layer(attention, settings.cache_type_k, settings.cache_type_v).times(sequences)
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


def _why_nothing(cache: CacheKind) -> str:
    match cache:
        case SharedCache():
            return "reads an earlier layer's cache: nothing of its own is cached"
        case RecurrentState():
            return "keeps a recurrent state instead of keys and values"
        case _:
            return "no key-value heads in this layer: nothing is cached"


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


def _cell_rows(model: ModelSpec, cache: CacheKind, settings: LlamaCppSettings, cells: Cells) -> tuple[_Row, _Row, int]:
    """One cell's keys and values, and the number of cells per stream."""
    heads, key_dim, value_dim = row_shape(model, cache)
    keys = _Row(heads=heads, width=key_dim, dtype=settings.cache_type_k)
    values = _Row(heads=heads, width=value_dim, dtype=settings.cache_type_v)
    if settings.flash_attn == "off" and not held_latent(model, cache):
        # Values are stored transposed then, every layer as wide as the widest of the model, even one without heads.
        widest = max(width * count for count, _, width in (row_shape(model, layer.cache) for layer in model.layers))
        if widest != heads * value_dim:
            values = _Row(heads=1, width=widest, dtype=settings.cache_type_v)
    held = held_by(model, cache)
    if held is not None and held.is_windowed and cells.window is not None:
        return keys, values, cells.window
    return keys, values, cells.per_stream


def cache_buffers(model: ModelSpec, layers: Sequence[LayerCache], cells: Cells) -> list[Buffer]:
    """The caches as the engine's log names them: one "full", or "non-SWA" and "SWA"; none where every layer is
    recurrent."""
    groups: dict[str, list[LayerCache]] = {"full": []} if cells.window is None else {"non-SWA": [], "SWA": []}
    kinds: dict[CacheKind, str | None] = {}
    for cache in dict.fromkeys(layer.cache for layer in model.layers):
        held = held_by(model, cache)
        kind = "SWA" if held is not None and held.is_windowed else "non-SWA"
        kinds[cache] = None if is_other(cache, model) else "full" if cells.window is None else kind
    for layer, found in zip(model.layers, layers, strict=True):
        name = kinds[layer.cache]
        if name is not None:
            groups[name].append(found)
    if has_states(model) and not groups.get("full"):
        return []
    buffers = []
    for kind, members in groups.items():
        sizes = [(t.name, t.num_bytes) for member in members for t in member.tensors if t.component == "kv_cache"]
        k_bytes = sum(num_bytes for name, num_bytes in sizes if name != "values")
        v_bytes = sum(num_bytes for name, num_bytes in sizes if name == "values")
        details = {
            "cells": cells.window if kind == "SWA" and cells.window is not None else cells.per_stream,
            "streams": cells.streams,
            "layers": len(members),
            "k_bytes": k_bytes,
            "v_bytes": v_bytes,
        }
        buffers.append(Buffer(name="kv_cache", kind=kind, num_bytes=k_bytes + v_bytes, details=details))
    return buffers
