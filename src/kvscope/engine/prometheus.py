"""Servers' metrics in Prometheus' text format, read tolerantly and in bounded memory.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/ (version 0.0.4). Of OpenMetrics, which some
servers answer with, exemplars and ``# EOF`` are passed over.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

# What is behind this is not read. A server with many models and histograms says some hundred thousand characters.
MOST_CHARACTERS = 16 * 1024 * 1024

_TYPE = re.compile(
    r"#\s*TYPE\s+(\S+)\s+(counter|gauge|histogram|summary|untyped|unknown|info|stateset|gaugehistogram)$"
)
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
# Possessive (++, *+): nothing is tried twice, however long the line.
_LABEL = re.compile(r'\s*+([a-zA-Z_][a-zA-Z0-9_]*+)\s*+=\s*+"((?:[^"\\]|\\.)*+)"\s*+(?:,|(?=\}))')
# A value, and then nothing that is kept: a time in milliseconds, an exemplar.
_VALUE = re.compile(
    r"\s*+([+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:e[+-]?[0-9]++)?|[+-]?inf(?:inity)?|[+-]?nan)"
    r"(?:\s++[+-]?[0-9.]++(?:e[+-]?[0-9]++)?)?\s*+(?:#.*)?$",
    re.IGNORECASE,
)
_OPENING, _CLOSING = re.compile(r"\s*+\{"), re.compile(r"\s*+\}")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One line: a histogram is several, named ..._bucket, ..._sum and ..._count. ``value`` may be NaN or infinite."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What one reply stated. ``types``: metric → counter, gauge, histogram ..., where it says. ``skipped_lines``: lines
    that are none of the format, and repeats of a line before. ``is_cut``: it was longer than is read."""

    samples: tuple[Sample, ...]
    types: Mapping[str, str]
    skipped_lines: int
    is_cut: bool
    _by_name: Mapping[str, tuple[Sample, ...]] = field(repr=False)

    def named(self, name: str) -> tuple[Sample, ...]:
        """The samples of that name, one for each combination of labels."""
        return self._by_name.get(name, ())

    def names(self) -> frozenset[str]:
        """Every name there is."""
        return frozenset(self._by_name)

    def finite(self, name: str) -> tuple[Sample, ...]:
        """Those of that name whose value is a number: NaN and infinity say that there is none yet."""
        return tuple(sample for sample in self.named(name) if math.isfinite(sample.value))


def parse_metrics(text: str) -> Metrics:
    """Read metrics. Never raises: a line that cannot be read is skipped and counted."""
    is_cut = len(text) > MOST_CHARACTERS
    if is_cut:  # a line cut in two would be another number
        text = text[: text.rfind("\n", 0, MOST_CHARACTERS) + 1]
    types: dict[str, str] = {}
    found: dict[str, dict[frozenset[tuple[str, str]], Sample]] = {}
    skipped = 0
    for line in _lines(text):
        if line.startswith("#"):
            stated = _TYPE.match(line)
            if stated is not None:
                types[stated[1]] = stated[2]
            continue
        sample = _sample(line)
        of_name = found.setdefault(sample.name, {}) if sample is not None else {}
        key = frozenset(sample.labels.items()) if sample is not None else frozenset()
        if sample is None or key in of_name:
            skipped += 1
            continue
        of_name[key] = sample
    by_name = {name: tuple(samples.values()) for name, samples in found.items()}
    every = tuple(sample for samples in by_name.values() for sample in samples)
    return Metrics(samples=every, types=types, skipped_lines=skipped, is_cut=is_cut, _by_name=by_name)


def _lines(text: str) -> Iterator[str]:
    # Lines end in a line feed alone: str.splitlines would also cut within a label's value.
    return (stripped for line in text.split("\n") if (stripped := line.strip()))


def _sample(line: str) -> Sample | None:
    name = _NAME.match(line)
    if name is None:
        return None
    labels: dict[str, str] = {}
    at: int | None = name.end()
    opening = _OPENING.match(line, name.end())
    if opening is not None:
        at = _read_labels(line, opening.end(), labels)
    elif line[name.end() : name.end() + 1] not in (" ", "\t"):
        return None
    value = None if at is None else _VALUE.match(line, at)
    return None if value is None else Sample(name=name[0], labels=labels, value=float(value[1]))


def _read_labels(line: str, at: int, labels: dict[str, str]) -> int | None:
    """Fill ``labels`` from behind the opening brace; where the value begins, or None."""
    while (found := _LABEL.match(line, at)) is not None:
        labels[found[1]] = _ESCAPE.sub(lambda each: _ESCAPED.get(each[1], each[0]), found[2])
        at = found.end()
    closing = _CLOSING.match(line, at)
    return None if closing is None else closing.end()
