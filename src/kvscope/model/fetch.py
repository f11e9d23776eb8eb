"""Header bytes of a model file on the web, kept in the user's cache folder.

What is kept is a file of the real name and the real size that holds the header's bytes alone (the rest is a hole and
takes no space), so that the readers of local files read it unchanged. It serves for headers only: no engine can load
it. Beside it lies where it came from (its address and ETag). Without a network, what was read earlier serves;
KVSCOPE_OFFLINE=1 forbids the network altogether.
"""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kvscope.errors import MalformedFile, ModelError, ModelNotFound
from kvscope.model.gguf_cursor import MAX_HEADER_BYTES
from kvscope.model.gguf_extent import MAGIC, gguf_extent
from kvscope.model.http_range import NotThere, RemoteFile, Unreachable
from kvscope.model.package import cache_folder
from kvscope.model.safetensors import LENGTH_BYTES, header_length

# More than the header itself, at most, is read: in each step up to here beyond what there must be.
SLACK_BYTES = 900_000
MAX_WHOLE_BYTES = 16 * 1024**2  # of an index, the largest of the small files
LONGEST_NAME_BYTES = 240  # of one file; with what is kept beside it, what file systems take
FIRST_SAFETENSORS_BYTES = 256 * 1024
_HEADERS = "headers"


@dataclass(slots=True, kw_only=True)
class Source:
    """How to ask: a token and the one origin it is for. ``is_immutable``: the addresses never change their content (a
    commit of a hub), so what is cached is never asked for again. ``warnings`` collects what a person should know."""

    token: str | None = None
    token_origin: str | None = None
    is_immutable: bool = False
    warnings: list[str] = field(default_factory=list)

    def remote(self, url: str, known_etag: str | None) -> RemoteFile:
        return RemoteFile(url, token=self.token, token_origin=self.token_origin, known_etag=known_etag)


def headers_folder() -> Path:
    """Where header files are kept: KVSCOPE_CACHE or the user's cache folder, as for joined models."""
    return cache_folder() / _HEADERS


def is_offline() -> bool:
    """Whether KVSCOPE_OFFLINE forbids the network."""
    return os.environ.get("KVSCOPE_OFFLINE", "").lower() not in ("", "0", "false", "no")


def fetch_whole(url: str, folder: Path, name: str, source: Source, limit: int = MAX_WHOLE_BYTES) -> Path:
    """A small file (config.json, an index), of at most ``limit`` bytes, in ``folder``. Raises NotThere, ModelNotFound,
    ModelError."""

    def read(remote: RemoteFile) -> tuple[bytes, int] | None:
        data = remote.read_all(limit)
        if remote.not_modified:
            return None
        _refuse_page(remote, data)
        return data, len(data)

    return _fetch(url, folder, name, source, read)


def fetch_gguf(url: str, folder: Path, name: str, source: Source) -> Path:
    """The header of a GGUF file, in a hollow file of its size. Raises as fetch_whole, and MalformedFile."""
    return _fetch(url, folder, name, source, _gguf_header)


def fetch_safetensors(
    url: str, folder: Path, name: str, source: Source, first_bytes: int = FIRST_SAFETENSORS_BYTES
) -> Path:
    """The header of a safetensors file, in a hollow file of its size. ``first_bytes``: how long it most likely is."""

    def read(remote: RemoteFile) -> tuple[bytes, int] | None:
        start = remote.read_up_to(max(first_bytes, LENGTH_BYTES))
        if remote.not_modified:
            return None
        size = _known_size(remote)
        _refuse_page(remote, start)
        end = LENGTH_BYTES + header_length(remote.shown, start[:LENGTH_BYTES], size)
        return remote.read_up_to(end)[:end], size

    return _fetch(url, folder, name, source, read)


