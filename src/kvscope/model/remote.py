"""Hub ids and web addresses → ModelSpec: which files of a repository describe the model, and the headers of those.

A hub id is "owner/name", "owner/name@revision", "owner/name:file.gguf" (or a word of its name, ":Q4_K_M"). The hub is
HF_ENDPOINT (default: the Hugging Face hub); its token is HF_TOKEN, which goes to that host alone and is never recorded.
A revision is resolved to its commit first, so what is cached of it never changes.
"""

import hashlib
import json
import os
import re
import urllib.parse
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from kvscope.errors import MalformedFile, ModelError, ModelNotFound
from kvscope.model.fetch import Source, fetch_gguf, fetch_safetensors, fetch_whole, headers_folder, is_file_name
from kvscope.model.folder import CONFIG, MAIN_FILE, MAIN_INDEX, SPLIT_GGUF, load_folder, load_safetensors
from kvscope.model.gguf import load_gguf
from kvscope.model.hf_config import MAX_CONFIG_BYTES, load_config
from kvscope.model.http_range import NotThere, origin, without_query
from kvscope.model.safetensors import read_index, read_safetensors
from kvscope.model.spec import ModelSpec

DEFAULT_ENDPOINT = "https://huggingface.co"
HUB_ID = re.compile(r"(?P<id>[\w.-]{1,96}/[\w.-]{1,96})(?:@(?P<revision>[^:\s]{1,200}))?(?::(?P<file>[^:\s]{1,300}))?")
MAX_SHARDS = 1_000
MAX_LISTING_BYTES = 4 * 1024**2  # of some 30,000 files
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
_WORKERS = 8
_LISTED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where files of one model lie: ``address`` of a file by name, and the local folder that mirrors their headers.
    ``name``: of the model, where its files do not say one."""

    base: str
    folder: Path
    source: Source
    name: str
    query: str = ""

    def address(self, name: str) -> str:
        return f"{self.base}/{urllib.parse.quote(name)}{self.query}"

    def into(self, folder: str) -> "_Place":
        return replace(self, folder=self.folder / folder)


def load_url(text: str) -> ModelSpec:
    """The model at a web address: of a config.json, a .gguf, a .safetensors or its index, or a page of the hub.

    Raises ModelNotFound, MalformedFile, UnsupportedArchitecture, ModelError.
    """
    try:
        parts = urllib.parse.urlsplit(text)
        hub = origin(text) == origin(_endpoint())
    except ValueError:
        raise ModelNotFound(
            f"{text[:200]!r} is no web address.", hint="Write it like https://host/path/model.gguf."
        ) from None
    if parts.username is not None or parts.password is not None:
        raise ModelNotFound(
            "A web address with a user's name or password in it is not read.", hint="Download the file."
        )
    path = PurePosixPath(urllib.parse.unquote(parts.path))
    if hub and len(path.parts) == 3 and path.suffix not in (".gguf", ".json", ".safetensors"):
        return load_hub("/".join(path.parts[1:]))
    if hub and len(path.parts) > 4 and path.parts[3] in ("blob", "resolve"):
        inside = "/".join(path.parts[5:])
        return load_hub(f"{path.parts[1]}/{path.parts[2]}@{path.parts[4]}:{inside}")
    base = urllib.parse.urlunsplit(
        (parts.scheme, parts.netloc, urllib.parse.quote(str(path.parent)).rstrip("/"), "", "")
    )
    place = _Place(
        base=base,
        folder=headers_folder() / _key(base),
        source=Source(),
        name=path.parent.name or str(parts.hostname),
        query=f"?{parts.query}" if parts.query else "",
    )
    return _load_file(place, path.name, without_query(text))


def load_hub(text: str) -> ModelSpec:
    """The model of a hub id. Raises ModelNotFound, MalformedFile, UnsupportedArchitecture, ModelError."""
    match = HUB_ID.fullmatch(text)
    if match is None:
        raise ModelNotFound(f"{text[:200]!r} is no hub id.", hint="Write it like owner/name or owner/name:file.gguf.")
    repository, revision, file = match["id"], match["revision"] or "main", match["file"]
    endpoint = _endpoint()
    source = Source(token=_token(), token_origin=origin(endpoint))
    try:
        commit, names = _listing(endpoint, repository, revision, source)
    except ModelNotFound as error:
        error.hint = f"{error.hint or ''} If a path was meant: there is no file or folder {text}.".strip()
        raise
    source.is_immutable = commit is not None
    base = f"{endpoint}/{repository}/resolve/{urllib.parse.quote(commit or revision, safe='')}"
    name = repository.rpartition("/")[2]
    place = _Place(base=base, folder=headers_folder() / _key(base), source=source, name=name)
    if file is not None:
        return _load_file(place.into("named"), _named(repository, file, names), text, names)
    return _load_repository(place.into("model"), repository, names, text)


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


def _token() -> str | None:
    """HF_TOKEN. One that no header can hold is refused here: elsewhere it would end up in a message."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if token and not re.fullmatch(r"[!-~]+", token):
        raise ModelNotFound("HF_TOKEN holds characters that no token has.", hint="Set it again, or unset it.")
    return token or None


