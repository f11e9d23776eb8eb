"""Tensors of a compute graph, as far as their place in memory depends on it, and the order they are computed in."""

from collections.abc import Sequence

FLOAT_BYTES = 4
HALF_BYTES = 2
INDEX_BYTES = 8

Shape = tuple[int, int, int, int]


class UnknownGraph(Exception):
    """A layer of which it is not known what the engine computes for it."""


class Tensor:
    """``shape``: fastest dimension first. ``view_of``: the tensor whose memory it shares, itself no view.
    ``is_external``: writes into a buffer of its own, a cache. ``is_output``: kept after the graph has run.

    What the allocator knows of it (allocator.py) is kept here too, since every tensor is placed once: ``children`` and
    ``views`` still to come, its ``offset`` (-1: no place yet), the ``size`` of its place, and whether that ``is_held``.
    """

    __slots__ = (
        "children", "element_bytes", "is_external", "is_held", "is_input", "is_output", "offset", "op", "shape", "size",
        "sources", "view_of", "views",
    )  # fmt: skip

    def __init__(
        self,
        op: str,
        shape: Shape,
        sources: tuple["Tensor", ...] = (),
        *,
        element_bytes: int = FLOAT_BYTES,
        view_of: "Tensor | None" = None,
        is_external: bool = False,
    ) -> None:
        self.op = op
        self.shape = shape
        self.sources = sources
        self.element_bytes = element_bytes
        self.view_of = view_of
        self.is_external = is_external
        self.is_input = op == "INPUT"
        self.is_output = False
        self.children = 0
        self.views = 0
        self.offset = -1
        self.size = 0
        self.is_held = False

    @property
    def num_bytes(self) -> int:
        first, second, third, fourth = self.shape
        return self.element_bytes * first * second * third * fourth


def shape_of(sizes: Sequence[int]) -> Shape:
    """Four dimensions, those not given being 1."""
    if len(sizes) == 4:
        return (sizes[0], sizes[1], sizes[2], sizes[3])
    padded = (*sizes, 1, 1, 1, 1)
    return (padded[0], padded[1], padded[2], padded[3])


def source(*sizes: int, element_bytes: int = FLOAT_BYTES) -> Tensor:
    """An input of the graph."""
    return Tensor("INPUT", shape_of(sizes), element_bytes=element_bytes)


def node(op: str, sizes: Sequence[int], *sources: Tensor | None, element_bytes: int = FLOAT_BYTES) -> Tensor:
    """An operation; sources that are None are weights or caches, which lie elsewhere."""
    if None in sources:
        sources = tuple(entry for entry in sources if entry is not None)
    return Tensor(op, shape_of(sizes), sources, element_bytes=element_bytes)  # type: ignore[arg-type]  # None is out


def like(op: str, first: Tensor, *others: Tensor | None) -> Tensor:
    """An operation whose result is shaped as its first source."""
    return node(op, first.shape, first, *others)


def view(tensor: Tensor, *sizes: int) -> Tensor:
    """Another shape of the same memory, or of a part of it."""
    return Tensor(
        "VIEW",
        shape_of(sizes),
        (tensor,),
        element_bytes=tensor.element_bytes,
        view_of=tensor if tensor.view_of is None else tensor.view_of,
    )


def into_cache(*sources: Tensor | None) -> Tensor:
    """Writing rows into a cache: takes no room of the graph's."""
    given = tuple(entry for entry in sources if entry is not None)
    return Tensor("STORE", (0, 0, 0, 0), given, is_external=True)


class Graph:
    """``order``: the operations as they are computed; ``leaves``: the inputs as they are met."""

    def __init__(self) -> None:
        self.order: list[Tensor] = []
        self.leaves: list[Tensor] = []
        self._seen: set[Tensor] = set()

    def expand(self, tensor: Tensor) -> Tensor:
        """Puts ``tensor`` and all it needs, depth first, behind what is there."""
        stack: list[tuple[Tensor, int]] = [(tensor, 0)]
        seen = self._seen
        if tensor in seen:
            return tensor
        seen.add(tensor)
        while stack:
            current, index = stack.pop()
            sources = current.sources
            while index < len(sources) and sources[index] in seen:
                index += 1
            if index < len(sources):
                stack.append((current, index + 1))
                seen.add(sources[index])
                stack.append((sources[index], 0))
            elif current.is_input:
                self.leaves.append(current)
            else:
                self.order.append(current)
        return tensor
