"""Several machines' records in one: every row, each once, kept apart, the sources untouched."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rows_for_tests import design_row, full_result, run_row, trial_row

from kvscope.analysis.study import analyse
from kvscope.analysis.table import table_rows
from kvscope.cli.main import cli
from kvscope.errors import KvscopeError, RecordConflict, RecordNotFound, SchemaMismatch, UsageError
from kvscope.record.rows import PredictionRow
from kvscope.record.schema import SCHEMA_VERSION
from kvscope.record.store import create_records, open_records

GOLDEN = Path(__file__).parent.parent / "golden" / "records"


def record(path: Path, machine: str, *, answered: int = 4, trials: int = 2, is_open: bool = False) -> Path:
    """The same study on one machine: the same trials, in a design of that machine's own."""
    run = run_row(run_id=f"run-{machine}", machine_id=machine, machine={"cpu": machine})
    design = design_row(design_id=f"d-{machine}", machine_id=machine, study_id="s", created_at=f"on {machine}")
    with create_records(path) as recorder:
        recorder.add_run(run)
        recorder.add_design(design)
        for number in range(trials):
            trial = trial_row(trial_id=f"t{number}", run_id=run.run_id, design_id=design.design_id, position=number)
            recorder.start_trial(trial, PredictionRow(created_at="now", prediction={"of": number}))
            result = full_result(replace(trial, outcome="ok"))
            request = replace(result.requests[0], output_tokens=answered)
            if not (is_open and number == trials - 1):
                recorder.finish_trial(replace(result, requests=(request,)))
    return path


def merged(*arguments: Path | str) -> Result:
    return CliRunner().invoke(cli, ["merge", *map(str, arguments)], standalone_mode=False)


def unbroken(text: str) -> str:
    """Without blanks: lines are broken anywhere where a path is longer than one."""
    return "".join(text.split())


def said(done: Result) -> str:
    """What it printed, wherever its lines were broken."""
    return unbroken(done.stdout)


def content(path: Path) -> dict[str, object]:
    with open_records(path) as records:
        trials = {(t.design_id, t.trial_id, t.attempt): t for t in records.trials()}
        return {
            "runs": sorted(records.runs(), key=lambda run: run.run_id),
            "designs": sorted(records.designs(), key=lambda design: design.design_id),
            "attempts": {key: (records.result(t), records.prediction_row(t)) for key, t in sorted(trials.items())},
        }


def failed(result: Result, error: type[KvscopeError]) -> KvscopeError:
    assert isinstance(result.exception, error), result.exception
    return result.exception


def test_machines_stay_apart_and_nothing_is_lost_or_changed(tmp_path: Path) -> None:
    here, there, out = record(tmp_path / "a.db", "here"), record(tmp_path / "b.db", "there", answered=3), tmp_path / "o"
    before = here.read_bytes(), there.read_bytes()
    done = merged(out, here, there)
    assert done.exception is None, done.exception
    assert unbroken(f"{here}: 2 attempts added, 0 there already. {there}: 2 attempts added") in said(done)
    assert (here.read_bytes(), there.read_bytes()) == before
    a, b, both = content(here), content(there), content(out)
    assert both["runs"] == [*a["runs"], *b["runs"]]  # type: ignore[misc]
    assert both["designs"] == [*a["designs"], *b["designs"]]  # type: ignore[misc]
    assert both["attempts"] == {**a["attempts"], **b["attempts"]}  # type: ignore[dict-item]
    with open_records(out) as records:
        rows = list(table_rows(records))
        assert [(row["machine_id"], row["trial_id"], row["output_tokens"]) for row in rows] == [
            ("here", "t0", 4),
            ("here", "t1", 4),
            ("there", "t0", 3),
            ("there", "t1", 3),
        ]
        assert {row["study_id"] for row in rows} == {"s"}
        studies = analyse(records).studies
        assert [(study.machine_id, len(study.attempts)) for study in studies] == [("here", 2), ("there", 2)]


