"""Answers and scored positions: what goes in comes out, also through merge and rescue; what an attempt's answers come
to; and a record of schema 4, which has none, read and brought up to date."""

import json
import math
import shutil
import sqlite3
import struct
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rows_for_tests import answer_row, design_row, full_result, run_row, trial_row

from kvscope.record import migrations
from kvscope.record.merge import merge
from kvscope.record.quality_metrics import quality_metrics, wilson
from kvscope.record.rows import ScoredTokenRow, TrialResult
from kvscope.record.schema import SCHEMA_VERSION
from kvscope.record.store import Records, create_records, open_records

GOLDEN = Path(__file__).parent.parent / "golden" / "records" / "schema4.db"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A real record that the release before answers wrote."""
    path = tmp_path / "old.db"
    shutil.copy(GOLDEN, path)
    return path


def everything(records: Records) -> list[object]:
    trials = records.trials()
    return [records.runs(), records.designs(), *((records.result(t), records.prediction_row(t)) for t in trials)]


def tables(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table, with SQL alone; the metrics are made anew."""
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: connection.execute(f"SELECT * FROM {name}").fetchall()
            for name in names
            if name not in ("about", "metrics")
        }


def test_a_record_of_schema_4_is_read_as_it_is(old: Path) -> None:
    before = old.read_bytes()
    with open_records(old) as records:
        assert records.version == 4
        results = [records.result(trial) for trial in records.trials()]
        assert all(records.metrics(result.trial)["quality_score"] is None for result in results)
    assert len(results) == 8
    assert {(result.answers, result.scored_tokens) for result in results} == {((), ())}
    assert any(result.tokens for result in results)
    assert old.read_bytes() == before


def test_recording_adds_two_tables_and_changes_no_row(old: Path, tmp_path: Path) -> None:
    with open_records(old) as records:
        said, rows = everything(records), tables(old)
    create_records(old).close()
    with open_records(old) as records:
        assert records.version == SCHEMA_VERSION
        assert records.has_metrics
        assert everything(records) == said
    assert tables(old) == {**rows, "answers": [], "scored_tokens": []}
    create_records(tmp_path / "new.db").close()
    assert shape(old) == shape(tmp_path / "new.db")


def shape(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f"PRAGMA table_info({name})").fetchall() for name in names}


