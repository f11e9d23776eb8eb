"""Weights: each tensor's exact bytes, and the buffers in which llama.cpp places them on a CPU.

Placement rules: xllamacpp 2026.10.11549 (llama.cpp b11549), x86-64 with AVX2. Measured with an allocation recorder on
real and generated files (tests/golden/llamacpp): nothing is added to the tensors' bytes, but
- with a memory-mapped file, the mapped span runs from the first to the last tensor that stays in the file;
  in each of a split model's files;
- layers that only draft tokens (multi-token prediction) are not loaded by the server unless it drafts;
- weight matrices of some types, those of experts too, are rewritten into a second buffer ("CPU_REPACK") for faster
  arithmetic; tables that are looked up row by row, and 3-D tensors that are no experts', are not;
- an output matrix tied to token embeddings of such a type exists twice, once for each use.
"""

from dataclasses import dataclass
from typing import Literal

from kvscope.dtypes import dtype_named, row_bytes
from kvscope.model.quantisation import quantised_weights
from kvscope.model.spec import ModelSpec, TensorInfo
from kvscope.model.tensor_names import tied_copies
from kvscope.predict.growth import constant
from kvscope.predict.prediction import MemoryItem, Unknown

REPACKED_TYPES = frozenset({"q4_0", "q4_k", "iq4_nl", "mxfp4"})
# Types tried on the engine, one generated model each: whether another type is repacked is not known.
TRIED_TYPES = REPACKED_TYPES | {
    "float32", "float16", "bfloat16", "q8_0", "q4_1", "q5_0", "q5_1", "q6_k", "q2_k", "q3_k", "q5_k", "q1_0", "q2_0",
    "iq4_xs", "iq3_s", "iq3_xxs", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_s", "iq1_m", "tq1_0", "tq2_0", "nvfp4",
}  # fmt: skip
# Matrices whose number of rows is no multiple of eight stay where they are (tried: 290 rows).
REPACK_ROWS = 8
TOKEN_EMBEDDINGS = "token_embd.weight"
OUTPUT = "output.weight"
# Read row by row instead of multiplied: never rewritten.
LOOKED_UP = frozenset({TOKEN_EMBEDDINGS, "position_embd.weight", "token_types.weight", "per_layer_token_embd.weight"})
EXPERTS = "_exps.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBuffer:
    """``needed_bytes``: bytes of the tensors used from this buffer. ``num_bytes``: what the engine reports for it."""

    name: Literal["CPU_Mapped", "CPU", "CPU_REPACK"]
    needed_bytes: int
    num_bytes: int
    num_tensors: int
    because: str

    @property
    def backing(self) -> Literal["anonymous", "file"]:
        return "file" if self.name == "CPU_Mapped" else "anonymous"


def needed_weights(model: ModelSpec, dtype: str | None) -> tuple[tuple[MemoryItem, ...], tuple[Unknown, ...]]:
    """The weights themselves, engine-free, tied ones once and all experts.

    The tensors where the files list them, as they are stored; else what the config implies: under its
    quantization_config, or every parameter in ``dtype`` (default: the model's own; a tensor that keeps a format of its
    own, in that). What is not known is said, and not counted.
    """
    if model.tensors:
        return (_stored_weights(model),), ()
    if model.quantisation is not None:
        found = quantised_weights(model, dtype)
        if isinstance(found, str):
            return (), (Unknown(what="weights", why=f"{found}; total_bytes leaves them out"),)
        total = sum(group.num_bytes for group in found)
        packed = sum(group.num_bytes for group in found if group.num_quantised)
        count = sum(group.num_quantised for group in found)
        method = model.quantisation.get("quant_method")
        because = (
            f"{count} tensors quantised ({method}) with their scales {packed} B + others {total - packed} B = {total} B"
        )
        return (_weights_item(total, because),), ()
    dtype = dtype or model.dtype
    if model.num_parameters is None or dtype is None:
        missing = "the number of parameters" if model.num_parameters is None else "the weights' format"
        return (), (Unknown(what="weights", why=f"the source does not state {missing}; total_bytes leaves them out"),)
    if dtype_named(dtype).is_quantised:
        why = f"which tensors a file in {dtype} keeps in another format is the converter's choice: give that file"
        return (), (Unknown(what="weights", why=f"{why}; total_bytes leaves them out"),)
    return (_parameters_item(model, model.num_parameters, dtype),), ()


def _stored_weights(model: ModelSpec) -> MemoryItem:
    """The sum of the tensors. A GGUF's engine loads an output matrix that is stored; others load a tied one once."""
    copies = tied_copies(model.tensors) if model.is_tied and model.source_kind != "gguf" else ()
    num_bytes = sum(tensor.num_bytes for tensor in model.tensors)
    total = num_bytes - sum(tensor.num_bytes for tensor in copies)
    because = f"sum of {len(model.tensors)} tensors as the file stores them = {num_bytes} B"
    if copies:
        names = ", ".join(tensor.name for tensor in copies)
        because += f"; less {names}, a copy of the embeddings it is tied to = {total} B"
    return _weights_item(total, because)


