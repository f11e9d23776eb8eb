"""Reads the headers of safetensors files and their index: names, element formats, shapes and places of all tensors,
never the weights.

A file is an 8-byte little-endian length, that many bytes of JSON, then the data. As the format demands, the tensors
must cover the data from its first byte to its last, without holes or overlaps; that also catches a wrong size. Every
length is checked before anything is read or built, so a hostile or damaged header fails fast and in bounded memory.

Source of the format: the safetensors format description; element formats are those of safetensors 0.8.0.
"""

import hashlib
import json
import math
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from kvscope.errors import MalformedFile, ModelNotFound
from kvscope.model.spec import TensorInfo
from kvscope.model.tensor_names import layer_indices

LENGTH_BYTES = 8
# The format allows 100,000,000 bytes; 100,000 tensors, more than any file has, need less than this.
MAX_HEADER_BYTES = 16 * 1024**2
MAX_TEXT_BYTES = 4 * 1024**2  # of a header that is not ASCII: Python needs four times as much for it
MAX_TENSORS = 100_000
MAX_DIMS = 32
MAX_ELEMENTS = 2**63 - 1
METADATA = "__metadata__"

# safetensors' name → ours, and bits of one element.
DTYPES: dict[str, tuple[str, int]] = {
    "BOOL": ("bool", 8),
    "F4": ("float4_e2m1", 4),
    "F6_E2M3": ("float6_e2m3", 6),
    "F6_E3M2": ("float6_e3m2", 6),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "I16": ("int16", 16),
    "U16": ("uint16", 16),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "I32": ("int32", 32),
    "U32": ("uint32", 32),
    "F32": ("float32", 32),
    "C64": ("complex64", 64),
    "F64": ("float64", 64),
    "I64": ("int64", 64),
    "U64": ("uint64", 64),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsHeader:
    """``TensorInfo.offset`` counts from the start of the file. ``sha256``: of the length and the JSON."""

    path: str
    tensors: tuple[TensorInfo, ...]
    metadata: Mapping[str, str]
    header_bytes: int
    file_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsIndex:
    """``weight_map``: tensor → the file beside the index that holds it. ``total_size``: bytes of all tensors, as the
    index claims; None where it does not say a whole number."""

    path: str
    weight_map: Mapping[str, str]
    total_size: int | None
    sha256: str

    @property
    def shards(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.weight_map.values())))


def read_safetensors(path: str | Path) -> SafetensorsHeader:
    """The header of one safetensors file. Raises ModelNotFound, MalformedFile (with the byte offset or key)."""
    path = Path(path)
    size = _regular_size(path)
    try:
        with path.open("rb") as file:
            start = file.read(LENGTH_BYTES)
            length = header_length(path, start, size)
            raw = file.read(length)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(raw) < length:
        raise MalformedFile(
            path, f"byte {LENGTH_BYTES + len(raw)}", f"the file ended inside a header of {length} bytes"
        )
    content = _parse(path, raw, LENGTH_BYTES)
    data_start = LENGTH_BYTES + length
    metadata = _metadata(path, content.pop(METADATA, None))
    return SafetensorsHeader(
        path=str(path),
        tensors=_tensors(path, content, data_start, size),
        metadata=metadata,
        header_bytes=data_start,
        file_bytes=size,
        sha256=hashlib.sha256(start + raw).hexdigest(),
    )


def header_length(path: object, start: bytes, file_bytes: int) -> int:
    """Bytes of the JSON, from a file's first eight bytes; checked against the file's size."""
    if len(start) < LENGTH_BYTES:
        raise MalformedFile(
            path, f"byte {len(start)}", "the file ends inside the 8-byte length a safetensors file begins with"
        )
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if length > file_bytes - LENGTH_BYTES:
        room = file_bytes - LENGTH_BYTES
        raise MalformedFile(
            path, "byte 0", f"the header claims {length} bytes, but only {room} follow; this is no safetensors file"
        )
    if length > MAX_HEADER_BYTES:
        raise MalformedFile(
            path, "byte 0", f"the header claims {length} bytes; at most {MAX_HEADER_BYTES} were expected"
        )
    return length


