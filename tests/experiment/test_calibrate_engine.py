"""A real llama.cpp with a calibration of its own: what it holds has names, and the tiny models are run only once."""

import json
from pathlib import Path

import pytest

from kvscope.analysis.attempts import load_attempts
from kvscope.analysis.identity import row_identity
from kvscope.engine.registry import EngineChoice
from kvscope.experiment import calibrate
from kvscope.experiment.measure import measure
from kvscope.experiment.subject import Subject
from kvscope.model.load import load_model
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
