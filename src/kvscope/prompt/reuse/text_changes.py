"""How two texts differ at their first difference: a clock, an identifier, a number, blanks, Unicode's forms, or words.

Nothing of the kind is looked for before the first difference, since all that counts for reuse is what comes first.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

CLOCK, DATE, RANDOM_ID, COUNTER = "clock", "date", "random-id", "counter"
LINE_ENDS, UNICODE_FORM, INVISIBLE, WHITESPACE = "line-ends", "unicode-form", "invisible-characters", "whitespace"
EDITED = "edited"

_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?"
_HALF = r"(?:\s?[AaPp]\.?[Mm]\b\.?)"
_ZONE = r"(?:\s?(?:Z|UTC|GMT|KST|[+-]\d{2}:?\d{2})\b)"
_CLOCK = rf"{_TIME}{_HALF}?{_ZONE}?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_WEEKDAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_ENGLISH = rf"(?:{_MONTH}\s{_DAY},?\s\d{{4}}|{_DAY}\s{_MONTH},?\s\d{{4}}|{_MONTH}\s{_DAY}\b)"
_ENGLISH_DATE = rf"(?:{_WEEKDAY},?\s)?{_ENGLISH}|\b{_WEEKDAY}\b"
_NUMERIC_DATE = r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](?:\d{4}|\d{2}))\b"
_KOREAN_WEEKDAY = r"(?:[월화수목금토일]요일|\([월화수목금토일]\))"
_KOREAN_DAY = rf"(?:\d{{2,4}}년\s?)?\d{{1,2}}월\s?\d{{1,2}}일(?:\s?{_KOREAN_WEEKDAY})?"
_KOREAN_DATE = rf"{_KOREAN_DAY}|\d{{2,4}}년\s?\d{{1,2}}월|{_KOREAN_WEEKDAY}"
_KOREAN_HALF = r"(?:오전|오후|새벽|아침|정오|저녁|밤|낮)"
_KOREAN_CLOCK = rf"(?:{_KOREAN_HALF}\s?)?(?:\d{{1,2}}시(?:\s?\d{{1,2}}분)?(?:\s?\d{{1,2}}초)?|{_TIME})"
_ANY_DATE = rf"(?:{_NUMERIC_DATE}|{_KOREAN_DATE}|{_ENGLISH_DATE})"
_NOT_IN_WORD = r"(?<![A-Za-z0-9])"
# From the one with most parts to the one with fewest: the first that fits at a place is taken.
_PATTERNS = (
    (RANDOM_ID, rf"{_NOT_IN_WORD}[0-9a-fA-F]{{8}}-(?:[0-9a-fA-F]{{4}}-){{3}}[0-9a-fA-F]{{12}}"),
    (CLOCK, rf"{_NOT_IN_WORD}\d{{4}}-?\d{{2}}-?\d{{2}}T\d{{2}}:?\d{{2}}(?::?\d{{2}}(?:[.,]\d+)?)?{_ZONE}?"),
    (CLOCK, rf"{_NOT_IN_WORD}{_ANY_DATE}(?:,|\sat)?\s{{0,2}}(?:{_KOREAN_CLOCK}|{_CLOCK}){_HALF}?{_ZONE}?"),
    (CLOCK, rf"{_NOT_IN_WORD}(?:{_KOREAN_CLOCK}|{_CLOCK}){_HALF}?{_ZONE}?"),
    (CLOCK, rf"{_NOT_IN_WORD}1[5-9]\d{{8}}(?:\.\d+|\d{{3}}|\d{{6}}|\d{{9}})?(?![\dA-Za-z])"),  # seconds since 1970
    (DATE, rf"{_NOT_IN_WORD}{_ANY_DATE}"),
    (DATE, rf"{_NOT_IN_WORD}20\d{{2}}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?![\dA-Za-z])"),
    # Eight or more letters and digits, both of them, as no word has.
    (RANDOM_ID, rf"{_NOT_IN_WORD}(?=[A-Za-z0-9]*\d)(?=[A-Za-z0-9]*[A-Za-z])[A-Za-z0-9]{{8,}}(?![A-Za-z0-9])"),
    (COUNTER, r"\d+(?:\.\d+)?"),
)
_VOLATILE = re.compile("|".join(f"(?P<k{number}>{pattern})" for number, (_, pattern) in enumerate(_PATTERNS)))
# Zero-width and direction marks, byte order mark, soft hyphen.
_INVISIBLE = dict.fromkeys([0x00AD, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2065), 0xFEFF])

_FORMS: Mapping[str, Callable[[str], str]] = {
    LINE_ENDS: lambda text: text.replace("\r\n", "\n").replace("\r", "\n"),
    UNICODE_FORM: lambda text: unicodedata.normalize("NFC", text),
    INVISIBLE: lambda text: text.translate(_INVISIBLE),
    WHITESPACE: lambda text: "".join(text.split()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextChange:
    """``kind``: one of this module's names. ``begin``: the first character (code point) that differs. ``first`` and
    ``second``: what stands in each text where they differ. ``mended``: the second text with this kind of difference
    taken back."""

    kind: str
    begin: int
    first: str
    second: str
    mended: str


def common_length(first: Sequence[Any], second: Sequence[Any]) -> int:
    """How many items (of a text: code points) both begin with."""
    low, high = 0, min(len(first), len(second))
    while low < high:  # halves, each compared at once: texts may have millions of characters
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def change_between(first: str, second: str) -> TextChange | None:
    """The first difference of two texts, None where they are equal."""
    if first == second:
        return None
    begin = common_length(first, second)
    kind = _only_in_form(first, second)
    if kind is None:
        volatile = _volatile_change(first, second, begin)
        if volatile is not None:
            return volatile
    return replace(edit_between(first, second), kind=kind or EDITED)


def edit_between(first: str, second: str) -> TextChange:
    """All that differs between two texts, as one edit."""
    begin = common_length(first, second)
    same = common_length(first[begin:][::-1], second[begin:][::-1])
    ours, theirs = first[begin : len(first) - same], second[begin : len(second) - same]
    return TextChange(kind=EDITED, begin=begin, first=ours, second=theirs, mended=first)


def _only_in_form(first: str, second: str) -> str | None:
    """Whether the texts are the same but for line ends, Unicode's forms, what is not seen, or blanks."""
    return next((kind for kind, form in _FORMS.items() if form(first) == form(second)), None)


