"""Which of the defined words a page uses: a page of a prediction alone defines no others."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from kvscope.language import LANGUAGES, speaking
from kvscope.report.definitions import TERMS, anchor, anchors_of, names_of


def used_words(make: Callable[[], Sequence[Any]]) -> frozenset[str]:
    """Slugs of the terms whose names stand in the blocks that ``make`` gives, in any language: so a page defines the
    same words in each."""
    found: set[str] = set()
    for language in LANGUAGES:
        with speaking(language):
            texts = set(_texts(make()))
            whole = "\n".join(texts)
            led_to = set(anchors_of("").items())
            exact = {where for name, where in led_to if name in texts}
            for term in TERMS:
                is_column = (
                    term.names[0].partition(".")[0].endswith("col")
                )  # "change" or "all" in a sentence is no column
                is_said = not is_column and any(_stands_in(name, whole) for name in names_of(term))
                if is_said or anchor(term, "") in exact:
                    found.add(term.slug)
    return frozenset(found)


def _stands_in(name: str, text: str) -> bool:
    """As a word of its own. In Korean a particle may follow it."""
    if not name.isascii():
        return name in text
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _texts(each)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            if field.name not in ("spec", "slug", "anchor", "kind", "links"):
                yield from _texts(getattr(value, field.name))
