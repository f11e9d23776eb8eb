"""Reads the header of a GGUF file: metadata and tensor table, never the weights.

Versions 2 and 3, little and big endian. Arrays (a vocabulary has hundreds of thousands of strings) are stepped over,
not built, unless asked for; short arrays of numbers are always built. Every length the file claims is checked against
the bytes it has before anything is read, so a hostile or damaged header fails fast and in bounded memory.

The file is read, not mapped: a mapped file that another program shortens meanwhile ends the process (SIGBUS).

Source of the format: the GGUF specification of ggml.
"""

import hashlib
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvscope.dtypes import dtype_of_ggml_id
from kvscope.errors import MalformedFile, ModelNotFound
from kvscope.model.gguf_cursor import SCALARS, SIZES, Cursor, skip_strings
from kvscope.model.spec import TensorInfo

MAGIC = b"GGUF"
SHORT_ARRAY = 1024  # numbers; per-layer values are built, vocabularies are not
# More than any real file has, small enough that a hostile one is refused in well under a second.
MAX_KEYS = 100_000
MAX_TENSORS = 100_000
MAX_STRINGS_IN_ARRAY = 5_000_000
MAX_STRING_BYTES = 4 * 1024**2
MAX_KEPT_BYTES = 16 * 1024**2  # of all strings together; those of a vocabulary are stepped over
MAX_DIMS = 4
MAX_ELEMENTS = 2**63 - 1

_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedArray:
    """An array that was stepped over. ``element_type`` is GGUF's id of its elements."""

    element_type: int
    length: int


MetaValue = int | float | bool | str | tuple[int | float | bool | str, ...] | SkippedArray


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """``data_offset``: where tensor data begins. ``TensorInfo.offset`` counts from the start of the file.
    ``sha256`` is over the bytes from the start of the file to the end of the tensor table."""

    path: str
    version: int
    byte_order: str
    metadata: Mapping[str, MetaValue]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_offset: int
    file_bytes: int
    sha256: str


def read_header(path: str | Path, with_arrays: bool = False) -> GgufHeader:
    """The header of a GGUF file. ``with_arrays`` also builds long arrays and arrays of strings, as tuples.

    Raises ModelNotFound, MalformedFile (with the byte offset or key). A part of a split model is read as it is: see
    gguf_split.py for all parts together.
    """
    path = Path(path)
    try:
        _check_regular(path)
        with path.open("rb") as file:
            return _read(Cursor(path, file, os.fstat(file.fileno()).st_size), with_arrays)
    except FileNotFoundError:
        raise ModelNotFound(f"There is no file {path}.", hint="Check the path.") from None
    except IsADirectoryError:
        raise ModelNotFound(f"{path} is a folder, not a GGUF file.", hint="Name the file in it.") from None
    except OSError as error:
        hint = "Check its name, its permissions and the disk it is on."
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}.", hint=hint) from None


