"""load_tokenizer(): one door for every kind of vocabulary. Each reader is imported when it is needed."""

import re
from pathlib import Path

from kvscope.errors import ModelNotFound
from kvscope.prompt.tokenizers.base import Tokenizer

_WEB_ADDRESS = re.compile(r"https?://", re.IGNORECASE)
_WHAT_TO_PASS = (
    "Pass a .gguf file, pkg:NAME for a GGUF inside a Python package, a tokenizer.json (or the folder it is in), a "
    "tekken.json, a SentencePiece .model, tiktoken:NAME, or the http:// address of a running llama.cpp server."
)


def load_tokenizer(source: str) -> Tokenizer:
    """The tokenizer that ``source`` names.

    ``source``: path to a .gguf, a tokenizer.json, a folder with a tokenizer.json, a tekken.json or a tokenizer.model in
    it, or such a file; ``pkg:NAME``; ``tiktoken:cl100k_base``; ``bytes:`` (one token a byte of UTF-8); the web address
    of a running llama.cpp server. Raises ModelNotFound, MalformedFile, UnsupportedArchitecture (the file's rules are
    none that kvscope is known to follow exactly), MissingDependency, UnknownName, ModelError.
    """
    scheme, _, name = source.partition(":")
    if scheme == "tiktoken":
        from kvscope.prompt.tokenizers.tiktoken_file import load_tiktoken

        return load_tiktoken(name, source=source)
    if source == "bytes:":
        from kvscope.prompt.tokenizers.bytes import BytesTokenizer

        return BytesTokenizer()
    if _WEB_ADDRESS.match(source):
        from kvscope.prompt.tokenizers.server import load_server

        return load_server(source)
    if scheme == "pkg":
        from kvscope.model.package import find_packaged_model
        from kvscope.prompt.tokenizers.gguf import load_gguf_tokenizer

        return load_gguf_tokenizer(find_packaged_model(name), source=source)
    return _load_path(source)


def _load_path(source: str) -> Tokenizer:
    try:
        path = _file(Path(source).expanduser(), source)
        with path.open("rb") as file:
            begins = file.read(4)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelNotFound(f"{source} cannot be read: {reason}.", hint=_WHAT_TO_PASS) from None
    if begins == b"GGUF" or path.suffix == ".gguf":
        from kvscope.prompt.tokenizers.gguf import load_gguf_tokenizer

        return load_gguf_tokenizer(path, source=source)
    if path.suffix == ".json":
        return _load_json(path, source)
    if ".model" in path.suffixes:
        from kvscope.prompt.tokenizers.sentencepiece_file import load_sentencepiece

        return load_sentencepiece(path, source=source)
    raise ModelNotFound(f"{source} is no kind of tokenizer file that is known here.", hint=_WHAT_TO_PASS)


def _load_json(path: Path, source: str) -> Tokenizer:
    from kvscope.prompt.tokenizers.mistral import is_tekken, load_tekken

    if is_tekken(path):
        return load_tekken(path, source=source)
    from kvscope.prompt.tokenizers.hf import load_tokenizer_json

    return load_tokenizer_json(path, source=source)


def _file(path: Path, source: str) -> Path:
    """The file itself, where a folder is named."""
    if not path.is_dir():
        if path.exists() and not path.is_file():
            raise ModelNotFound(f"{source} is not a regular file.", hint=_WHAT_TO_PASS)
        return path
    for name in ("tokenizer.json", "tekken.json", "tokenizer.model"):
        if (path / name).is_file():
            return path / name
    raise ModelNotFound(f"The folder {source} holds no tokenizer.", hint=_WHAT_TO_PASS)
