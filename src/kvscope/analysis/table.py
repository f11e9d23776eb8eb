"""The record as one table, with the column that only the analysis can fill: what stayed unexplained."""

from collections.abc import Mapping

from kvscope.analysis.attribute import unexplained_bytes
from kvscope.record.export import export_requests, export_row
from kvscope.record.rows import DesignRow, Json, RunRow, TrialResult
from kvscope.record.store import Records


def table_rows(records: Records) -> list[dict[str, Json]]:
    """One dict per attempt of a trial, failures like any other, with the columns of the contract in a fixed order.
    Unknown values are None."""
    runs = {run.run_id: run for run in records.runs()}
    designs = {design.design_id: design for design in records.designs()}
    return [
        table_row(
            records.result(trial),
            designs[trial.design_id],
            runs[trial.run_id],
            records.prediction(trial),
        )
        for trial in records.trials()
    ]


def request_rows(records: Records) -> list[dict[str, Json]]:
    """One dict per request of every attempt, warm-ups and failures included."""
    designs = {design.design_id: design for design in records.designs()}
    return [
        row for trial in records.trials() for row in export_requests(records.result(trial), designs[trial.design_id])
    ]


def table_row(
    result: TrialResult, design: DesignRow, run: RunRow, prediction: Mapping[str, Json] | None
) -> dict[str, Json]:
    """The columns of one attempt."""
    return {
        **export_row(result, design, run, prediction),
        "unexplained_bytes": unexplained_bytes(result, prediction),
    }
