"""Samples of an attempt that stay packed until they are asked for: a record of 5,000 trials holds millions of them, and
most questions are about moments, not about each reading."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