def _key(base: str) -> str:
    return hashlib.sha256(base.encode()).hexdigest()[:24]


def _listing(endpoint: str, repository: str, revision: str, source: Source) -> tuple[str | None, list[str]]:
    """(commit, names of all files) of a revision."""
    url = f"{endpoint}/api/models/{repository}/revision/{urllib.parse.quote(revision, safe='')}"
    path = fetch_whole(url, headers_folder() / _key(url), "listing.json", source, MAX_LISTING_BYTES)
    try:
        content = json.loads(path.read_bytes())
        names = [entry["rfilename"] for entry in content["siblings"]]
        commit = content.get("sha")
    except (ValueError, KeyError, TypeError, RecursionError, OSError):
        raise MalformedFile(
            url, "siblings", "this is no list of a repository's files", hint="Check HF_ENDPOINT."
        ) from None
    if not all(isinstance(name, str) for name in names):
        raise MalformedFile(url, "siblings", "a list of file names was expected", hint="Check HF_ENDPOINT.")
    names = [name for name in names if is_file_name(name)]
    return (commit if isinstance(commit, str) and re.fullmatch(r"[0-9a-f]{40,64}", commit) else None), names


def _named(repository: str, file: str, names: Sequence[str]) -> str:
    """The file of that name, or the only GGUF with that word in its name ("Q4_K_M")."""
    if file in names:
        return file
    ggufs = _first_ggufs(names)
    word = re.compile(rf"(?:^|[-._/]){re.escape(file)}(?:[-._/]|$)", re.IGNORECASE)
    found = [name for name in ggufs if word.search(name)]
    if len(found) == 1:
        return found[0]
    listed = found or ggufs or [name for name in names if name.endswith((".json", ".safetensors"))]
    what = f"has {len(found)} files that" if found else "has no file that"
    raise ModelNotFound(
        f"{repository} {what} {file!r} could mean.",
        hint=f"Name one: {', '.join(f'{repository}:{name}' for name in listed[:_LISTED])}" + _and_more(listed),
    )


def _first_ggufs(names: Sequence[str]) -> list[str]:
    """The GGUF models of a repository, each by its first file, without projectors."""
    found = []
    for name in sorted(names):
        part = SPLIT_GGUF.fullmatch(name)
        if name.lower().endswith(".gguf") and "mmproj" not in name.lower() and (part is None or int(part[2]) == 1):
            found.append(name)
    return found


def _load_repository(place: _Place, repository: str, names: Sequence[str], text: str) -> ModelSpec:
    weights = [name for name in names if name.endswith(".safetensors") and "/" not in name]
    ggufs = _first_ggufs(names)
    if CONFIG in names and (weights or not ggufs):
        with _about(place):
            fetch_whole(place.address(CONFIG), place.folder, CONFIG, place.source, MAX_CONFIG_BYTES)
            _fetch_weights(place, names)
            return _finished(load_folder(place.folder, text), place, text)
    if len(ggufs) == 1:
        return _load_file(place, ggufs[0], text, names)
    if not ggufs:
        raise ModelNotFound(
            f"{repository} holds neither a config.json nor a GGUF file.",
            hint=f"It holds: {', '.join(names[:_LISTED])}.",
        )
    raise ModelNotFound(
        f"{repository} holds {len(ggufs)} models.",
        hint=f"Name one: {', '.join(f'{repository}:{name}' for name in ggufs[:_LISTED])}" + _and_more(ggufs),
    )


def _and_more(names: Sequence[str]) -> str:
    return f" and {len(names) - _LISTED} more." if len(names) > _LISTED else "."


