"""Width and height of a picture that was sent along, from the first bytes of its file: PNG, JPEG, GIF, WebP.

Nothing is decoded. What is not one of these, or does not say its size where the format has it, is None.
"""

import base64
import binascii
import re
import struct
import urllib.parse

_DATA_URL = re.compile(r"data:[^,]*,", re.IGNORECASE)
# A JPEG may have long texts (a profile, a preview) before its size. No header is longer than this.
_MOST_BASE64 = 4 * 1024**2
# JPEG's segments that hold the size: start of frame, of any coding; C4, C8 and CC are other things.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ALONE = frozenset((0x01, *range(0xD0, 0xD9)))  # segments without a length

Size = tuple[int, int]


def size_of_address(address: str) -> Size | None:
    """(width, height) in pixels of the picture inside a ``data:`` address; None for any other address."""
    begins = _DATA_URL.match(address)
    if begins is None:
        return None
    header, content = address[: begins.end()], address[begins.end() : begins.end() + _MOST_BASE64]
    if not header.lower().endswith(";base64,"):
        return size_of_bytes(urllib.parse.unquote_to_bytes(content))
    letters = "".join(urllib.parse.unquote(content).split())
    try:
        return size_of_bytes(base64.b64decode(letters[: len(letters) // 4 * 4], validate=True))
    except (binascii.Error, ValueError):
        return None


def size_of_bytes(data: bytes) -> Size | None:
    """(width, height) of the picture file that begins with ``data``."""
    try:
        size = _read(data)
    except (struct.error, IndexError):
        return None  # it ends too early
    return size if size is not None and min(size) > 0 else None


def _read(data: bytes) -> Size | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
        width, height = struct.unpack_from(">II", data, 16)
        return width, height
    if data[:6] in (b"GIF87a", b"GIF89a"):
        width, height = struct.unpack_from("<HH", data, 6)
        return width, height
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp(data)
    if data.startswith(b"\xff\xd8"):
        return _jpeg(data)
    return None


def _webp(data: bytes) -> Size | None:
    kind = data[12:16]
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L" and data[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X" and len(data) >= 30:
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    return None


def _jpeg(data: bytes) -> Size | None:
    at = 2
    while data[at] == 0xFF:
        kind = data[at + 1]
        if kind == 0xFF:  # filling
            at += 1
        elif kind in _ALONE:
            at += 2
        elif kind in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        else:
            (length,) = struct.unpack_from(">H", data, at + 2)
            at += 2 + length
    return None
