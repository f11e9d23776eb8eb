"""explain(): an engine's error text or log line, taken apart: which product made the number, and what to change.

Each form of message that is known is a ``Form``: a pattern and a function that does the arithmetic. Forms live beside
the engine they come from (explain_llama_cpp.py, explain_servers.py). A line that matches none is left alone: nothing is
guessed from it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvscope.model.spec import ModelSpec

SCHEMA = "kvscope.explain/1"
MAX_TEXT = 4 * 1024**2  # a log longer than this is read from its end, where the failure is
MAX_LINE = 4096

# No size, count or address of any machine has so many digits.
_NO_SIZE = re.compile(r"\d{20}")

Number = int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """One thing recognised. ``kind``: the class of failure or of log line. ``because``: the arithmetic, with its
    numbers in it. ``also``: other ways to read the same number. ``is_certain`` False: read without the model."""

    kind: str
    because: str
    numbers: Mapping[str, Number]
    advice: str
    line: str = ""
    also: tuple[str, ...] = ()
    is_certain: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Every line that was recognised, in the order of the text."""

    matches: tuple[Match, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON of contract kvscope.explain/1."""
        return {
            "schema": SCHEMA,
            "matches": [
                {
                    "kind": match.kind,
                    "because": match.because,
                    "numbers": dict(match.numbers),
                    "advice": match.advice,
                    "line": match.line,
                    "also": list(match.also),
                    "certain": match.is_certain,
                }
                for match in self.matches
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """``pattern`` is searched in one line, case-insensitively. ``read`` returns None where the numbers do not fit."""

    kind: str
    pattern: re.Pattern[str]
    read: "Callable[[re.Match[str], Context], Match | None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What else is known: the model, if given, and the whole text (some numbers stand on other lines)."""

    model: ModelSpec | None
    text: str
    seen: dict[str, Number] = field(default_factory=dict)


def explain(text: str, model: ModelSpec | None = None) -> Explanation:
    """What each recognised line of ``text`` says. No match is an empty tuple, not an error.

    ``model`` makes products certain that otherwise are the most likely of several.
    """
    from kvscope.analysis.explain_llama_cpp import LLAMA_CPP_FORMS
    from kvscope.analysis.explain_servers import SERVER_FORMS

    text = text[-MAX_TEXT:]
    context = Context(model=model, text=text)
    found: list[Match] = []
    for line in text.splitlines():
        line = line[:MAX_LINE].strip()
        if _NO_SIZE.search(line):
            continue
        for form in (*LLAMA_CPP_FORMS, *SERVER_FORMS):
            hit = form.pattern.search(line)
            match = form.read(hit, context) if hit is not None else None
            if match is not None:
                match = _with_line(match, line)
                if all((match.kind, match.because) != (other.kind, other.because) for other in found):
                    found.append(match)
                break
    return Explanation(matches=tuple(found))


def whole(text: str) -> int:
    """A whole number as logs write it: 1,369,568."""
    return int(text.replace(",", "").replace("_", ""))


def form(kind: str, pattern: str) -> "Callable[[Callable[[re.Match[str], Context], Match | None]], Form]":
    """Make a Form of the function below: ``@form("kind", r"pattern")``."""

    def make(read: "Callable[[re.Match[str], Context], Match | None]") -> Form:
        return Form(kind=kind, pattern=re.compile(pattern, re.IGNORECASE), read=read)

    return make


def _with_line(match: Match, line: str) -> Match:
    return Match(
        kind=match.kind,
        because=match.because,
        numbers=match.numbers,
        advice=match.advice,
        line=line,
        also=match.also,
        is_certain=match.is_certain,
    )
