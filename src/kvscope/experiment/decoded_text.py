r"""What a quoted text stands for: escapes of JSON, Python, C, addresses, pages; tokenizers' own letters; colours.

``"a\\nPW7731"`` (a backslash and an n, written out) is the word PW7731 behind a line's end, ``%EC%B9%B4`` and
``\xec\xb9\xb4`` are one Korean letter, ``ĠAB12`` is AB12 behind a blank, as GPT-2's vocabulary writes it, and a colour
code between two letters parts no word. Each character keeps where it was read from, so that just this can be left out.
Every pattern is bounded: a text of any length is read in one pass.
"""

import re
from dataclasses import dataclass

# One byte, as addresses (%25 is a % that was escaped again), Python and C write it.
_BYTE = r"%(?:25){0,4}[0-9A-Fa-f]{2}|\\{1,8}x[0-9A-Fa-f]{2}|\\{1,8}[0-3][0-7]{2}"
_CONTROL = r"(?:\x9b|(?:\x1b|␛|\\{1,8}(?:x1[bB]|u001[bB]|033|e)|%1[bB])\[)"
# UTF-8 that was read byte for byte, as Latin-1 or in the letters of GPT-2's vocabulary (Radford et al. 2019,
# encoder.py: a byte that has no visible letter of its own has one from U+0100 on).
_BEHIND = "[\x80-\xbfĢ-Ń]"
_BYTEWISE = rf"[Â-ß]{_BEHIND}|[à-ï]{_BEHIND}{{2}}|[ð-ô]{_BEHIND}{{3}}"
_QUOTED = re.compile(
    rf"(?P<colour>{_CONTROL}[0-9;?]{{0,40}}[A-Za-z])|(?P<bytes>{_BYTE})"
    r"|\\{1,8}(?:u(?P<four>[0-9A-Fa-f]{4})|u\{(?P<braced>[0-9A-Fa-f]{1,6})\}|U(?P<eight>[0-9A-Fa-f]{8})|(?P<control>[abefnrtv0]))"
    r"|&#[xX](?P<hex>[0-9A-Fa-f]{1,6});|&#(?P<number>[0-9]{1,7});|(?P<named>&[A-Za-z]{1,30};)"
    rf"|(?P<bytewise>{_BYTEWISE})|(?P<blank>[ĠĊĉ▁])|(?P<unseen>[\xad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff])"
)
_BYTES = re.compile(rf"(?:{_BYTE})")
_GPT2 = {chr(0x100 + 33 + place): byte for place, byte in enumerate((*range(0x7F, 0xA1), 0xAD))}


@dataclass(frozen=True, slots=True)
class Decoded:
    """``letters``: what the text stands for. ``spans``: of each character of it, (from, to) in the text it was read
    from; None where that is the text itself."""

    letters: str
    spans: list[tuple[int, int]] | None

    def span(self, first: int, end: int) -> tuple[int, int]:
        """(From, to) in the text, of the characters from ``first`` up to ``end``."""
        return (first, end) if self.spans is None else (self.spans[first][0], self.spans[end - 1][1])


def decoded(text: str) -> Decoded:
    """The text without what it was escaped by."""
    if _QUOTED.search(text) is None:
        return Decoded(text, None)
    letters: list[str] = []
    spans: list[tuple[int, int]] = []
    at = 0
    while (match := _QUOTED.search(text, at)) is not None:
        letters += text[at : match.start()]
        spans += [(place, place + 1) for place in range(at, match.start())]
        meant, at = _of_bytes(text, match) if match["bytes"] else (_meant(match), match.end())
        letters += meant
        spans += [(match.start(), at)] * len(meant)
    letters += text[at:]
    spans += [(place, place + 1) for place in range(at, len(text))]
    return Decoded("".join(letters), spans)


def _meant(match: "re.Match[str]") -> str:
    """A character; nothing of what is no character and parts no word; a blank of what parts words."""
    if match["colour"] or match["unseen"]:
        return ""
    if match["bytewise"]:
        read = bytes(_GPT2.get(letter, ord(letter) & 0xFF) for letter in match["bytewise"])
        return _as_utf8(read) or match["bytewise"]
    by_hex = match["four"] or match["braced"] or match["eight"] or match["hex"]
    number = int(by_hex, 16) if by_hex else int(match["number"] or 0)
    return chr(number) if 0 < number < 0x110000 and not 0xD800 <= number < 0xE000 else " "


def _of_bytes(text: str, match: "re.Match[str]") -> tuple[str, int]:
    """The character that bytes stand for, and where it ends: of up to four, or else the first alone."""
    read, ends = [_value(match["bytes"])], [match.end()]
    lead = read[0]
    for _ in range((lead >= 0xC2) + (lead >= 0xE0) + (lead >= 0xF0)):
        following = _BYTES.match(text, ends[-1])
        if following is None:
            break
        read.append(_value(following[0]))
        ends.append(following.end())
    character = _as_utf8(bytes(read))
    return (character, ends[-1]) if character else (chr(lead), ends[0])


def _value(written: str) -> int:
    is_octal = written[0] == "\\" and written[-3] != "x"
    return int(written[-3:], 8) if is_octal else int(written[-2:], 16)


def _as_utf8(read: bytes) -> str:
    try:
        return read.decode()
    except UnicodeDecodeError:
        return ""
