"""What kind of content a stretch of text is: by rules over its paragraphs and lines, the same each time.

- ``base64``: runs of 64 or more of its letters with capitals, small letters and digits among them, also inside of a
  line of something else.
- ``digits``: half of what is no space are digits; or hexadecimal, in groups or in runs of 32 or more. Hex is here and
  not with base64: it costs the most tokens of all, and looks the most like digits to a tokenizer.
- ``json``: lines with ``"name":`` that begin or end as JSON does, texts inside of it included. Arrays of numbers are
  digits.
- ``code``: what stands between Markdown fences and is none of the above; else by its share of brackets and signs, or
  where half of the lines look like code. By content, not by a file's name: a paragraph of comment is prose.
- ``korean_prose``: at least a fifth of its letters are Hangul. ``english_prose``: at least 60 % Latin letters without
  accents and, from 8 words on, one of the words that English cannot do without. ``other``: everything else.

The line breaks and blank lines before a stretch belong to it. These rules name what costs tokens; they are no parser.
"""

import re
from collections.abc import Iterator

KOREAN, ENGLISH, CODE, DIGITS, JSON, BASE64, OTHER = KINDS = (
    "korean_prose",
    "english_prose",
    "code",
    "digits",
    "json",
    "base64",
    "other",
)

_GROUP = 1000  # characters of lines that are judged together, where no blank line parts them
_LONGEST_LINE = 1 << 16  # characters of a line that are waited for

_SPACES = b" \t\n\r\f\v"
_DIGIT = b"0123456789"
_HEX_LETTERS = b"abcdefABCDEF"
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CODE_SIGNS = b"{}()[];=<>_&\\$@"
_HANGUL_LEADS = bytes(range(0xEA, 0xEE))  # the first bytes of U+A000 to U+DFFF, of which Hangul is nearly all
# The first bytes of all other letters outside of ASCII; C2 and E2 are mostly punctuation and signs.
_OTHER_LEADS = bytes([*range(0xC3, 0xE2), *range(0xE3, 0xEA), 0xEE, 0xEF, *range(0xF0, 0xF8)])

_FENCE = re.compile(r"^ {0,3}(?:```+|~~~+)[^\n`]*$", re.MULTILINE)
_BLANK = re.compile(r"\n[ \t\r]*\n")
_RUN = re.compile(r"[A-Za-z0-9+/_-]{32,}={0,2}")
_HEX_RUN = re.compile(r"(?:0x)?[0-9a-fA-F]+")
_RUN_LEAST, _BASE64_LEAST = 32, 64
_JSON_BEGIN, _JSON_END = '{["}]', '}],"'
_OTHER_LINE = re.compile(r"\n[ \t]*(?![ \t\r\n{}\[\]\"\d-]|true|false|null)")
_IMPORT = re.compile(r"(?:import|from|using|package|#include) ")
_ENGLISH = re.compile(r"\b(?:the|of|and|is|that|with|this|are|was|for|you|it|to)\b", re.IGNORECASE)
_KEYWORDS = (
    "def|class|import|from|return|if|elif|else|for|while|try|func|fn|let|const|var|public|private|static|struct|enum"
    "|package|use|export|async|await"
)
_CODE_LINE = re.compile(
    r"^[ \t]*(?:(?:import|from) [\w.]+(?: import [\w.,* ]+)?(?: as \w+)?\r?$"
    rf"|(?:{_KEYWORDS})\b.*[:;{{()=.*]|[#@]\w+[( ]|//|/\*|\*/|[}}\])]|<[/!a-zA-Z]"
    r"|[\w.\[\]*&]+ *(?:[-+*/|]?=|:=) ?\S)|[;{}]\r?$",
    re.MULTILINE,
)


class KindSplitter:
    """A text that comes in pieces, cut into stretches of one kind each: ``feed`` each piece, then ``close``. What they
    give, joined, is the text."""

    def __init__(self) -> None:
        self._held = ""
        self._last_kind = OTHER
        self._in_fence = False

    def feed(self, text: str) -> list[tuple[str, str]]:
        """(kind, stretch) of all whole lines so far."""
        held = self._held + text
        end = held.rfind("\n") + 1
        if end == 0 and len(held) > _LONGEST_LINE:
            end = len(held)
        return self._split(held, end)

    def close(self) -> list[tuple[str, str]]:
        """What is left."""
        found = self._split(self._held, len(self._held))
        if self._held:  # spaces alone: they belong to what is before
            found.append((self._last_kind, self._held))
            self._held = ""
        return found

    def _split(self, held: str, end: int) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        done, kind_before = 0, ""
        for kind, stop in self._stretches(held[:end]):
            if kind == kind_before:
                found[-1] = (kind, found[-1][1] + held[done:stop])
            else:
                found.append((kind, held[done:stop]))
            done, kind_before = stop, kind
        self._last_kind = kind_before or self._last_kind
        self._held = held[done:]
        return found

    def _stretches(self, text: str) -> Iterator[tuple[str, int]]:
        """(kind, where its last character that is no space ends)."""
        if "```" not in text and "~~~" not in text:
            yield from self._blocks(text, 0, len(text))
            return
        start = 0
        for fence in _FENCE.finditer(text):
            yield from self._blocks(text, start, fence.start())
            self._in_fence = not self._in_fence
            yield CODE, fence.end()
            start = fence.end()
        yield from self._blocks(text, start, len(text))

    def _blocks(self, text: str, start: int, end: int) -> Iterator[tuple[str, int]]:
        for blank in _BLANK.finditer(text, start, end):
            yield from self._paragraph(text, start, blank.start())
            start = blank.end()
        yield from self._paragraph(text, start, end)

    def _paragraph(self, text: str, start: int, end: int) -> Iterator[tuple[str, int]]:
        while start < end:
            stop = end
            if end - start > _GROUP:
                stop = text.rfind("\n", start + 1, start + _GROUP) + 1 or text.find("\n", start + 1, end) + 1 or end
            block = text[start:stop]
            stripped = block.strip()
            if stripped:
                offset = start + block.index(stripped[0])
                for kind, length in _kinds(stripped):
                    yield self._fenced(kind), offset + length
            start = stop

    def _fenced(self, kind: str) -> str:
        return CODE if self._in_fence and kind in (KOREAN, ENGLISH, OTHER) else kind