def _fetch_weights(place: _Place, names: Sequence[str]) -> None:
    """Headers of what is the model among a repository's files, chosen as folder.py chooses."""
    if MAIN_FILE in names:
        fetch_safetensors(place.address(MAIN_FILE), place.folder, MAIN_FILE, place.source)
        return
    if MAIN_INDEX in names:
        index = fetch_whole(place.address(MAIN_INDEX), place.folder, MAIN_INDEX, place.source)
        _fetch_shards(place, read_index(index).shards)
        return
    weights = [name for name in names if name.endswith(".safetensors") and "/" not in name]
    weights = [name for name in weights if not name.startswith("adapter_")]
    _fetch_shards(place, weights)


def _fetch_shards(place: _Place, shards: Sequence[str]) -> None:
    """Headers of all shards: the first tells how long the others most likely are."""
    if not shards:
        return
    if len(shards) > MAX_SHARDS:
        raise ModelError(f"The model comes in {len(shards)} files; at most {MAX_SHARDS} are read.", hint="Download it.")
    first = fetch_safetensors(place.address(shards[0]), place.folder, shards[0], place.source)
    likely = read_safetensors(first).header_bytes * 5 // 4 + 4096

    def one(name: str) -> None:
        fetch_safetensors(place.address(name), place.folder, name, place.source, min(likely, 800_000))

    with ThreadPoolExecutor(_WORKERS) as pool:
        list(pool.map(one, shards[1:]))


def _load_file(place: _Place, name: str, text: str, names: Sequence[str] | None = None) -> ModelSpec:
    """One named file, with what must lie beside it. ``names``: all files there, None where that is not known."""
    local = PurePosixPath(name).name
    with _about(place):
        if name.lower().endswith(".gguf"):
            for part in _gguf_parts(name):
                fetch_gguf(place.address(part), place.folder, PurePosixPath(part).name, place.source)
            return _finished(load_gguf(place.folder / local, source=text), place, text)
        if name.endswith((".safetensors", ".safetensors.index.json")):
            return _finished(_load_weights(place, name, text, names), place, text)
        if name.endswith(".json"):
            path = fetch_whole(place.address(name), place.folder, local, place.source)
            return _finished(load_config(path, source=text), place, text)
    raise ModelNotFound(
        f"{text} is no file that describes a model.", hint="Name a .gguf, a config.json or a .safetensors file."
    )


def _gguf_parts(name: str) -> list[str]:
    """All files of a split model, from the name of one."""
    part = SPLIT_GGUF.fullmatch(name)
    if part is None or not 1 < int(part[3]) <= MAX_SHARDS:
        return [name]
    return [f"{part[1]}-{number:05d}-of-{part[3]}.gguf" for number in range(1, int(part[3]) + 1)]


def _load_weights(place: _Place, name: str, text: str, names: Sequence[str] | None) -> ModelSpec:
    """A safetensors file or index, with the config.json and the other shards that lie beside it."""
    inside = str(PurePosixPath(name).parent)
    beside = replace(place, base=place.base if inside == "." else f"{place.base}/{urllib.parse.quote(inside)}")
    local = PurePosixPath(name).name
    there = None if names is None else {PurePosixPath(n).name for n in names if str(PurePosixPath(n).parent) == inside}
    _fetch_if_there(beside, CONFIG, there)
    index = local if local.endswith(".json") else MAIN_INDEX
    part = _SHARD.fullmatch(local)
    found = _fetch_if_there(beside, index, there) if part is not None or index == local else None
    if found is not None and (index == local or local in read_index(found).shards):
        _fetch_shards(beside, read_index(found).shards)
    elif part is not None:
        count = min(int(part[3]), MAX_SHARDS + 1)
        _fetch_shards(beside, [f"{part[1]}-{n:05d}-of-{part[3]}.safetensors" for n in range(1, count + 1)])
    else:
        fetch_safetensors(beside.address(local), beside.folder, local, beside.source)
    return load_safetensors(beside.folder / local, text)


def _fetch_if_there(place: _Place, name: str, there: set[str] | None) -> Path | None:
    if there is not None and name not in there:
        return None
    try:
        return fetch_whole(place.address(name), place.folder, name, place.source)
    except NotThere:
        return None


def _finished(model: ModelSpec, place: _Place, text: str) -> ModelSpec:
    """Without the path of the hollow file, which no engine can load; with what was noticed on the way."""
    return replace(
        model,
        name=place.name if model.name == place.folder.name else model.name,
        source=text,
        file_path=None,
        warnings=(*model.warnings, *place.source.warnings),
    )


@contextmanager
def _about(place: _Place) -> Iterator[None]:
    """Errors name the web address instead of the file in the cache that stands for it."""
    try:
        yield
    except ModelError as error:
        error.message = error.message.replace(str(place.folder), without_query(place.base))
        error.args = (error.message,)
        raise
