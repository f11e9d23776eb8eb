"""Ollama's local store: ``ollama:NAME`` or ``ollama:NAME:TAG`` → the GGUF among its blobs, and its parameters.

Written and tested by the documented layout of the store; no Ollama was run:
- the store is OLLAMA_MODELS, else ~/.ollama/models;
- manifests/HOST/NAMESPACE/NAME/TAG is a JSON manifest; the defaults are registry.ollama.ai, library and latest;
- its layers name blobs by digest (``sha256:HEX``), which lie in blobs/sha256-HEX; the media type says what one holds:
  application/vnd.ollama.image.model (a GGUF), .projector, .adapter, .params (JSON: num_ctx, ...), .template, ...
"""

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvscope.errors import MalformedFile, ModelNotFound, UnsupportedArchitecture
from kvscope.model.gguf import load_gguf
from kvscope.model.spec import ModelSpec

PREFIX = "ollama:"
DEFAULT_HOST, DEFAULT_NAMESPACE, DEFAULT_TAG = "registry.ollama.ai", "library", "latest"
_MEDIA = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}(?::\d{1,5})?")
_MAX_JSON_BYTES = 4 * 1024**2
_LISTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """``layers``: (kind, blob, bytes) of each layer; kind is the end of its media type: "model", "params", ..."""

    reference: str
    manifest: Path
    layers: tuple[tuple[str, Path, int], ...]

    def blobs(self, kind: str) -> tuple[Path, ...]:
        return tuple(path for name, path, _ in self.layers if name == kind)


def load_ollama(text: str) -> ModelSpec:
    """The model of ``ollama:NAME[:TAG]``. ``stored_settings`` are its parameters, in ``sources`` as "ollama.num_ctx"
    and so on; projectors and adapters are named in warnings. Raises ModelNotFound, MalformedFile,
    UnsupportedArchitecture."""
    stored = find_stored(text)
    models = stored.blobs("model")
    if not models:
        kinds = ", ".join(sorted({kind for kind, _, _ in stored.layers})) or "nothing"
        raise UnsupportedArchitecture(
            f"{text} holds no GGUF model in Ollama's store, but {kinds}.",
            hint="Only models stored as GGUF are read from the store. Pass the original model's folder instead.",
        )
    _check_blob(stored, "model")
    model = load_gguf(models[0], source=text)
    parameters = _parameters(stored)
    warnings = [
        f"Beside the model, {text} has a layer {kind!r} of {size} B, which is not counted."
        for kind, size in _others(stored)
    ]
    sources = {
        **model.sources,
        **{f"ollama.{name}": f"{value} (parameters in Ollama's manifest)" for name, value in parameters.items()},
    }
    named_by_file = model.sources.get("name") == "file name"
    return replace(
        model,
        name=stored.reference if named_by_file else model.name,
        stored_settings=parameters,
        warnings=(*model.warnings, *warnings),
        sources=sources,
    )


def ollama_template(text: str) -> str | None:
    """The chat template stored with a model, in Ollama's own language; None where it has none."""
    stored = find_stored(text)
    blobs = stored.blobs("template")
    if not blobs:
        return None
    _check_blob(stored, "template")
    return blobs[0].read_bytes().decode(errors="replace")


def store_folder() -> Path:
    """OLLAMA_MODELS, else ~/.ollama/models."""
    own = os.environ.get("OLLAMA_MODELS")
    return Path(own) if own else Path.home() / ".ollama" / "models"


def find_stored(text: str) -> StoredModel:
    """What the store holds for ``ollama:NAME[:TAG]``. Raises ModelNotFound (what there is instead), MalformedFile."""
    host, namespace, name, tag = _parse(text)
    store = store_folder()
    if not (store / "manifests").is_dir():
        raise ModelNotFound(
            f"There is no Ollama store in {store}.",
            hint="Set OLLAMA_MODELS to the folder that holds 'manifests' and 'blobs'.",
        )
    manifest = store / "manifests" / host / namespace / name / tag
    if not manifest.is_file():
        raise _not_stored(store, host, namespace, name, tag)
    return StoredModel(
        reference=_short_name(host, namespace, name, tag),
        manifest=manifest,
        layers=_layers(manifest, store / "blobs"),
    )


