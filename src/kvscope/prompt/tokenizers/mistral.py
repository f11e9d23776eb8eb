"""Mistral's ``tekken.json``: byte-pair ranks, an expression that splits, and special tokens that have the first ids.

Source of the form: the mistral-common package, tokens/tokenizers/tekken.py.
"""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from kvscope.errors import MalformedFile, MissingDependency, ModelNotFound
from kvscope.prompt.tokenizers.tiktoken_file import TiktokenTokenizer

# The first ids of every file that does not list its special tokens itself (versions before v7).
_UNLISTED = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] "
    "[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
).split()
_BEGINS_WITHIN = 4096  # bytes in which a tekken.json shows its "config"


def is_tekken(path: Path) -> bool:
    """Whether a .json file is a tekken.json: by its name, or by its beginning. Raises ModelNotFound."""
    if path.name.startswith("tekken"):
        return True
    try:
        with path.open("rb") as file:
            begins = file.read(_BEGINS_WITHIN)
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}.", hint="Check the path.") from None
    return b'"default_num_special_tokens"' in begins


def load_tekken(path: Path, *, source: str) -> TiktokenTokenizer:
    """The tokenizer of a ``tekken.json``. Raises ModelNotFound, MalformedFile, MissingDependency."""
    try:
        import tiktoken
    except ImportError:
        raise MissingDependency("Reading a tekken.json", "tokenizers", "tiktoken") from None
    content = _content(path)
    try:
        file: dict[str, Any] = json.loads(content)
        config = file["config"]
        num_special = int(config["default_num_special_tokens"])
        num_ranks = int(config["default_vocab_size"]) - num_special
        ranks = {base64.b64decode(entry["token_bytes"]): int(entry["rank"]) for entry in file["vocab"][:num_ranks]}
        listed = file.get("special_tokens") or [{"token_str": text, "rank": i} for i, text in enumerate(_UNLISTED)]
        special = {str(entry["token_str"]): int(entry["rank"]) for entry in listed}
        pattern = str(config["pattern"])
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedFile(path, "config, vocab", f"this is not a tekken.json: {error!r}") from None
    if sorted(ranks.values()) != list(range(num_ranks)) or any(rank >= num_special for rank in special.values()):
        raise MalformedFile(path, "vocab", f"ranks 0 to {num_ranks - 1} were expected, each once")
    # tiktoken wants the special tokens behind the ranks; in the file they stand before.
    behind = {text: num_ranks + rank for text, rank in special.items()}
    return TiktokenTokenizer(
        source=source,
        kind="tekken",
        encoding=tiktoken.Encoding("tekken", pat_str=pattern, mergeable_ranks=ranks, special_tokens=behind),
        fingerprint=hashlib.sha256(content).hexdigest(),
        bos_id=special.get("<s>"),
        to_file_id=lambda each: each - num_ranks if each >= num_ranks else each + num_special,
    )


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}.", hint="Check the path.") from None
