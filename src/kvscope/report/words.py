"""Every sentence and title of the report, in one place, with named placeholders. Another language is another ``WORDS``.

A placeholder may name how its value is written: {x:mib}, {x:mib2}, {x:signed_mib}, {x:signed_mib2}, {x:bytes},
{x:count}, {x:rate}, {x:signed_rate}, {x:s}, {x:signed_s}, {x:percent}, {x:percent2}, {x:signed_percent}, {x:points}
and {x:signed_points} (of a share), {x:nats}, {x:list}, {x:span} (fewest and most of a count). A value that is None
reads "unknown".
"""

from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any

from kvscope.analysis.notes import Note
from kvscope.report.words_en import WORDS
from kvscope.units import (
    MIB,
    format_bytes,
    format_count,
    format_digits,
    format_mib,
    format_number,
    format_percent,
    format_seconds,
)

NO_BREAK = "\u00a0"


def _signed(value: float, text: str) -> str:
    return f"+{text}" if value > 0 else text


def _span(fewest: str, most: str) -> str:
    return fewest if fewest == most else f"{fewest} to {most}"


_WRITERS: Mapping[str, Callable[[Any], str]] = {
    "mib": format_mib,
    "mib2": lambda v: f"{format_number(v / MIB, 2)} MiB",
    "signed_mib": lambda v: format_mib(v, signed=True),
    "signed_mib2": lambda v: _signed(v, f"{format_number(v / MIB, 2)} MiB"),
    "bytes": format_bytes,
    "rate": lambda v: format_number(v, 1 if v < 100 else 0),
    "signed_rate": lambda v: _signed(v, format_number(v, 1 if abs(v) < 100 else 0)),
    "count": lambda v: format_count(round(v)),
    "span": lambda v: _span(*map(format_count, v)),
    "s": format_seconds,
    "signed_s": lambda v: _signed(v, format_seconds(v)),
    "percent": format_percent,
    "signed_percent": lambda v: _signed(v, format_percent(v)),
    "percent2": lambda v: format_percent(v, 2),
    "points": lambda v: f"{format_number(100 * v, 1)} points",
    "signed_points": lambda v: _signed(v, f"{format_number(100 * v, 1)} points"),
    "nats": format_digits,
    "list": lambda v: ", ".join(str(item) for item in v),
}


class _Words(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return WORDS["unknown"]
        if format_spec in _WRITERS:
            text = _WRITERS[format_spec](value)
            # A number and its unit stay on one line; lists may break.
            return text if format_spec == "list" else text.replace(" ", NO_BREAK)
        return str(value)


_FORMATTER = _Words()


def say(slug: str, /, **values: object) -> str:
    """The sentence or title ``slug``, filled with ``values``. KeyError for a slug or a value that does not exist."""
    return _FORMATTER.vformat(WORDS[slug], (), values)


def say_note(note: Note) -> str:
    """The sentence of a note of the analysis."""
    return say(f"note.{note.slug}", **{**note.values, **_named(note.values)})


def has_words(slug: str) -> bool:
    """Whether there is a sentence of that slug."""
    return slug in WORDS


def name_of(kind: str, slug: str) -> str:
    """The reader's name of a component, term, metric, factor …; the slug itself where there is none."""
    return WORDS.get(f"{kind}.{slug}", slug)


def _named(values: Mapping[str, object]) -> dict[str, object]:
    """Components in values by their readers' names."""
    named: dict[str, object] = {}
    others = values.get("others")
    if isinstance(others, tuple):
        named["others"] = tuple(name_of("component", str(slug)) for slug in others)
    if "component" in values:
        named["component"] = name_of("component", str(values["component"]))
    return named
