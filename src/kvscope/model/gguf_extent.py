"""How far the header of a GGUF file reaches, judged from its first bytes: what a remote reader must fetch.

A vocabulary makes most of a header and is not counted in bytes anywhere, so the end is approached: from what is at
hand follows how much more there must be at least. Reading and checking what the header says is gguf_header's work;
what cannot be walked here is left to it, which says what is wrong.
"""

import struct
from dataclasses import dataclass

MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_KEY_BYTES = 13  # at least: the length of its name, its type, a value of one byte
_TENSOR_BYTES = 33  # at least: the length of its name and one letter, dimensions, one size, type, offset


@dataclass(frozen=True, slots=True)
class Extent:
    """``end_bytes``: where the header ends if ``is_complete``, else a place it reaches at least."""

    end_bytes: int
    is_complete: bool


class _NeedMore(Exception):
    """``at_least``: the header goes on at least to this byte, not counting keys and tensors that were not reached."""

    def __init__(self, at_least: int) -> None:
        super().__init__(at_least)
        self.at_least = at_least


class _Walk:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 8
        little, big = struct.unpack_from("<I", data, 4)[0], struct.unpack_from(">I", data, 4)[0]
        self.mark = "<" if little <= big else ">"

    def take(self, num_bytes: int) -> int:
        start = self.at
        if start + num_bytes > len(self.data):
            raise _NeedMore(start + num_bytes)
        self.at = start + num_bytes
        return start

    def u32(self) -> int:
        return int(struct.unpack_from(self.mark + "I", self.data, self.take(4))[0])

    def u64(self) -> int:
        return int(struct.unpack_from(self.mark + "Q", self.data, self.take(8))[0])

    def string(self) -> None:
        self.take(self.u64())

    def value(self, kind: int) -> None:
        if kind == _STRING:
            self.string()
        elif kind == _ARRAY:
            self.array()
        else:
            self.take(_SIZES[kind])

    def array(self) -> None:
        kind, length = self.u32(), self.u64()
        if kind != _STRING:
            self.take(_SIZES[kind] * length)
            return
        begin = self.at
        unpack, data, at = struct.Struct(self.mark + "Q").unpack_from, self.data, self.at
        for done in range(length):
            if at + 8 > len(data) or (after := at + 8 + unpack(data, at)[0]) > len(data):
                # Words that come later in a vocabulary are hardly half as long as the earlier ones on average.
                mean = (at - begin) // done - 8 if done else 0
                raise _NeedMore(max(at, len(data)) + (length - done) * 8 + (length - done) * mean // 2)
            at = after
        self.at = at


def gguf_extent(data: bytes) -> Extent:
    """How far the header reaches whose first bytes are ``data`` (at least 24 of them).

    A header that is none is called complete at what is at hand, for its reader to refuse.
    """
    if len(data) < 24 or data[:4] != MAGIC:
        return Extent(len(data), True)
    walk = _Walk(data)
    num_tensors, num_keys = walk.u64(), walk.u64()
    keys_left, tensors_left = num_keys, num_tensors
    try:
        while keys_left:
            keys_left -= 1
            walk.string()
            walk.value(walk.u32())
        while tensors_left:
            tensors_left -= 1
            walk.string()
            walk.take(8 * walk.u32() + 12)
    except _NeedMore as needed:
        return Extent(needed.at_least + keys_left * _KEY_BYTES + tensors_left * _TENSOR_BYTES, False)
    except (KeyError, OverflowError, struct.error):  # a type that no GGUF has
        return Extent(len(data), True)
    return Extent(walk.at, True)
