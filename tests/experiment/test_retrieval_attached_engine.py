"""Whole document against retrieval on a server that runs already, known only as one of OpenAI's kind: nothing of one
trial is left to the next, though the server goes on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from retrieval_material import write_documents, write_questions
from running_llama import Running, running_llama

from kvscope.experiment.measure import measure
from kvscope.record.rows import TrialResult
from kvscope.record.store import open_records

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def llama() -> Iterator[Running]:
    with running_llama(n_ctx=1024) as running:
        yield running


def test_each_trial_begins_cold_and_what_is_not_known_is_said(llama: Running, tmp_path: Path) -> None:
    summary = measure(
        "retrieval",
        engine="openai",
        url=llama.url,
        documents=str(write_documents(tmp_path / "docs")),
        questions=str(write_questions(tmp_path / "q.jsonl")),
        levels=["whole", "passages=1"],
        passage_tokens=32,
        repeats=2,
        requests=2,
        output_tokens=[8],
        records=tmp_path / "r.db",
    )
    assert (summary.measured, summary.failed) == (5, 0)
    with open_records(tmp_path / "r.db") as records:
        results = [records.result(row) for row in records.trials(summary.design_id)]
    for result in results:
        assert "reuse-not-predicted" in {warning.slug for warning in result.warnings}
        assert len(result.answers) == 2
        assert all(row.facts["given"] == result.trial.level for row in result.answers)
    for result in (each for each in results if each.trial.level == "whole"):
        cold, warm = computed(result)
        # Only what the template puts before every message was there; then the whole of it is.
        assert cold > 250
        assert warm < 40


def computed(result: TrialResult) -> list[int]:
    rows = [row for row in result.requests if row.role == "measured"]
    return [(row.prompt_tokens_server or 0) - (row.cached_tokens or 0) for row in rows]
