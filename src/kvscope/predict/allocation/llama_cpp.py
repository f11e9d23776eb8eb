"""llama.cpp on a CPU: what its server reserves at load. Rules of xllamacpp 2026.10.11549 (llama.cpp b11549), measured
byte for byte with an allocation recorder (tests/golden/llamacpp/README.md).

The cache is paid in full at load, whatever the conversation holds: its cells are fixed by the context size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvscope.dtypes import Dtype, row_bytes
from kvscope.errors import UnsupportedArchitecture, UsageError
from kvscope.model.spec import FullAttention, LayerSpec, ModelSpec, NoCache, SlidingWindow
from kvscope.predict.allocation.llama_cpp_settings import LlamaCppSettings, canonical_settings
from kvscope.predict.buffers import ComputeBuffer, Graph, compute_buffer, output_buffer, rotation_sizes
from kvscope.predict.growth import constant
from kvscope.predict.kv_cache import kind_name, needed_by_layer
from kvscope.predict.prediction import (
    Asked,
    Buffer,
    CacheTensor,
    Component,
    LayerCache,
    MemoryItem,
    Prediction,
    Unknown,
)
from kvscope.predict.weights import cpu_weight_buffers, untried_types
from kvscope.scenario import SettingValue

ENGINE = "llama.cpp"
VERSION = "xllamacpp 2026.10.11549 (llama.cpp b11549), CPU"
BUILD = "11549"
CELL_MULTIPLE = 256
# llama.cpp's graphs of these families have no window, whatever the file says: every layer gets all cells.
_WINDOW_IGNORED = frozenset({"phi3"})


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


def predict_llama_cpp(model: ModelSpec, asked: Asked, settings: Mapping[str, SettingValue]) -> Prediction:
    """Raises UsageError with llama.cpp's own reason where it would refuse; UnsupportedArchitecture for layers it would
    cache in a way that is not known here."""
    parsed = canonical_settings(settings, asked.num_sequences)
    _check_head_dims(model, parsed)
    cells = plan_cells(model, parsed)
    limit = _slot_limit(model, cells)
    tokens = asked.tokens if asked.tokens is not None else limit
    layers = [_layer(model, layer, parsed, cells, tokens, asked.num_sequences) for layer in model.layers]
    weights, weight_buffers, weights_unknown = _weights(model, parsed)
    outputs, output_unknown = _output(model, parsed)
    compute, compute_unknown = _compute(model, parsed, cells)
    unknown = [*weights_unknown, *output_unknown, *compute_unknown, _version_unknown(asked), _runtime_unknown(model)]
    missing: set[Component] = {"runtime"}
    if not weights:
        missing.add("weights")
    if compute is None:
        missing.add("compute_buffer")
    items = [*weights, *(item for item, _ in layers), outputs, *([compute] if compute else []), _host_cache(parsed)]
    return Prediction(
        model=model,
        scenario=asked.scenario(ENGINE, asked.engine_version or VERSION, tokens, parsed.as_asked),
        effective=_effective(parsed, cells, limit),
        items=tuple(items),
        layers=tuple(cache for _, cache in layers),
        buffers=(*weight_buffers, *_cache_buffers(model, parsed, cells), *_small_buffers(outputs, compute)),
        status=_status(asked, missing),
        unknown=tuple(entry for entry in unknown if entry is not None),
        missing=frozenset(missing),
        notes=_notes(model, asked, parsed, cells, tokens, limit),
    )


def plan_cells(model: ModelSpec, settings: LlamaCppSettings) -> Cells:
    """Cells, streams and batch sizes (rules 1, 2, 3 and 9 of the measurements)."""
    asked = settings.n_ctx or model.trained_context_tokens
    if asked is None:
        raise UsageError("The model's files do not state a trained context.", hint="Set n_ctx.")
    slots = settings.n_parallel
    context = _pad(asked, CELL_MULTIPLE)
    if settings.kv_unified:
        per_stream, streams = context, 1
    else:
        per_stream, streams = _pad(context // slots, CELL_MULTIPLE), slots
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
        window_cells = per_stream if settings.swa_full else min(per_stream, _pad(shared + microbatch, CELL_MULTIPLE))
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


def _check_head_dims(model: ModelSpec, settings: LlamaCppSettings) -> None:
    for side, dtype in (("K", settings.cache_type_k), ("V", settings.cache_type_v)):
        for layer in model.layers:
            if not isinstance(layer.cache, FullAttention | SlidingWindow):
                continue
            width = layer.cache.key_dim if side == "K" else layer.cache.value_dim
            if width % dtype.block_elements:
                raise UsageError(
                    f"llama.cpp refuses this: {side} cache type {dtype.name} with block size {dtype.block_elements} "
                    f"does not divide n_embd_head_{side.lower()}={width}.",
                    hint=f"Set cache_type_{side.lower()} to f16 or bf16.",
                )


def _slot_limit(model: ModelSpec, cells: Cells) -> int:
    """Tokens one sequence may hold: the server caps a slot at the trained context."""
    trained = model.trained_context_tokens
    return cells.per_stream if trained is None else min(cells.per_stream, trained)


def _layer(
    model: ModelSpec, layer: LayerSpec, settings: LlamaCppSettings, cells: Cells, tokens: int, sequences: int
) -> tuple[MemoryItem, LayerCache]:
    cache = layer.cache
    kind = kind_name(cache)
    needed = needed_by_layer(cache, settings.cache_type_k, settings.cache_type_v).times(sequences)
    if isinstance(cache, NoCache):
        item = MemoryItem(
            component="kv_cache",
            layer_index=layer.index,
            needed=needed,
            allocated=constant(0),
            because="no key-value heads in this layer: nothing is cached",
        )
        return item, LayerCache(index=layer.index, kind=kind, tensors=())
    if not isinstance(cache, FullAttention | SlidingWindow):
        raise UnsupportedArchitecture(
            f"Layer {layer.index} is {kind}; what llama.cpp reserves for it is not known here.",
            hint="Full and sliding-window attention are known.",
        )
    keys, values, num_cells = _cell_rows(model, cache, settings, cells)
    count = num_cells * cells.streams
    total = count * (keys.num_bytes + values.num_bytes)
    streams = f" × {cells.streams} streams" if cells.streams > 1 else ""
    because = (
        f"{num_cells} cells{streams} × (K: {keys.text} + V: {values.text}) = {total} B; "
        f"{tokens} tokens × {sequences} sequences need {needed.bytes_at(tokens)} B; {VERSION}"
    )
    item = MemoryItem(
        component="kv_cache",
        layer_index=layer.index,
        needed=needed,
        allocated=constant(total),
        because=because,
    )
    tensors = (
        CacheTensor(
            name="keys",
            shape=(cells.streams, cache.num_kv_heads, num_cells, cache.key_dim),
            dtype=settings.cache_type_k.name,
            num_bytes=count * keys.num_bytes,
        ),
        CacheTensor(
            name="values",
            shape=(cells.streams, values.heads, num_cells, values.width),
            dtype=settings.cache_type_v.name,
            num_bytes=count * values.num_bytes,
        ),
    )
    return item, LayerCache(index=layer.index, kind=kind, tensors=tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One token's keys or values in one layer."""

    heads: int
    width: int
    num_bytes: int
    text: str


