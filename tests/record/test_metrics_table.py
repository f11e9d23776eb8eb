"""The metrics that a record keeps are what its rows say, always: never a second truth."""

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rows_for_tests import design_row, full_result, mark_row, request_row, run_row, trial_row

from kvscope.record import metrics_table, reader
from kvscope.record.metrics import METRICS_VERSION
from kvscope.record.metrics_table import METRICS, scalar_metrics
from kvscope.record.rows import TrialResult
from kvscope.record.store import Records, create_records, open_records

GOLDEN = Path(__file__).parent.parent / "golden" / "records"


@pytest.fixture(params=["lab.db", "schema3.db"])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A real record, brought up to date."""
    path = tmp_path / "real.db"
    shutil.copy(GOLDEN / request.param, path)
    create_records(path).close()
    return path


def kept(path: Path) -> dict[int, dict[str, int | float | None]]:
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    rows = {row["attempt_id"]: dict(row) for row in connection.execute("SELECT * FROM metrics")}
    connection.close()
    return {key: {name: row[name] for name in METRICS} for key, row in rows.items()}


def derived(records: Records) -> Iterator[tuple[int, dict[str, int | float | None]]]:
    for key, trial in enumerate(records.trials(), start=1):
        if trial.outcome is not None:
            yield key, scalar_metrics(records.result(trial))


def test_kept_equals_derived_for_every_attempt(real: Path) -> None:
    with open_records(real) as records:
        assert records.has_metrics
        assert kept(real) == dict(derived(records))
        for trial in records.trials():
            assert records.metrics(trial) == scalar_metrics(records.result(trial))
    assert any(row["ttft_s"] is not None for row in kept(real).values())
    assert any(row["memory_peak_bytes"] is not None for row in kept(real).values())


def test_a_new_trial_brings_its_metrics_with_it(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    whole = full_result(trial_row(outcome="ok"))
    # Four pieces at 0.5, 0.6, 0.7 and 0.8 s; 120 B of anonymous memory after the request.
    with create_records(path) as recorder:
        recorder.add_run(run_row())
        recorder.add_design(design_row())
        recorder.start_trial(trial_row(), None)
        assert kept(path) == {}
        recorder.finish_trial(whole)
        failed = trial_row(trial_id="t2")
        recorder.start_trial(failed, None)
        recorder.finish_trial(TrialResult(trial=replace(failed, outcome="engine_died")))
    first, second = kept(path).values()
    assert (first["ttft_s"], first["memory_after_bytes"]) == (0.5, 120)
    assert first["tpot_s"] == pytest.approx(0.1)
    assert set(second.values()) == {None}


def test_of_an_attempt_that_goes_on_the_metrics_are_of_all_its_rows(tmp_path: Path) -> None:
    path, trial = tmp_path / "r.db", trial_row(outcome="ok")
    with create_records(path) as recorder:
        recorder.add_run(run_row())
        recorder.add_design(design_row())
        recorder.start_trial(trial_row(), None)
        for at_s, anon_bytes in ((0.0, 5), (1.0, 90), (2.0, 7)):
            recorder.finish_trial(TrialResult(trial=trial, marks=(mark_row("watched", anon_bytes, at_s=at_s),)))
        assert len(recorder.result(trial).marks) == 3
        assert recorder.metrics(trial) == scalar_metrics(recorder.result(trial))
    (found,) = kept(path).values()
    assert (found["memory_peak_bytes"], found["memory_after_bytes"]) == (90, 7)


def test_metrics_of_other_definitions_are_not_used_and_made_anew(real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_table, "METRICS_VERSION", METRICS_VERSION + 1)
    monkeypatch.setattr(metrics_table, "scalar_metrics", lambda result: dict.fromkeys(METRICS, 7))
    monkeypatch.setattr(reader, "scalar_metrics", lambda result: dict.fromkeys(METRICS, 7))
    before = kept(real)
    with open_records(real) as records:
        assert not records.has_metrics
        assert {tuple(records.metrics(trial).values()) for trial in records.trials()} == {(7,) * len(METRICS)}
    assert kept(real) == before
    create_records(real).close()
    assert kept(real) == {key: dict.fromkeys(METRICS, 7) for key in before}
    with open_records(real) as records:
        assert records.has_metrics


def test_a_release_with_more_metrics_adds_their_columns(real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "new_s", float)  # type: ignore[index]  # a mapping that is a dict
    monkeypatch.setattr(metrics_table, "scalar_metrics", lambda result: dict.fromkeys(METRICS, 1))
    with open_records(real) as records:
        assert not records.has_metrics
    create_records(real).close()
    assert {row["new_s"] for row in kept(real).values()} == {1.0}


def test_a_definition_that_changes_what_comes_out_has_a_version_of_its_own() -> None:
    """The digests are of every metric over the real records. Where one differs, a definition has changed: if that is
    meant, raise METRICS_VERSION and write the new digests, by `python tests/record/test_metrics_table.py`."""
    told = json.loads((GOLDEN / "metrics.json").read_text())
    assert told == {"version": METRICS_VERSION, "digests": digests()}


def digests() -> dict[str, str]:
    values: dict[str, list[int | float | None]] = {name: [] for name in METRICS}
    for file in ("lab.db", "schema3.db"):
        with open_records(GOLDEN / file) as records:
            for _, metrics in derived(records):
                for name, value in metrics.items():
                    values[name].append(value)
    return {name: hashlib.sha256(repr(each).encode()).hexdigest()[:16] for name, each in values.items()}


def test_a_metric_beyond_what_a_real_record_has(tmp_path: Path) -> None:
    result = replace(
        full_result(trial_row(outcome="ok")),
        marks=(mark_row("loaded", 1, device_bytes=2**40), mark_row("after_request", 2, device_bytes=2**41)),
        requests=(request_row(completed_s=1e-300),),
    )
    with create_records(tmp_path / "r.db") as recorder:
        recorder.add_run(run_row())
        recorder.add_design(design_row())
        recorder.start_trial(trial_row(), None)
        recorder.finish_trial(result)
        metrics = recorder.metrics(result.trial)
    assert (metrics["memory_peak_bytes_device"], metrics["completion_s"]) == (2**41, 1e-300)


if __name__ == "__main__":
    text = json.dumps({"version": METRICS_VERSION, "digests": digests()}, indent=1) + "\n"
    (GOLDEN / "metrics.json").write_text(text)
