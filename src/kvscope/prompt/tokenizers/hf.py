"""Hugging Face ``tokenizer.json``, through the ``tokenizers`` library that wrote it.

A file may carry a truncation or a padding of its own; both are turned off, for a count must be of the whole text.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvscope.errors import MalformedFile, MissingDependency, ModelNotFound
from kvscope.prompt.tokenizers.base import starts_in, writable

if TYPE_CHECKING:
    import tokenizers

_TEXT = "a"  # to see what the file adds around a text


def load_tokenizer_json(path: Path, *, source: str) -> "HuggingFaceTokenizer":
    """The tokenizer of a ``tokenizer.json``. Raises ModelNotFound, MalformedFile, MissingDependency."""
    try:
        import tokenizers
    except ImportError:
        raise MissingDependency("Reading a tokenizer.json", "tokenizers", "tokenizers") from None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}.", hint="Check the path.") from None
    made = []
    for _ in range(2):
        try:
            made.append(tokenizers.Tokenizer.from_str(content.decode()))
        except Exception as error:  # the library raises plain Exception
            raise MalformedFile(path, "byte 0", f"the tokenizers library does not read it: {error}") from None
        made[-1].no_truncation()
        made[-1].no_padding()
    plain, special = made
    plain.encode_special_tokens = True
    bos_id, adds_bos = _bos(special, path)
    for each in made:
        # Nothing is added around a text here, and some of them take the space before a word out of its offsets.
        each.post_processor = None
    return HuggingFaceTokenizer(
        source=source,
        fingerprint=hashlib.sha256(content).hexdigest(),
        bos_id=bos_id,
        adds_bos=adds_bos,
        plain=plain,
        special=special,
    )


def _bos(special: "tokenizers.Tokenizer", path: Path) -> tuple[int | None, bool]:
    """From what the file itself puts before a text; else the id that tokenizer_config.json beside it names."""
    bare = special.encode(_TEXT, add_special_tokens=False).ids
    whole = special.encode(_TEXT, add_special_tokens=True).ids
    if whole[:1] != bare[:1]:
        return whole[0], True
    try:
        named = json.loads(path.with_name("tokenizer_config.json").read_text(encoding="utf-8"))["bos_token"]
        text = named if isinstance(named, str) else named["content"]
        return special.token_to_id(text), False
    except (OSError, ValueError, KeyError, TypeError):
        return None, False


class HuggingFaceTokenizer:
    """See ``load_tokenizer_json``. ``plain`` reads the names of control tokens as text, ``special`` as ids."""

    kind = "huggingface"

    def __init__(
        self,
        *,
        source: str,
        fingerprint: str,
        bos_id: int | None,
        adds_bos: bool,
        plain: "tokenizers.Tokenizer",
        special: "tokenizers.Tokenizer",
    ) -> None:
        self.source = source
        self.fingerprint = fingerprint
        self.bos_id = bos_id
        self.adds_bos = adds_bos
        self._rules = {False: plain, True: special}

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """The library's ids, without what the file adds around a text."""
        return self._rules[parse_special].encode(writable(text), add_special_tokens=False).ids

    def encode_with_starts(self, text: str, *, parse_special: bool = False) -> tuple[list[int], list[int]]:
        """The ids of ``encode`` and where each begins."""
        written = writable(text)
        found = self._rules[parse_special].encode(written, add_special_tokens=False)
        return found.ids, starts_in(text, written, [start for start, _ in found.offsets])

    def encode_batch(self, texts: Sequence[str], *, parse_special: bool = False) -> list[list[int]]:
        """``encode`` of each text, on all cores."""
        written = [writable(text) for text in texts]
        return [each.ids for each in self._rules[parse_special].encode_batch_fast(written, add_special_tokens=False)]

    def count(self, text: str) -> int:
        """How many ids ``encode(text)`` has."""
        return len(self.encode(text))

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        """``count`` of each text, on all cores."""
        found = self.library.encode_batch_fast([writable(text) for text in texts], add_special_tokens=False)
        return [len(each) for each in found]

    @property
    def library(self) -> "tokenizers.Tokenizer":
        """The library's own, names of control tokens being text."""
        return self._rules[False]