def _gguf_header(remote: RemoteFile) -> tuple[bytes, int] | None:
    data = remote.read_up_to(SLACK_BYTES)
    if remote.not_modified:
        return None
    size = _known_size(remote)
    _refuse_page(remote, data)
    if data[:4] != MAGIC:
        raise MalformedFile(
            remote.shown, "byte 0", f"this is not a GGUF file: it begins with {data[:4]!r}, not b'GGUF'"
        )
    while not (extent := gguf_extent(data)).is_complete and len(data) < size:
        if extent.end_bytes > size:  # its reader says what is wrong
            return data, size
        if extent.end_bytes > MAX_HEADER_BYTES:
            problem = f"the header is longer than {MAX_HEADER_BYTES} bytes, which no model needs"
            raise MalformedFile(remote.shown, f"byte {len(data)}", problem)
        data = remote.read_up_to(max(extent.end_bytes, len(data)) + SLACK_BYTES)
    return data[: extent.end_bytes], size


def _known_size(remote: RemoteFile) -> int:
    if remote.size is None:
        raise ModelError(
            f"{remote.shown}: the server does not say how long the file is.", hint="Download it, and pass its path."
        )
    return remote.size


def _refuse_page(remote: RemoteFile, data: bytes) -> None:
    if "text/html" in remote.content_type or data[:64].lstrip().lower().startswith((b"<!doctype html", b"<html")):
        raise MalformedFile(
            remote.shown,
            "byte 0",
            "the server sent a web page instead of the file",
            hint="Pass the address of the file itself (on a hub: with /resolve/, not /blob/); it may need a login.",
        )


def _fetch(
    url: str, folder: Path, name: str, source: Source, read: Callable[[RemoteFile], tuple[bytes, int] | None]
) -> Path:
    """``folder``/``name``, current. ``read`` returns the bytes to keep and the file's size; None: it is unchanged."""
    if not is_file_name(name) or "/" in name:
        raise ModelNotFound(f"{url} does not name a file.", hint="Name a file.")
    target, origin = folder / name, folder / f".{name}.origin"
    cached = _origin_of(target, origin, url)
    if cached is not None and (source.is_immutable or is_offline()):
        return target
    if is_offline():
        raise ModelNotFound(
            f"{url} was not read before, and KVSCOPE_OFFLINE forbids the network.",
            hint="Unset KVSCOPE_OFFLINE, or download the file and pass its path.",
        )
    try:
        with source.remote(url, None if cached is None else cached["etag"]) as remote:
            found = read(remote)
            if found is not None:
                etag = remote.etag if remote.etag is None or len(remote.etag) < 1000 else None
                _keep(target, origin, *found, {"url": url, "etag": etag})
    except NotThere:
        target.unlink(missing_ok=True)
        raise
    except Unreachable as error:
        if cached is None:
            raise
        source.warnings.append(f"{error} What was read earlier is used.")
    return target


def is_file_name(name: str) -> bool:
    """Whether a file of a repository can be kept under this name, with / between its folders: a name that leads
    elsewhere, or that no file system takes, is none."""
    parts = name.split("/")
    fits = all(
        part not in ("", ".", "..") and len(part.encode(errors="replace")) <= LONGEST_NAME_BYTES for part in parts
    )
    return fits and "\\" not in name and name.isprintable() and len(name) <= 1024


def _origin_of(target: Path, origin: Path, url: str) -> dict[str, str | None] | None:
    """What is known of a cached file; None where there is none, or it came from elsewhere."""
    try:
        content = json.loads(origin.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("url") != url or not target.is_file():
        return None
    etag = content.get("etag")
    return {"url": url, "etag": etag if isinstance(etag, str) else None}


def _keep(target: Path, origin: Path, data: bytes, size: int, facts: dict[str, str | None]) -> None:
    """Writes the file whole or not at all: renamed into place, and its origin after it."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        origin.unlink(missing_ok=True)
        for path, content, length in ((target, data, size), (origin, json.dumps(facts).encode(), None)):
            descriptor, unfinished = tempfile.mkstemp(prefix=".fetching-", dir=target.parent)
            try:
                with os.fdopen(descriptor, "wb") as out:
                    out.write(content)
                    if length is not None:
                        out.truncate(length)
                Path(unfinished).replace(path)
            finally:
                Path(unfinished).unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(
            f"The header of {facts['url']} could not be kept in {target.parent}: {error.strerror}.",
            hint="Free some space there, or set KVSCOPE_CACHE to another folder.",
        ) from None
