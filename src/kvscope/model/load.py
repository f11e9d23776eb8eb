"""load_model(): one door for every kind of model reference. Picks the reader; readers end in one ModelSpec."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope.errors import ModelNotFound
from kvscope.model.gguf import load_gguf
from kvscope.model.hf_config import load_config, model_from_config
from kvscope.model.spec import ModelSpec

PACKAGE_PREFIX = "pkg:"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_LONGEST_IN_MESSAGE = 200
_WHAT_TO_PASS = "Pass a .gguf file, a config.json, a model folder, or pkg:NAME for a model inside a Python package."


def load_model(source: str | os.PathLike[str] | Mapping[str, Any]) -> ModelSpec:
    """What a model is, from its own files.

    ``source``: path to a .gguf or a config.json; a folder with a config.json or exactly one .gguf; ``pkg:NAME`` for a
    GGUF inside an installed Python package; or a mapping with a config.json's content.
    Raises ModelNotFound, MalformedFile, MissingField, UnsupportedArchitecture.
    """
    if isinstance(source, Mapping):
        return model_from_config(dict(source), source="a mapping", where="config", name=_mapping_name(source))
    text = os.fspath(source)
    if isinstance(source, str) and text.startswith(PACKAGE_PREFIX):
        from kvscope.model.package import find_packaged_model

        return load_gguf(find_packaged_model(text.removeprefix(PACKAGE_PREFIX)), source=text)
    _check_text(text)
    try:
        return _load_path(Path(text).expanduser(), text)
    except RuntimeError:  # expanduser, for ~name of no user
        raise ModelNotFound(f"There is no user whose home {text} could be in.", hint=_WHAT_TO_PASS) from None
    except OSError as error:  # a name longer than the system allows, a folder that may not be entered, a broken disk
        raise ModelNotFound(f"{_shortened(text)} cannot be read: {error.strerror}.", hint=_WHAT_TO_PASS) from None


def _load_path(path: Path, text: str) -> ModelSpec:
    if path.is_dir():
        return _load_folder(path, text)
    if not path.exists():
        raise _not_found(text)
    if path.suffix == ".json":
        return load_config(path, source=text)
    if path.suffix == ".safetensors":
        raise ModelNotFound(
            f"{path} holds weights only.", hint="Pass the config.json beside it, or the folder they are in."
        )
    return load_gguf(path, source=text)


def _load_folder(folder: Path, source: str) -> ModelSpec:
    config = folder / "config.json"
    models = sorted(folder.glob("*.gguf"))
    for path in models:
        _check_text(str(path))
    if config.is_file() and not models:
        return load_config(config, source=source)
    if len(models) == 1 and not config.is_file():
        return load_gguf(models[0], source=source)
    if not models:
        raise ModelNotFound(f"The folder {folder} holds neither a config.json nor a .gguf file.", hint=_WHAT_TO_PASS)
    names = ", ".join(path.name for path in [*([config] if config.is_file() else []), *models][:5])
    raise ModelNotFound(f"The folder {folder} holds several models: {names}.", hint="Pass one of them by path.")


def _check_text(path: str) -> None:
    """A path is printed and recorded as text; on Linux it may be bytes that are none."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ModelNotFound(
            f"The path {path!r} is not UTF-8 text.",
            hint="Rename the file or folder, or make a link to it, and pass that.",
        ) from None


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_IN_MESSAGE else f"{text[:_LONGEST_IN_MESSAGE]}..."


def _not_found(text: str) -> ModelNotFound:
    if _HUB_ID.fullmatch(text) and not text.startswith((".", "/")) and not text.endswith((".gguf", ".json")):
        return ModelNotFound(
            f"There is no file or folder {text}. If it is a hub id: downloads are not supported yet.",
            hint=f"Download the model first. {_WHAT_TO_PASS}",
        )
    return ModelNotFound(f"There is no file or folder {text}.", hint=_WHAT_TO_PASS)


def _mapping_name(config: Mapping[str, Any]) -> str:
    model_type = config.get("model_type")
    return model_type if isinstance(model_type, str) else "config"
