"""Output and compute buffers of llama.cpp on a CPU.

The compute buffer holds one microbatch on its way through the graph; llama.cpp reserves it at load for the worst case.
Its size is the largest set of tensors alive at one moment: the inputs (token ids, positions, cache indices, mask) plus
a few rows as wide as the model, plus the widest step: the feed-forward rows, the logits, or, without flash attention,
the attention scores. Formulas: measured on xllamacpp 2026.10.11549 (llama.cpp b11549) with an allocation recorder,
byte for byte (tests/golden/llamacpp). Each tensor is padded to 32 bytes.
"""

from dataclasses import dataclass

from kvscope.model.spec import FullAttention, ModelSpec, SlidingWindow
from kvscope.predict.growth import round_up

ALIGNMENT_BYTES = 32
FLOAT_BYTES = 4
INT64_BYTES = 8
# Rows as wide as the model that are alive with the widest step, by what that step is.
WIDE_ROWS = 5
ROTATION_BLOCK = 64  # smallest Hadamard matrix that rotates a quantised cache; values always use this one

# Without flash attention: (rows as wide as the model, rows as wide as the heads) beside the attention scores.
_SCORE_ROWS = {"gemma3": (5, 2)}
_OTHER_SCORE_ROWS = (3, 3)
# Families whose graph was measured without flash attention.
_SCORES_MEASURED = frozenset({"llama", "qwen2", "qwen3", "granite", "ernie4_5", "command-r", "gemma3"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """What the size of the graph depends on. ``cells``: per stream, one entry per cache. ``rotations``: side lengths of
    the square matrices that rotate quantised keys and values, one per matrix."""

    microbatch_tokens: int
    num_slots: int
    cells: tuple[int, ...]
    flash_attn: bool
    embedding: bool
    rotations: tuple[int, ...]
    key_is_quantised: bool
    cache_is_float32: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeBuffer:
    """``doubt`` says why the bytes are an estimate; None: exact."""

    num_bytes: int
    because: str
    doubt: str | None


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


def compute_buffer(model: ModelSpec, graph: Graph) -> ComputeBuffer | None:
    """The compute buffer, or None where the layers' shapes are outside what was measured."""
    shape = _uniform_shape(model)
    if shape is None:
        return None
    tokens = round_up(graph.microbatch_tokens, graph.num_slots)
    hidden = _padded(FLOAT_BYTES * model.hidden_size * tokens)
    inputs = _input_bytes(graph, tokens, shape.kv_width)
    rotations = sum(FLOAT_BYTES * side * side for side in graph.rotations)
    if graph.embedding:
        hidden_rows, outputs = WIDE_ROWS + 1, tokens
    else:
        hidden_rows, outputs = WIDE_ROWS, graph.num_slots
    out_ids = _padded(FLOAT_BYTES * outputs)
    feed_forward = 3 * _padded(FLOAT_BYTES * shape.ffn_width * tokens)
    logits = _padded(FLOAT_BYTES * model.vocab_size * outputs)
    widest = max(feed_forward, logits)
    step = hidden_rows * hidden + widest
    step_text = f"{hidden_rows} rows of {model.hidden_size} + " + (
        f"3 feed-forward rows of {shape.ffn_width}" if feed_forward >= logits else f"{outputs} rows of logits"
    )
    if not graph.flash_attn:
        scores = _scores_bytes(model, graph, shape, tokens, hidden)
        if scores > step:
            step = scores
            step_text = f"attention scores of {shape.q_heads} heads × {max(graph.cells)} cells, and rows beside them"
    total = out_ids + inputs + rotations + step
    because = f"{tokens} tokens at once: inputs and mask {inputs + out_ids} B + {step_text}, = {total} B"
    if rotations:
        because += f", of which {rotations} B rotate the quantised cache"
    return ComputeBuffer(num_bytes=total, because=because, doubt=_doubt(model, graph, shape, widest, tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    q_heads: int
    q_width: int
    kv_width: int
    ffn_width: int


def _uniform_shape(model: ModelSpec) -> _Shape | None:
    """The layers' common shape; None where layers differ."""
    shapes = set()
    for layer in model.layers:
        cache = layer.cache
        if not isinstance(cache, FullAttention | SlidingWindow) or layer.ffn is None:
            return None
        if cache.key_dim != cache.value_dim:
            return None
        shapes.add((layer.num_q_heads, cache.key_dim, cache.num_kv_heads, layer.ffn.width))
    if len(shapes) != 1:
        return None
    q_heads, head_dim, kv_heads, ffn_width = shapes.pop()
    return _Shape(q_heads=q_heads, q_width=q_heads * head_dim, kv_width=kv_heads * head_dim, ffn_width=ffn_width)


def _input_bytes(graph: Graph, tokens: int, kv_width: int) -> int:
    """Inputs of the graph: ids and positions (4 B each) and 64-bit indices, and per cache its own and a mask.

    Without flash attention the mask is in 32-bit floats and values are stored transposed, so that each element of a
    value row has an index of its own.
    """
    caches = len(graph.cells)
    words = (2 + caches) * _padded(FLOAT_BYTES * tokens)
    indices = (1 + caches) * _padded(INT64_BYTES * tokens)
    value_indices = caches * _padded(INT64_BYTES * tokens * (1 if graph.flash_attn else kv_width))
    mask_element = 2 if graph.flash_attn else FLOAT_BYTES
    mask = sum(_padded(mask_element * cells * tokens) for cells in graph.cells)
    return words + indices + value_indices + mask


def _scores_bytes(model: ModelSpec, graph: Graph, shape: _Shape, tokens: int, hidden: int) -> int:
    hidden_rows, head_rows = _SCORE_ROWS.get(model.family, _OTHER_SCORE_ROWS)
    scores = FLOAT_BYTES * shape.q_heads * max(graph.cells) * tokens
    return scores + hidden_rows * hidden + head_rows * _padded(FLOAT_BYTES * shape.q_width * tokens)


def _doubt(model: ModelSpec, graph: Graph, shape: _Shape, widest: int, tokens: int) -> str | None:
    """Why this size is not certain, or None. llama.cpp packs tensors into freed gaps, so that a formula holds only for
    the proportions it was measured on; the checks below are the borders of those measurements."""
    if model.source_kind != "gguf":
        return "the converted file's vocabulary may be padded differently from config.json"
    hidden, q_width = model.hidden_size, shape.q_width
    if shape.ffn_width <= 2 * hidden or q_width > 2 * hidden:
        return "proportions (feed-forward or attention against hidden size) outside those measured"
    attention = FLOAT_BYTES * tokens * (3 * hidden + 3 * q_width + 2 * shape.kv_width)
    if graph.flash_attn and attention > FLOAT_BYTES * tokens * WIDE_ROWS * hidden + widest:
        return "attention rows may be the widest step for these proportions"
    if graph.cache_is_float32 and graph.flash_attn:
        return "a float32 cache is converted during attention, which was measured for few shapes"
    if graph.key_is_quantised and (model.family == "command-r" or not graph.flash_attn):
        return "quantised keys were not measured for this family, or without flash attention"
    if graph.embedding:
        return "in embedding mode the engine was seen up to 3 % below this"
    if not graph.flash_attn:
        is_measured = q_width >= hidden if model.family == "gemma3" else q_width == hidden
        if model.family not in _SCORES_MEASURED or not is_measured:
            return "without flash attention these proportions were not measured"
    return None


def _padded(num_bytes: int) -> int:
    return round_up(num_bytes, ALIGNMENT_BYTES)
