r"""One known secret, found in a text in the spellings that programs quote it in.

These are: as it is and in any case, with blanks between its characters, escaped as JSON, Python, addresses and pages
do, its first 8 characters or more where these mix letters and digits (a key that was cut), in hexadecimal, and in
base64 alone or within something longer (``Authorization: Bearer …`` of a header): base64 writes three bytes as four
letters, so that a text within another looks one of three ways. Not: backwards, in other codes, its middle or end alone.
"""

import base64
import re
from collections.abc import Iterator

# So many characters, bytes in hexadecimal and bytes in base64 are looked for; what follows is read on from there.
_LEAST = 8
_LEAST_BASE64 = 12
_BLANKS = r"[\s\u200b]{0,2}"
_BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_")


def spelling(character: str) -> str:
    r"""A pattern of what a character may be written as: itself; \/ and \u002B of JSON, once or more often; \x2B; %2B of
    an address, or %252B; &#43; and &#x2B; of a page."""
    code = f"{ord(character):02X}"
    in_any_case = "".join(f"[{digit}{digit.lower()}]" if digit.isalpha() else digit for digit in code)
    plain = re.escape(character) if character != "/" else r"\\{0,8}/"
    escaped = rf"\\{{1,8}}(?:u00|x){in_any_case}|%(?:25)?{in_any_case}"
    return rf"(?:{plain}|{escaped}|&#0{{0,6}}{ord(character)};|&#[xX]0{{0,6}}{in_any_case};)"


class Secret:
    """A value of 8 characters or more that must not be shown."""

    def __init__(self, value: str) -> None:
        each = [spelling(character) for character in value]
        self._each = [re.compile(_BLANKS + one, re.IGNORECASE) for one in each]
        self._begins = re.compile(_BLANKS.join(each[:_LEAST]), re.IGNORECASE)
        read = value.encode()
        digits = [f"{byte:02x}" for byte in read]
        self._digits = [re.compile(rf"[\s:]?{pair}", re.IGNORECASE) for pair in digits]
        self._begins_in_digits = re.compile(r"[\s:]?".join(digits[:_LEAST]), re.IGNORECASE)
        self._in_base64 = tuple(_in_base64(read[:_LEAST_BASE64]))
        self._value = value

    def spans(self, text: str) -> list[tuple[int, int]]:
        """(From, to) of each place where it stands, in order; none overlaps another."""
        if len(text) < _LEAST:
            return []
        found = [*self._written(text), *self._written_in_digits(text), *self._written_in_base64(text)]
        spans: list[tuple[int, int]] = []
        for first, end in sorted(found):
            if spans and first < spans[-1][1]:
                spans[-1] = spans[-1][0], max(spans[-1][1], end)
            else:
                spans.append((first, end))
        return spans

    def hidden(self, text: str, word: str) -> str:
        """The text with ``word`` in each of these places."""
        spans = self.spans(text)
        if not spans:
            return text
        kept = [
            text[end:first] for (_, end), (first, _) in zip([(0, 0), *spans], [*spans, (len(text), 0)], strict=True)
        ]
        return word.join(kept)

    def _written(self, text: str) -> Iterator[tuple[int, int]]:
        for match in self._begins.finditer(text):
            end, number = _read_on(self._each, _LEAST, text, match.end())
            if number == len(self._each) or _is_mixed(self._value[:number]):
                yield match.start(), end

    def _written_in_digits(self, text: str) -> Iterator[tuple[int, int]]:
        for match in self._begins_in_digits.finditer(text):
            yield match.start(), _read_on(self._digits, _LEAST, text, match.end())[0]

    def _written_in_base64(self, text: str) -> Iterator[tuple[int, int]]:
        for needle in self._in_base64:
            end = 0
            while (found := text.find(needle, end)) >= 0:
                first, least = found, end
                while first > least and text[first - 1] in _BASE64:
                    first -= 1
                end = found + len(needle)
                while end < len(text) and (text[end] in _BASE64 or text[end] == "="):
                    end += 1
                yield first, end


def _is_mixed(beginning: str) -> bool:
    return any(map(str.isdigit, beginning)) and any(map(str.isalpha, beginning))


def _read_on(patterns: "list[re.Pattern[str]]", number: int, text: str, end: int) -> tuple[int, int]:
    """Where the secret ends that goes on at ``end``, and how many of its characters stand there."""
    while number < len(patterns) and (match := patterns[number].match(text, end)) is not None:
        number, end = number + 1, match.end()
    return end, number


def _in_base64(read: bytes) -> Iterator[str]:
    """The letters that bytes always have in base64, in each of the three places where they may begin."""
    for place in range(3):
        letters = base64.b64encode(b"\0" * place + read).decode().rstrip("=")
        sure = letters[(0, 2, 3)[place] : (place + len(read)) * 8 // 6]
        yield sure
        if "+" in sure or "/" in sure:
            yield sure.replace("+", "-").replace("/", "_")
