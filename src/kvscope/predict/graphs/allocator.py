"""How ggml places the tensors of a graph in one buffer, and how large that buffer gets.

ggml walks the graph in order. A tensor gets room when it is computed and gives it back after its last use; operations
that may write over their input take its room where nobody else needs it. Free room is taken from the smallest gap that
fits, or else from the end. Rules of llama.cpp b11549's allocator, checked against the buffer sizes of graphs that were
recorded from the engine (tests/golden/llamacpp/README.md).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvscope.predict.graphs.tensor import Shape, Tensor

ALIGNMENT_BYTES = 32
# Operations that may write their result over an input of the same shape.
IN_PLACE = frozenset({"SCALE", "ADD", "ADD_ID", "SUB", "MUL", "DIV", "SQR", "SQRT", "LOG", "UNARY", "ROPE", "RMS_NORM",
                      "SOFT_MAX", "DIAG_MASK_INF"})  # fmt: skip


class _Room:
    """Free gaps, by offset; the last one has no end."""

    def __init__(self) -> None:
        self.starts: list[int] = [0]
        self.ends: list[int] = [1 << 62]
        self.peak = 0

    def take(self, size: int) -> int:
        starts, ends = self.starts, self.ends
        last = len(starts) - 1
        best, best_size = last, 1 << 62
        for index in range(last):
            gap = ends[index] - starts[index]
            if size <= gap <= best_size:
                best, best_size = index, gap
        offset = starts[best]
        starts[best] = offset + size
        if starts[best] == ends[best]:
            del starts[best], ends[best]
        self.peak = max(self.peak, offset + size)
        return offset

    def give(self, offset: int, size: int) -> None:
        starts, ends = self.starts, self.ends
        end = offset + size
        at = 0
        while starts[at] < offset:
            at += 1
        joins_next = starts[at] == end
        if at and ends[at - 1] == offset:
            if joins_next:
                ends[at - 1] = ends[at]
                del starts[at], ends[at]
            else:
                ends[at - 1] = end
        elif joins_next:
            starts[at] = offset
        else:
            starts.insert(at, offset)
            ends.insert(at, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """``num_bytes``: of the buffer; ``input_bytes``: of the graph's inputs; ``op`` and ``shape``: the operation whose
    result made the buffer as large as it is."""

    num_bytes: int
    input_bytes: int
    op: str
    shape: Shape


def buffer_peak(order: Sequence[Tensor], leaves: Iterable[Tensor]) -> Peak:
    """The buffer of a graph whose operations are ``order``; ``leaves``: its inputs, placed before all. Tensors keep
    what is done with them, so a graph is placed once."""
    room = _Room()
    for leaf in leaves:
        _hold(leaf, room)
    inputs = room.peak
    for node in order:
        if node.view_of is not None:
            node.view_of.views += 1
        for parent in node.sources:
            parent.children += 1
    largest = order[0]
    for node in order:
        before = room.peak
        if node.view_of is None and not node.is_external:
            _hold(node, room)
        if room.peak > before:
            largest = node
        for parent in node.sources:
            parent.children -= 1
            if not parent.children and not parent.views:
                _release(parent, room)
    return Peak(num_bytes=room.peak, input_bytes=inputs, op=largest.op, shape=largest.shape)


def _hold(node: Tensor, room: _Room) -> None:
    if node.offset >= 0:
        return
    size = -(-node.num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    node.is_held = True
    node.size = size
    if node.op in IN_PLACE and (reused := _reusable(node)) is not None:
        node.offset = reused.offset
        reused.is_held = False
        if reused.size > size:
            room.give(node.offset + size, reused.size - size)
        return
    node.offset = room.take(size) if size else 0


def _reusable(node: Tensor) -> Tensor | None:
    """The input that this operation may write over, or None. ggml never takes a view's."""
    for parent in node.sources:
        if parent.view_of is not None or parent.is_external or parent.is_output or parent.shape != node.shape:
            continue
        if parent.element_bytes != node.element_bytes:
            continue
        if parent.is_held and parent.children == 1 and not parent.views:
            return parent
    return None


def _release(parent: Tensor, room: _Room) -> None:
    """Room of a tensor that nothing uses any more, or of the one it is a view of."""
    owner = parent
    if parent.view_of is not None:
        owner = parent.view_of
        owner.views -= 1
        if owner.views or owner.children:
            return
    if owner.is_held and not owner.is_output and not owner.is_external and owner.size:
        room.give(owner.offset, owner.size)
        owner.is_held = False