def _volatile_change(first: str, second: str, begin: int) -> TextChange | None:
    ours, theirs = _touching(first, begin), _touching(second, begin)
    if ours is None or theirs is None or ours.start() != theirs.start() or ours[0] == theirs[0]:
        return None
    kind = max(_kind(ours), _kind(theirs), key=(COUNTER, RANDOM_ID, DATE, CLOCK).index)
    whole = _mended(first, second, kind)
    if whole is None:
        if kind == COUNTER:
            return None  # one of many differences, and numbers are everywhere
        whole = second[: theirs.start()] + ours[0] + second[theirs.end() :]
    return TextChange(kind=kind, begin=begin, first=ours[0], second=theirs[0], mended=whole)


def _kind(match: re.Match[str]) -> str:
    return _PATTERNS[int((match.lastgroup or "k0")[1:])][0]


def _touching(text: str, place: int) -> re.Match[str] | None:
    """The match that ``place`` lies in, or that ends there."""
    before = text.rfind("\n", 0, place) + 1
    for match in _VOLATILE.finditer(text, before):
        if match.start() <= place <= match.end():
            return match
        if match.start() > place:
            break
    return None


def _mended(first: str, second: str, kind: str) -> str | None:
    """``second`` with every piece of this kind as in ``first``; None where the texts differ in more than pieces of
    some kind."""
    ours, theirs = list(_VOLATILE.finditer(first)), list(_VOLATILE.finditer(second))
    if _VOLATILE.sub("\0", first) != _VOLATILE.sub("\0", second) or len(ours) != len(theirs):
        return None
    pieces, at = [], 0
    for left, right in zip(ours, theirs, strict=True):
        same = {_kind(left), _kind(right)} & {kind}
        pieces += [second[at : right.start()], left[0] if same else right[0]]
        at = right.end()
    return "".join([*pieces, second[at:]])
