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

    def encode_with_starts(self, text: str, *, parse_special: bool = False) -> tuple[list[int], list[int]]:
        """The ids of ``encode``, and for each the index of the first character (code point) of ``text`` that it stands
        for. Several tokens of one character share its index; the indexes never decrease. A token that stands for no
        character (a space that some vocabularies put before a text) has the index of the character behind it."""
        ...

    def encode_batch(self, texts: Sequence[str], *, parse_special: bool = False) -> list[list[int]]:
        """``encode`` of each text, in order."""
        ...

    def count(self, text: str) -> int:
        """How many ids ``encode(text)`` has."""
        ...

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        """``count`` of each text, in order, without the ids where they are not needed."""
        ...


def starts_in(text: str, written: str, starts: list[int]) -> list[int]:
    """``starts``, indexes into ``written`` (``writable(text)``), as indexes into ``text``: a surrogate pair is two code
    points there, and one in ``written``."""
    if len(written) == len(text):
        return starts
    origin, index = [], 0
    for character in written:
        origin.append(index)
        index += 2 if ord(character) > 0xFFFF and text[index] != character else 1
    return [origin[start] if start < len(origin) else len(text) for start in starts]


def starts_from_bytes(text: str, byte_starts: Sequence[int]) -> list[int]:
    """For each offset into the UTF-8 of ``text``, the index of the character that it lies in. ``byte_starts`` must not
    decrease; the length of the whole is the index behind the last character."""
    starts, index, end = [], 0, 0
    lengths = [len(character.encode()) for character in text]
    for byte_start in byte_starts:
        while index < len(text) and end + lengths[index] <= byte_start:
            end += lengths[index]
            index += 1
        starts.append(index)
    return starts


def writable(text: str) -> str:
    """``text`` as UTF-8 can hold it: each half of a surrogate pair becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