def read_index(path: str | Path) -> SafetensorsIndex:
    """``model.safetensors.index.json``: which file holds which tensor. Raises ModelNotFound, MalformedFile."""
    path = Path(path)
    if _regular_size(path) > MAX_HEADER_BYTES:
        raise MalformedFile(path, "byte 0", f"the index is larger than {MAX_HEADER_BYTES} bytes")
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None
    content = _parse(path, raw, 0)
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise MalformedFile(path, "weight_map", "an object of tensor names and file names was expected")
    for name, shard in weight_map.items():
        if (
            not isinstance(shard, str)
            or not shard
            or Path(shard).name != shard
            or shard in (".", "..")
            or "\\" in shard
        ):
            raise MalformedFile(path, f"weight_map.{_short(name)}", f"{_short(shard)} is no name of a file beside it")
    metadata = content.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    return SafetensorsIndex(
        path=str(path),
        weight_map=weight_map,
        total_size=total if isinstance(total, int) and not isinstance(total, bool) else None,
        sha256=hashlib.sha256(raw).hexdigest(),
    )


def _regular_size(path: Path) -> int:
    """The size of a regular file; opening a pipe would wait for its writer."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if not stat.S_ISREG(found.st_mode):
        raise ModelNotFound(f"{path} is not a regular file.", hint="Name a safetensors file on disk.")
    return found.st_size


def _unreadable(path: Path, error: Exception) -> ModelNotFound:
    reason = getattr(error, "strerror", None) or "it is no name of a file"
    return ModelNotFound(f"{path} cannot be read: {reason}.", hint="Check its name, its permissions and its disk.")


class _Entry(NamedTuple):
    """One tensor's JSON object, kept small: there may be a hundred thousand of them."""

    dtype: Any
    shape: Any
    offsets: Any


class _Duplicate(Exception):
    pass


_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}