def _cell_rows(
    model: ModelSpec, cache: FullAttention | SlidingWindow, settings: LlamaCppSettings, cells: Cells
) -> tuple[_Row, _Row, int]:
    keys = _row(cache.num_kv_heads, cache.key_dim, settings.cache_type_k)
    values = _row(cache.num_kv_heads, cache.value_dim, settings.cache_type_v)
    if settings.flash_attn == "off":
        # Values are stored transposed then, every layer as wide as the widest of the model.
        widest = max(
            layer.cache.num_kv_heads * layer.cache.value_dim
            for layer in model.layers
            if isinstance(layer.cache, FullAttention | SlidingWindow)
        )
        if widest != cache.num_kv_heads * cache.value_dim:
            values = _row(1, widest, settings.cache_type_v)
    slides = isinstance(cache, SlidingWindow) and cells.window is not None
    return keys, values, cells.window if slides and cells.window is not None else cells.per_stream


def _row(heads: int, width: int, dtype: Dtype) -> _Row:
    num_bytes = row_bytes(dtype, heads * width)
    return _Row(heads=heads, width=width, num_bytes=num_bytes, text=f"{heads} × {width} {dtype.name} = {num_bytes} B")


def _cache_buffers(model: ModelSpec, settings: LlamaCppSettings, cells: Cells) -> list[Buffer]:
    """The caches as the engine's log names them: one "full", or "non-SWA" and "SWA"."""
    groups: dict[str, list[FullAttention | SlidingWindow]] = {}
    if cells.window is not None:
        groups = {"non-SWA": [], "SWA": []}
    for layer in model.layers:
        if isinstance(layer.cache, FullAttention | SlidingWindow):
            slides = isinstance(layer.cache, SlidingWindow)
            kind = "full" if cells.window is None else ("SWA" if slides else "non-SWA")
            groups.setdefault(kind, []).append(layer.cache)
    buffers = []
    for kind, caches in groups.items():
        rows = [_cell_rows(model, cache, settings, cells) for cache in caches]
        num_cells = cells.window if kind == "SWA" and cells.window is not None else cells.per_stream
        k_bytes = sum(keys.num_bytes for keys, _, _ in rows) * num_cells * cells.streams
        v_bytes = sum(values.num_bytes for _, values, _ in rows) * num_cells * cells.streams
        details = {
            "cells": num_cells,
            "streams": cells.streams,
            "layers": len(caches),
            "k_bytes": k_bytes,
            "v_bytes": v_bytes,
        }
        buffers.append(Buffer(name="kv_cache", kind=kind, num_bytes=k_bytes + v_bytes, details=details))
    return buffers


