"""In which language people are spoken to: what is chosen, and the catalogue of its words.

kvscope thinks, raises and records in English; words are translated where they are shown. There are two doors:

- ``translated``: a sentence that the code holds, found by its English text and its context (the slug).
- ``shown``: a text that was raised or recorded, English with its values already in it. It is held against the
  templates of the catalogue ("Cannot make {folder}: {reason}."), and said by the template's translation.

JSON, CSV, slugs, setting names and column names are never translated.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from gettext import GNUTranslations, NullTranslations
from importlib.resources import files
from string import Formatter

from kvscope.errors import UnknownName

ENGLISH, KOREAN = "en", "ko"
LANGUAGES = (ENGLISH, KOREAN)
# Of a language in its own words.
NAMES: Mapping[str, str] = {ENGLISH: "English", KOREAN: "한국어"}

# Templates are looked up by so many characters of their beginning.
_HEAD = 6
_MOST_SENTENCES = 40
# Between two sentences, or two halves of one: the blank behind a sign that belongs to the first, or a semicolon.
_BETWEEN = re.compile(r"(?<=[.!?:]) (?=\S)|; (?=\S)")
# Values are looked at for templates in so many steps: a formula in a reason in a message.
_DEEPEST = 2

_of_process = ENGLISH
_of_context: ContextVar[str | None] = ContextVar("language", default=None)


def current() -> str:
    """The language words are said in now."""
    return _of_context.get() or _of_process


def use(language: str) -> None:
    """Say words in that language from now on. UnknownName if there is no such language."""
    global _of_process  # one process speaks to one person
    _of_process = _checked(language)


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """Say words in that language inside the block. UnknownName if there is no such language."""
    before = _of_context.set(_checked(language))
    try:
        yield
    finally:
        _of_context.reset(before)


def _checked(language: str) -> str:
    if language not in LANGUAGES:
        raise UnknownName("language", language, LANGUAGES)
    return language


def of_environment(environment: Mapping[str, str]) -> str:
    """The language of the locale, as gettext reads it: the first of LC_ALL, LC_MESSAGES and LANG that is set, and
    LANGUAGE before it unless the locale is "C". English where it is one that kvscope does not speak."""
    named = (environment.get(name, "") for name in ("LC_ALL", "LC_MESSAGES", "LANG"))
    locale = next(filter(None, named), "C")
    if locale.split(".")[0] in ("C", "POSIX"):
        return ENGLISH
    wanted = [*filter(None, environment.get("LANGUAGE", "").split(":")), locale]
    codes = (re.split(r"[_.@-]", name)[0].lower() for name in wanted)
    return next((code for code in codes if code in LANGUAGES), ENGLISH)


def translated(english: str, context: str = "") -> str:
    """The sentence in the current language, placeholders untouched; the English itself where it has no translation."""
    if current() == ENGLISH:
        return english
    catalogue = _catalogue(current())
    return catalogue.pgettext(context, english) if context else catalogue.gettext(english)


def shown(text: str) -> str:
    """A raised or recorded English text in the current language, its values as they stand in it. Sentences that no
    template knows stay English."""
    if current() == ENGLISH or not text:
        return text
    return _by_sentences(_templates(current()), text)


def _by_sentences(templates: "_Templates", text: str) -> str:
    """Split into runs of sentences so that templates know as much of the text as they can: a value may hold a whole
    sentence, and a message may be made of several templates."""
    breaks = list(_BETWEEN.finditer(text))
    if len(breaks) > _MOST_SENTENCES:
        breaks = []
    starts, ends = [0, *(b.end() for b in breaks)], [*(b.start() for b in breaks), len(text)]
    # Of the text up to each sentence: how many characters templates know, and how it is said.
    best: list[tuple[int, str]] = [(0, "")]
    for end in range(1, len(starts) + 1):
        ways = []
        for start in reversed(range(end)):
            known, before = best[start]
            run = text[starts[start] : ends[end - 1]]
            found = templates.said(run)
            if found is not None or start == end - 1:
                size, said = (0, run) if found is None else found
                ways.append((known + size, before + (breaks[start - 1][0] if start else "") + said))
        # Of ways that know as much, the one of the shortest runs: values then hold least.
        best.append(max(ways, key=lambda way: way[0]))
    return best[-1][1]


class _Catalogue(GNUTranslations):
    """A catalogue that can list its messages."""

    _catalog: dict[str | tuple[str, int], str]

    def without_context(self) -> dict[str, str]:
        """English → translation, of the messages that stand alone."""
        plain = ((key, value) for key, value in self._catalog.items() if isinstance(key, str))
        return {key: value for key, value in plain if key and "\x04" not in key}


@cache
def _catalogue(language: str) -> NullTranslations:
    """The language's compiled catalogue; an empty one where the package was not built."""
    place = files("kvscope") / "locale" / language / "LC_MESSAGES" / "kvscope.mo"
    if not place.is_file():
        return NullTranslations()
    with place.open("rb") as file:
        return _Catalogue(file)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Template:
    """``literals``: the fixed text before, between and after the values, one more than there are ``names``."""

    literals: tuple[str, ...]
    names: tuple[str, ...]
    translation: str

    def values(self, text: str) -> dict[str, str] | None:
        """What stands in the places of the values; None if the text was not made of this template. Each value ends
        where the next fixed text first appears: if any way of splitting fits, this one does."""
        first, last = self.literals[0], self.literals[-1]
        if not self.names:
            return {} if text == first else None
        if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
            return None
        at, end, found = len(first), len(text) - len(last), dict[str, str]()
        for name, literal in zip(self.names[:-1], self.literals[1:-1], strict=True):
            place = text.find(literal, at, end) if literal else at + 1
            if place < 0:
                return None
            found.setdefault(name, text[at:place])
            at = place + len(literal)
        found.setdefault(self.names[-1], text[at:end])
        return found

    @property
    def size(self) -> int:
        """Characters of fixed text: the template with the most says the most of a text."""
        return sum(map(len, self.literals))