def _object(pairs: list[tuple[str, Any]]) -> Any:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise _Duplicate(next(name for name in names if names.count(name) > 1))
    if found.keys() == _ENTRY_KEYS:
        return _Entry(found["dtype"], found["shape"], found["data_offsets"])
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _parse(path: Path, raw: bytes, begin: int) -> dict[str, Any]:
    """The JSON object in ``raw``, which lies at byte ``begin`` of the file."""
    _check_amount(path, raw, begin)
    try:
        content = json.loads(raw.decode(), object_pairs_hook=_object, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise MalformedFile(path, f"byte {begin + error.start}", "the header is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        at = begin + len(error.doc[: error.pos].encode())
        raise MalformedFile(path, f"byte {at}", f"the header is not JSON: {error.msg}") from None
    except _Duplicate as error:
        raise MalformedFile(path, _short(error.args[0]), "the name occurs twice") from None
    except ValueError as error:  # NaN, Infinity, or a number of thousands of digits
        raise MalformedFile(path, f"byte {begin}", f"the header holds a number that is none: {error}") from None
    except RecursionError:
        raise MalformedFile(path, f"byte {begin}", "the JSON is nested too deeply") from None
    if not isinstance(content, dict):
        raise MalformedFile(path, f"byte {begin}", "a JSON object of tensors was expected")
    return content


def _check_amount(path: Path, raw: bytes, begin: int) -> None:
    """Refuses what would need far more memory as objects than as text."""
    if not raw.isascii() and len(raw) > MAX_TEXT_BYTES:
        raise MalformedFile(path, f"byte {begin}", f"more than {MAX_TEXT_BYTES} bytes of text that is not ASCII")
    for mark, limit in ((b"{", MAX_TENSORS + 2), (b"[", 2 * MAX_TENSORS), (b",", 10 * MAX_TENSORS)):
        count = raw.count(mark)
        if count > limit:
            raise MalformedFile(
                path, f"byte {begin}", f"the header has {count} times {mark.decode()!r}, more than any model's"
            )


def _metadata(path: Path, value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise MalformedFile(path, METADATA, "an object of texts was expected")
    return value


def _tensors(path: Path, content: dict[str, Any], data_start: int, file_bytes: int) -> tuple[TensorInfo, ...]:
    """All tensors in the order of their data, their sizes checked against formats and shapes."""
    layers = layer_indices(content)
    found = [_tensor(path, name, entry, data_start, layers[name]) for name, entry in content.items()]
    found.sort(key=lambda tensor: (tensor.offset or 0, tensor.num_bytes))
    expected = data_start
    for tensor in found:
        if tensor.offset != expected:
            problem = "overlaps the one before it" if (tensor.offset or 0) < expected else "leaves a hole before it"
            raise MalformedFile(
                path, _short(tensor.name), f"the tensor at byte {tensor.offset} {problem}; byte {expected} was expected"
            )
        expected += tensor.num_bytes
    if expected > file_bytes:
        raise MalformedFile(
            path,
            f"byte {file_bytes}",
            f"the tensors end at byte {expected}, but the file has {file_bytes} bytes",
            hint="The file is incomplete, most likely an interrupted download. Download or copy it again.",
        )
    if expected < file_bytes:
        raise MalformedFile(path, f"byte {expected}", f"{file_bytes - expected} bytes follow the last tensor")
    return tuple(found)


def _tensor(path: Path, name: str, entry: Any, data_start: int, layer: int | None) -> TensorInfo:
    if not isinstance(entry, _Entry):
        raise MalformedFile(path, _short(name), "an object with dtype, shape and data_offsets was expected")
    if not isinstance(entry.dtype, str) or entry.dtype not in DTYPES:
        raise MalformedFile(
            path,
            _short(name),
            f"the element format {_short(entry.dtype)} is unknown",
            hint="The file is damaged, or newer than this kvscope.",
        )
    if not _are_whole(entry.shape, MAX_DIMS):
        raise MalformedFile(path, f"{_short(name)}.shape", f"at most {MAX_DIMS} whole numbers were expected")
    if not _are_whole(entry.offsets, 2) or len(entry.offsets) != 2:
        problem = "two data_offsets were expected, whole numbers: where the data begins and ends"
        raise MalformedFile(path, f"{_short(name)}.data_offsets", problem)
    dtype, bits = DTYPES[entry.dtype]
    total_bits = math.prod(entry.shape) * bits
    if total_bits > MAX_ELEMENTS:
        raise MalformedFile(path, _short(name), f"the shape {entry.shape} overflows")
    if total_bits % 8:
        problem = f"{entry.shape} elements of {entry.dtype} are no whole number of bytes"
        raise MalformedFile(path, _short(name), problem)
    begin, end = entry.offsets
    num_bytes = total_bits // 8
    if end - begin != num_bytes:
        problem = (
            f"data_offsets {begin} to {end} hold {end - begin} bytes, but {entry.shape} elements of {entry.dtype} need "
            f"{num_bytes}"
        )
        raise MalformedFile(path, _short(name), problem)
    return TensorInfo(
        name=name,
        dtype=dtype,
        shape=tuple(entry.shape),
        num_bytes=num_bytes,
        offset=data_start + begin,
        layer_index=layer,
    )


def _are_whole(value: Any, limit: int) -> bool:
    if not isinstance(value, list) or len(value) > limit:
        return False
    for entry in value:  # noqa: SIM110 (twice as fast as all() over a generator, and run for every tensor)
        if type(entry) is not int or not 0 <= entry <= MAX_ELEMENTS:
            return False
    return True


def _short(value: Any) -> str:
    """A name or value from the file, cut and made printable, to fit into a message."""
    text = value if isinstance(value, str) else repr(value)
    text = "".join(char if char.isprintable() else "?" for char in text[:81])
    return text if len(text) <= 80 else f"{text[:77]}..."