def _weights(model: ModelSpec, settings: LlamaCppSettings) -> tuple[list[MemoryItem], list[Buffer], list[Unknown]]:
    if not model.tensors:
        why = "config.json lists no tensors: give the GGUF file for the weights; total_bytes leaves them out"
        return [], [], [Unknown(what="weights", why=why)]
    planned = cpu_weight_buffers(model, is_mapped=settings.load_mode == "mmap", repack=not settings.no_extra_bufts)
    doubtful = [] if settings.no_extra_bufts else untried_types(model)
    items = [
        MemoryItem(
            component="weights",
            needed=constant(buffer.needed_bytes),
            allocated=constant(buffer.num_bytes),
            backing=buffer.backing,
            status="estimated" if doubtful else "exact",
            because=f"{buffer.name}: {buffer.because}; {VERSION}, x86-64 with AVX2",
        )
        for buffer in planned
    ]
    buffers = [
        Buffer(
            name="weights",
            kind=buffer.name,
            num_bytes=buffer.num_bytes,
            backing=buffer.backing,
            details={"tensors": buffer.num_tensors},
        )
        for buffer in planned
    ]
    if not doubtful:
        return items, buffers, []
    why = (
        f"whether {ENGINE} makes a second, rearranged copy of {', '.join(doubtful)} matrices on this CPU was not tried"
    )
    return items, buffers, [Unknown(what="weights", why=why)]


def _output(model: ModelSpec, settings: LlamaCppSettings) -> tuple[MemoryItem, list[Unknown]]:
    num_bytes, because = output_buffer(model, settings.n_parallel, embedding=settings.embedding)
    is_file = model.source_kind == "gguf"
    item = MemoryItem(
        component="output_buffer",
        needed=constant(num_bytes),
        allocated=constant(num_bytes),
        status="exact" if is_file else "estimated",
        because=f"{because}; {VERSION}",
    )
    if is_file:
        return item, []
    why = "the vocabulary of the converted file may differ from config.json's (padding rows are dropped)"
    return item, [Unknown(what="output_buffer", why=why)]


def _compute(model: ModelSpec, settings: LlamaCppSettings, cells: Cells) -> tuple[MemoryItem | None, list[Unknown]]:
    caches = _cells_of_used_caches(model, cells)
    graph = Graph(
        microbatch_tokens=cells.microbatch,
        num_slots=settings.n_parallel,
        cells=caches,
        flash_attn=settings.flash_attn == "on",
        embedding=settings.embedding,
        rotations=_rotations(model, settings) * len(caches),
        key_is_quantised=settings.cache_type_k.is_quantised,
        cache_is_float32="float32" in (settings.cache_type_k.name, settings.cache_type_v.name),
    )
    found: ComputeBuffer | None = compute_buffer(model, graph)
    if found is None:
        why = "the layers differ in shape, which was not measured; total_bytes leaves it out"
        return None, [Unknown(what="compute_buffer", why=why)]
    item = MemoryItem(
        component="compute_buffer",
        needed=constant(found.num_bytes),
        allocated=constant(found.num_bytes),
        status="exact" if found.doubt is None else "estimated",
        because=f"{found.because}; reserved at load, touched by the first full microbatch; {VERSION}",
    )
    return item, [] if found.doubt is None else [Unknown(what="compute_buffer", why=f"estimated: {found.doubt}")]


def _cells_of_used_caches(model: ModelSpec, cells: Cells) -> tuple[int, ...]:
    """Cells of each cache that some layer reads: a cache without layers takes no part in the graph."""
    if cells.window is None:
        return (cells.per_stream,)
    has_full = any(isinstance(layer.cache, FullAttention) for layer in model.layers)
    return (cells.per_stream, cells.window) if has_full else (cells.window,)


