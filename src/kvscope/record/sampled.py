"""Samples of an attempt that stay packed until they are asked for: a record of 5,000 trials holds millions of them, and
most questions are about moments, not about each reading."""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, overload

from kvscope.record.packed import unpack_floats, unpack_ints
from kvscope.record.rows import SampleRow


@dataclass(frozen=True, slots=True)
class _Run:
    """Moments at which the same quantities were read; ``values``: moment by moment, in the order of ``names``."""

    names: tuple[str, ...]
    at_s: Sequence[float]
    late_s: Sequence[float]
    values: Sequence[int]


class SampledRows(Sequence[SampleRow]):
    """The rows of an attempt's samples. Equal to a tuple of the same rows."""

    __slots__ = ("_length", "_runs")

    def __init__(self, packed_rows: Iterable[Mapping[str, Any]]) -> None:
        """``packed_rows``: as ``pack_samples`` made them. Raises ValueError where the parts of one do not fit."""
        self._runs = tuple(_run(row) for row in packed_rows)
        self._length = sum(len(run.values) for run in self._runs)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> SampleRow: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SampleRow]: ...
    def __getitem__(self, index: int | slice) -> SampleRow | Sequence[SampleRow]:
        return tuple(self)[index]

    def __iter__(self) -> Iterator[SampleRow]:
        for run in self._runs:
            each = iter(run.values)
            for at_s, late_s in zip(run.at_s, run.late_s, strict=True):
                for name in run.names:
                    yield SampleRow(quantity=name, at_s=at_s, value_bytes=next(each), late_s=late_s)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SampledRows | tuple):
            return len(self) == len(other) and tuple(self) == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def moments(self) -> Iterator[tuple[float, float, Mapping[str, int]]]:
        """Each moment of reading: when, how late, and quantity → bytes."""
        for run in self._runs:
            width = len(run.names)
            columns = [run.values[place::width] for place in range(width)]
            for at_s, late_s, *values in zip(run.at_s, run.late_s, *columns, strict=True):
                yield at_s, late_s, dict(zip(run.names, values, strict=True))

    def late_by_moment(self) -> dict[float, float]:
        """Moment → how late it was read."""
        return {at_s: late_s for run in self._runs for at_s, late_s in zip(run.at_s, run.late_s, strict=True)}

    def columns_between(self, start_s: float, end_s: float) -> Mapping[str, Sequence[int]] | None:
        """As ``columns_between``, without taking the moments apart; None where they have to be: at some other
        quantities were read than at others."""
        if len(self._runs) != 1:
            return None
        (run,) = self._runs
        if any(earlier >= later for earlier, later in pairwise(run.at_s)):
            return None
        first, last = bisect_left(run.at_s, start_s), bisect_right(run.at_s, end_s)
        width = len(run.names)
        inside = run.values[first * width : last * width]
        return {name: inside[place::width] for place, name in enumerate(run.names)}


def columns_between(samples: Sequence[SampleRow], start_s: float, end_s: float) -> Mapping[str, Sequence[int]]:
    """Quantity → its readings from ``start_s`` to ``end_s``, moment by moment; 0 at a moment that has none of it."""
    found = samples.columns_between(start_s, end_s) if isinstance(samples, SampledRows) else None
    if found is not None:
        return found
    readings: dict[float, dict[str, int]] = {}
    for at_s, _, values in moments_of(samples):
        if start_s <= at_s <= end_s:
            readings.setdefault(at_s, {}).update(values)
    names = dict.fromkeys(name for values in readings.values() for name in values)
    return {name: [values.get(name, 0) for values in readings.values()] for name in names}


def late_by_moment(samples: Sequence[SampleRow]) -> dict[float, float]:
    """Moment of reading → how late it was. Quantities of one reading share its moment."""
    if isinstance(samples, SampledRows):
        return samples.late_by_moment()
    return {sample.at_s: sample.late_s for sample in samples}


def moments_of(samples: Sequence[SampleRow]) -> Iterator[tuple[float, float, Mapping[str, int]]]:
    """Each moment of reading in samples of either form: when, how late, and quantity → bytes. One moment may come more
    than once, with other quantities."""
    if isinstance(samples, SampledRows):
        yield from samples.moments()
        return
    for sample in samples:
        yield sample.at_s, sample.late_s, {sample.quantity: sample.value_bytes}


def _run(row: Mapping[str, Any]) -> _Run:
    names = tuple(json.loads(row["quantities"]))
    at_s, late_s = unpack_floats(row["at_s"]), unpack_floats(row["late_s"])
    values = unpack_ints(row["value_bytes"])
    if len(values) != len(at_s) * len(names) or len(late_s) != len(at_s):
        raise ValueError(f"{len(values)} values of {len(names)} quantities at {len(at_s)} moments")
    return _Run(names, at_s, late_s, values)
