"""load_model_with_layers(): a model whose layers a person states, with whatever else its files say."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope.errors import MalformedFile, ModelNotFound, UnsupportedArchitecture, UsageError
from kvscope.model.config_reader import MAX_WIDTH
from kvscope.model.gguf_header import SkippedArray, read_header
from kvscope.model.hf_config import read_config
from kvscope.model.load import PACKAGE_PREFIX, load_model
from kvscope.model.spec import ModelSpec
from kvscope.model.stated_layers import Stated, parse_layers, with_layers

_TEXT_CONFIGS = ("text_config", "llm_config", "language_config")


def load_model_with_layers(source: str | os.PathLike[str] | Mapping[str, Any], layers: str) -> ModelSpec:
    """``load_model(source)`` with the layers of ``layers`` (see docs/reference/layers.md), also where the family is
    unknown: then the rest is read from the file as far as it says it, and must be stated where it does not.

    Raises UsageError for the statement, ModelError for the files.
    """
    stated = parse_layers(layers)
    try:
        model = load_model(source)
    except UnsupportedArchitecture:
        model = _outline(source, stated)
    return with_layers(model, stated)


def _outline(source: str | os.PathLike[str] | Mapping[str, Any], stated: Stated) -> ModelSpec:
    if isinstance(source, Mapping):
        return _of_config(source, "a mapping", "config", stated)
    text = os.fspath(source)
    if text.startswith(PACKAGE_PREFIX):
        from kvscope.model.package import find_packaged_model

        return _of_gguf(Path(find_packaged_model(text.removeprefix(PACKAGE_PREFIX))), text, stated)
    path = Path(text).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise ModelNotFound(f"{text} has no file to read.", hint="Pass a config.json or a .gguf file with --layers.")
    if path.suffix == ".json":
        content = read_config(path)
        if not isinstance(content, Mapping):
            raise UsageError(f"{path} is no config.json: a JSON object was expected.")
        return _of_config(content, text, path.name, stated)
    return _of_gguf(path, text, stated)


def _of_config(content: Mapping[str, Any], source: str, where: str, stated: Stated) -> ModelSpec:
    found = [content[key] for key in _TEXT_CONFIGS if isinstance(content.get(key), Mapping)]
    nested: Mapping[str, Any] = found[0] if found else {}
    sources: dict[str, str] = {}

    def number(key: str) -> int | None:
        for place, prefix in ((content, ""), (nested, "text_config.")):
            value = place.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_WIDTH:
                sources[key] = f"{where}: {prefix}{key}"
                return value
        return None

    model_type = content.get("model_type")
    name = model_type if isinstance(model_type, str) else "stated by hand"
    dtype = content.get("dtype") or content.get("torch_dtype")
    return ModelSpec(
        name=name,
        architecture=name,
        source=source,
        file_path=None,
        num_parameters=None,
        vocab_size=_needed("vocab_size", number("vocab_size"), stated),
        hidden_size=_needed("hidden_size", number("hidden_size"), stated),
        trained_context_tokens=number("max_position_embeddings"),
        layers=(),
        source_kind="stated",
        dtype=dtype if dtype in ("float16", "bfloat16", "float32") else None,
        fingerprint=_fingerprint(content, where),
        sources=sources,
    )


def _fingerprint(content: Mapping[str, Any], where: str) -> str:
    try:
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedFile(where, "top level", f"the content is not plain JSON: {error}") from None


def _of_gguf(path: Path, source: str, stated: Stated) -> ModelSpec:
    header = read_header(path)
    architecture = str(header.metadata.get("general.architecture", "unknown"))

    def number(key: str) -> int | None:
        value = header.metadata.get(f"{architecture}.{key}")
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_WIDTH else None

    tokens = header.metadata.get("tokenizer.ggml.tokens")
    vocab = tokens.length if isinstance(tokens, SkippedArray) else len(tokens) if isinstance(tokens, tuple) else None
    return ModelSpec(
        name=str(header.metadata.get("general.name") or path.stem),
        architecture=architecture,
        source=source,
        file_path=header.path,
        num_parameters=None,
        vocab_size=_needed("vocab_size", vocab or number("vocab_size"), stated),
        hidden_size=_needed("hidden_size", number("embedding_length"), stated),
        trained_context_tokens=number("context_length"),
        layers=(),
        source_kind="stated",
        tensors=header.tensors,
        fingerprint=header.sha256,
        sources={"tensors": "GGUF tensor table"},
    )


def _needed(name: str, found: int | None, stated: Stated) -> int:
    value = stated.facts.get(name, found)
    if value is None:
        raise UsageError(
            f"The model's files do not state its {name}.", hint=f"State it too: --layers '{name}=N; …layers…'."
        )
    return value
