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
# Each byte as one of its class, so that a class is counted at once.
_CLASSES = {b" ": _SPACES, b"0": _DIGIT, b"{": _CODE_SIGNS}
_CLASS_OF = bytes(next((name[0] for name, of in _CLASSES.items() if byte in of), 0x2E) for byte in range(256))
_HANGUL_LEADS = bytes(range(0xEA, 0xEE))  # the first bytes of U+A000 to U+DFFF, of which Hangul is nearly all
# The first bytes of all other letters outside of ASCII; C2 and E2 are mostly punctuation and signs.
_OTHER_LEADS = bytes([*range(0xC3, 0xE2), *range(0xE3, 0xEA), 0xEE, 0xEF, *range(0xF0, 0xF8)])

_FENCE = re.compile(r"^ {0,3}(?:```+|~~~+)[^\n`]*$", re.MULTILINE)
_BLANK = re.compile(r"\n[ \t\r]*\n")
_RUN = re.compile(r"[A-Za-z0-9+/_-]{32,}={0,2}")
_HEX_RUN = re.compile(r"(?:0x)?[0-9a-fA-F]+")
_RUN_LEAST, _BASE64_LEAST = 32, 64
_IN_RUN = bytes(0x78 if byte in _LETTERS + _DIGIT + b"+/_-" else 0x20 for byte in range(256))
_LEAST_RUN = b"x" * _RUN_LEAST
_JSON_BEGIN, _JSON_END = '{["}]', '}],"'
_OTHER_LINE = re.compile(r"\n[ \t]*(?![ \t\r\n{}\[\]\"\d-]|true|false|null)")
_IMPORT = re.compile(r"(?:import|from|using|package|#include) ")
_ENGLISH = re.compile(r"\b(?:the|of|and|is|that|with|this|are|was|for|you|it|to)\b", re.IGNORECASE)
_KEYWORDS = (
    "def|class|import|from|return|if|elif|else|for|while|try|func|fn|let|const|var|public|private|static|struct|enum"
    "|package|use|export|async|await"
)
_CODE_BEGINNING = (
    r"[ \t]*(?:(?:import|from) [\w.]+(?: import [\w.,* ]+)?(?: as \w+)?\r?$"
    rf"|(?:{_KEYWORDS})\b.*[:;{{()=.*]|[#@]\w+[( ]|//|/\*|\*/|[}}\])]|<[/!a-zA-Z]"
    r"|[\w.\[\]*&]++ *+(?:[-+*/|]?=|:=) ?\S)"
)
_CODE_LINE = re.compile(rf"^{_CODE_BEGINNING}|[;{{}}]\r?$", re.MULTILINE)
_CODE_BEGINS = re.compile(rf"\n{_CODE_BEGINNING}", re.MULTILINE)  # a line break is found faster than "^"


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
        if not end:
            self._held = held
            return found
        begins, done, current = 0, 0, ""
        for kind, stop in self._stretches(held[:end]):
            if kind != current:
                if current:
                    found.append((current, held[begins:done]))
                begins, current = done, kind
            done = stop
        if current:
            found.append((current, held[begins:done]))
            self._last_kind = current
        self._held = held[done:]
        return found

    def _stretches(self, text: str) -> list[tuple[str, int]]:
        """(kind, where its last character that is no space ends)."""
        found: list[tuple[str, int]] = []
        start = 0
        has_runs = _has_runs(text)
        if "```" in text or "~~~" in text:
            for fence in _FENCE.finditer(text):
                self._add_blocks(text, start, fence.start(), found, has_runs)
                self._in_fence = not self._in_fence
                start = fence.end()
                found.append((CODE, start))
        self._add_blocks(text, start, len(text), found, has_runs)
        return found

    def _add_blocks(self, text: str, start: int, end: int, found: list[tuple[str, int]], has_runs: bool) -> None:
        before = len(found)
        for blank in _BLANK.finditer(text, start, end):
            _add_paragraph(text, start, blank.start(), found, has_runs)
            start = blank.end()
        _add_paragraph(text, start, end, found, has_runs)
        if self._in_fence:
            prose = (KOREAN, ENGLISH, OTHER)
            found[before:] = [(CODE if kind in prose else kind, stop) for kind, stop in found[before:]]


# The functions below are called for every block or line of a text; lists and plain calls are faster than generators.
def _add_paragraph(text: str, start: int, end: int, found: list[tuple[str, int]], has_runs: bool) -> None:
    while start < end:
        stop = end
        if end - start > _GROUP:
            stop = text.rfind("\n", start + 1, start + _GROUP) + 1 or text.find("\n", start + 1, end) + 1 or end
        block = text[start:stop]
        stripped = block.strip()
        if stripped:
            offset = start if len(stripped) == len(block) else start + block.index(stripped[0])
            if has_runs and len(stripped) >= _RUN_LEAST and _has_runs(stripped):
                found += [(kind, offset + length) for kind, length in _around_runs(stripped)]
            elif '"' in stripped:
                found += [(kind, offset + length) for kind, length in _around_names(stripped)]
            else:
                found.append((_plain_kind(stripped), offset + len(stripped)))
        start = stop


