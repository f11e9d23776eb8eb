"""Times of tokens, reads of the socket and samples of memory, packed: one row of the file for each request, or for each
run of samples, in place of one for each moment. Of 100,000 trials that is some 1 GB in place of 7.

Numbers are packed as they are: 8 bytes each, the lowest byte first; a float64 that goes in comes out, bit for bit.
"""

import json
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

from kvscope.record.columns import as_json
from kvscope.record.rows import ReadRow, SampleRow, TokenRow

Columns = Mapping[str, Any]
Numbers = TypeVar("Numbers", "array[int]", "array[float]")


def pack_floats(values: Iterable[float]) -> bytes:
    """As float64, 8 bytes each."""
    return _little_endian(array("d", values)).tobytes()


def pack_ints(values: Iterable[int]) -> bytes:
    """As int64, 8 bytes each. Raises OverflowError for one of more than 63 bits."""
    return _little_endian(array("q", values)).tobytes()


def unpack_floats(packed: bytes) -> Sequence[float]:
    """What ``pack_floats`` was given."""
    values: array[float] = array("d")
    values.frombytes(packed)
    return _little_endian(values)


def unpack_ints(packed: bytes) -> Sequence[int]:
    """What ``pack_ints`` was given."""
    values: array[int] = array("q")
    values.frombytes(packed)
    return _little_endian(values)


def _little_endian(values: Numbers) -> Numbers:
    if sys.byteorder == "big":
        values.byteswap()
    return values


def pack_tokens(tokens: Iterable[TokenRow]) -> Iterator[Columns]:
    """One row for each request. ``kinds`` is one value where all tokens have the same; ``indexes`` is left out where
    they count from 0."""
    for request_index, group in _by_request(tokens):
        kinds = [token.kind for token in group]
        indexes = [token.index for token in group]
        yield {
            "request_index": request_index,
            "at_s": pack_floats(token.at_s for token in group),
            "texts": as_json([token.text for token in group]),
            "kinds": as_json(kinds[0] if len(set(kinds)) == 1 else kinds),
            "indexes": None if indexes == list(range(len(group))) else as_json(indexes),
        }


def unpack_tokens(row: Columns) -> Iterator[TokenRow]:
    """The tokens of one request."""
    times = unpack_floats(row["at_s"])
    kinds = json.loads(row["kinds"])
    each_kind = kinds if isinstance(kinds, list) else [kinds] * len(times)
    indexes = range(len(times)) if row["indexes"] is None else json.loads(row["indexes"])
    for index, at_s, text, kind in zip(indexes, times, json.loads(row["texts"]), each_kind, strict=True):
        yield TokenRow(request_index=row["request_index"], index=index, at_s=at_s, text=text, kind=kind)


def pack_reads(reads: Iterable[ReadRow]) -> Iterator[Columns]:
    """One row for each request."""
    for request_index, group in _by_request(reads):
        yield {
            "request_index": request_index,
            "at_s": pack_floats(read.at_s for read in group),
            "num_bytes": as_json([read.num_bytes for read in group]),
            "num_events": as_json([read.num_events for read in group]),
        }


def unpack_reads(row: Columns) -> Iterator[ReadRow]:
    """The reads of one request."""
    sizes, events = json.loads(row["num_bytes"]), json.loads(row["num_events"])
    for at_s, num_bytes, num_events in zip(unpack_floats(row["at_s"]), sizes, events, strict=True):
        yield ReadRow(request_index=row["request_index"], at_s=at_s, num_bytes=num_bytes, num_events=num_events)


def _by_request(rows: Iterable[Any]) -> Iterator[tuple[int, list[Any]]]:
    """Rows by their request, in the order of requests; those of one request in the order in which they came."""
    of_request = attrgetter("request_index")
    for request_index, group in groupby(sorted(rows, key=of_request), key=of_request):
        yield request_index, list(group)


def pack_samples(samples: Iterable[SampleRow]) -> Iterator[Columns]:
    """One row for each run of moments at which the same quantities were read: their moments, how late each was, and
    the values, moment by moment in the order of ``quantities``."""
    moments = [list(group) for _, group in groupby(samples, key=lambda sample: (sample.at_s, sample.late_s))]
    for names, run in groupby(moments, key=lambda moment: [sample.quantity for sample in moment]):
        together = list(run)
        yield {
            "quantities": as_json(names),
            "at_s": pack_floats(moment[0].at_s for moment in together),
            "late_s": pack_floats(moment[0].late_s for moment in together),
            "value_bytes": pack_ints(sample.value_bytes for moment in together for sample in moment),
        }


def unpack_samples(row: Columns) -> Iterator[SampleRow]:
    """The samples of one run of moments."""
    names = json.loads(row["quantities"])
    times, values = unpack_floats(row["at_s"]), unpack_ints(row["value_bytes"])
    if len(values) != len(times) * len(names):
        raise ValueError(f"{len(values)} values of {len(names)} quantities at {len(times)} moments")
    each = iter(values)
    for at_s, late_s in zip(times, unpack_floats(row["late_s"]), strict=True):
        for name in names:
            yield SampleRow(quantity=name, at_s=at_s, value_bytes=next(each), late_s=late_s)
