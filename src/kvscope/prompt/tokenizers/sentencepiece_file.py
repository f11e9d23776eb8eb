"""A SentencePiece ``.model`` file, through the ``sentencepiece`` library."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvscope.errors import MalformedFile, MissingDependency, ModelNotFound, UsageError
from kvscope.prompt.tokenizers.base import starts_in, writable


def load_sentencepiece(path: Path, *, source: str) -> "SentencePieceTokenizer":
    """The tokenizer of a SentencePiece model. Raises ModelNotFound, MalformedFile, MissingDependency."""
    try:
        import sentencepiece
    except ImportError:
        raise MissingDependency("Reading a SentencePiece model", "tokenizers", "sentencepiece") from None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}.", hint="Check the path.") from None
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(content)
        size = int(processor.GetPieceSize())
    except Exception as error:  # the library raises RuntimeError and its own
        raise MalformedFile(path, "byte 0", f"the sentencepiece library does not read it: {error}") from None
    if size == 0:
        raise MalformedFile(path, "byte 0", "a SentencePiece model with no pieces")
    return SentencePieceTokenizer(source=source, fingerprint=hashlib.sha256(content).hexdigest(), processor=processor)


class SentencePieceTokenizer:
    """See ``load_sentencepiece``."""

    kind = "sentencepiece"
    # The file does not say; every model that has a BOS piece and this form of file is given one by its own code.
    adds_bos: bool

    def __init__(self, *, source: str, fingerprint: str, processor: Any) -> None:
        self.source = source
        self.fingerprint = fingerprint
        bos_id = int(processor.bos_id())
        self.bos_id: int | None = bos_id if bos_id >= 0 else None
        self.adds_bos = self.bos_id is not None
        self._processor = processor
        control = [processor.IdToPiece(i) for i in range(processor.GetPieceSize()) if processor.IsControl(i)]
        self._control = re.compile("|".join(map(re.escape, control)) or r"(?!)")

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """The library's ids. Raises UsageError where ``parse_special`` meets the name of a control token: what the
        spaces beside it become is not in the file, and programs differ."""
        if parse_special:
            self._refuse_control(text)
        return list(self._processor.EncodeAsIds(writable(text)))

    def encode_with_starts(self, text: str, *, parse_special: bool = False) -> tuple[list[int], list[int]]:
        """The ids of ``encode`` and where each begins. Raises as ``encode``."""
        if parse_special:
            self._refuse_control(text)
        written = writable(text)
        found = self._processor.Encode(written, return_type="offset_mapping")
        return list(found["ids"]), starts_in(text, written, [start for start, _ in found["offsets"]])

    def encode_batch(self, texts: Sequence[str], *, parse_special: bool = False) -> list[list[int]]:
        """``encode`` of each text, on several threads."""
        if parse_special:
            for text in texts:
                self._refuse_control(text)
        return list(self._processor.Encode([writable(text) for text in texts], out_type=int))

    def count(self, text: str) -> int:
        """How many ids ``encode(text)`` has."""
        return len(self.encode(text))

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        """``count`` of each text, on several threads."""
        return [len(ids) for ids in self.encode_batch(texts)]

    def _refuse_control(self, text: str) -> None:
        if found := self._control.search(text):
            raise UsageError(
                f"{self.source} does not say how the text around the control token {found[0]!r} is tokenized.",
                hint="Use the model's tokenizer.json or GGUF, or a running server.",
            )
