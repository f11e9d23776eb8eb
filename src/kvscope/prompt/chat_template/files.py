"""Where a model's chat templates are, and the special tokens that they name.

A folder in Hugging Face's layout: ``chat_template.jinja`` and ``additional_chat_templates/NAME.jinja``, else
``chat_template`` in tokenizer_config.json (a text, or a list of named ones), else ``chat_template`` in
chat_template.json; the tokens from tokenizer_config.json, then special_tokens_map.json. This is the order of
transformers. A GGUF file: ``tokenizer.chat_template`` and ``tokenizer.chat_template.NAME``; the tokens by their ids
in its vocabulary. A running llama.cpp server: what it says in /props.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope.errors import MalformedFile, MissingField, ModelNotFound
from kvscope.model.gguf_header import read_header
from kvscope.model.package import find_packaged_model
from kvscope.prompt.chat_template.llama_cpp import Capabilities, stated_capabilities
from kvscope.prompt.chat_template.server import read_props, special_tokens

DEFAULT = "default"
TRANSFORMERS, LLAMA_CPP = "transformers", "llama.cpp"
_WEB_ADDRESS = re.compile(r"https?://", re.IGNORECASE)
_PACKAGE_PREFIX = "pkg:"
_MAX_TEMPLATE_BYTES = 4 * 1024**2
_MAX_JSON_BYTES = 64 * 1024**2
_CONFIG, _TOKENS_MAP = "tokenizer_config.json", "special_tokens_map.json"
_JINJA, _JINJA_FOLDER, _JSON = "chat_template.jinja", "additional_chat_templates", "chat_template.json"
_GGUF_KEY = "tokenizer.chat_template"
# GGUF's names of the tokens, and those that templates use.
_GGUF_TOKENS = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFiles:
    """``texts``: templates by name. ``special_tokens``: texts by the names templates use (bos_token ...). ``looked_in``
    says where templates were looked for, or came from. ``texts`` is empty where the model has none. ``style``: whose
    way of using them the source stands for; ``capabilities``: what a server says that its template takes."""

    texts: Mapping[str, str]
    special_tokens: Mapping[str, str]
    looked_in: tuple[str, ...]
    style: str = TRANSFORMERS
    capabilities: Capabilities | None = None


def find_templates(source: str) -> TemplateFiles:
    """The templates of ``source``: a .gguf, ``pkg:NAME``, a model folder, a file of one, a template's own file, or the
    address of a running llama.cpp server.

    Raises ModelNotFound, MalformedFile; for a server ConnectionRefused, ConnectionLost, ServerError, EngineReplyError.
    """
    if _WEB_ADDRESS.match(source):
        return _of_server(source)
    if source.startswith(_PACKAGE_PREFIX):
        return _in_gguf(find_packaged_model(source.removeprefix(_PACKAGE_PREFIX)))
    path = Path(source).expanduser()
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        found = _in_folder(path)
        return _in_gguf(ggufs[0]) if not found.texts and len(ggufs) == 1 else found
    if not path.is_file():
        raise ModelNotFound(
            f"There is no file or folder {source}.",
            hint="Pass a model folder, a .gguf file, pkg:NAME, a tokenizer_config.json or a .jinja file.",
        )
    if path.suffix == ".gguf":
        return _in_gguf(path)
    if path.suffix in (".jinja", ".jinja2", ".j2"):
        return TemplateFiles(
            texts={DEFAULT: _text(path, _MAX_TEMPLATE_BYTES)},
            special_tokens=_special_tokens(path.parent),
            looked_in=(str(path),),
        )
    if path.name == _JSON:
        texts = _named(_json(path).get("chat_template"), path)
        return TemplateFiles(texts=texts, special_tokens=_special_tokens(path.parent), looked_in=(str(path),))
    return _in_folder(path.parent)


def _of_server(url: str) -> TemplateFiles:
    props = read_props(url)
    texts = {DEFAULT: props["chat_template"]}
    if isinstance(props.get("chat_template_tool_use"), str):
        texts["tool_use"] = props["chat_template_tool_use"]
    return TemplateFiles(
        texts=texts,
        special_tokens=special_tokens(props),
        looked_in=(f"{url}: /props",),
        style=LLAMA_CPP,
        capabilities=stated_capabilities(props) if len(texts) == 1 else None,
    )


def _in_folder(folder: Path) -> TemplateFiles:
    tokens = _special_tokens(folder)
    extra = folder / _JINJA_FOLDER
    jinja = {DEFAULT: folder / _JINJA, **{path.stem: path for path in sorted(extra.glob("*.jinja"))}}
    texts = {name: _text(path, _MAX_TEMPLATE_BYTES) for name, path in jinja.items() if path.is_file()}
    if texts:
        return TemplateFiles(texts=texts, special_tokens=tokens, looked_in=(str(folder / _JINJA), str(extra)))
    for path in (folder / _CONFIG, folder / _JSON):
        texts = _named(_json(path).get("chat_template"), path) if path.is_file() else {}
        if texts:
            return TemplateFiles(texts=texts, special_tokens=tokens, looked_in=(str(path),))
    looked_in = tuple(str(folder / name) for name in (_JINJA, _CONFIG, _JSON))
    return TemplateFiles(texts={}, special_tokens=tokens, looked_in=looked_in)


def _named(value: object, path: Path) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT: value}
    entries = value if isinstance(value, list) else None
    if isinstance(value, dict):
        entries = [{"name": name, "template": text} for name, text in value.items()]
    texts = {}
    for entry in entries if entries is not None else [None]:
        name, text = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str):
            raise MalformedFile(path, "chat_template", "a template, or a list of templates with names, was expected")
        texts[name] = text
    return texts


def _special_tokens(folder: Path) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for path in (folder / _CONFIG, folder / _TOKENS_MAP):
        if not path.is_file():
            continue
        for name, value in _json(path).items():
            text = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(text, str):
                tokens.setdefault(name, text)
    return tokens


def _in_gguf(path: Path) -> TemplateFiles:
    metadata = read_header(path, with_arrays=True).metadata
    texts = {}
    for key, value in metadata.items():
        if key == _GGUF_KEY or key.startswith(f"{_GGUF_KEY}."):
            if not isinstance(value, str):
                raise MalformedFile(path, key, "a text was expected")
            texts[key.removeprefix(_GGUF_KEY).removeprefix(".") or DEFAULT] = value
    vocabulary = metadata.get("tokenizer.ggml.tokens")
    tokens = {}
    for gguf_name, name in _GGUF_TOKENS.items():
        index = metadata.get(f"tokenizer.ggml.{gguf_name}_token_id")
        if isinstance(index, int) and isinstance(vocabulary, tuple) and 0 <= index < len(vocabulary):
            tokens[name] = str(vocabulary[index])
    return TemplateFiles(texts=texts, special_tokens=tokens, looked_in=(f"{path}: {_GGUF_KEY}",), style=LLAMA_CPP)


def _text(path: Path, limit: int) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}.", hint="Check its permissions.") from None
    if len(data) > limit:
        raise MalformedFile(path, f"byte {limit}", f"the file is larger than {limit} bytes")
    try:
        # As text files are read: every kind of line end is one newline.
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise MalformedFile(path, f"byte {error.start}", "the file is not UTF-8") from None


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_text(path, _MAX_JSON_BYTES))
    except json.JSONDecodeError as error:
        raise MalformedFile(path, f"line {error.lineno}", f"this is not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise MalformedFile(path, "byte 0", f"this JSON cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise MalformedFile(path, "byte 0", "a JSON object was expected")
    return value


def no_template(source: str, files: TemplateFiles) -> MissingField:
    """The error for a model without a chat template."""
    return MissingField(f"a chat template ({source} has none)", files.looked_in)
