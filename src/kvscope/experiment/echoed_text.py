"""A person's own text found in what others say: servers quote the prompts that they refuse, and logs repeat them.

Quoted text is escaped, cut and broken into lines in many ways, so only its letters and digits are compared: a run of
them that stands in the own text is left out, from 16 on (of Hangul and other wide scripts from 8 on); shorter ones are
words that anybody uses, unless they mix letters and digits, as keys and names of things do.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from kvscope.experiment.decoded_text import Decoded, decoded
from kvscope.record.rows import left_out

# A run of 8 letters holds one of the grams that are looked up: those of _GRAM letters at every _STRIDE-th place.
_GRAM, _STRIDE = 4, 5
_WEIGHT = 16
_WIDE_WEIGHT = 2
_NO_LETTER = re.compile(r"[\W_]+")
_WORD = re.compile(r"[^\W_]{6,}")


class OwnText:
    """Texts that must not be recorded. It is made plain when something is first searched for it."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = tuple(text for text in texts if text)

    def hide(self, found: Any) -> Any:
        """The same without own text: a text, or mappings and sequences that hold texts."""
        match found:
            case str():
                return self._hidden(found)
            case Mapping():
                return {self.hide(name): self.hide(value) for name, value in found.items()}
            case list() | tuple():
                return type(found)(self.hide(value) for value in found)
            case _:
                return found

    @cached_property
    def _plain(self) -> str:
        meant = decoded("\n".join(self._texts)).letters
        return "".join(letter.casefold()[:1] for letter in _NO_LETTER.sub("", meant))

    @cached_property
    def _mixed(self) -> frozenset[str]:
        texts = (*self._texts, *(decoded(text).letters for text in self._texts))
        return frozenset(word.casefold() for text in texts for word in _WORD.findall(text) if _is_mixed(word))

    def _hidden(self, text: str) -> str:
        meant = decoded(text)
        spans = [*self._runs(meant), *self._words(meant)]
        if meant.spans is not None:  # what looks like an escape may be none: C:\new7
            spans += self._words(Decoded(text, None))
        for first, end in reversed(_joined(spans)):
            text = f"{text[:first]}{left_out(text[first:end])}{text[end:]}"
        return text

    def _words(self, text: Decoded) -> Iterator[tuple[int, int]]:
        for match in _WORD.finditer(text.letters):
            if _is_mixed(match[0]) and match[0].casefold() in self._mixed:
                yield text.span(*match.span())

    def _runs(self, text: Decoded) -> Iterator[tuple[int, int]]:
        """(From, to) in the text of each run of letters that stands in the own text too."""
        places = [place for place, letter in enumerate(text.letters) if letter.isalnum()]
        said = "".join(text.letters[place].casefold()[:1] for place in places)
        if _weight(said) < _WEIGHT:
            return
        where: dict[str, list[int]] = {}
        for place in range(len(said) - _GRAM + 1):
            where.setdefault(said[place : place + _GRAM], []).append(place)
        plain, done = self._plain, [False] * len(said)
        for at in range(0, len(plain) - _GRAM + 1, _STRIDE):
            for place in where.get(plain[at : at + _GRAM], ()):
                if done[place] and done[place + _GRAM - 1]:
                    continue
                first, end = _extended(said, place, plain, at)
                if _weight(said[first:end]) >= _WEIGHT:
                    done[first:end] = [True] * (end - first)
                    yield text.span(places[first], places[end - 1] + 1)


def _is_mixed(word: str) -> bool:
    return any(map(str.isdigit, word)) and not word.isdigit()


def _extended(said: str, place: int, plain: str, at: int) -> tuple[int, int]:
    """The longest run around a gram that both texts have."""
    first = place
    while first > 0 and at > 0 and said[first - 1] == plain[at - 1]:
        first, at, place = first - 1, at - 1, place
    end, behind = first, at
    while end < len(said) and behind < len(plain) and said[end] == plain[behind]:
        end, behind = end + 1, behind + 1
    return first, end


def _weight(letters: str) -> int:
    return sum(_WIDE_WEIGHT if letter > "ᄀ" else 1 for letter in letters)


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans in order, those that touch as one."""
    ends: list[tuple[int, int]] = []
    for first, end in sorted(spans):
        if ends and first <= ends[-1][1]:
            ends[-1] = ends[-1][0], max(ends[-1][1], end)
        else:
            ends.append((first, end))
    return ends
