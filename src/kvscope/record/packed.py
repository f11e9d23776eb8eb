"""Times of tokens, reads of the socket, samples of memory and scored positions, packed: one row of the file for each
request, run of samples or answer, in place of one for each moment. Of 100,000 trials that is some 1 GB in place of 7.

Numbers are packed as they are: 8 bytes each (of token ids 4), the lowest byte first; a float64 that goes in comes out,
bit for bit.
"""

import json
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

from kvscope.record.columns import as_json, rows_of_columns
from kvscope.record.rows import ReadRow, SampleRow, ScoredTokenRow, TokenRow

Columns = Mapping[str, Any]
Numbers = TypeVar("Numbers", "array[int]", "array[float]")


def pack_floats(values: Iterable[float]) -> bytes:
    """As float64, 8 bytes each."""
    return _little_endian(array("d", values)).tobytes()


def pack_ints(values: Iterable[int]) -> bytes:
    """As int64, 8 bytes each. Raises OverflowError for one of more than 63 bits."""
    return _little_endian(array("q", values)).tobytes()


def pack_ids(values: Iterable[int]) -> bytes:
    """As int32, 4 bytes each. Raises OverflowError for one of more than 31 bits."""
    return _little_endian(array("i", values)).tobytes()


def unpack_ids(packed: bytes) -> Sequence[int]:
    """What ``pack_ids`` was given."""
    values: array[int] = array("i")
    values.frombytes(packed)
    return _little_endian(values)


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


def unpack_tokens(row: Columns) -> Sequence[TokenRow]:
    """The tokens of one request."""
    times = unpack_floats(row["at_s"])
    kinds = json.loads(row["kinds"])
    return rows_of_columns(
        TokenRow,
        {
            "request_index": [row["request_index"]] * len(times),
            "index": range(len(times)) if row["indexes"] is None else json.loads(row["indexes"]),
            "at_s": times,
            "text": json.loads(row["texts"]),
            "kind": kinds if isinstance(kinds, list) else [kinds] * len(times),
        },
    )


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


def pack_scored(tokens: Iterable[ScoredTokenRow]) -> Iterator[Columns]:
    """One row for each answer and pattern, its positions in the order in which they came."""
    of_answer = attrgetter("answer_index", "pattern")
    for (answer_index, pattern), group in groupby(sorted(tokens, key=of_answer), key=of_answer):
        rows = list(group)
        counts = [len(row.top_tokens) for row in rows]
        yield {
            "answer_index": answer_index,
            "pattern": pattern,
            "positions": as_json([row.position for row in rows]),
            "tokens": pack_ids(row.token for row in rows),
            "logprobs": pack_floats(row.logprob for row in rows),
            "top_counts": as_json(counts[0] if len(set(counts)) == 1 else counts),
            "top_tokens": pack_ids(token for row in rows for token in row.top_tokens),
            "top_logprobs": pack_floats(value for row in rows for value in row.top_logprobs),
        }


def unpack_scored(row: Columns) -> Iterator[ScoredTokenRow]:
    """The scored positions of one answer."""
    positions, tokens = json.loads(row["positions"]), unpack_ids(row["tokens"])
    counts = json.loads(row["top_counts"])
    each_count = counts if isinstance(counts, list) else [counts] * len(tokens)
    top_tokens, top_logprobs = unpack_ids(row["top_tokens"]), unpack_floats(row["top_logprobs"])
    if not sum(each_count) == len(top_tokens) == len(top_logprobs):
        raise ValueError(f"{len(top_tokens)} likeliest tokens and {len(top_logprobs)} values of {sum(each_count)}")
    first = 0
    for position, token, logprob, count in zip(
        positions, tokens, unpack_floats(row["logprobs"]), each_count, strict=True
    ):
        yield ScoredTokenRow(
            answer_index=row["answer_index"],
            position=position,
            token=token,
            logprob=logprob,
            pattern=row["pattern"],
            top_tokens=tuple(top_tokens[first : first + count]),
            top_logprobs=tuple(top_logprobs[first : first + count]),
        )
        first += count
