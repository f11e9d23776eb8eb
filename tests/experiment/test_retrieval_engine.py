"""Whole document against retrieval on real llama.cpp with SmolLM2: every count is what was said before, what is reused
is what its rule says, each way gets the context that it needs, and the break-even in tokens is predicted exactly."""

import importlib.util

import pytest
from retrieval_material import HOUSES, write_documents, write_questions

from kvscope.analysis.retrieval_panel import RetrievalPanel, recorded_panel
from kvscope.experiment.measure import measure
from kvscope.record.rows import TrialResult
from kvscope.record.store import open_records

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]
LEVELS = ("whole", "passages=2", "nothing", "whole/question-first")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, TrialResult], RetrievalPanel]:
    folder = tmp_path_factory.mktemp("retrieval")
    summary = measure(
        "retrieval",
        documents=str(write_documents(folder / "docs")),
        questions=str(write_questions(folder / "q.jsonl")),
        levels=LEVELS,
        passage_tokens=48,
        repeats=1,
        requests=3,
        settings={"n_threads": 1},
        records=folder / "r.db",
    )
    assert (summary.measured, summary.failed) == (len(LEVELS) + 1, 0)
    with open_records(folder / "r.db") as records:
        trials = [row for row in records.trials(summary.design_id) if row.role == "measured"]
        results = {str(row.level): records.result(row) for row in trials}
        panel = recorded_panel(records, summary.design_id)
    assert panel is not None
    return results, panel


def test_every_prompt_was_whole_and_its_reuse_as_predicted(
    measured: tuple[dict[str, TrialResult], RetrievalPanel],
) -> None:
    for level, result in measured[0].items():
        asked = [row for row in result.requests if row.role == "measured"]
        assert len(asked) == 3
        for row in asked:
            assert row.prompt_tokens_server == row.prompt_tokens_ours, level
            assert row.cached_tokens_predicted is not None, level
            assert row.cached_tokens == row.cached_tokens_predicted, level


def test_the_document_is_read_once_unless_the_question_stands_before_it(
    measured: tuple[dict[str, TrialResult], RetrievalPanel],
) -> None:
    def computed(level: str) -> list[int]:
        rows = [row for row in measured[0][level].requests if row.role == "measured"]
        return [(row.prompt_tokens_server or 0) - (row.cached_tokens or 0) for row in rows]

    first, *later = computed("whole")
    assert first > 300
    assert max(later) < 40
    assert min(computed("whole/question-first")) > 300
    assert sum(computed("passages=2")) > 2 * sum(later)


def test_each_way_gets_the_context_that_it_needs(measured: tuple[dict[str, TrialResult], RetrievalPanel]) -> None:
    results, panel = measured
    contexts = {level: int(result.trial.settings["n_ctx"]) for level, result in results.items()}
    assert contexts["whole"] == 512 or contexts["whole"] > contexts["passages=2"] >= contexts["nothing"]
    for level, result in results.items():
        longest = max((row.prompt_tokens_server or 0) + row.output_tokens_limit for row in result.requests)
        assert longest <= contexts[level] < longest + 256
    rows = {row.level: row for row in panel.rows}
    # 23,040 B for each cell: 30 layers × 3 KV heads × 64 wide × 2 × 2 B.
    for level, row in rows.items():
        assert row.cache_bytes == 23_040 * contexts[level]


def test_the_break_even_in_tokens_is_as_it_was_predicted(
    measured: tuple[dict[str, TrialResult], RetrievalPanel],
) -> None:
    (even,) = measured[1].evens
    assert even.on_tokens is not None
    assert even.on_tokens == even.predicted_on_tokens
    assert even.on_tokens > 1
    assert even.predicted_on_time is not None
    assert even.law_from == "first_trial"


def test_every_answer_is_read_and_every_failure_has_a_reason(
    measured: tuple[dict[str, TrialResult], RetrievalPanel],
) -> None:
    for level, result in measured[0].items():
        assert result.trial.outcome == "ok"
        for row in result.answers:
            assert row.expected is not None
            assert row.evidence_in_prompt is (level != "nothing" and row.facts["failure"] != "not_retrieved")
            assert (row.facts["failure"] is None) == (row.reading == "right"), (level, row)
    assert {row.item for row in measured[0]["whole"].answers} == {f"q{n}" for n in range(1, 4)}
    assert len(HOUSES) > 3
