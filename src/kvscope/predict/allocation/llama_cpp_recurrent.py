"""llama.cpp's recurrent state on a CPU: one cell per sequence slot, always in 32-bit floats, whatever the cache types,
the context or kv_unified. Rules of xllamacpp 2026.10.11549 (llama.cpp b11549), measured byte for byte
(tests/golden/llamacpp/README.md).

llama.cpp calls the two parts R (what a shift needs: convolution columns, last hidden states) and S (the state proper).
"""

from kvscope.dtypes import dtype_named, row_bytes
from kvscope.model.spec import CacheKind, HybridCache, LayerSpec, ModelSpec, RecurrentState
from kvscope.predict.allocation.llama_cpp_settings import VERSION, LlamaCppSettings
from kvscope.predict.growth import constant
from kvscope.predict.prediction import Buffer, CacheTensor, MemoryItem

STATE_DTYPE = dtype_named("f32")
SHIFT_STATES = frozenset({"token_shift"})  # state tensors that belong to R, as the convolution's columns do


def state_of(cache: CacheKind) -> RecurrentState | None:
    """The recurrent part of a layer, or None."""
    if isinstance(cache, HybridCache):
        return cache.recurrent
    return cache if isinstance(cache, RecurrentState) else None


def state_tensors(cache: CacheKind, num_slots: int) -> tuple[CacheTensor, ...]:
    """The tensors of one layer's state, for all slots."""
    state = state_of(cache)
    if state is None:
        return ()
    shapes: list[tuple[str, tuple[int, ...]]] = []
    if state.conv_channels:
        shapes.append(("conv_state", (state.conv_channels, state.conv_kernel - 1)))
    shapes.extend((tensor.name, tensor.shape) for tensor in state.states)
    return tuple(
        CacheTensor(
            name=name,
            shape=(num_slots, *shape),
            dtype=STATE_DTYPE.name,
            num_bytes=num_slots * row_bytes(STATE_DTYPE, _elements(shape)),
            component="recurrent_state",
        )
        for name, shape in shapes
    )


def state_item(layer: LayerSpec, settings: LlamaCppSettings, sequences: int) -> MemoryItem | None:
    """Needed and allocated bytes of one layer's state; None for a layer without."""
    tensors = state_tensors(layer.cache, settings.n_parallel)
    if not tensors:
        return None
    total = sum(tensor.num_bytes for tensor in tensors)
    each = total // settings.n_parallel
    parts = " + ".join(f"{tensor.name} {' × '.join(map(str, tensor.shape[1:]))}" for tensor in tensors)
    return MemoryItem(
        component="recurrent_state",
        layer_index=layer.index,
        needed=constant(each * sequences),
        allocated=constant(total),
        because=f"{settings.n_parallel} slots × ({parts}) × 4 B (float32) = {total} B, at any length; {VERSION}",
    )


def state_buffers(model: ModelSpec, settings: LlamaCppSettings) -> list[Buffer]:
    """The one buffer of all states, as the engine logs it: its "layers" are the whole model's. Empty where no layer
    has a state."""
    if all(state_of(layer.cache) is None for layer in model.layers):
        return []
    r_bytes = s_bytes = 0
    for layer in model.layers:
        for tensor in state_tensors(layer.cache, settings.n_parallel):
            if tensor.name == "conv_state" or tensor.name in SHIFT_STATES:
                r_bytes += tensor.num_bytes
            else:
                s_bytes += tensor.num_bytes
    details = {"cells": settings.n_parallel, "layers": len(model.layers), "r_bytes": r_bytes, "s_bytes": s_bytes}
    return [Buffer(name="recurrent_state", kind="RS", num_bytes=r_bytes + s_bytes, details=details)]


def _elements(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
