"""Every sentence and title of the report, in one place, with named placeholders, said in the current language.

The English is ``WORDS``; another language is looked up by slug and English in its catalogue (``kvscope.language``), and
writes numbers by its own rules.

A placeholder may name how its value is written: {x:mib}, {x:mib2}, {x:signed_mib}, {x:signed_mib2}, {x:bytes},
{x:count}, {x:rate}, {x:signed_rate}, {x:s}, {x:signed_s}, {x:percent}, {x:percent2}, {x:signed_percent}, {x:points}
and {x:signed_points} (of a share), {x:nats}, {x:list}, {x:span} (fewest and most of a count). A value that is None
reads "unknown" (알 수 없음).
"""

from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any

from kvscope.analysis.notes import Note
from kvscope.language import KOREAN, current, translated
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


def _span(fewest: str, most: str, between: str = " to ") -> str:
    return fewest if fewest == most else f"{fewest}{between}{most}"


def _korean_seconds(seconds: float) -> str:
    """``5.26초``, ``0.31초``, with the digits that English has; below a tenth of a second ``45.2 ms``."""
    if round(abs(seconds), 3) >= 0.1 and abs(seconds) < 1:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "초"
    text = format_seconds(seconds)
    return f"{text.removesuffix(' s')}초" if text.endswith(" s") else text


def _korean_points(share: float) -> str:
    return f"{format_number(100 * share, 1)}%p"


_Writers = Mapping[str, Callable[[Any], str]]
_ENGLISH: _Writers = {
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
# Counters and the percent sign stand close to the number in Korean; Latin symbols (MiB, ms) keep their space.
_KOREAN: _Writers = {
    **_ENGLISH,
    "span": lambda v: _span(format_count(v[0]), format_count(v[1]), between="–"),
    "s": _korean_seconds,
    "signed_s": lambda v: _signed(v, _korean_seconds(v)),
    "percent": lambda v: format_percent(v).replace(" ", ""),
    "signed_percent": lambda v: _signed(v, format_percent(v).replace(" ", "")),
    "percent2": lambda v: format_percent(v, 2).replace(" ", ""),
    "points": _korean_points,
    "signed_points": lambda v: _signed(v, _korean_points(v)),
}


class _Words(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return _sentence("unknown")
        writers = _KOREAN if current() == KOREAN else _ENGLISH
        if format_spec in writers:
            text = writers[format_spec](value)
            # A number and its unit stay on one line; lists may break.
            return text if format_spec == "list" else text.replace(" ", NO_BREAK)
        return str(value)


_FORMATTER = _Words()


def _sentence(slug: str) -> str:
    return translated(WORDS[slug], context=slug)


def say(slug: str, /, **values: object) -> str:
    """The sentence or title ``slug`` in the current language, filled with ``values``. KeyError for a slug or a value
    that does not exist."""
    return _FORMATTER.vformat(_sentence(slug), (), values)


def say_note(note: Note) -> str:
    """The sentence of a note of the analysis."""
    return say(f"note.{note.slug}", **{**note.values, **_named(note.values)})


def has_words(slug: str) -> bool:
    """Whether there is a sentence of that slug."""
    return slug in WORDS


def name_of(kind: str, slug: str) -> str:
    """The reader's name of a component, term, metric, factor …; the slug itself where there is none."""
    return _sentence(f"{kind}.{slug}") if f"{kind}.{slug}" in WORDS else slug


def _named(values: Mapping[str, object]) -> dict[str, object]:
    """Components in values by their readers' names."""
    named: dict[str, object] = {}
    others = values.get("others")
    if isinstance(others, tuple):
        named["others"] = tuple(name_of("component", str(slug)) for slug in others)
    if "component" in values:
        named["component"] = name_of("component", str(values["component"]))
    return named