def kind_of(text: str) -> str:
    """The kind of a text that is taken as one block: the kind that most of its characters have."""
    splitter = KindSplitter()
    sums = dict.fromkeys(KINDS, 0)
    for kind, stretch in [*splitter.feed(text), *splitter.close()]:
        sums[kind] += len(stretch)
    return max(KINDS, key=lambda kind: sums[kind])


def _kinds(block: str) -> Iterator[tuple[str, int]]:
    """(kind, end) of the stretches of a block that has no spaces at its ends."""
    runs = _runs(block)
    if not runs:
        yield from _around_names(block)
        return
    done = 0
    for kind, start, end in [*runs, ("", len(block), len(block))]:
        other = block[done:start]
        begins = done + len(other) - len(other.lstrip())
        for own, stop in _around_names(other.strip()):
            yield own, begins + stop
        if kind:
            yield kind, end
        done = end


def _around_names(block: str) -> Iterator[tuple[str, int]]:
    """By lines where some may be JSON and others not."""
    if '"' not in block:
        if block:
            yield _plain_kind(block), len(block)
    elif _is_json(block):
        yield JSON, len(block)
    elif '":' not in block and '" :' not in block:
        yield _plain_kind(block), len(block)
    else:
        start = 0
        for line in block.splitlines(keepends=True):
            stripped = line.strip()
            if stripped:
                kind = (
                    JSON if _is_json(stripped) or _json_share(stripped) * 2 >= len(stripped) else _plain_kind(stripped)
                )
                yield kind, start + len(line.rstrip())
            start += len(line)


def _runs(block: str) -> list[tuple[str, int, int]]:
    """(kind, start, end) of the runs of base64 and of hexadecimal."""
    found: list[tuple[str, int, int]] = []
    words = block.split()
    if max(map(len, words)) < _RUN_LEAST:
        return found
    at = 0
    for word in words:
        if len(word) >= _RUN_LEAST:
            at = block.index(word, at)
            for match in _RUN.finditer(word):
                if kind := _kind_of_run(match[0]):
                    found.append((kind, at + match.start(), at + match.end()))
            at += len(word)
    return found


def _kind_of_run(run: str) -> str | None:
    if _HEX_RUN.fullmatch(run):
        return DIGITS
    is_mixed = not run.islower() and not run.isupper() and any(map(str.isdigit, run))
    return BASE64 if len(run) >= _BASE64_LEAST and is_mixed else None


def _is_json(block: str) -> bool:
    """Lines that all begin as JSON's do, with names among them or a beginning and an end."""
    if block[0] not in _JSON_BEGIN or _OTHER_LINE.search(block):
        return False
    names = block.count('":') + block.count('" :')
    return names > 0 and (names * 120 >= len(block) or block[-1] in _JSON_END)


def _plain_kind(block: str) -> str:
    """The kind of a block as a whole, not looking for JSON."""
    content = block.encode().translate(None, _SPACES)
    size = len(content)
    without_digits = content.translate(None, _DIGIT)
    digits = size - len(without_digits)
    if digits * 2 >= size:
        return DIGITS
    words = without_digits.translate(None, _LETTERS)
    letters = len(without_digits) - len(words)
    if digits * 6 >= size:
        hex_letters = len(without_digits) - len(without_digits.translate(None, _HEX_LETTERS))
        if (letters - hex_letters) * 20 <= size:
            return DIGITS
    signs = len(words) - len(words.translate(None, _CODE_SIGNS))
    if (signs * 50 >= size or _IMPORT.match(block)) and _is_code(block, signs, size):
        return CODE
    return _prose(block, words, letters, size)


def _json_share(line: str) -> int:
    """Characters between the first brace before a name and the last brace: a log line that ends in JSON."""
    start = line.find('{"')
    return line.rfind("}") + 1 - start if start >= 0 else 0


def _is_code(block: str, signs: int, size: int) -> bool:
    if signs * 8 >= size:
        return True
    return len(_CODE_LINE.findall(block)) * 2 >= block.count("\n") + 1


def _prose(block: str, words: bytes, letters: int, size: int) -> str:
    if not words or words.isascii():
        hangul = others = 0
    else:
        hangul = len(words) - len(words.translate(None, _HANGUL_LEADS))
        others = len(words) - len(words.translate(None, _OTHER_LEADS))
    if hangul * 4 >= letters and hangul > others:
        return KOREAN if hangul else OTHER
    if letters * 10 < size * 6 or others * 20 > letters:
        return OTHER
    return ENGLISH if block.count(" ") < 7 or _ENGLISH.search(block) else OTHER
