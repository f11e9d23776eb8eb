"""What every tokenizer of kvscope can do, whatever its file."""

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Text → token ids. Text only: neither BOS nor EOS is ever added, so that it can be added once by who sends.

    ``source``: what it was loaded from. ``fingerprint``: equal for equal vocabularies and rules of one kind. ``kind``:
    "gguf", "huggingface", "tiktoken", "sentencepiece", "tekken", "server" or "bytes". ``bos_id``: the id of the BOS
    token, None where there is none or the file does not say. ``adds_bos``: whether the model's own encoding of a whole
    prompt begins with it.
    """

    source: str
    fingerprint: str
    kind: str
    bos_id: int | None
    adds_bos: bool

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """The ids of ``text``. With ``parse_special`` the names of control tokens in it become their ids; without, they
        are text like any other. Half a surrogate pair, which no UTF-8 can hold, counts as U+FFFD."""
        ...

    def encode_batch(self, texts: Sequence[str], *, parse_special: bool = False) -> list[list[int]]:
        """``encode`` of each text, in order."""
        ...

    def count(self, text: str) -> int:
        """How many ids ``encode(text)`` has."""
        ...


def writable(text: str) -> str:
    """``text`` as UTF-8 can hold it: each half of a surrogate pair becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
