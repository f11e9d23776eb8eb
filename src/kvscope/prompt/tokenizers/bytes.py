"""One token for each byte of UTF-8: needs no file, and its counts are known by hand."""

from collections.abc import Sequence

from kvscope.prompt.tokenizers.base import starts_from_bytes, starts_in, writable


class BytesTokenizer:
    """Ids 0 to 255. It has no control tokens, so ``parse_special`` changes nothing."""

    source = "bytes:"
    fingerprint = "bytes"
    kind = "bytes"
    bos_id: int | None = None
    adds_bos = False

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """The bytes of ``text``."""
        return list(writable(text).encode())

    def encode_with_starts(self, text: str, *, parse_special: bool = False) -> tuple[list[int], list[int]]:
        """The bytes, and the character that each is of."""
        written = writable(text)
        ids = list(written.encode())
        return ids, starts_in(text, written, starts_from_bytes(written, range(len(ids))))

    def encode_batch(self, texts: Sequence[str], *, parse_special: bool = False) -> list[list[int]]:
        """The bytes of each text."""
        return [self.encode(text) for text in texts]

    def count(self, text: str) -> int:
        """How many bytes ``text`` has."""
        return len(writable(text).encode())

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        """How many bytes each text has."""
        return [self.count(text) for text in texts]
