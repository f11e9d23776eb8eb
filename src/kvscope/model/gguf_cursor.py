"""A position in a GGUF file that is read piece by piece: every step is checked against the file's end first."""

import re
import struct
from functools import cache
from io import BufferedReader
from pathlib import Path

from kvscope.errors import MalformedFile

# The largest vocabularies take 20 MiB. Of twice that, reading holds a part twice for a moment: within 100 MB.
MAX_HEADER_BYTES = 48 * 1024**2
MAX_NAME_BYTES = 65_535
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
SIZES = {kind: struct.calcsize(f"<{code}") for kind, code in SCALARS.items()}
FIRST_READ_BYTES = 2 * 1024**2
STRINGS_AT_ONCE = 256
SHORT_STRING = 64  # bytes; few tokens are longer


class Cursor:
    """A position in the file. ``take`` refuses to move past the end. ``data`` is what was read so far, from the
    file's first byte; ``size`` is the whole file's."""

    def __init__(self, path: Path, file: BufferedReader, size: int) -> None:
        self.path = path
        self.file = file
        self.size = size
        self.data = bytearray()
        self.at = 0
        self.set_byte_order("little")

    def set_byte_order(self, byte_order: str) -> None:
        mark = "<" if byte_order == "little" else ">"
        self.unpackers = {kind: struct.Struct(mark + code) for kind, code in SCALARS.items()}
        self.mark = mark
        self.u32 = self.unpackers[4]
        self.u64 = self.unpackers[10]

    def fail(self, problem: str, at: int | None = None) -> MalformedFile:
        return MalformedFile(self.path, f"byte {self.at if at is None else at}", problem)

    def take(self, num_bytes: int, what: str) -> int:
        """Start of the next ``num_bytes`` bytes, after stepping over them."""
        start = self.at
        if num_bytes > self.size - start:
            raise self.fail(f"{what} needs {num_bytes} bytes, but the file ends {self.size - start} bytes later")
        self.at = start + num_bytes
        if self.at > len(self.data):
            self.read_up_to(self.at)
        return start

    def read_up_to(self, end: int) -> None:
        """Have the bytes before ``end``, and more: each reading gets several times what there is, so that they are few.
        ``data`` is another object afterwards."""
        if end > MAX_HEADER_BYTES:
            raise self.fail(f"the header is longer than {MAX_HEADER_BYTES} bytes, which no model needs")
        have = len(self.data)
        data = bytearray(min(max(end, 4 * have, FIRST_READ_BYTES), self.size, MAX_HEADER_BYTES))
        data[:have] = self.data
        with memoryview(data)[have:] as room:
            have += self.file.readinto(room)
        del data[have:]
        self.data = data
        if have < end:
            raise self.fail(f"the file ended at byte {len(self.data)} while it was read; another program shortened it")

    def scalar(self, kind: int, what: str) -> int | float | bool:
        start = self.take(SIZES[kind], what)  # first: ``data`` may be another object after it
        value: int | float | bool = self.unpackers[kind].unpack_from(self.data, start)[0]
        return value

    def count(self, what: str) -> int:
        return int(self.scalar(10, what))

    def string(self, what: str, limit: int) -> bytes:
        start = self.at
        length = self.count(f"the length of {what}")
        if length > self.size - self.at:
            raise self.fail(f"{what} claims {length} bytes, but the file ends {self.size - self.at} bytes later", start)
        if length > limit:
            raise self.fail(f"{what} claims {length} bytes; at most {limit} were expected", start)
        begin = self.take(length, what)
        return bytes(memoryview(self.data)[begin : begin + length])

    def name(self, what: str) -> str:
        start = self.at
        try:
            return self.string(what, MAX_NAME_BYTES).decode()
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8 text", start) from None


def skip_strings(cursor: Cursor, key: str, length: int) -> None:
    """Step over ``length`` strings: the one hot loop, for a vocabulary has up to 262,144."""
    match = _short_strings(cursor.mark).match
    at, element = cursor.at, 0
    while element < length:
        found = match(cursor.data, at) if length - element >= STRINGS_AT_ONCE else None
        if found is not None:
            at = found.end()
            element += STRINGS_AT_ONCE
            continue
        stop = min(element + STRINGS_AT_ONCE, length)
        at, element = _skip_one_by_one(cursor, at, element, stop)
        if element < stop or at > cursor.size:
            raise cursor.fail(f"a string near element {element} of {key!r} reaches past the end of the file")
    cursor.take(at - cursor.at, f"the array {key!r}")


def _skip_one_by_one(cursor: Cursor, at: int, element: int, stop: int) -> tuple[int, int]:
    """Position and number of the element reached: ``stop``, or the one that is past the end of the file."""
    # Reading a length past what was read so far raises struct.error (OverflowError where the position itself is
    # absurd), so nothing else needs a check of its own.
    unpack = cursor.u64.unpack_from
    while element < stop:
        try:
            for element in range(element, stop):  # noqa: B007, B020 (used after it; goes on there)
                at += 8 + unpack(cursor.data, at)[0]
            element = stop
        except (struct.error, OverflowError):
            if at + 8 > cursor.size:
                break
            cursor.read_up_to(at + 8)
    return at, element


@cache
def _short_strings(mark: str) -> re.Pattern[bytes]:
    """Matches ``STRINGS_AT_ONCE`` strings shorter than ``SHORT_STRING`` bytes, each behind its length: three times as
    fast as reading the lengths one by one. Commonest lengths first."""
    lengths = [*range(6, 9), *range(3, 6), *range(9, 16), 2, 1, *range(16, SHORT_STRING), 0]
    each = b"|".join(re.escape(struct.pack(f"{mark}Q", n)) + (b".{%d}" % n if n else b"") for n in lengths)
    return re.compile(b"(?:%b){%d}+" % (each, STRINGS_AT_ONCE), re.DOTALL)