def test_what_goes_wrong_on_the_way_leaves_schema_4(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tables(old)
    monkeypatch.setattr(migrations, "ANSWERS_SCHEMA", "CREATE TABLE answers (x INT); CREATE TABLE trials (y);")
    with pytest.raises(Exception, match="trials already exists"):
        create_records(old)
    assert tables(old) == before
    with open_records(old) as records:
        assert records.version == 4


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    result = full_result(trial_row(outcome="ok"))
    many = tuple(
        ScoredTokenRow(
            answer_index=answer,
            position=position,
            token=position * 7,
            logprob=-1 / (position + 1),
            pattern=pattern,
            top_tokens=tuple(range(position, position + 3)),
            top_logprobs=(-0.1, -math.pi, -5e-324),
        )
        for answer, pattern in ((0, "a"), (1, "a"), (1, "b"))
        for position in range(5)
    )
    result = replace(result, scored_tokens=(*result.scored_tokens, *many))
    path = tmp_path / "r.db"
    with create_records(path) as recorder:
        recorder.add_run(run_row())
        recorder.add_design(design_row())
        recorder.start_trial(trial_row(), None)
        recorder.finish_trial(result)
    with open_records(path) as records:
        back = records.result(trial_row())
        assert back.answers == result.answers
        assert set(back.scored_tokens) == set(result.scored_tokens)
        assert records.result(trial_row(), {"requests"}).answers == ()
    with create_records(tmp_path / "all.db") as out, open_records(path) as source:
        merge(out, [source])
        assert out.result(trial_row()) == back
        assert merge(out, [source])[0].known == 1  # once more adds nothing


def test_packed_positions_are_what_the_page_says(tmp_path: Path) -> None:
    """Read with struct and json alone, by docs/reference/record-file.md."""
    path = tmp_path / "r.db"
    result = full_result(trial_row(outcome="ok"))
    with create_records(path) as recorder:
        recorder.add_run(run_row())
        recorder.add_design(design_row())
        recorder.start_trial(trial_row(), None)
        recorder.finish_trial(result)
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        (row,) = connection.execute("SELECT * FROM scored_tokens").fetchall()
    assert json.loads(row["positions"]) == [3, 2]
    assert struct.unpack("<2i", row["tokens"]) == (49151, 8)
    assert struct.unpack("<2d", row["logprobs"]) == (-0.1, -0.5)
    assert json.loads(row["top_counts"]) == [2, 0]
    assert struct.unpack("<2i", row["top_tokens"]) == (49151, 7)
    assert struct.unpack("<2d", row["top_logprobs"]) == (-0.1, -1 / 3)


def metrics(*answers: dict[str, object]) -> dict[str, object]:
    found = quality_metrics([answer_row(index=place, **each) for place, each in enumerate(answers)])
    return {name.removeprefix("quality_"): value for name, value in found.items()}


def test_without_answers_nothing_is_said() -> None:
    assert set(quality_metrics(()).values()) == {None}


def test_what_cannot_be_read_is_never_a_wrong_answer() -> None:
    found = metrics(
        {"reading": "right", "score": 1.0},
        {"reading": "wrong", "score": 0.0},
        {"reading": "wrong", "score": 0.5},
        {"reading": "truncated_input", "score": None},
        {"reading": "cut_output", "score": None},
        {"reading": "no_answer", "score": None},
        {"reading": "failed", "score": None},
        {"reading": "wrong", "score": 0.0, "is_twin": True},
        {"reading": "truncated_input", "score": None, "is_twin": True},
    )
    assert (found["task"], found["score"], found["items"], found["twin_score"]) == ("keys", 0.5, 3, 0.0)
    assert (found["truncated"], found["unread"]) == (2, 3)
    nothing = metrics({"reading": "truncated_input", "score": None})
    assert (nothing["score"], nothing["low"], nothing["items"], nothing["truncated"]) == (None, None, 0, 1)


@pytest.mark.parametrize(
    ("right", "items", "low", "high"),
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3: 81/263, 15/148, 0/20, 1/29.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_the_interval_is_wilsons(right: int, items: int, low: float, high: float) -> None:
    assert wilson(right, items) == pytest.approx((low, high), abs=5e-5)


def test_scored_texts_have_nats_and_no_share() -> None:
    found = metrics(
        {"task": "copy_gain", "reading": "scored", "score": -0.5, "chance": None},
        {"task": "copy_gain", "reading": "scored", "score": -1.5, "chance": None},
        {"task": "copy_gain", "reading": "scored", "score": -9.0, "chance": None, "is_twin": True},
        {"task": "copy_gain", "reading": "scored", "score": -7.0, "facts": {"floor": "batch_shape"}},
    )
    assert (found["score"], found["twin_score"], found["items"]) == (-1.0, -9.0, 2)
    assert (found["low"], found["high"]) == (None, None)
    not_yet = metrics({"task": "fidelity", "reading": "scored", "score": None})
    assert (not_yet["score"], not_yet["items"]) == (None, 0)


def test_the_score_of_many_attempts_is_asked_of_the_metrics_alone(tmp_path: Path) -> None:
    with create_records(tmp_path / "r.db") as recorder:
        recorder.add_run(run_row())
        recorder.add_design(design_row())
        recorder.start_trial(trial_row(), None)
        recorder.finish_trial(TrialResult(trial=trial_row(outcome="ok"), answers=(answer_row(),)))
        found = recorder.select("SELECT quality_score, quality_items FROM metrics")
        assert [tuple(row) for row in found] == [(1.0, 1)]