def test_merging_again_adds_nothing_and_merging_more_adds_that(tmp_path: Path) -> None:
    here, out = record(tmp_path / "a.db", "here"), tmp_path / "o.db"
    assert merged(out, here).exception is None
    once = content(out)
    again = merged(out, here, here, "--json")
    assert json.loads(again.stdout)["merged"] == [
        {"records": str(here), "added": 0, "further": 0, "known": 2, "unfinished": 0},
        {"records": str(here), "added": 0, "further": 0, "known": 2, "unfinished": 0},
    ]
    assert content(out) == once
    assert merged(out, record(tmp_path / "b.db", "there")).exception is None
    assert len(content(out)["attempts"]) == 4  # type: ignore[arg-type]


def test_what_has_not_ended_is_left_out_until_it_has(tmp_path: Path) -> None:
    source, out = tmp_path / "a.db", tmp_path / "o.db"
    record(source, "here", is_open=True)
    done = merged(out, source)
    assert unbroken("1 attempts added, 0 there already, 1 not ended yet and left out") in said(done)
    create_records(source).close()  # a recorder that finds it left open completes it as interrupted
    assert unbroken("1 attempts added, 1 there already.") in said(merged(out, source))
    assert content(out) == content(source)


@pytest.mark.parametrize("name", ["lab.db", "schema3.db"])
def test_records_of_older_releases_are_read_and_left_as_they_are(tmp_path: Path, name: str) -> None:
    source, out = tmp_path / name, tmp_path / "o.db"
    shutil.copy(GOLDEN / name, source)
    before = source.read_bytes()
    assert merged(out, source).exception is None
    assert source.read_bytes() == before
    assert content(out) == content(source)
    with open_records(out) as records:
        assert records.version == SCHEMA_VERSION
    create_records(source).close()  # brought up to date it is still the same record
    assert unbroken("added, ") in (told := said(merged(out, source)))
    assert unbroken(": 0 attempts added") in told


def test_two_files_that_contradict_each_other_are_refused_with_what_differs(tmp_path: Path) -> None:
    one, other = record(tmp_path / "a.db", "here"), record(tmp_path / "b.db", "here", answered=3)
    out = tmp_path / "o.db"
    error = failed(merged(out, one, other), RecordConflict)
    assert "attempt 1 of trial t0 (128): requests: 1 rows and 1 rows" in error.message
    assert "Nothing was merged" in error.message
    assert error.exit_code == 4
    assert not out.exists()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.db", "b.db"]


def test_a_refused_merge_leaves_the_record_as_it_was(tmp_path: Path) -> None:
    one, other = record(tmp_path / "a.db", "here"), record(tmp_path / "c.db", "here", answered=3)
    out = record(tmp_path / "o.db", "elsewhere")
    before = content(out)
    failed(merged(out, one, other), RecordConflict)
    assert content(out) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [({"question": "another?"}, "design d-here: question: \\? and another\\?"), ({"created_at": "later"}, None)],
)
def test_designs_may_differ_in_when_they_were_first_recorded_alone(
    tmp_path: Path, change: dict[str, str], words: str | None
) -> None:
    one, out = record(tmp_path / "a.db", "here"), tmp_path / "o.db"
    with create_records(tmp_path / "b.db") as recorder:
        recorder.add_design(replace(next(iter(content(one)["designs"])), **change))  # type: ignore[call-overload]
    done = merged(out, one, tmp_path / "b.db")
    if words is None:
        assert done.exception is None
    else:
        with pytest.raises(RecordConflict, match=words):
            raise failed(done, RecordConflict)


def sitting(path: Path, name: str, began: str, outcomes: dict[str, str], *, first: int = 0) -> Path:
    """One sitting of one study on one machine: trial → how its attempt ended."""
    with create_records(path) as recorder:
        recorder.add_run(run_row(run_id=name, started_at=f"{began}:00"))
        recorder.add_design(design_row(created_at=began))
        for number, (trial_id, outcome) in enumerate(outcomes.items()):
            trial = trial_row(
                trial_id=trial_id, run_id=name, started_at=f"{began}:{number:02}", attempt=1 + first, position=number
            )
            recorder.start_trial(trial, PredictionRow(created_at=began, prediction={"of": name}))
            result = full_result(replace(trial, outcome=outcome, duration_s=float(len(name))))
            recorder.finish_trial(result if outcome == "ok" else replace(result, tokens=(), requests=()))
    return path


