"""OpenAI's encodings, through the ``tiktoken`` library. It downloads an encoding's ranks once and keeps them (in the
folder that TIKTOKEN_CACHE_DIR names)."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from kvscope.errors import MissingDependency, ModelNotFound, UnknownName

if TYPE_CHECKING:
    import tiktoken

from kvscope.prompt.tokenizers.base import starts_from_bytes, starts_in, writable


def load_tiktoken(name: str, *, source: str) -> "TiktokenTokenizer":
    """The encoding ``name``, such as cl100k_base. Raises UnknownName, MissingDependency, and ModelNotFound where its
    ranks can be neither found nor fetched."""
    try:
        import tiktoken
    except ImportError:
        raise MissingDependency("Counting with tiktoken", "tokenizers", "tiktoken") from None
    known = tiktoken.list_encoding_names()
    if name not in known:
        raise UnknownName("tiktoken encoding", name, known)
    try:
        encoding = tiktoken.get_encoding(name)
    except Exception as error:  # requests' errors, a full disk, or a checksum that does not match
        raise ModelNotFound(
            f"The ranks of the tiktoken encoding {name} are not here and could not be fetched "
            f"({type(error).__name__}).",
            hint="Run it once with a network, or copy tiktoken's cache here and name it in TIKTOKEN_CACHE_DIR.",
        ) from None
    return TiktokenTokenizer(source=source, kind="tiktoken", encoding=encoding)


class TiktokenTokenizer:
    """Byte-pair ranks in tiktoken's terms; also Mistral's tekken.json. ``to_file_id`` turns tiktoken's id into the
    file's own, where they differ."""

    def __init__(
        self,
        *,
        source: str,
        kind: str,
        encoding: "tiktoken.Encoding",
        fingerprint: str | None = None,
        bos_id: int | None = None,
        to_file_id: Callable[[int], int] | None = None,
    ) -> None:
        self.source = source
        self.kind = kind
        self.fingerprint = _fingerprint(encoding) if fingerprint is None else fingerprint
        self.bos_id = bos_id
        self.adds_bos = bos_id is not None
        self._encoding = encoding
        self._to_file_id = to_file_id

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """tiktoken's ids. It replaces halves of surrogate pairs itself."""
        if parse_special:
            return self._numbered(self._encoding.encode(text, allowed_special="all"))
        return self._numbered(self._encoding.encode_ordinary(text))

    def encode_with_starts(self, text: str, *, parse_special: bool = False) -> tuple[list[int], list[int]]:
        """The ids of ``encode`` and where each begins, from the bytes of each."""
        written = writable(text)
        encoding = self._encoding
        ids = encoding.encode(written, allowed_special="all") if parse_special else encoding.encode_ordinary(written)
        lengths = [len(encoding.decode_single_token_bytes(each)) for each in ids]
        byte_starts = list(accumulate(lengths, initial=0))[:-1]
        return self._numbered(ids), starts_in(text, written, starts_from_bytes(written, byte_starts))

    def encode_batch(self, texts: Sequence[str], *, parse_special: bool = False) -> list[list[int]]:
        """``encode`` of each text, on several threads."""
        if parse_special:
            return [self._numbered(ids) for ids in self._encoding.encode_batch(list(texts), allowed_special="all")]
        return [self._numbered(ids) for ids in self._encoding.encode_ordinary_batch(list(texts))]

    def count(self, text: str) -> int:
        """How many ids ``encode(text)`` has."""
        return len(self._encoding.encode_ordinary(text))

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        """``count`` of each text, on several threads."""
        return [len(ids) for ids in self._encoding.encode_ordinary_batch(list(texts))]

    @property
    def expression(self) -> str:
        """What splits a text before merging."""
        return self._encoding._pat_str

    @property
    def longest_token_bytes(self) -> int:
        """The length of the longest token."""
        return max(map(len, self._encoding.token_byte_values()))

    def _numbered(self, ids: list[int]) -> list[int]:
        return ids if self._to_file_id is None else [self._to_file_id(each) for each in ids]


def _fingerprint(encoding: "tiktoken.Encoding") -> str:
    digest = hashlib.sha256(encoding._pat_str.encode())
    for token in encoding.token_byte_values():
        digest.update(len(token).to_bytes(4, "little") + token)
    special: Mapping[str, int] = encoding._special_tokens
    digest.update(repr(sorted(special.items())).encode())
    return digest.hexdigest()