def _check_regular(path: Path) -> None:
    """Before it is opened: opening a pipe would wait for its writer."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ModelNotFound(f"{path} is not a regular file.", hint="Name a GGUF file on disk.")


def _read(cursor: Cursor, with_arrays: bool) -> GgufHeader:
    path = cursor.path
    version, byte_order = _version(cursor)
    cursor.set_byte_order(byte_order)
    num_tensors = cursor.count("the number of tensors")
    num_keys = cursor.count("the number of metadata keys")
    # A tensor takes at least 24 bytes in the table (name length, dimensions, type, offset), a key at least 13.
    _check_count(cursor, num_tensors, 24, MAX_TENSORS, "tensors", 8)
    _check_count(cursor, num_keys, 13, MAX_KEYS, "metadata keys", 16)
    metadata = _read_metadata(cursor, num_keys, with_arrays)
    alignment = _alignment(path, metadata)
    raw = _read_tensor_table(cursor, num_tensors)
    data_offset = -(-cursor.at // alignment) * alignment
    return GgufHeader(
        path=str(path),
        version=version,
        byte_order=byte_order,
        metadata=metadata,
        tensors=_place_tensors(path, raw, data_offset, alignment, cursor.size),
        alignment=alignment,
        data_offset=data_offset,
        file_bytes=cursor.size,
        sha256=hashlib.sha256(memoryview(cursor.data)[: cursor.at]).hexdigest(),
    )


def _version(cursor: Cursor) -> tuple[int, str]:
    """Version and byte order; steps over magic and version."""
    path, size = cursor.path, cursor.size
    if size == 0:
        raise MalformedFile(path, "byte 0", "the file is empty; a GGUF header was expected")
    cursor.read_up_to(min(size, 24))
    magic = bytes(cursor.data[:4])
    if magic != MAGIC:
        raise MalformedFile(path, "byte 0", f"this is not a GGUF file: it begins with {magic!r}, not b'GGUF'")
    if size < 24:
        raise MalformedFile(path, f"byte {size}", "the file ends inside the GGUF header; 24 bytes were expected")
    cursor.at = 8
    little, big = struct.unpack_from("<I", cursor.data, 4)[0], struct.unpack_from(">I", cursor.data, 4)[0]
    version, byte_order = (little, "little") if little <= big else (big, "big")
    if version == 1:
        raise MalformedFile(
            path, "byte 4", "GGUF version 1 is not read", hint="Convert the model again: version 1 is from 2023."
        )
    if version not in (2, 3):
        raise MalformedFile(
            path,
            "byte 4",
            f"GGUF version {version} is unknown; 2 or 3 was expected",
            hint="The file is damaged, or newer than this kvscope.",
        )
    return version, byte_order


def _check_count(cursor: Cursor, count: int, min_bytes: int, limit: int, what: str, at: int) -> None:
    room = cursor.size - cursor.at
    if count * min_bytes > room:
        raise cursor.fail(f"the header claims {count} {what}, but only {room} bytes follow", at)
    if count > limit:
        raise cursor.fail(f"the header claims {count} {what}; at most {limit} were expected", at)


def _read_metadata(cursor: Cursor, num_keys: int, with_arrays: bool) -> dict[str, MetaValue]:
    metadata: dict[str, MetaValue] = {}
    kept = 0
    for index in range(num_keys):
        start = cursor.at
        key = cursor.name(f"the name of metadata key {index}")
        if key in metadata:
            raise cursor.fail(f"the metadata key {key!r} occurs twice", start)
        kind_at = cursor.at
        kind = int(cursor.scalar(4, f"the type of {key!r}"))
        if kind in SCALARS:
            metadata[key] = cursor.scalar(kind, f"the value of {key!r}")
        elif kind == _STRING:
            text = cursor.string(f"the value of {key!r}", MAX_STRING_BYTES)
            kept += len(text)
            if kept > MAX_KEPT_BYTES:
                raise cursor.fail(f"texts of more than {MAX_KEPT_BYTES} bytes; so many were not expected", kind_at)
            metadata[key] = text.decode(errors="replace")
        elif kind == _ARRAY:
            metadata[key] = _read_array(cursor, key, with_arrays)
        else:
            raise cursor.fail(f"the metadata key {key!r} has the unknown type {kind}", kind_at)
    return metadata


def _read_array(cursor: Cursor, key: str, with_arrays: bool) -> MetaValue:
    start = cursor.at
    kind = int(cursor.scalar(4, f"the element type of {key!r}"))
    length = cursor.count(f"the length of {key!r}")
    room = cursor.size - cursor.at
    smallest = 8 if kind == _STRING else SIZES.get(kind)
    if smallest is None:
        what = "an array of arrays" if kind == _ARRAY else f"an array of the unknown type {kind}"
        raise cursor.fail(f"{key!r} is {what}, which is not read", start)
    if length * smallest > room:
        raise cursor.fail(f"the array {key!r} claims {length} elements, but only {room} bytes follow", start)
    if kind == _STRING:
        if length > MAX_STRINGS_IN_ARRAY:
            raise cursor.fail(f"{key!r} claims {length} strings; at most {MAX_STRINGS_IN_ARRAY} were expected", start)
        if with_arrays:
            what = f"an element of {key!r}"
            return tuple(cursor.string(what, MAX_STRING_BYTES).decode(errors="replace") for _ in range(length))
        skip_strings(cursor, key, length)
        return SkippedArray(element_type=kind, length=length)
    begin = cursor.take(length * smallest, f"the array {key!r}")
    if length <= SHORT_ARRAY or with_arrays:
        return struct.unpack_from(f"{cursor.mark}{length}{SCALARS[kind]}", cursor.data, begin)
    return SkippedArray(element_type=kind, length=length)


def _alignment(path: Path, metadata: Mapping[str, MetaValue]) -> int:
    value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0 or value & (value - 1) or value > 2**20:
        raise MalformedFile(path, "general.alignment", f"the alignment is {value!r}; a power of two was expected")
    return value


_RawTensor = tuple[str, tuple[int, ...], int, int]  # name, shape, type id, offset in the data region


def _read_tensor_table(cursor: Cursor, num_tensors: int) -> list[_RawTensor]:
    table: list[_RawTensor] = []
    seen: set[str] = set()
    for index in range(num_tensors):
        start = cursor.at
        name = cursor.name(f"the name of tensor {index}")
        if name in seen:
            raise cursor.fail(f"the tensor {name!r} occurs twice", start)
        seen.add(name)
        num_dims = int(cursor.scalar(4, f"the number of dimensions of {name!r}"))
        if num_dims > MAX_DIMS:
            raise cursor.fail(f"the tensor {name!r} claims {num_dims} dimensions; at most {MAX_DIMS} exist")
        shape = tuple(cursor.count(f"a dimension of {name!r}") for _ in range(num_dims))
        if _product(shape) > MAX_ELEMENTS:
            raise cursor.fail(f"the dimensions of {name!r}, {shape}, overflow", start)
        kind = int(cursor.scalar(4, f"the type of {name!r}"))
        table.append((name, shape, kind, cursor.count(f"the offset of {name!r}")))
    return table


def _place_tensors(
    path: Path, table: list[_RawTensor], data_offset: int, alignment: int, file_bytes: int
) -> tuple[TensorInfo, ...]:
    """Sizes and file positions. As llama.cpp does, demands that each tensor begins where the one before ends: that
    also catches a type whose block size is not the one assumed here."""
    placed = []
    expected = 0
    for name, shape, kind, offset in table:
        num_bytes, dtype_name = _tensor_bytes(path, name, shape, kind)
        if offset != expected:
            raise MalformedFile(path, name, f"the tensor begins at data offset {offset}; {expected} was expected")
        expected = -(-(offset + num_bytes) // alignment) * alignment
        end = data_offset + offset + num_bytes
        if end > file_bytes:
            raise MalformedFile(
                path,
                name,
                f"the tensor's data ends at byte {end}, but the file has {file_bytes} bytes",
                hint="The file is incomplete, most likely an interrupted download. Download or copy it again.",
            )
        placed.append(
            TensorInfo(
                name=name,
                dtype=dtype_name,
                shape=shape,
                num_bytes=num_bytes,
                offset=data_offset + offset,
                layer_index=_layer_index(name),
            )
        )
    return tuple(placed)


def _tensor_bytes(path: Path, name: str, shape: tuple[int, ...], kind: int) -> tuple[int, str]:
    dtype = dtype_of_ggml_id(kind)
    if dtype is None:
        raise MalformedFile(
            path,
            name,
            f"the tensor has the unknown type {kind}",
            hint="The file is damaged, or made for a newer or modified llama.cpp.",
        )
    row = shape[0] if shape else 1
    blocks, rest = divmod(row, dtype.block_elements)
    if rest:
        problem = f"a row of {row} elements is not a whole number of {dtype.name} blocks of {dtype.block_elements}"
        raise MalformedFile(path, name, problem)
    return blocks * dtype.block_bytes * _product(shape[1:]), dtype.name


def _layer_index(name: str) -> int | None:
    prefix, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    return int(number) if prefix == "blk" and number.isascii() and number.isdecimal() and len(number) <= 6 else None


def _product(values: tuple[int, ...]) -> int:
    result = 1
    for value in values:
        result *= value
    return result
