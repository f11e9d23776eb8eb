"""Texts found under paths, and read: UTF-8, or UTF-16 and UTF-32 that say so with a byte-order mark.

Nothing is guessed. A file whose encoding is not certain is skipped, with the byte that shows it and what to do. What
else is skipped, each time with a reason: binary files (a NUL byte at the beginning), documents that only programs read
(PDF, DOCX ...), what is no regular file, what cannot be read, what changed while it was read, a second mention of one
file, and, inside of folders, names that begin with a dot and links to folders. HTML is counted as it is, tags included.
"""

import codecs
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kvscope.prompt.counting.texts_result import Skipped

STDIN = "-"
_BLOCK = 1 << 18  # bytes read at once
_LOOKED_AT = 8192  # bytes at the beginning in which a NUL shows a binary file
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16: its mark begins with that one
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_DOCUMENTS = {
    ".pdf": "a PDF is no text: convert it first, for example with pdftotext, and count the result",
    **dict.fromkeys(
        (".docx", ".doc", ".odt", ".rtf", ".hwp", ".hwpx", ".pptx", ".xlsx", ".epub"),
        "a document of an office program is no text: save it as plain text there, and count that",
    ),
}
_DOT = "a name that begins with a dot inside of a folder: name it itself to have it counted"
_KOREAN = re.compile(r"[가-힣]")


class Unreadable(Exception):
    """This text cannot be counted; the message says why. It never leaves this package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file to be counted. ``num_bytes``: its size when it was found."""

    path: Path
    num_bytes: int


def find_sources(paths: Sequence[Path]) -> tuple[list[Source], list[Skipped]]:
    """The files that ``paths`` name or hold, folders in the order of names, and what was left out with its reason."""
    found: list[Source] = []
    skipped: list[Skipped] = []
    seen: set[tuple[int, int, str]] = set()
    for path in paths:
        for entry, problem in _walk(path):
            if problem is not None:
                skipped.append(Skipped(path=str(entry), reason=problem))
            else:
                _take(entry, found, skipped, seen)
    return found, skipped


def _walk(path: Path) -> Iterator[tuple[Path, str | None]]:
    """Files under ``path``, itself if it is one; with a reason, what is left out. Without recursion: folders may be
    nested deeper than Python calls."""
    waiting = [(path, True)]
    while waiting:
        here, is_named = waiting.pop()
        try:
            is_folder = here.is_dir() if is_named else here.is_dir() and not here.is_symlink()
            if not is_folder:
                is_link = not is_named and here.is_dir()
                yield here, "a link to a folder is not followed: name the folder itself" if is_link else None
                continue
            names = sorted(os.listdir(here))  # noqa: PTH208  the names alone, without an object for each
        except OSError as error:
            yield here, unreadable(error)
            continue
        for name in names:
            if name.startswith("."):
                yield here / name, _DOT
        waiting += [(here / name, False) for name in reversed(names) if not name.startswith(".")]


def _take(path: Path, found: list[Source], skipped: list[Skipped], seen: set[tuple[int, int, str]]) -> None:
    try:
        status = path.stat()
        reason = _not_text(path, status.st_mode)
        identity = (status.st_dev, status.st_ino, str(path.resolve()) if status.st_nlink > 1 else "")
        if reason is None and identity in seen:
            reason = "this file was named before, and is counted once"
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a name with a NUL
        skipped.append(Skipped(path=str(path), reason=unreadable(error)))
        return
    if reason is not None:
        skipped.append(Skipped(path=str(path), reason=reason))
        return
    seen.add(identity)
    found.append(Source(path=path, num_bytes=status.st_size))


def _not_text(path: Path, mode: int) -> str | None:
    if not stat.S_ISREG(mode):
        kinds = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"))
        what = next((name for test, name in kinds if test(mode)), "no regular file")
        return f"{what}, not a file: send its text through stdin instead"
    return _DOCUMENTS.get(path.suffix.lower())


def unreadable(error: Exception) -> str:
    """The reason that an error of the system gives."""
    return f"it cannot be read: {getattr(error, 'strerror', None) or error}"


def read_source(source: Source) -> Iterator[tuple[str, int]]:
    """The text of a file in pieces, each with the bytes read for it. Raises Unreadable, perhaps after some pieces:
    then none of them count."""
    try:
        with _opened(source.path) as file:
            before = os.fstat(file.fileno())
            if not stat.S_ISREG(before.st_mode):
                raise Unreadable("it became another kind of file since it was found")
            read = 0
            for text, num_bytes in read_stream(file):
                read += num_bytes
                yield text, num_bytes
            after = os.fstat(file.fileno())
    except OSError as error:
        raise Unreadable(unreadable(error)) from None
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or read != after.st_size:
        raise Unreadable("it changed while it was read: count it again when nothing writes to it")


def _opened(path: Path) -> BinaryIO:
    # Should the file have become a pipe since it was found, a plain open would wait for its writer.
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def read_stream(file: BinaryIO) -> Iterator[tuple[str, int]]:
    """As ``read_source``, of an open binary file."""
    block = _full_block(file)
    encoding, mark = next(((name, mark) for mark, name in _MARKS if block.startswith(mark)), ("utf-8", b""))
    if encoding == "utf-8" and b"\0" in block[:_LOOKED_AT]:
        raise Unreadable("a binary file (a NUL byte at its beginning), not text")
    decoder = codecs.getincrementaldecoder(encoding)()
    consumed, size = 0, len(block)
    head, block = block[:_LOOKED_AT], block[len(mark) :]
    consumed += len(mark)
    while True:
        pending = decoder.getstate()[0]
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            at = consumed - len(pending) + error.start
            raise Unreadable(_undecodable(encoding, mark, at, pending + block, head)) from None
        consumed += len(block)
        yield text, size
        if not block:
            return
        block = _full_block(file)
        size = len(block)


def _full_block(file: BinaryIO) -> bytes:
    """The next bytes, fewer than a block only at the end: a pipe gives some at a time, and the kinds of content must
    not depend on how many."""
    block = b""
    while len(block) < _BLOCK and (more := file.read(_BLOCK - len(block))):
        block += more
    return block


def _undecodable(encoding: str, mark: bytes, at: int, block: bytes, head: bytes) -> str:
    if mark:
        return f"its byte-order mark says {encoding.upper()}, and byte {at:,} is none of it: save it as UTF-8"
    controls = sum(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in head)
    if controls * 20 > len(head):
        return f"a binary file: byte {at:,} is not UTF-8, and control characters are all over its beginning"
    likely = "CP949" if _looks_korean(block) else "its encoding"
    return (
        f"byte {at:,} is not UTF-8, and nothing says what it is: convert it, for example with "
        f"iconv -f {likely} -t UTF-8, and count the result"
    )


def _looks_korean(block: bytes) -> bool:
    """Whether the bytes read as CP949 are mostly Korean: good enough for advice, not for a count."""
    text = block[:_LOOKED_AT].decode("cp949", errors="ignore")
    foreign = sum(letter > "\x7f" for letter in text)
    return foreign > 0 and len(_KOREAN.findall(text)) * 10 >= foreign * 9