def _parameters_item(model: ModelSpec, num_parameters: int, dtype: str) -> MemoryItem:
    size = row_bytes(dtype_named(dtype), 1)
    total = num_parameters * size
    because = f"{num_parameters} parameters × {size} B ({dtype})"
    kept = [group for group in model.weights if group.kept_dtype(dtype) != dtype]
    for group in kept:
        total += group.num_elements * (row_bytes(dtype_named(group.kept_dtype(dtype)), 1) - size)
    if kept:
        elements = sum(group.num_elements for group in kept)
        because += f"; of which {elements} keep a format of their own ({kept[0].name}, ...)"
    return _weights_item(total, f"{because} = {total} B")


def _weights_item(num_bytes: int, because: str) -> MemoryItem:
    return MemoryItem(component="weights", needed=constant(num_bytes), allocated=constant(num_bytes), because=because)


def is_repacked(tensor: TensorInfo) -> bool:
    """Whether the CPU backend rewrites this tensor for its matrix products."""
    num_dims = 3 if tensor.name.endswith(EXPERTS) else 2
    return (
        tensor.dtype in REPACKED_TYPES
        and len(tensor.shape) == num_dims
        and tensor.name.endswith(".weight")
        and tensor.name not in LOOKED_UP
        and tensor.shape[1] % REPACK_ROWS == 0
    )


def is_ignored(model: ModelSpec, tensor: TensorInfo) -> bool:
    """Whether llama.cpp leaves this tensor in the file: those of layers that only draft tokens."""
    return model.source_kind == "gguf" and tensor.layer_index is not None and tensor.layer_index >= len(model.layers)


def untried_types(model: ModelSpec) -> tuple[str, ...]:
    """Types of matrices for which it is not known whether the CPU backend repacks them."""
    return tuple(sorted({t.dtype for t in model.tensors if len(t.shape) >= 2 and t.dtype not in TRIED_TYPES}))


def cpu_weight_buffers(
    model: ModelSpec, *, is_mapped: bool, repack: bool, has_output: bool = True
) -> tuple[WeightBuffer, ...]:
    """The buffers llama.cpp makes on a CPU for these tensors. ``repack`` False: with no_extra_bufts. Of a split model
    each file is mapped, and has a buffer of its own. ``has_output`` False: the output matrix is on another device."""
    loaded = [tensor for tensor in model.tensors if not is_ignored(model, tensor)]
    moved = [tensor for tensor in loaded if repack and is_repacked(tensor)]
    moved_names = {tensor.name for tensor in moved}
    kept = [tensor for tensor in loaded if tensor.name not in moved_names]
    tied = _tied_output(model) if repack and has_output else None
    copies = [*moved, *([tied] if tied is not None else [])]
    buffers: list[WeightBuffer] = []
    if kept and is_mapped:
        parts = sorted({tensor.part for tensor in kept})
        buffers.extend(_mapped_buffer([tensor for tensor in kept if tensor.part == part]) for part in parts)
    elif kept:
        buffers.append(_plain_buffer(kept))
    if copies:
        buffers.append(_repack_buffer(copies, tied, is_mapped))
    return tuple(buffers)


def _tied_output(model: ModelSpec) -> TensorInfo | None:
    """The token embeddings, when they serve as output matrix too and that use is repacked."""
    by_name = {tensor.name: tensor for tensor in model.tensors}
    embeddings = by_name.get(TOKEN_EMBEDDINGS)
    if embeddings is None or OUTPUT in by_name or embeddings.dtype not in REPACKED_TYPES:
        return None
    return embeddings if embeddings.shape[-1] % REPACK_ROWS == 0 else None


def _mapped_buffer(kept: list[TensorInfo]) -> WeightBuffer:
    starts = [tensor.offset for tensor in kept if tensor.offset is not None]
    ends = [tensor.offset + tensor.num_bytes for tensor in kept if tensor.offset is not None]
    first, last = min(starts), max(ends)
    return WeightBuffer(
        name="CPU_Mapped",
        needed_bytes=sum(tensor.num_bytes for tensor in kept),
        num_bytes=last - first,
        num_tensors=len(kept),
        because=f"the file is mapped from its first to its last tensor used in place: bytes {first} to {last}",
    )


def _plain_buffer(kept: list[TensorInfo]) -> WeightBuffer:
    total = sum(tensor.num_bytes for tensor in kept)
    because = f"sum of {len(kept)} tensors read into memory = {total} B"
    return WeightBuffer(name="CPU", needed_bytes=total, num_bytes=total, num_tensors=len(kept), because=because)


def _repack_buffer(copies: list[TensorInfo], tied: TensorInfo | None, is_mapped: bool) -> WeightBuffer:
    total = sum(tensor.num_bytes for tensor in copies)
    types = ", ".join(sorted({tensor.dtype for tensor in copies}))
    because = f"{len(copies)} matrices of {types} rewritten for AVX2 arithmetic = {total} B"
    if is_mapped:
        because += "; their originals stay in the mapped file"
    if tied is not None:
        because += f"; includes a second copy of {tied.name}, used as output matrix"
    # A tied copy is held twice by the engine but needed once: the embeddings are counted where they lie.
    needed = total - (tied.num_bytes if tied is not None else 0)
    return WeightBuffer(
        name="CPU_REPACK", needed_bytes=needed, num_bytes=total, num_tensors=len(copies), because=because
    )
