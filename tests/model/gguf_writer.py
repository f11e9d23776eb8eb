"""A small GGUF writer, for tests only: valid files in both byte orders, and deliberately broken ones."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}


@dataclass(frozen=True)
class Typed:
    """A value with its GGUF type; ``element_type`` makes it an array."""

    kind: int
    value: Any


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    ggml_id: int
    data: bytes | int  # bytes, or the size of a hole that only takes room in a sparse file

    @property
    def num_bytes(self) -> int:
        return self.data if isinstance(self.data, int) else len(self.data)


@dataclass
class GgufWriter:
    metadata: Mapping[str, Any]
    tensors: Sequence[Tensor] = ()
    version: int = 3
    byte_order: str = "little"
    alignment: int = 32
    num_keys: int | None = None
    num_tensors: int | None = None
    offsets: Sequence[int] | None = None
    extra: bytes = field(default=b"")

    def pack(self, code: str, *values: Any) -> bytes:
        return struct.pack(("<" if self.byte_order == "little" else ">") + code, *values)

    def string(self, text: str | bytes) -> bytes:
        raw = text.encode() if isinstance(text, str) else text
        return self.pack("Q", len(raw)) + raw

    def value(self, value: Any) -> bytes:
        """Type id and value. Plain Python values get the types real files use for them."""
        if isinstance(value, Typed):
            return self.pack("I", value.kind) + self.pack(_CODES[value.kind], value.value)
        if isinstance(value, bool):
            return self.pack("I", BOOL) + self.pack("?", value)
        if isinstance(value, int):
            return self.pack("I", U32) + self.pack("I", value)
        if isinstance(value, float):
            return self.pack("I", F32) + self.pack("f", value)
        if isinstance(value, str):
            return self.pack("I", STRING) + self.string(value)
        return self.pack("I", ARRAY) + self._array(value)

    def _array(self, values: Sequence[Any]) -> bytes:
        first = values[0] if len(values) else 0
        if isinstance(first, str):
            kind, body = STRING, b"".join(self.string(v) for v in values)
        elif isinstance(first, bool):
            kind, body = BOOL, self.pack(f"{len(values)}?", *values)
        elif isinstance(first, float):
            kind, body = F32, self.pack(f"{len(values)}f", *values)
        else:
            kind, body = I32, self.pack(f"{len(values)}i", *values)
        return self.pack("I", kind) + self.pack("Q", len(values)) + body

    def header(self) -> bytes:
        out = [b"GGUF", self.pack("I", self.version)]
        out.append(self.pack("Q", len(self.tensors) if self.num_tensors is None else self.num_tensors))
        out.append(self.pack("Q", len(self.metadata) if self.num_keys is None else self.num_keys))
        for key, value in self.metadata.items():
            out.append(self.string(key) + self.value(value))
        at = 0
        for index, tensor in enumerate(self.tensors):
            offset = at if self.offsets is None else self.offsets[index]
            out.append(self.string(tensor.name) + self.pack("I", len(tensor.shape)))
            out.append(self.pack(f"{len(tensor.shape)}Q", *tensor.shape))
            out.append(self.pack("I", tensor.ggml_id) + self.pack("Q", offset))
            at += -(-tensor.num_bytes // self.alignment) * self.alignment
        return b"".join(out) + self.extra

    def to_bytes(self) -> bytes:
        head = self.header()
        out = [head, b"\0" * (-len(head) % self.alignment)]
        for tensor in self.tensors:
            data = bytes(tensor.data) if isinstance(tensor.data, int) else tensor.data
            out.append(data + b"\0" * (-len(data) % self.alignment))
        return b"".join(out)

    def write(self, path: Path) -> Path:
        """The file with holes in place of data: as long as the real one, without its room on disk."""
        head = self.header()
        sizes = (-(-tensor.num_bytes // self.alignment) * self.alignment for tensor in self.tensors)
        with path.open("wb") as file:
            file.write(head)
            file.truncate(-(-len(head) // self.alignment) * self.alignment + sum(sizes))
        return path
