"""The record as tables: one row per attempt of a trial, failures like any other; or per request, token, sample or
answer. Written as JSON Lines or CSV, a row at a time."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import TextIO

from kvscope.record.metrics import TrialMetrics, metrics_of, request_metrics, tokens_by_request
from kvscope.record.rows import AnswerRow, DesignRow, Json, RequestRow, RunRow, SampleRow, TokenRow, TrialResult
from kvscope.record.strict_json import strict_json
from kvscope.record.table_columns import (
    ANSWER_COLUMNS,
    REQUEST_COLUMNS,
    SAMPLE_COLUMNS,
    TOKEN_COLUMNS,
    TRIAL_COLUMNS,
    AttemptFacts,
    Column,
    PartFacts,
)
from kvscope.record.turns import turns_of

# Programs that show tables take a cell that begins so for a formula, and do what it says. Numbers are no texts here.
_FORMULA = "=+-@\t\r＝＋－＠"
_ROW_END = "\r\n"
FORMATS = ("jsonl", "csv", "parquet", "duckdb")


def export_row(
    result: TrialResult,
    design: DesignRow,
    run: RunRow,
    prediction: Mapping[str, Json] | None,
    unexplained_bytes: int | None = None,
    *,
    metrics: TrialMetrics | None = None,
) -> dict[str, Json]:
    """The columns of one attempt, in a fixed order. Unknown values are None. ``metrics``: the attempt's, where they are
    at hand already.

    ``unexplained_bytes`` is a finding of the analysis, not of the record: ``analysis.table`` fills it in.
    ``kv_cache_bytes_engine`` has the precision of the engine's log (llama.cpp's: two decimals of a MiB), whose digits
    are ``kv_cache_mib_engine``; of an engine that reserves nothing, the bytes that it counted in its cache after the
    last request.
    """
    facts = AttemptFacts(
        result=result,
        design=design,
        run=run,
        prediction=prediction,
        metrics=metrics_of(result) if metrics is None else metrics,
        request=_request_of_row(result),
        unexplained_bytes=unexplained_bytes,
    )
    return _row(TRIAL_COLUMNS, facts)


def _request_of_row(result: TrialResult) -> RequestRow | None:
    """The trial's measured request; where it has several, the last one that was answered; where it never came to one,
    the request that ended the attempt."""
    measured = [request for request in result.requests if request.role == "measured"]
    failed = [request for request in result.requests if request.error_slug is not None]
    found = [request for request in measured if request.is_answered] or measured or failed
    return found[-1] if found else None


def _row(columns: Sequence[Column], facts: AttemptFacts | PartFacts) -> dict[str, Json]:
    return {column.name: column.value(facts) for column in columns}


def export_requests(result: TrialResult, design: DesignRow) -> list[dict[str, Json]]:
    """The columns of each request of an attempt, warm-ups included, in a fixed order. Unknown values are None.

    ``turn`` numbers the turns of a conversation from 1. ``outcome`` of the request that ended a failed attempt is the
    attempt's; those before it were ``ok``, or ``stopped_early``.
    """
    turns = turns_of(result)
    tokens = tokens_by_request(result)
    rows = []
    for request in result.requests:
        metrics = request_metrics(request, tokens.get(request.index, ()))
        part = PartFacts(result=result, design=design, part=request, metrics=metrics, turn=turns.get(request.index))
        rows.append(_row(REQUEST_COLUMNS, part))
    return rows


def export_tokens(result: TrialResult, design: DesignRow) -> Iterator[dict[str, Json]]:
    """The columns of each token of an attempt."""
    return _part_rows(TOKEN_COLUMNS, result, design, result.tokens)


def export_samples(result: TrialResult, design: DesignRow) -> Iterator[dict[str, Json]]:
    """The columns of each sample of an attempt."""
    return _part_rows(SAMPLE_COLUMNS, result, design, result.samples)


def export_answers(result: TrialResult, design: DesignRow) -> Iterator[dict[str, Json]]:
    """The columns of each item of a quality task that was put to the model in an attempt."""
    for row in _part_rows(ANSWER_COLUMNS, result, design, result.answers):
        yield {**row, "facts": dict(row["facts"])}


def _part_rows(
    columns: Sequence[Column], result: TrialResult, design: DesignRow, parts: Sequence[TokenRow | SampleRow | AnswerRow]
) -> Iterator[dict[str, Json]]:
    """Rows of many small parts. What they have of their attempt is the same in all: it is asked of the first."""
    if not parts:
        return
    first = _row(columns, PartFacts(result=result, design=design, part=parts[0]))
    own = [field.name for field in fields(parts[0]) if field.name in first]
    for part in parts:
        row = first.copy()
        for name in own:
            row[name] = getattr(part, name)
        yield row


def write_jsonl(rows: Iterable[Mapping[str, Json]], out: TextIO) -> int:
    """One JSON object a line; a number that is none, or is infinite, is null. Returns how many."""
    count = 0
    for row in rows:
        out.write(strict_json(row) + "\n")
        count += 1
    return count


def write_csv(rows: Iterable[Mapping[str, Json]], out: TextIO) -> int:
    """CSV with a header line; nothing where there is no row. Unknown is an empty field; lists and settings are JSON
    inside their field. Returns how many rows."""
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        return 0
    # With this end of a row the module quotes a text that holds either half of it: one alone would end the row.
    writer = csv.DictWriter(_EndsInNewline(out), fieldnames=list(first), lineterminator=_ROW_END)
    writer.writeheader()
    count = 0
    for row in chain([first], rows):
        writer.writerow({name: _cell(value) for name, value in row.items()})
        count += 1
    return count


class _EndsInNewline:
    """Takes each row as the csv module writes it, in one piece, and ends it as files end lines here."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, row: str) -> int:
        return self._out.write(f"{row.removesuffix(_ROW_END)}\n")


def _cell(value: Json) -> Json:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return strict_json(value)
    return f"'{value}" if isinstance(value, str) and value[:1] in _FORMULA and value else value
