"""A real llama.cpp with a calibration of its own: what it holds has names, and the tiny models are run only once."""

import json
from pathlib import Path

import pytest

from kvscope.analysis.attempts import load_attempts
from kvscope.analysis.identity import row_identity
from kvscope.engine.registry import EngineChoice
from kvscope.experiment import calibrate
from kvscope.experiment.design import Trial
from kvscope.experiment.measure import measure
from kvscope.experiment.subject import Subject
from kvscope.model.load import load_model
from kvscope.record.rows import TrialResult, TrialRow
from kvscope.record.store import open_records

pytestmark = [pytest.mark.engine]
MODEL = Path(__file__).parent.parent / "golden" / "llamacpp" / "tiny-wq-llama-Q4_0.gguf"
SETTINGS = {"n_threads": 1, "n_threads_batch": 1}


@pytest.fixture(autouse=True)
def one_short_prompt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(calibrate.SWITCH, raising=False)
    monkeypatch.setattr(calibrate, "_PROMPTS", {"llama.cpp": (64,)})


def test_a_row_of_a_real_engine_adds_up(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    records = tmp_path / "r.db"
    summary = measure("input_length", records=records, model=str(MODEL), levels=[64], repeats=1, settings=SETTINGS,
                      output_tokens=4, options=None)  # fmt: skip
    assert summary.failed == 0
    with open_records(records) as found:
        runs = {run.run_id: run for run in found.runs()}
        attempts = [a for design in found.designs() for a in load_attempts(found, design, runs) if a.is_measured]
    row = row_identity(attempts[-1])
    assert row.calibration is not None
    assert row.peak is not None
    # Own arithmetic, from the counters of /proc alone: what grew is the terms and the rest.
    marks = {mark.phase: mark for mark in attempts[-1].result.marks}
    grown = marks["loaded"].anon_bytes + marks["loaded"].file_bytes
    grown -= marks["launched"].anon_bytes + marks["launched"].file_bytes
    assert row.loaded is not None
    terms = sum(term.num_bytes for term in row.loaded.attribution.terms)
    assert grown == terms + row.loaded.unexplained_bytes
    assert all((moment.unexplained_share or 0.0) < 0.05 for moment in row.moments)
    # The process's mappings, walked page by page, and its counter agree within the stated bound.
    bound = row.loaded.bound
    assert bound.seen_apart_bytes is not None
    if bound.total_bytes is not None:
        assert abs(bound.seen_apart_bytes) <= bound.total_bytes
    kept = sorted((tmp_path / "cache" / "calibration").glob("*.json"))
    assert sorted(json.loads(path.read_text())["layers"] for path in kept) == [1, len(load_model(str(MODEL)).layers)]

    def never(*_: object) -> None:
        raise AssertionError("the tiny model was run again")

    subject = Subject.of(load_model(str(MODEL)), EngineChoice(name="llama.cpp"))
    again = calibrate.calibration_for(subject, SETTINGS, run=never)  # type: ignore[arg-type]
    assert again == attempts[-1].trial.client["calibration"]


def test_a_tiny_model_that_does_not_run_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xllamacpp")
    asked = []

    def fails(*_: object, **__: object) -> dict[str, str]:
        asked.append(1)
        return {"not_calibrated": "tiny_model_not_run"}

    monkeypatch.setattr(calibrate, "calibration_for", fails)
    found = calibrate.Calibrations(Subject.of(load_model(str(MODEL)), EngineChoice(name="llama.cpp")))
    assert [found.of({"n_threads": 1}), found.of({"n_threads": 1, "n_ctx": 512})] == [
        {"not_calibrated": "tiny_model_not_run"}
    ] * 2
    assert len(asked) == 1
    found.of({"n_threads": 2})
    assert len(asked) == 2


def test_a_program_of_ones_own_and_a_running_server_are_not_calibrated() -> None:
    pytest.importorskip("xllamacpp")
    model = load_model(str(MODEL))
    subject = Subject.of(model, EngineChoice(name="llama.cpp"))

    def never(*_: object) -> None:
        raise AssertionError("a tiny model was run")

    ways = {"own_command": EngineChoice(name="llama.cpp", command="llama-server"),
            "other_engine": EngineChoice(name="fake")}  # fmt: skip
    for reason, choice in ways.items():
        other = Subject(model=model, choice=choice, version="1", build="", served=None, counter=subject.counter)
        found = calibrate.calibration_for(other, {}, run=never)  # type: ignore[arg-type]
        assert found == {"not_calibrated": reason}


def test_ctrl_c_while_a_tiny_model_runs_stops_the_study() -> None:
    pytest.importorskip("xllamacpp")

    def stopped(subject: Subject, trial: Trial) -> TrialResult:
        row = TrialRow(
            trial_id=trial.trial_id, attempt=1, design_id="", run_id="", role="measured", levels={}, level=64, repeat=0,
            block=0, position=0, started_at="", settings={}, outcome="interrupted",
        )  # fmt: skip
        return TrialResult(trial=row)

    subject = Subject.of(load_model(str(MODEL)), EngineChoice(name="llama.cpp"))
    with pytest.raises(KeyboardInterrupt):
        calibrate.calibration_for(subject, {}, run=stopped)
