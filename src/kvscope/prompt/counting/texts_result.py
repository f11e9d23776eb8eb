"""What counting texts ends in: characters, bytes and tokens of each file, by kind of content, and what was skipped.

``tokens`` is a tuple with one number for each tokenizer, in the order they were given. Tokens of kinds sum to their
file's, those of files to the total.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kvscope.prompt.counting.content_kind import KINDS
from kvscope.prompt.counting.pages import CONVENTION, manuscript_sheets, pages
from kvscope.prompt.tokenizers.base import writable


@dataclass(frozen=True, slots=True, kw_only=True)
class KindCount:
    """One kind of content (``content_kind.KINDS``). ``bytes``: of the text's UTF-8."""

    kind: str
    characters: int
    bytes: int
    tokens: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "kind": self.kind,
            "characters": self.characters,
            "bytes": self.bytes,
            "tokens": list(self.tokens),
            "tokens_per_byte": [each / self.bytes if self.bytes else None for each in self.tokens],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCount:
    """One file, "-" for stdin. ``bytes``: of its text in UTF-8, without a byte-order mark."""

    path: str
    characters: int
    bytes: int
    tokens: tuple[int, ...]
    kinds: tuple[KindCount, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "path": self.path,
            "characters": self.characters,
            "bytes": self.bytes,
            "tokens": list(self.tokens),
            "kinds": [each.to_dict() for each in self.kinds],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A file or folder that was not counted. ``reason`` says why, and what to do where something can be done."""

    path: str
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"path": self.path, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalCount:
    """All files together. ``pages`` and ``manuscript_sheets``: conventions, see ``pages.py``."""

    files: int
    characters: int
    bytes: int
    tokens: tuple[int, ...]
    pages: float
    manuscript_sheets: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "files": self.files,
            "characters": self.characters,
            "bytes": self.bytes,
            "tokens": list(self.tokens),
            "tokens_per_character": [each / self.characters if self.characters else None for each in self.tokens],
            "pages": self.pages,
            "manuscript_sheets": self.manuscript_sheets,
            "pages_convention": CONVENTION,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TextCounts:
    """The answer of ``count_texts``. ``kinds`` holds the kinds that were met, in the order of KINDS."""

    files: tuple[FileCount, ...]
    skipped: tuple[Skipped, ...]
    total: TotalCount
    kinds: tuple[KindCount, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "files": [each.to_dict() for each in self.files],
            "skipped": [each.to_dict() for each in self.skipped],
            "total": self.total.to_dict(),
            "kinds": [each.to_dict() for each in self.kinds],
        }


def summed(files: Iterable[FileCount], skipped: Iterable[Skipped], num_tokenizers: int) -> TextCounts:
    """The files with their total and the sums of their kinds."""
    files = tuple(files)
    kinds = sum_kinds((kind for file in files for kind in file.kinds), num_tokenizers)
    characters = sum(file.characters for file in files)
    return TextCounts(
        files=files,
        skipped=tuple(skipped),
        total=TotalCount(
            files=len(files),
            characters=characters,
            bytes=sum(file.bytes for file in files),
            tokens=tuple(sum(file.tokens[index] for file in files) for index in range(num_tokenizers)),
            pages=pages(characters),
            manuscript_sheets=manuscript_sheets(characters),
        ),
        kinds=kinds,
    )


def encodable(value: Any) -> Any:
    """A value of JSON whose texts UTF-8 can hold: names of files may be any bytes, which Python keeps as halves of
    surrogate pairs. Each becomes U+FFFD."""
    if isinstance(value, str):
        return value if value.isascii() else writable(value)
    if isinstance(value, dict):
        return {encodable(name): encodable(each) for name, each in value.items()}
    return [encodable(each) for each in value] if isinstance(value, list) else value


def sum_kinds(counts: Iterable[KindCount], num_tokenizers: int) -> tuple[KindCount, ...]:
    """Counts of one kind made one, in the order of KINDS."""
    sums: dict[str, list[int]] = {}
    for count in counts:
        own = sums.setdefault(count.kind, [0] * (2 + num_tokenizers))
        for index, value in enumerate((count.characters, count.bytes, *count.tokens)):
            own[index] += value
    return tuple(
        KindCount(kind=kind, characters=sums[kind][0], bytes=sums[kind][1], tokens=tuple(sums[kind][2:]))
        for kind in KINDS
        if kind in sums
    )
