"""Questions about many attempts: right, and answered by indexes, so that a large record answers as a small one."""

import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rows_for_tests import design_row, full_result, run_row, trial_row

from kvscope.errors import UnknownName
from kvscope.record import queries
from kvscope.record.queries import (
    FailureCount,
    LastAttempt,
    LevelValues,
    OutcomeCount,
    failure_counts,
    last_attempts,
    level_values,
    level_values_sql,
    outcome_counts,
)
from kvscope.record.rows import TokenRow, TrialResult, TrialRow
from kvscope.record.store import Recorder, create_records, open_records

OLD = Path(__file__).parent.parent / "golden" / "records"


def add(recorder: Recorder, outcome: str | None, first_token_s: float = 0.0, **changes: object) -> None:
    trial: TrialRow = trial_row(**changes)
    recorder.start_trial(trial, None)
    ended = replace(trial, outcome=outcome, error_slug=None if outcome in ("ok", None) else "some-error")
    tokens = (TokenRow(request_index=0, index=0, at_s=first_token_s, text="a", kind="content"),)
    if outcome == "ok":
        recorder.finish_trial(replace(full_result(ended), tokens=tokens))
    elif outcome is not None:
        recorder.finish_trial(TrialResult(trial=ended))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two designs; the first with three trials at 128, of which one was tried twice, and a failure at 512."""
    path = tmp_path / "r.db"
    long = {"level": 512, "levels": {"prompt_tokens": 512}}
    with create_records(path) as recorder:
        recorder.add_run(run_row())
        for name in ("d1", "d2"):
            recorder.add_design(design_row(design_id=name))
        add(recorder, "ok", 9.0, trial_id="w", role="warmup")
        add(recorder, "ok", 1.0, trial_id="a")
        add(recorder, "engine_died", trial_id="b")
        add(recorder, "ok", 2.0, trial_id="b", attempt=2)
        add(recorder, "ok", 6.0, trial_id="c")
        add(recorder, "out_of_memory", trial_id="d", **long)
        add(recorder, "ok", 5.0, trial_id="a", design_id="d2")
        add(recorder, None, trial_id="b", design_id="d2")
    return path


def test_how_attempts_of_each_design_ended(path: Path) -> None:
    with open_records(path) as records:
        assert outcome_counts(records) == (
            OutcomeCount(design_id="d1", role="measured", outcome="engine_died", attempts=1),
            OutcomeCount(design_id="d1", role="measured", outcome="ok", attempts=3),
            OutcomeCount(design_id="d1", role="measured", outcome="out_of_memory", attempts=1),
            OutcomeCount(design_id="d1", role="warmup", outcome="ok", attempts=1),
            OutcomeCount(design_id="d2", role="measured", outcome=None, attempts=1),
            OutcomeCount(design_id="d2", role="measured", outcome="ok", attempts=1),
        )


def test_failures_by_error_and_level(path: Path) -> None:
    with open_records(path) as records:
        short, long = '{"prompt_tokens": 128}', '{"prompt_tokens": 512}'
        of = {"design_id": "d1", "error_slug": "some-error", "attempts": 1}
        assert failure_counts(records) == (
            FailureCount(outcome="engine_died", levels=short, **of),
            FailureCount(outcome="out_of_memory", levels=long, **of),
        )


def test_which_trials_are_done(path: Path) -> None:
    with open_records(path) as records:
        found = last_attempts(records, "d1")
        assert set(found) == {"w", "a", "b", "c", "d"}
        assert found["b"] == LastAttempt(trial_id="b", attempt=2, outcome="ok")
        assert last_attempts(records, "d2")["b"].outcome is None


def test_values_at_each_level_are_of_the_last_measured_attempts(path: Path) -> None:
    short = '{"prompt_tokens": 128}'
    first = LevelValues(design_id="d1", levels=short, trials=3, mean=3.0, median=2.0)
    second = LevelValues(design_id="d2", levels=short, trials=1, mean=5.0, median=5.0)
    with open_records(path) as records:
        assert level_values(records, "ttft_s", "d1") == (first,)
        assert level_values(records, "ttft_s") == (first, second)
        with pytest.raises(UnknownName, match="'ttft'"):
            level_values(records, "ttft")
        records._has_metrics = False  # as in a record that keeps none
        assert level_values(records, "ttft_s") == (first, second)
        assert level_values(records, "ttft_s", "d1") == (first,)


@pytest.mark.parametrize("name", ["lab.db", "schema3.db"])
def test_an_older_record_answers_the_same(name: str) -> None:
    with open_records(OLD / name) as records:
        trials = records.trials()
        told = {(c.design_id, c.role, c.outcome): c.attempts for c in outcome_counts(records)}
        assert told == Counter((trial.design_id, trial.role, trial.outcome) for trial in trials)
        of_design: dict[tuple[str, str], list[float]] = {}
        for trial in trials:
            value = records.metrics(trial)["ttft_s"]
            if trial.role == "measured" and trial.outcome in ("ok", "stopped_early") and value is not None:
                of_design.setdefault((trial.design_id, str(trial.level)), []).append(value)
        assert sorted(level.median for level in level_values(records, "ttft_s")) == sorted(
            statistics.median(values) for values in of_design.values()
        )


@pytest.mark.parametrize(
    ("query", "values"),
    [
        (queries.OUTCOMES_SQL, ()),
        (queries.FAILURES_SQL, ()),
        (queries.LAST_ATTEMPTS_SQL, ("d1",)),
        (level_values_sql("ttft_s", is_one_design=True), ("d1",)),
        (level_values_sql("ttft_s", is_one_design=False), ()),
        ("SELECT * FROM trials WHERE outcome IS NULL", ()),
        ("SELECT rowid AS place, * FROM trials WHERE rowid > ? AND design_id = ? ORDER BY rowid LIMIT 500", (0, "d1")),
    ],
)
def test_no_question_reads_the_trials_one_by_one(path: Path, query: str, values: tuple[object, ...]) -> None:
    with open_records(path) as records:
        plan = [row["detail"] for row in records.select(f"EXPLAIN QUERY PLAN {query}", values)]
    # A scan of an index that holds all that is asked reads some tens of bytes of each trial, not its row.
    slow = [step for step in plan if step.startswith("SCAN") and "COVERING INDEX" not in step]
    assert [step for step in slow if "trials_open" not in step] == []


@pytest.mark.parametrize("table", ["requests", "tokens", "reads", "marks", "maps", "samples", "reported_buffers"])
def test_rows_of_an_attempt_are_found_by_its_number(path: Path, table: str) -> None:
    with open_records(path) as records:
        (step, *_) = records.select(f"EXPLAIN QUERY PLAN SELECT * FROM {table} WHERE attempt_id = 1")
    assert step["detail"].startswith(f"SEARCH {table} USING INDEX")