def _parse(text: str) -> tuple[str, str, str, str]:
    """(host, namespace, name, tag), each checked: they become parts of a path."""
    rest = text.removeprefix(PREFIX)
    before, _, last = rest.rpartition("/")
    name, _, tag = last.partition(":")
    places = [part for part in before.split("/") if part] if before else []
    if len(places) == 1:
        places = [DEFAULT_HOST, places[0]]
    host, namespace = places if len(places) == 2 else (DEFAULT_HOST, DEFAULT_NAMESPACE) if not places else ("", "")
    tag = tag or DEFAULT_TAG
    if not (_HOST.fullmatch(host) and all(_PART.fullmatch(part) for part in (namespace, name, tag))):
        raise ModelNotFound(
            f"{text[:200]!r} is no name of an Ollama model.",
            hint="Write it like ollama:llama3.2 or ollama:llama3.2:1b.",
        )
    return host, namespace, name, tag


def _short_name(host: str, namespace: str, name: str, tag: str) -> str:
    if host != DEFAULT_HOST:
        return f"{host}/{namespace}/{name}:{tag}"
    return f"{name}:{tag}" if namespace == DEFAULT_NAMESPACE else f"{namespace}/{name}:{tag}"


def _not_stored(store: Path, host: str, namespace: str, name: str, tag: str) -> ModelNotFound:
    asked = _short_name(host, namespace, name, tag)
    manifests = sorted(path for path in (store / "manifests").glob("*/*/*/*") if path.is_file())
    known = [_short_name(*path.parts[-4:]) for path in manifests]
    known = [text for text in known if text.isprintable()]
    if not known:
        return ModelNotFound(f"The Ollama store in {store} holds no models.", hint=f"Get it: ollama pull {asked}")
    near = difflib.get_close_matches(asked, known, n=1, cutoff=0.5)
    nearest = f"Did you mean {near[0]}? " if near else ""
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return ModelNotFound(
        f"The Ollama store in {store} does not hold {asked}.",
        hint=f"{nearest}It holds: {', '.join(known[:_LISTED])}{more}. Get it: ollama pull {asked}",
    )


def _layers(manifest: Path, blobs: Path) -> tuple[tuple[str, Path, int], ...]:
    layers = _json(manifest).get("layers")
    if not isinstance(layers, list):
        raise MalformedFile(manifest, "layers", "a list was expected", hint="Pull the model again.")
    found = []
    for index, layer in enumerate(layers):
        where = f"layers[{index}]"
        if not isinstance(layer, Mapping):
            raise MalformedFile(manifest, where, "an object was expected")
        media, digest, size = layer.get("mediaType"), layer.get("digest"), layer.get("size")
        if not isinstance(media, str):
            raise MalformedFile(manifest, f"{where}.mediaType", "text was expected")
        match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
        if match is None:
            raise MalformedFile(manifest, f"{where}.digest", "a digest like sha256:HEX was expected")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise MalformedFile(manifest, f"{where}.size", "a whole number was expected")
        found.append((media.removeprefix(_MEDIA), blobs / f"sha256-{match[1]}", size))
    return tuple(found)


def _check_blob(stored: StoredModel, kind: str) -> None:
    for name, path, size in stored.layers:
        if name != kind:
            continue
        if not path.is_file():
            raise ModelNotFound(
                f"The {kind} of {stored.reference} is missing from Ollama's store: {path}.",
                hint=f"Pull it again: ollama pull {stored.reference}",
            )
        if path.stat().st_size != size:
            problem = f"the {kind} has {path.stat().st_size} bytes; its manifest says {size}"
            raise MalformedFile(path, "its size", problem, hint=f"Pull it again: ollama pull {stored.reference}")


def _parameters(stored: StoredModel) -> dict[str, Any]:
    _check_blob(stored, "params")
    found: dict[str, Any] = {}
    for path in stored.blobs("params"):
        found.update(_json(path))
    return found


def _others(stored: StoredModel) -> list[tuple[str, int]]:
    return [(kind, size) for kind, _, size in stored.layers if kind in ("projector", "adapter")]


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise MalformedFile(path, "byte 0", f"it is larger than {_MAX_JSON_BYTES} bytes")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}.", hint="Check its permissions.") from None
    except (ValueError, RecursionError) as error:
        raise MalformedFile(path, "byte 0", f"it is not JSON: {error}", hint="Pull the model again.") from None
    if not isinstance(content, dict):
        raise MalformedFile(path, "top level", "a JSON object was expected", hint="Pull the model again.")
    return content
