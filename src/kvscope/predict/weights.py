"""Weights: each tensor's exact bytes, and the buffers in which llama.cpp places them on a CPU.

Placement rules: xllamacpp 2026.10.11549 (llama.cpp b11549), x86-64 with AVX2. Measured with an allocation recorder on
real and generated files (tests/golden/llamacpp): nothing is added to the tensors' bytes, but
- with a memory-mapped file, the mapped span runs from the first to the last tensor that stays in the file;
- 2-D weight matrices of some types are rewritten into a second buffer ("CPU_REPACK") for faster arithmetic;
- an output matrix tied to token embeddings of such a type exists twice, once for each use.
"""

from dataclasses import dataclass
from typing import Literal

from kvscope.dtypes import dtype_named, row_bytes
from kvscope.model.spec import ModelSpec, TensorInfo
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
    """The weights themselves, engine-free: the file's tensors, else parameters × the size of ``dtype``."""
    if model.tensors:
        total = sum(tensor.num_bytes for tensor in model.tensors)
        because = f"sum of {len(model.tensors)} tensors as the file stores them = {total} B"
        return (_weights_item(total, because),), ()
    dtype = dtype or model.dtype
    if model.num_parameters is None or dtype is None:
        missing = "the number of parameters" if model.num_parameters is None else "the weights' format"
        return (), (Unknown(what="weights", why=f"the source does not state {missing}; total_bytes leaves them out"),)
    size = row_bytes(dtype_named(dtype), 1)
    total = model.num_parameters * size
    return (_weights_item(total, f"{model.num_parameters} parameters × {size} B ({dtype}) = {total} B"),), ()


def _weights_item(num_bytes: int, because: str) -> MemoryItem:
    return MemoryItem(component="weights", needed=constant(num_bytes), allocated=constant(num_bytes), because=because)


def is_repacked(tensor: TensorInfo) -> bool:
    """Whether the CPU backend rewrites this tensor for its matrix products."""
    return (
        tensor.dtype in REPACKED_TYPES
        and len(tensor.shape) == 2
        and tensor.name.endswith(".weight")
        and tensor.name != TOKEN_EMBEDDINGS
        and tensor.shape[1] % REPACK_ROWS == 0
    )


def untried_types(model: ModelSpec) -> tuple[str, ...]:
    """Types of 2-D weights for which it is not known whether the CPU backend repacks them."""
    return tuple(sorted({t.dtype for t in model.tensors if len(t.shape) >= 2 and t.dtype not in TRIED_TYPES}))


def cpu_weight_buffers(model: ModelSpec, *, is_mapped: bool, repack: bool) -> tuple[WeightBuffer, ...]:
    """The buffers llama.cpp makes on a CPU for these tensors. ``repack`` False: with no_extra_bufts."""
    moved = [tensor for tensor in model.tensors if repack and is_repacked(tensor)]
    moved_names = {tensor.name for tensor in moved}
    kept = [tensor for tensor in model.tensors if tensor.name not in moved_names]
    tied = _tied_output(model) if repack else None
    copies = [*moved, *([tied] if tied is not None else [])]
    buffers = []
    if kept:
        buffers.append(_mapped_buffer(kept) if is_mapped else _plain_buffer(kept))
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
