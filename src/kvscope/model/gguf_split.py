"""GGUF models in several files: NAME-00001-of-00003.gguf and so on. The first file has the metadata (and may have no
tensors); each has its part of the tensor table, with offsets in itself.

Source of names and keys (split.no, split.count, split.tensors.count): llama.cpp's gguf-split.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvscope.errors import MalformedFile, ModelNotFound, UnsupportedArchitecture
from kvscope.model.gguf_header import GgufHeader, read_header

_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
MAX_SHARDS = 10_000


def read_shards(path: str | Path) -> GgufHeader:
    """The header of a GGUF file; of a split model, the first file's, with the tensors of all (``TensorInfo.part`` says
    which file one is in), their bytes together and a fingerprint over all headers.

    Raises as ``read_header``; ModelNotFound for a part that is missing; MalformedFile for one of another model;
    UnsupportedArchitecture for a part that is not the first."""
    first = read_header(path)
    count = _whole(first, "split.count", 1)
    if count <= 1:
        return first
    number = _whole(first, "split.no", 0)
    if number != 0:
        name = shard_path(Path(path), 0, count)
        raise UnsupportedArchitecture(
            f"{path} is part {number + 1} of {count} of a split model; its metadata is in the first part.",
            hint=f"Pass the first part{f': {name}' if name else ''}.",
        )
    shards = [first, *(_read_shard(Path(path), index, count) for index in range(1, count))]
    return _joined(shards)


def shard_path(path: Path, index: int, count: int) -> Path | None:
    """The path of another part of the split model that ``path`` belongs to; None where its name does not tell."""
    found = _NAME.fullmatch(path.name)
    if found is None or int(found["count"]) != count:
        return None
    return path.with_name(f"{found['stem']}-{index + 1:05d}-of-{count:05d}.gguf")


def _read_shard(first: Path, index: int, count: int) -> GgufHeader:
    path = shard_path(first, index, count)
    if path is None or int(_NAME.fullmatch(first.name)["number"]) != 1:  # type: ignore[index]  # the name matched before
        expected = f"…-00001-of-{count:05d}.gguf"
        raise MalformedFile(
            first,
            "split.count",
            f"it is the first of {count} parts, but its name does not end in {expected}, so the others cannot be found",
            hint="Give all parts the names they were made with, in one folder.",
        )
    try:
        shard = read_header(path)
    except ModelNotFound as error:
        raise ModelNotFound(
            f"Part {index + 1} of {count} of the split model {first} cannot be read: {error.message}",
            hint=f"Put {path.name} beside it.",
        ) from None
    for key, expected_value in (("split.count", count), ("split.no", index)):
        found = shard.metadata.get(key)
        if found != expected_value or isinstance(found, bool):
            problem = f"it should be part {index + 1} of {count}, but its {key} is {found!r}, not {expected_value}"
            raise MalformedFile(path, key, problem, hint="It belongs to another model, or was renamed.")
    return shard


def _joined(shards: Sequence[GgufHeader]) -> GgufHeader:
    first = shards[0]
    tensors = []
    seen: dict[str, str] = {}
    for part, shard in enumerate(shards):
        for tensor in shard.tensors:
            if tensor.name in seen:
                raise MalformedFile(shard.path, tensor.name, f"the tensor is in {seen[tensor.name]} too")
            seen[tensor.name] = shard.path
            tensors.append(replace(tensor, part=part))
    stated = first.metadata.get("split.tensors.count")
    if stated is not None and stated != len(tensors):
        problem = f"the first part claims {stated} tensors, all {len(shards)} parts have {len(tensors)}"
        raise MalformedFile(first.path, "split.tensors.count", problem, hint="A part belongs to another model.")
    digest = hashlib.sha256("".join(shard.sha256 for shard in shards).encode())
    return replace(
        first,
        tensors=tuple(tensors),
        file_bytes=sum(shard.file_bytes for shard in shards),
        sha256=digest.hexdigest(),
    )


def _whole(header: GgufHeader, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_SHARDS:
        raise MalformedFile(header.path, key, f"the value is {value!r}; a whole number was expected")
    return value
