"""Texts with choices in them, and the draws that settle the choices: the same for the same name, on every machine.

In a text, innermost braces first: ``{a|b}`` one of these; ``{3-9}``, ``{100-900/50}``, ``{1.2-3.8}`` a number;
``{~boat}`` a word of that list, none twice in a block; ``{name}`` a field of the page. ``{~boat:b}`` and ``{3-9:n}``
keep what was drawn, for ``{b}`` and ``{n}`` further on in the same block.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_INNERMOST = re.compile(r"\{([^{}]*)\}")
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)(?:/(\d+))?(?::(\w+))?")


@dataclass(slots=True)
class Draws:
    """Numbers from a name: SHA-256 of the name and a counter, so that no library's generator can change them."""

    name: str
    counter: int = 0

    def below(self, bound: int) -> int:
        """The next draw, from 0 to ``bound`` - 1."""
        self.counter += 1
        digest = hashlib.sha256(f"{self.name}/{self.counter}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % bound

    def one_of(self, choices: Sequence[str]) -> str:
        """One of the choices."""
        return choices[self.below(len(choices))]

    def shuffled(self, items: Sequence[str]) -> list[str]:
        """The items in an order of this name's own."""
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in range(len(rest))]


@dataclass(slots=True)
class Pool:
    """Blocks to draw from: all of them once, before any comes again."""

    blocks: Sequence[str]
    draws: Draws
    waiting: list[str] = field(default_factory=list)

    def take(self, how_many: int) -> list[str]:
        """The next blocks, none of them twice in one call while there are others."""
        taken: list[str] = []
        while len(taken) < how_many:
            if not self.waiting:
                self.waiting = [block for block in self.draws.shuffled(self.blocks) if block not in taken]
                self.waiting = self.waiting or self.draws.shuffled(self.blocks)
            taken.append(self.waiting.pop())
        return taken


def filled(text: str, fields: dict[str, str], words: dict[str, list[str]], draws: Draws) -> str:
    """The text with every choice settled. ``fields`` of the page stay as they are; what a block keeps is its own."""
    kept = dict(fields)
    used: set[str] = set(fields.values())

    def settle(found: re.Match[str]) -> str:
        inner = found[1]
        number = _NUMBER.fullmatch(inner)
        if number:
            return _kept(kept, number[4], _number(number, draws))
        if inner.startswith("~"):
            name, _, key = inner[1:].partition(":")
            left = [word for word in words[name] if word not in used] or words[name]
            word = draws.one_of(left)
            used.add(word)
            return _kept(kept, key, word)
        if "|" in inner:
            return draws.one_of(inner.split("|"))
        return kept[inner]

    while _INNERMOST.search(text):
        text = _INNERMOST.sub(settle, text, count=1)
    return text


def _kept(kept: dict[str, str], key: str | None, value: str) -> str:
    if key:
        kept[key] = value
    return value


def _number(found: re.Match[str], draws: Draws) -> str:
    low, high, step = found[1], found[2], int(found[3] or 1)
    if "." in low:
        places = len(low.split(".")[1])
        scale = 10**places
        first, last = round(float(low) * scale), round(float(high) * scale)
        return f"{(first + draws.below(last - first + 1)) / scale:.{places}f}"
    drawn = int(low) + step * draws.below((int(high) - int(low)) // step + 1)
    return f"{drawn:0{len(low)}d}" if low.startswith("0") and len(low) > 1 else str(drawn)