def numbered(path: Path) -> dict[str, list[tuple[int, str, str]]]:
    """Trial → (attempt, its sitting, how it ended), by the table itself."""
    with open_records(path) as records:
        rows = records.select("SELECT trial_id, attempt, run_id, outcome FROM trials ORDER BY trial_id, attempt")
    found: dict[str, list[tuple[int, str, str]]] = {}
    for row in rows:
        found.setdefault(row["trial_id"], []).append((row["attempt"], row["run_id"], row["outcome"]))
    return found


def test_two_sittings_of_one_study_in_two_files_are_attempts_of_the_same_trials(tmp_path: Path) -> None:
    old = sitting(tmp_path / "old.db", "old", "09:00", {"t0": "ok", "t1": "ok", "t2": "crashed", "t3": "ok"})
    new = sitting(tmp_path / "new.db", "new", "10:00", {"t0": "ok", "t1": "crashed", "t2": "ok"})
    out, other_way = tmp_path / "out.db", tmp_path / "other.db"
    told = merged(out, old, new)
    assert told.exception is None, told.exception
    assert unbroken(
        "3 attempts added (3 of them of trials that were there from another sitting), 0 there already"
    ) in said(told)
    assert merged(other_way, new, old).exception is None
    # In the order in which they began, but what was measured after what was not: the last attempt of a trial counts.
    expected = {
        "t0": [(1, "old", "ok"), (2, "new", "ok")],
        "t1": [(1, "new", "crashed"), (2, "old", "ok")],
        "t2": [(1, "old", "crashed"), (2, "new", "ok")],
        "t3": [(1, "old", "ok")],
    }
    assert numbered(out) == numbered(other_way) == expected
    # Each attempt has its own rows, and what was predicted for it; no row is lost or twice.
    with open_records(out) as records:
        for trial in records.trials():
            assert records.prediction(trial) == {"of": trial.run_id}
            assert records.result(trial).trial.duration_s == len(trial.run_id)
            assert records.metrics(trial)["ttft_s"] == (0.5 if trial.outcome == "ok" else None)
        assert len(list(table_rows(records))) == 7
        (study,) = analyse(records).studies
        assert sorted((a.trial.trial_id, a.run.run_id) for a in study.attempts if a.is_measured)[-1] == ("t3", "old")
    for path in (out, other_way):
        with create_records(path) as recorder:  # what is done is seen as done: the last row of each trial says so
            last = {trial.trial_id: (trial.attempt, trial.outcome) for trial in recorder.trials("d1")}
        assert last == {"t0": (2, "ok"), "t1": (2, "ok"), "t2": (2, "ok"), "t3": (1, "ok")}


def test_merging_two_sittings_again_adds_nothing_and_a_third_one_is_put_in_its_place(tmp_path: Path) -> None:
    late = sitting(tmp_path / "late.db", "late", "11:00", {"t0": "ok"})
    early = sitting(tmp_path / "early.db", "early", "09:00", {"t0": "crashed"})
    sitting(early, "early2", "09:30", {"t0": "ok"}, first=1)  # the same file, tried anew
    middle = sitting(tmp_path / "middle.db", "middle", "10:00", {"t0": "ok"})
    assert merged(late, early).exception is None
    expected = [(1, "early", "crashed"), (2, "early2", "ok"), (3, "late", "ok")]
    assert numbered(late)["t0"] == expected
    before = content(late)
    assert unbroken(": 0 attempts added, 2 there already") in said(merged(late, early))
    assert content(late) == before
    assert merged(late, middle).exception is None
    assert numbered(late)["t0"] == [*expected[:2], (3, "middle", "ok"), (4, "late", "ok")]
    whole = tmp_path / "whole.db"  # a file of all of them, with the files that it came from
    assert merged(whole, middle, late, early).exception is None
    assert content(whole)["attempts"] == content(late)["attempts"]


def test_what_cannot_be_merged(tmp_path: Path) -> None:
    one, text = record(tmp_path / "a.db", "here"), tmp_path / "text"
    text.write_text("something else " * 100)
    failed(merged(text, one), SchemaMismatch)
    assert text.read_text().startswith("something else")
    failed(merged(tmp_path / "o.db", one, text), SchemaMismatch)
    failed(merged(tmp_path / "o.db", one, tmp_path / "nowhere.db"), RecordNotFound)
    failed(merged(one, tmp_path / "a.db"), UsageError)
    assert not (tmp_path / "o.db").exists()
