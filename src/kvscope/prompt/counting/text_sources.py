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
from collections.abc import Callable, Collection, Iterator, Sequence
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
_DOT = "a name that begins with a dot inside of a folder: name it itself to have it read"
_KOREAN = re.compile(r"[가-힣]")


class Unreadable(Exception):
    """This text cannot be counted; the message says why. It never leaves this package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file to be counted. ``num_bytes``: its size when it was found."""

    path: Path
    num_bytes: int


def find_sources(paths: Sequence[Path], *, also: Collection[str] = ()) -> tuple[list[Source], list[Skipped]]:
    """The files that ``paths`` name or hold, folders in the order of names, and what was left out with its reason.
    ``also``: endings (".pdf") of documents that are taken all the same, by who can read them."""
    found: list[Source] = []
    skipped: list[Skipped] = []
    seen: set[tuple[int, int, str]] = set()
    for path in paths:
        for entry, status in _walk(path):
            reason = status if isinstance(status, str) else _take(entry, status, found, seen, also)
            if reason is not None:
                skipped.append(Skipped(path=str(entry), reason=reason))
    return found, skipped


def _walk(path: Path) -> Iterator[tuple[Path, os.stat_result | str]]:
    """What is under ``path`` and no folder, itself if it is none, with its status; or, of what is left out, why.
    Without recursion: folders may be nested deeper than Python calls."""
    waiting = [(path, True)]
    while waiting:
        here, is_named = waiting.pop()
        try:
            status = os.stat(here)  # noqa: PTH116  faster, for many files
            if not stat.S_ISDIR(status.st_mode):
                yield here, status
                continue
            if not is_named and here.is_symlink():
                yield here, "a link to a folder is not followed: name the folder itself"
                continue
            names = sorted(os.listdir(here))  # noqa: PTH208  the names alone, without an object for each
        except (OSError, ValueError) as error:  # also a loop of links, a name with a NUL
            yield here, unreadable(error)
            continue
        for name in names:
            if name.startswith("."):
                yield here / name, _DOT
        waiting += [(here / name, False) for name in reversed(names) if not name.startswith(".")]


def _take(
    path: Path,
    status: os.stat_result,
    found: list[Source],
    seen: set[tuple[int, int, str]],
    also: Collection[str],
) -> str | None:
    """Why it is not taken, if it is not."""
    reason = _not_text(path, status.st_mode, also)
    if reason is not None:
        return reason
    try:
        identity = (status.st_dev, status.st_ino, str(path.resolve()) if status.st_nlink > 1 else "")
    except (OSError, RuntimeError) as error:  # it became a loop of links
        return unreadable(error)
    if identity in seen:
        return "this file was named before, and is counted once"
    seen.add(identity)
    found.append(Source(path=path, num_bytes=status.st_size))
    return None


def _not_text(path: Path, mode: int, also: Collection[str]) -> str | None:
    if not stat.S_ISREG(mode):
        kinds = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"))
        what = next((name for test, name in kinds if test(mode)), "no regular file")
        return f"{what}, not a file: send its text through stdin instead"
    ending = path.suffix.lower()
    return None if ending in also else _DOCUMENTS.get(ending)


def unreadable(error: Exception) -> str:
    """The reason that an error of the system gives."""
    return f"it cannot be read: {getattr(error, 'strerror', None) or error}"


def read_source(source: Source) -> Iterator[tuple[str, int]]:
    """The text of a file in pieces, each with the bytes read for it. Raises Unreadable, perhaps after some pieces:
    then none of them count. Of a file that grows no more is read than there was when it was opened."""
    try:
        # Should the file have become a pipe since it was found, without O_NONBLOCK this would wait for its writer.
        file = os.open(source.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            before = os.fstat(file)
            if not stat.S_ISREG(before.st_mode):
                raise Unreadable("it became another kind of file since it was found")
            read = 0
            for text, num_bytes in _pieces(_up_to(file, before.st_size + 1), before.st_size):  # one more: it grew
                read += num_bytes
                yield text, num_bytes
            after = os.fstat(file)
        finally:
            os.close(file)
    except OSError as error:
        raise Unreadable(unreadable(error)) from None
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or read != after.st_size:
        raise Unreadable("it changed while it was read: count it again when nothing writes to it")


def _up_to(file: int, left: int) -> Callable[[int], bytes]:
    def read(size: int) -> bytes:
        nonlocal left
        block = os.read(file, min(size, left))
        left -= len(block)
        return block

    return read


def read_stream(file: BinaryIO) -> Iterator[tuple[str, int]]:
    """As ``read_source``, of an open binary file."""
    return _pieces(file.read)


def _pieces(read: Callable[[int], bytes], whole: int | None = None) -> Iterator[tuple[str, int]]:
    """What ``read`` gives, decoded. ``whole``: the bytes there should be; fewer in a block are not asked for twice."""
    block = _full_block(read, whole)
    encoding, mark = _encoding(block)
    head = block[:_LOOKED_AT]
    if encoding == "utf-8" and b"\0" in head:
        raise Unreadable("a binary file (a NUL byte at its beginning), not text")
    decoder = codecs.getincrementaldecoder(encoding)()
    consumed, size = len(mark), len(block)
    block = block[len(mark) :]
    while True:
        pending = decoder.getstate()[0]
        is_last = size < _BLOCK
        try:
            text = decoder.decode(block, final=is_last)
        except UnicodeDecodeError as error:
            at = consumed - len(pending) + error.start
            raise Unreadable(_undecodable(encoding, mark, at, pending + block, head)) from None
        consumed += len(block)
        yield text, size
        if is_last:
            return
        block = _full_block(read)
        size = len(block)


def _encoding(block: bytes) -> tuple[str, bytes]:
    """The encoding of a text that begins so, and its byte-order mark."""
    if block[:1] in b"\xff\xfe\xef\0":
        for mark, name in _MARKS:
            if block.startswith(mark):
                return name, mark
    return "utf-8", b""


def _full_block(read: Callable[[int], bytes], whole: int | None = None) -> bytes:
    """The next bytes, fewer than a block only at the end: a pipe gives some at a time, and the kinds of content must
    not depend on how many."""
    block = read(_BLOCK)
    if len(block) == whole:
        return block
    while len(block) < _BLOCK and (more := read(_BLOCK - len(block))):
        block += more
    return block


def _undecodable(encoding: str, mark: bytes, at: int, block: bytes, head: bytes) -> str:
    if mark:
        return f"its byte-order mark says {encoding.upper()}, and byte {at:,} is none of it: save it as UTF-8"
    controls = sum(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in head)
    if controls * 20 > len(head):
        return f"a binary file: byte {at:,} is not UTF-8, and control characters are all over its beginning"
    likely = "CP949" if looks_korean(block) else "ENCODING"
    which = "" if likely == "CP949" else ", where ENCODING is what the file was written in (iconv -l lists names)"
    return (
        f"byte {at:,} is not UTF-8, and nothing says what it is: convert it, for example with "
        f"iconv -f {likely} -t UTF-8{which}"
    )


def looks_korean(block: bytes) -> bool:
    """Whether the beginning of these bytes, read as CP949, is mostly Korean: good enough for advice, not for a
    count."""
    text = block[:_LOOKED_AT].decode("cp949", errors="ignore")
    foreign = sum(letter > "\x7f" for letter in text)
    return foreign > 0 and len(_KOREAN.findall(text)) * 10 >= foreign * 9
