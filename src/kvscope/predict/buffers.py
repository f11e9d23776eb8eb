"""Output and compute buffers of llama.cpp on a CPU.

The compute buffer holds one microbatch on its way through the graph; llama.cpp reserves it at load for the worst case.
Its size follows from the graph's operations in their order and from ggml's allocator: both are modelled in
kvscope.predict.graphs and were checked, byte for byte, against graphs and buffers of xllamacpp 2026.10.11549
(llama.cpp b11549; tests/golden/llamacpp).
"""

from dataclasses import dataclass, replace

from kvscope.model.spec import HybridCache, ModelSpec, RecurrentState
from kvscope.predict.allocation.llama_cpp_cache import CELL_MULTIPLE, Cells
from kvscope.predict.allocation.llama_cpp_families import graph_family
from kvscope.predict.allocation.llama_cpp_layers import Held, held_by
from kvscope.predict.allocation.llama_cpp_settings import LlamaCppSettings
from kvscope.predict.graphs.allocator import Peak
from kvscope.predict.graphs.attention import Run
from kvscope.predict.graphs.measured import doubt_about
from kvscope.predict.graphs.model_graph import Plan, peak_of, plan_of
from kvscope.predict.graphs.tensor import UnknownGraph
from kvscope.predict.growth import round_up

FLOAT_BYTES = 4
ROTATION_BLOCK = 64  # smallest Hadamard matrix that rotates a quantised cache; values always use this one


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeBuffer:
    """``doubt`` says why the bytes are an estimate; None: exact.

    Of ``num_bytes``, ``context_bytes`` are what the cells beyond the smallest context add (masks, and attention scores
    without flash attention), ``logits_bytes`` what logits for every position add (embedding mode)."""

    num_bytes: int
    because: str
    doubt: str | None
    context_bytes: int = 0
    logits_bytes: int = 0


def output_buffer(model: ModelSpec, num_slots: int, *, embedding: bool) -> tuple[int, str]:
    """Bytes and reason: one row of logits (and of embeddings, in embedding mode) per slot."""
    width = model.vocab_size + (model.hidden_size if embedding else 0)
    parts = f"({model.vocab_size} logits + {model.hidden_size} embeddings)" if embedding else f"{width} logits"
    total = width * FLOAT_BYTES * num_slots
    return total, f"{parts} × {FLOAT_BYTES} B × {num_slots} slots = {total} B"


def rotation_sizes(head_dim: int, *, is_value: bool) -> int | None:
    """Side of the matrix that rotates a quantised cache, or None. Keys: the largest power of two dividing the head
    dim; values: 64. Heads that 64 does not divide are not rotated."""
    if head_dim % ROTATION_BLOCK:
        return None
    return ROTATION_BLOCK if is_value else head_dim & -head_dim


def compute_buffer(model: ModelSpec, settings: LlamaCppSettings, cells: Cells) -> ComputeBuffer | None:
    """The compute buffer, or None where the model's graph is not known."""
    run = run_of(model, settings, cells)
    plan = plan_of(model, run)
    if plan is None:
        return None
    plan = plan.shortened()
    peak = _peak(plan)
    if peak is None:
        return None
    shape = " × ".join(str(size) for size in peak.shape if size != 1) or "1"
    because = (
        f"{run.tokens} tokens at once through the graph of {graph_family(model).name}: inputs and masks "
        f"{peak.input_bytes} B, and what is alive when {peak.op.lower()} of {shape} is computed, placed as ggml's "
        f"allocator does, = {peak.num_bytes} B"
    )
    short = replace(plan, run=_smallest_context(run))
    few = replace(short, run=replace(short.run, outputs=settings.n_parallel))
    return ComputeBuffer(
        num_bytes=peak.num_bytes,
        because=because,
        doubt=doubt_about(model),
        context_bytes=_more_than(peak, _peak(short)),
        logits_bytes=_more_than(_peak(short), _peak(few)) if few.run != short.run else 0,
    )


def _peak(plan: Plan) -> Peak | None:
    try:
        return peak_of(plan)
    except (KeyError, UnknownGraph):
        return None  # the file lacks weights that the graph is known to use: another graph


def _smallest_context(run: Run) -> Run:
    window = run.window_cells
    return replace(
        run,
        cells=min(run.cells, CELL_MULTIPLE),
        window_cells=None if window is None else min(window, CELL_MULTIPLE),
    )


def _more_than(peak: Peak | None, other: Peak | None) -> int:
    """Bytes of the one beyond the other. None where it takes no more: the allocator packs some longer contexts tighter
    than shorter ones."""
    return 0 if peak is None or other is None else max(0, peak.num_bytes - other.num_bytes)


def run_of(model: ModelSpec, settings: LlamaCppSettings, cells: Cells) -> Run:
    """What the settings make of the graph: tokens at once, rows put out, cells."""
    tokens = round_up(cells.microbatch, settings.n_parallel)
    held = [found for layer in model.layers if (found := held_by(model, layer.cache)) is not None]
    return Run(
        tokens=tokens,
        outputs=tokens if settings.embedding else settings.n_parallel,
        sequences=settings.n_parallel if _has_states(model) else 1,
        streams=cells.streams,
        cells=cells.per_stream,
        window_cells=cells.window,
        flash_attention=settings.flash_attn == "on",
        rotated_key=_rotation(held, settings, is_value=False),
        rotated_value=_rotation(held, settings, is_value=True),
        float_key=settings.cache_type_k.name == "float32",
        float_value=settings.cache_type_v.name == "float32",
    )


def _has_states(model: ModelSpec) -> bool:
    return any(isinstance(layer.cache, RecurrentState | HybridCache) for layer in model.layers)


def _rotation(held: list[Held], settings: LlamaCppSettings, *, is_value: bool) -> int:
    """Side of the matrix that rotates this side of a quantised cache, 0: none. llama.cpp rotates only where all
    layers' heads are equally wide, and latents never."""
    dtype = settings.cache_type_v if is_value else settings.cache_type_k
    widths = {entry.value_dim if is_value else entry.key_dim for entry in held}
    if not dtype.is_quantised or len(widths) != 1 or any(entry.value_dim == 0 for entry in held):
        return 0
    return rotation_sizes(widths.pop(), is_value=is_value) or 0