def _parsed(message: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    literals, names = [""], list[str]()
    for literal, name, _, _ in Formatter().parse(message):
        literals[-1] += literal
        if name is not None:
            names.append(name)
            literals.append("")
    return tuple(literals), tuple(names)


class _Templates:
    """The catalogue's messages without context, to be found by a text made of one of them."""

    def __init__(self, messages: Mapping[str, str]) -> None:
        self._exact = messages
        self._by_head: dict[str, list[_Template]] = {}
        self._open: list[_Template] = []
        for english, translation in messages.items():
            literals, names = _parsed(english)
            template = _Template(literals=literals, names=names, translation=translation)
            if len(literals[0]) < _HEAD:
                self._open.append(template)
            else:
                self._by_head.setdefault(literals[0][:_HEAD], []).append(template)

    def said(self, text: str, depth: int = 0) -> tuple[int, str] | None:
        """The text by its template's translation, and how many of its characters templates know, those in its values
        too; None if no template knows it."""
        ways = []
        for template in (*self._by_head.get(text[:_HEAD], ()), *self._open):
            values = template.values(text)
            if values is not None:
                ways.append(self._filled(template, values, depth))
        return max(ways, key=lambda way: way[0], default=None)

    def _filled(self, template: _Template, values: Mapping[str, str], depth: int) -> tuple[int, str]:
        known, said = template.size, dict(values)
        for name, value in values.items():
            # A value may be a word of ours ("engine"), or a message of its own.
            found = self.said(value, depth + 1) if depth < _DEEPEST and " " in value else None
            if found is not None and found[0] >= _HEAD:
                known, said[name] = known + found[0], found[1]
            else:
                said[name] = self._exact.get(value, value)
        literals, names = _parsed(template.translation)
        filled = "".join(said.get(name, "") + rest for name, rest in zip(names, literals[1:], strict=True))
        return known, literals[0] + filled


@cache
def _templates(language: str) -> _Templates:
    catalogue = _catalogue(language)
    return _Templates(catalogue.without_context() if isinstance(catalogue, _Catalogue) else {})
