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


class _Place:
    """What the allocator knows of one tensor."""

    __slots__ = ("children", "held", "offset", "size", "views")

    def __init__(self) -> None:
        self.children = 0
        self.views = 0
        self.offset = -1
        self.size = 0
        self.held = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """``num_bytes``: of the buffer; ``input_bytes``: of the graph's inputs; ``op`` and ``shape``: the operation whose
    result made the buffer as large as it is."""

    num_bytes: int
    input_bytes: int
    op: str
    shape: Shape


def buffer_peak(order: Sequence[Tensor], leaves: Iterable[Tensor]) -> Peak:
    """The buffer of a graph whose operations are ``order``; ``leaves``: its inputs, placed before all."""
    places: dict[Tensor, _Place] = {}
    room = _Room()
    for leaf in leaves:
        _hold(leaf, places, room)
    inputs = room.peak
    for node in order:
        if node.view_of is not None:
            _place(places, node.view_of).views += 1
        for parent in node.sources:
            _place(places, parent).children += 1
    largest = order[0]
    for node in order:
        before = room.peak
        _hold(node, places, room)
        if room.peak > before:
            largest = node
        for parent in node.sources:
            _release(parent, places, room)
    return Peak(num_bytes=room.peak, input_bytes=inputs, op=largest.op, shape=largest.shape)


def _place(places: dict[Tensor, _Place], tensor: Tensor) -> _Place:
    place = places.get(tensor)
    if place is None:
        place = places[tensor] = _Place()
    return place


def _hold(node: Tensor, places: dict[Tensor, _Place], room: _Room) -> None:
    if node.is_external or node.view_of is not None:
        return
    place = _place(places, node)
    if place.offset >= 0:
        return
    size = -(-node.num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    place.held = True
    if node.op in IN_PLACE and (reused := _reusable(node, places)) is not None:
        place.offset = reused.offset
        reused.held = False
        place.size = size
        if reused.size > size:
            room.give(place.offset + size, reused.size - size)
        return
    place.size = size
    place.offset = room.take(size) if size else 0


def _reusable(node: Tensor, places: dict[Tensor, _Place]) -> _Place | None:
    """The place of an input that this operation may write over, or None. ggml never takes a view's."""
    for parent in node.sources:
        if parent.view_of is not None or parent.is_external or parent.is_output or parent.shape != node.shape:
            continue
        if parent.element_bytes != node.element_bytes:
            continue
        place = places[parent]
        if place.held and place.children == 1 and not place.views:
            return place
    return None


def _release(parent: Tensor, places: dict[Tensor, _Place], room: _Room) -> None:
    place = places[parent]
    place.children -= 1
    if place.children or place.views:
        return
    owner = parent
    if parent.view_of is not None:
        owner = parent.view_of
        place = _place(places, owner)
        place.views -= 1
        if place.views or place.children:
            return
    if place.held and not owner.is_output and not owner.is_external and place.size:
        room.give(place.offset, place.size)
        place.held = False
