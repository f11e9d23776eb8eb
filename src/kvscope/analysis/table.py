"""The record as tables, with the column that only the analysis can fill: what stayed unexplained. Rows are made one at
a time, so that a record of any size can be written."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from kvscope.analysis.attempts import of_trial
from kvscope.analysis.attribute import unexplained_bytes
from kvscope.record.export import export_answers, export_requests, export_row, export_samples, export_tokens
from kvscope.record.rows import DesignRow, Json, RunRow, TrialResult
from kvscope.record.store import Records

Rows = Iterator[dict[str, Json]]


def table_rows(records: Records, design_id: str | None = None) -> Rows:
    """One dict per attempt of a trial, failures like any other, with the columns of the contract in a fixed order; of
    one design, or of all. Unknown values are None. Raises SchemaMismatch where the record is damaged."""
    with records.one_state():
        runs = {run.run_id: run for run in records.runs()}
        designs = {design.design_id: design for design in records.designs()}
        for trial in records.each_trial(design_id):
            design = of_trial(records, trial, "design", trial.design_id, designs)
            run = of_trial(records, trial, "sitting", trial.run_id, runs)
            yield table_row(records.result(trial), design, run, records.prediction(trial))


def request_rows(records: Records) -> Rows:
    """One dict per request of every attempt, warm-ups and failures included."""
    return _part_rows(records, export_requests, {"requests", "tokens"})


def token_rows(records: Records) -> Rows:
    """One dict per piece of every answer, with its time of arrival."""
    return _part_rows(records, export_tokens, {"tokens"})


def sample_rows(records: Records) -> Rows:
    """One dict per reading of memory between the marked moments."""
    return _part_rows(records, export_samples, {"samples"})


def answer_rows(records: Records) -> Rows:
    """One dict per item of a quality task that was put to the model."""
    return _part_rows(records, export_answers, {"answers"})


def _part_rows(
    records: Records, export: Callable[[TrialResult, DesignRow], Iterable[dict[str, Json]]], parts: Collection[str]
) -> Rows:
    with records.one_state():
        designs = {design.design_id: design for design in records.designs()}
        for trial in records.each_trial():
            design = of_trial(records, trial, "design", trial.design_id, designs)
            yield from export(records.result(trial, parts), design)


def table_row(
    result: TrialResult, design: DesignRow, run: RunRow, prediction: Mapping[str, Json] | None
) -> dict[str, Json]:
    """The columns of one attempt."""
    return export_row(result, design, run, prediction, unexplained_bytes(result, prediction))
