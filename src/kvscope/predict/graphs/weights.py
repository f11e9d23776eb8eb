"""The shapes of a model's weights, which decide how wide the tensors of its graph are."""

from collections.abc import Mapping

from kvscope.predict.graphs.tensor import Tensor, like, node

Shapes = Mapping[str, tuple[int, ...]]


class Block:
    """The weights whose names begin with ``prefix``: one layer's, or the model's own with ""."""

    __slots__ = ("prefix", "shapes", "state_elements")

    def __init__(self, shapes: Shapes, prefix: str, state_elements: int = 0) -> None:
        self.shapes = shapes
        self.prefix = prefix
        self.state_elements = state_elements

    def has(self, name: str) -> bool:
        return self.prefix + name in self.shapes

    def shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[self.prefix + name]

    def rows(self, name: str) -> int:
        """Width of what the matrix ``name`` gives."""
        return self.shape(f"{name}.weight")[1]

    def linear(self, name: str, tensor: Tensor) -> Tensor:
        """``tensor`` times the matrix, and the bias where the file has one."""
        product = node("MUL_MAT", (self.rows(name), *tensor.shape[1:]), tensor)
        return like("ADD", product) if self.has(f"{name}.bias") else product

    def norm(self, name: str, tensor: Tensor, op: str = "RMS_NORM") -> Tensor:
        """Normalised, scaled and shifted, as far as the file has a scale and a bias."""
        found = like(op, tensor)
        if self.has(f"{name}.weight"):
            found = like("MUL", found)
        return like("ADD", found) if self.has(f"{name}.bias") else found
