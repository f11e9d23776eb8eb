"""load_model(): one door for every kind of model reference. Picks the reader; readers end in one ModelSpec."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope.errors import ModelNotFound
from kvscope.model.spec import ModelSpec

# What a reference looks like decides who reads it; each reader is imported when it is needed.
PACKAGE_PREFIX = "pkg:"
OLLAMA_PREFIX = "ollama:"
_WEB_ADDRESS = re.compile(r"https?://", re.IGNORECASE)
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(?:@[^:\s]+)?(?::[^:\s]+)?")
_FILE_NAMES = (".gguf", ".json", ".safetensors")
_LONGEST_IN_MESSAGE = 200
_WHAT_TO_PASS = (
    "Pass a .gguf file, a config.json, a model folder, a hub id (owner/name), a web address, ollama:NAME, or pkg:NAME "
    "for a model inside a Python package."
)


def load_model(source: str | os.PathLike[str] | Mapping[str, Any]) -> ModelSpec:
    """What a model is, from its own files.

    ``source``: path to a .gguf (the first file of a split one), a config.json, a .safetensors with a config.json beside
    it, or a folder with these; ``owner/name``, ``owner/name@revision`` or ``owner/name:file.gguf`` on the hub; a web
    address of such a file; ``ollama:NAME``; ``pkg:NAME`` for a GGUF inside an installed Python package; or a mapping
    with a config.json's content. A path that exists is never taken for anything else. Of what is remote, headers only
    are read. Raises ModelNotFound, MalformedFile, MissingField, UnsupportedArchitecture, ModelError.
    """
    if isinstance(source, Mapping):
        from kvscope.model.hf_config import model_from_config

        return model_from_config(dict(source), source="a mapping", where="config", name=_mapping_name(source))
    text = os.fspath(source)
    _check_text(text)
    try:
        return _load_named(text) if isinstance(source, str) else _load_path(_expanded(text), text)
    except OSError as error:  # a name longer than the system allows, a folder that may not be entered, a broken disk
        raise ModelNotFound(f"{_shortened(text)} cannot be read: {error.strerror}.", hint=_WHAT_TO_PASS) from None


def _load_named(text: str) -> ModelSpec:
    """A reference given as text: by its prefix, as a path that exists, else as a hub id."""
    if text.startswith(PACKAGE_PREFIX):
        from kvscope.model.gguf import load_gguf
        from kvscope.model.package import find_packaged_model

        return load_gguf(find_packaged_model(text.removeprefix(PACKAGE_PREFIX)), source=text)
    if text.startswith(OLLAMA_PREFIX):
        from kvscope.model.ollama_store import load_ollama

        return load_ollama(text)
    if _WEB_ADDRESS.match(text):
        from kvscope.model.remote import load_url

        return load_url(text)
    path = _expanded(text)
    if _HUB_ID.fullmatch(text) and not path.exists() and (":" in text or not text.endswith(_FILE_NAMES)):
        from kvscope.model.remote import load_hub

        return load_hub(text)
    return _load_path(path, text)


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # for ~name of no user
        raise ModelNotFound(f"There is no user whose home {text} could be in.", hint=_WHAT_TO_PASS) from None


def _load_path(path: Path, text: str) -> ModelSpec:
    if path.is_dir():
        from kvscope.model.folder import load_folder

        _check_names(path)
        return load_folder(path, text)
    if not path.exists():
        raise ModelNotFound(f"There is no file or folder {text}.", hint=_WHAT_TO_PASS)
    if path.name.endswith((".safetensors", ".safetensors.index.json")):
        from kvscope.model.folder import load_safetensors

        return load_safetensors(path, text)
    if path.suffix == ".json":
        from kvscope.model.hf_config import load_config

        return load_config(path, source=text)
    from kvscope.model.gguf import load_gguf

    return load_gguf(path, source=text)


def _check_names(folder: Path) -> None:
    for path in folder.iterdir():
        if path.suffix in _FILE_NAMES:
            _check_text(str(path))


def _check_text(path: str) -> None:
    """A path is printed and recorded as text; on Linux it may be bytes that are none. An empty one would be the current
    folder, where an unset variable was meant."""
    if not path.strip():
        raise ModelNotFound("The model's name is empty.", hint=_WHAT_TO_PASS)
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ModelNotFound(
            f"The path {path!r} is not UTF-8 text.",
            hint="Rename the file or folder, or make a link to it, and pass that.",
        ) from None


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_IN_MESSAGE else f"{text[:_LONGEST_IN_MESSAGE]}..."


def _mapping_name(config: Mapping[str, Any]) -> str:
    model_type = config.get("model_type")
    return model_type if isinstance(model_type, str) else "config"
