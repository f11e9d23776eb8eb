"""A GGUF's metadata, read key by key: whole numbers, per-layer values, truth values. Absent is never 0.

Every value that is used leaves a note of where it came from in ``sources``.
"""

from kvscope.errors import MalformedFile, MissingField
from kvscope.model.gguf_header import GgufHeader, MetaValue, SkippedArray

MAX_LAYERS = 10_000
MAX_WIDTH = 2**31 - 1


class Keys:
    """The keys of one architecture: ``key`` is always without the architecture's prefix ("attention.head_count")."""

    def __init__(self, header: GgufHeader) -> None:
        self.path = header.path
        self.metadata = header.metadata
        self.sources: dict[str, str] = {}
        value = self.metadata.get("general.architecture")
        if not isinstance(value, str) or not value:
            raise MissingField("its architecture", [f"GGUF key general.architecture of {header.path}"])
        self.architecture = value
        self.sources["architecture"] = "GGUF key general.architecture"

    def name(self, key: str) -> str:
        """The key in full, as the file has it."""
        return f"{self.architecture}.{key}"

    def where(self, key: str) -> str:
        """What ``sources`` says of a value read from ``key``."""
        return f"GGUF key {self.name(key)}"

    def get(self, key: str) -> MetaValue | None:
        return self.metadata.get(self.name(key))

    def has(self, key: str) -> bool:
        return self.name(key) in self.metadata

    def value(self, key: str, field: str) -> MetaValue:
        """Raises MissingField naming the key."""
        if not self.has(key):
            raise MissingField(field, [f"GGUF key {self.name(key)} of {self.path}"])
        return self.metadata[self.name(key)]

    def malformed(self, key: str, problem: str) -> MalformedFile:
        return MalformedFile(self.path, f"key {self.name(key)}", problem)

    def whole(self, value: object, key: str, limit: int = MAX_WIDTH) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
            raise self.malformed(key, f"the value is {value!r}; a whole number up to {limit} was expected")
        return value

    def number(self, key: str, field: str, *, limit: int = MAX_WIDTH) -> int:
        """A whole number above 0. Raises MissingField, MalformedFile."""
        value = self.whole(self.value(key, field), key, limit)
        if value == 0:
            raise self.malformed(key, "the value is 0; a whole number from 1 up was expected")
        self.sources[field] = self.where(key)
        return value

    def optional(self, key: str, *, limit: int = MAX_WIDTH) -> int | None:
        """A whole number, or None where the file does not have the key."""
        value = self.get(key)
        return None if value is None else self.whole(value, key, limit)

    def per_layer(self, key: str, field: str, num_layers: int) -> tuple[int, ...]:
        """One number for all layers, or an array with one per layer."""
        return self._spread(self.value(key, field), key, num_layers)

    def optional_per_layer(self, key: str, num_layers: int) -> tuple[int, ...] | None:
        value = self.get(key)
        return None if value is None else self._spread(value, key, num_layers)

    def _spread(self, value: MetaValue, key: str, num_layers: int) -> tuple[int, ...]:
        if isinstance(value, SkippedArray | tuple):
            return tuple(self.whole(entry, key) for entry in self._array(value, key, num_layers))
        return (self.whole(value, key),) * num_layers

    def _array(self, value: object, key: str, num_layers: int) -> tuple[object, ...]:
        """The first ``num_layers`` values of an array with one for each listed layer: draft layers come last."""
        listed = self.optional("block_count") or num_layers
        length = value.length if isinstance(value, SkippedArray) else len(value) if isinstance(value, tuple) else None
        if not isinstance(value, tuple) or length not in (num_layers, listed):
            what = f"an array of {length} values" if length is not None else f"the value is {value!r}"
            raise self.malformed(key, f"{what}; {num_layers} were expected, one per layer")
        return value[:num_layers]

    def truths(self, key: str, field: str, num_layers: int) -> tuple[bool, ...]:
        """One truth value per layer; llama.cpp takes numbers for them too."""
        values = self._array(self.value(key, field), key, num_layers)
        if not all(isinstance(entry, bool) or entry in (0, 1) for entry in values):
            raise self.malformed(key, f"{num_layers} truth values were expected, one per layer")
        return tuple(bool(entry) for entry in values)