def _rotations(model: ModelSpec, settings: LlamaCppSettings) -> tuple[int, ...]:
    """Sides of the rotation matrices of one cache. llama.cpp rotates only where all layers' heads are equally wide."""
    caches = [layer.cache for layer in model.layers if isinstance(layer.cache, FullAttention | SlidingWindow)]
    sides = []
    for dtype, widths, is_value in (
        (settings.cache_type_k, {cache.key_dim for cache in caches}, False),
        (settings.cache_type_v, {cache.value_dim for cache in caches}, True),
    ):
        if dtype.is_quantised and len(widths) == 1:
            side = rotation_sizes(widths.pop(), is_value=is_value)
            if side is not None:
                sides.append(side)
    return tuple(sides)


def _host_cache(settings: LlamaCppSettings) -> MemoryItem:
    if settings.cache_ram_mib == 0:
        because = "cache_ram_mib = 0: no copies of old prompts are kept"
    else:
        limit = "without limit" if settings.cache_ram_mib < 0 else f"up to {settings.cache_ram_mib} MiB"
        because = (
            f"0 at load; afterwards the server keeps copies of old prompts' caches in memory, {limit} "
            "(cache_ram_mib; 0 turns it off): growth from one conversation to the next is this, not a leak"
        )
    return MemoryItem(
        component="host_cache", needed=constant(0), allocated=constant(0), because=f"{because}; {VERSION}"
    )


def _small_buffers(output: MemoryItem, compute: MemoryItem | None) -> tuple[Buffer, Buffer]:
    compute_bytes = compute.allocated.fixed_bytes if compute is not None else None
    return (
        Buffer(name="output_buffer", kind="CPU", num_bytes=output.allocated.fixed_bytes),
        Buffer(name="compute_buffer", kind="CPU", num_bytes=compute_bytes),
    )


def _effective(settings: LlamaCppSettings, cells: Cells, limit: int) -> dict[str, Any]:
    return {
        "context_tokens": cells.context,
        "context_per_sequence_tokens": cells.per_stream,
        "batch_tokens": cells.batch,
        "microbatch_tokens": cells.microbatch,
        "slots": settings.n_parallel,
        "slot_limit_tokens": limit,
        "streams": cells.streams,
        "kv_unified": settings.kv_unified,
        "cache_type_k": settings.cache_type_k.name,
        "cache_type_v": settings.cache_type_v.name,
        "flash_attn": settings.flash_attn,
        "load_mode": settings.load_mode,
        "cache_ram_mib": settings.cache_ram_mib,
    }


def _status(asked: Asked, missing: set[Component]) -> Any:
    if _version_unknown(asked) is not None:
        return "estimated"
    return "exact" if missing == {"runtime"} else "partial"


def _version_unknown(asked: Asked) -> Unknown | None:
    version = asked.engine_version
    if version is None or BUILD in version:
        return None
    return Unknown(
        what="engine_version",
        why=f"the rules were measured on {VERSION}; that {version} follows them was not checked",
    )


def _runtime_unknown(model: ModelSpec) -> Unknown:
    return Unknown(
        what="runtime",
        why="the process itself (program, tokenizer tables, HTTP server, allocator) cannot be read from the model's "
        "file; total_bytes leaves it out. Measured, it is tens of MiB and grows with the vocabulary "
        f"({model.vocab_size} entries here)",
    )


def _notes(
    model: ModelSpec, asked: Asked, settings: LlamaCppSettings, cells: Cells, tokens: int, limit: int
) -> tuple[str, ...]:
    notes = []
    if asked.tokens is None:
        notes.append(f"Tokens not given: counted with {tokens}, the most one sequence may hold.")
    if tokens > limit:
        notes.append(
            f"{tokens} tokens do not fit: a sequence may hold {limit} here. What the tokens need is more than what is "
            "reserved; llama.cpp would refuse such a prompt."
        )
    elif settings.kv_unified and tokens * asked.num_sequences > cells.per_stream:
        notes.append(
            f"{asked.num_sequences} sequences of {tokens} tokens share {cells.per_stream} cells and do not all fit."
        )
    trained = model.trained_context_tokens
    if trained is not None and cells.per_stream > trained:
        notes.append(
            f"The context per sequence, {cells.per_stream}, is beyond the trained {trained}: llama.cpp reserves it all "
            f"but caps a sequence at {trained}."
        )
    return tuple(notes)


def _pad(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
