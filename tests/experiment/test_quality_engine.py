"""Questions at the end of a trial on real llama.cpp: memory is what it is without them, and a small model answers."""

from pathlib import Path
from typing import Any

import pytest

import kvscope
from kvscope.analysis.table import table_rows
from kvscope.record.rows import TrialResult
from kvscope.record.store import open_records
from kvscope.units import MIB

pytestmark = pytest.mark.engine

# With a context that holds the questions in both, so that only they differ.
SETTINGS = {"n_threads": 1, "n_ctx": 512, "cache_ram_mib": 0}
MOMENTS = ("baseline", "loaded", "peak", "after", "released")


def measured(path: Path, **asked: Any) -> tuple[dict[str, Any], TrialResult]:
    summary = kvscope.measure(
        "input_length",
        records=path,
        levels=(220,),
        repeats=1,
        output_tokens=4,
        settings=SETTINGS,
        **asked,
    )
    assert summary.failed == 0
    with open_records(path) as records:
        (trial,) = (trial for trial in records.trials() if trial.role == "measured")
        (row,) = (row for row in table_rows(records) if row["role"] == "measured")
        return row, records.result(trial)


def test_memory_is_the_same_and_the_model_answers(tmp_path: Path) -> None:
    without, _ = measured(tmp_path / "without.db")
    row, result = measured(tmp_path / "with.db", quality="keys", quality_documents=2)
    for moment in MOMENTS:
        name = f"memory_{moment}_bytes"
        assert row[name] == pytest.approx(without[name], abs=2 * MIB), name
    assert {answer.facts["form"] for answer in result.answers} == {"chat"}
    counts = [(request.prompt_tokens_ours, request.prompt_tokens_server) for request in result.requests]
    assert all(ours == server for ours, server in counts)
    # Measured beside this test's making: 8 of 9 right at 256 tokens, no twin.
    assert row["quality_score"] >= 0.5
    assert row["quality_twin_score"] == 0.0
    assert (row["quality_truncated"], row["quality_unread"]) == (0, 0)


def test_by_cue_a_text_is_gone_on_with(tmp_path: Path) -> None:
    row, result = measured(tmp_path / "r.db", quality="keys", quality_documents=1, quality_form="cue")
    assert {answer.facts["form"] for answer in result.answers} == {"cue"}
    counts = [(request.prompt_tokens_ours, request.prompt_tokens_server) for request in result.requests]
    assert all(ours == server for ours, server in counts)
    assert row["quality_score"] is not None
    assert row["quality_truncated"] == 0