def _has_runs(text: str) -> bool:
    """Whether something may be a run of base64 or hexadecimal; told of a whole text much faster than of its blocks."""
    return _LEAST_RUN in text.encode(errors="surrogatepass").translate(_IN_RUN)


def kind_of(text: str) -> str:
    """The kind of a text that is taken as one block: the kind that most of its characters have."""
    splitter = KindSplitter()
    sums = dict.fromkeys(KINDS, 0)
    for kind, stretch in [*splitter.feed(text), *splitter.close()]:
        sums[kind] += len(stretch)
    return max(KINDS, key=lambda kind: sums[kind])


def _around_runs(block: str) -> Iterator[tuple[str, int]]:
    """(kind, end) of the stretches of a block that has no spaces at its ends."""
    done = 0
    for kind, start, end in [*_runs(block), ("", len(block), len(block))]:
        other = block[done:start]
        begins = done + len(other) - len(other.lstrip())
        for own, stop in _around_names(other.strip()):
            yield own, begins + stop
        if kind:
            yield kind, end
        done = end


def _around_names(block: str) -> list[tuple[str, int]]:
    """By lines where some may be JSON and others not."""
    if '"' not in block:
        return [(_plain_kind(block), len(block))] if block else []
    if _is_json(block):
        return [(JSON, len(block))]
    if '":' not in block and '" :' not in block:
        return [(_plain_kind(block), len(block))]
    found = []
    start = 0
    for line in block.splitlines(keepends=True):
        ended = line.rstrip()
        if ended:
            stripped = ended.lstrip()
            found.append((JSON if _is_json_line(stripped) else _plain_kind(stripped), start + len(ended)))
        start += len(line)
    return found


def _runs(block: str) -> list[tuple[str, int, int]]:
    """(kind, start, end) of the runs of base64 and of hexadecimal."""
    found: list[tuple[str, int, int]] = []
    at = 0
    for word in block.split():
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
    content = block.encode()
    classes = content.translate(_CLASS_OF, _LETTERS)
    size = len(content) - classes.count(b" ")
    digits = classes.count(b"0")
    if digits * 2 >= size:
        return DIGITS
    letters = len(content) - len(classes)
    if digits * 6 >= size:
        hex_letters = len(content) - len(content.translate(None, _HEX_LETTERS))
        if (letters - hex_letters) * 20 <= size:
            return DIGITS
    signs = classes.count(b"{")
    if (signs * 50 >= size or _IMPORT.match(block)) and _is_code(block, signs, size):
        return CODE
    return _prose(block, content, letters, size)


def _is_json_line(line: str) -> bool:
    """Also of a log line that ends in JSON: half of it is between the first brace before a name and the last brace."""
    if line[0] in _JSON_BEGIN and _is_json(line):
        return True
    start = line.find('{"')
    return start >= 0 and (line.rfind("}") + 1 - start) * 2 >= len(line)


def _is_code(block: str, signs: int, size: int) -> bool:
    if signs * 8 >= size:
        return True
    text = f"\n{block}\n"
    lines = text.count("\n") - 1
    if lines == 1:
        return block[-1] in ";{}" or _CODE_BEGINS.match(text) is not None
    begins = len(_CODE_BEGINS.findall(text))
    if begins * 2 >= lines:
        return True
    ends = text.count(";\n") + text.count("{\n") + text.count("}\n")
    if "\r" in text:
        ends += text.count(";\r\n") + text.count("{\r\n") + text.count("}\r\n")
    if ends * 2 >= lines:
        return True
    # A line that begins and ends like code counts twice, unless its end is within what was seen of its beginning.
    return (begins + ends) * 2 >= lines and len(_CODE_LINE.findall(block)) * 2 >= lines


def _prose(block: str, content: bytes, letters: int, size: int) -> str:
    if block.isascii():
        hangul = others = 0
    else:
        hangul = len(content) - len(content.translate(None, _HANGUL_LEADS))
        others = len(content) - len(content.translate(None, _OTHER_LEADS))
    if hangul * 4 >= letters and hangul > others:
        return KOREAN if hangul else OTHER
    if letters * 10 < size * 6 or others * 20 > letters:
        return OTHER
    # Most English is known by its most frequent words, much faster than by the expression.
    frequent = " the " in block or " is " in block or " of " in block or " to " in block
    return ENGLISH if frequent or block.count(" ") < 7 or _ENGLISH.search(block) else OTHER
