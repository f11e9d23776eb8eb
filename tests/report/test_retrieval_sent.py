"""What the page of retrieval says of prompts that may have been cut, of one document, and of cut answers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvscope.analysis.retrieval_panel import RetrievalPanel, recorded_panel
from kvscope.experiment.measure import measure
from kvscope.record.store import open_records
from kvscope.report.retrieval_text import evidence_head, legend, retrieval_lines

LAW = {"load_s": 0.0, "ttft_s": 0.0, "ttft_s_per_token": 0.001, "itl_s": 0.0, "answer_right": 1.0}


@pytest.fixture
def panel_of(tmp_path: Path) -> Any:
    """A panel of two questions on one document, measured on the fake engine with this law."""

    def made(**law: Any) -> RetrievalPanel:
        folder = tmp_path / "docs"
        folder.mkdir()
        filler = " ".join(f"The lamp of room {number} was mended by the porter." for number in range(30))
        text = f"The code of the Alder house is 41873. {filler} The code of the Birch house is 90264."
        (folder / "a.md").write_text(text, encoding="utf-8")
        lines = [
            '{"question": "What is the code of the Alder house?", "answer": "41873", "document": "a.md"}',
            '{"question": "What is the code of the Birch house?", "answer": "90264", "document": "a.md"}',
            '{"question": "What is the code of the Cedar house?"}',
        ]
        (tmp_path / "q.jsonl").write_text("\n".join(lines), encoding="utf-8")
        summary = measure(
            "retrieval",
            engine="fake",
            documents=str(folder),
            questions=str(tmp_path / "q.jsonl"),
            levels=["whole", "passages=1", "nothing"],
            settings={**LAW, **law},
            passage_tokens=32,
            repeats=1,
            records=tmp_path / "r.db",
        )
        with open_records(tmp_path / "r.db") as records:
            panel = recorded_panel(records, summary.design_id)
        assert panel is not None
        return panel

    return made


def text_of(panel: RetrievalPanel) -> str:
    return " ".join(" ".join(retrieval_lines(panel)).split())


def test_evidence_that_may_not_have_arrived_was_sent_and_no_verdict_is_given(panel_of: Any) -> None:
    panel = panel_of(cuts_at_tokens=100, cut_states=2)
    text = text_of(panel)
    assert evidence_head(panel.rows) == "sent"
    assert "not known whether it reached the model whole (whole)" in text
    assert "given: questions whose evidence was in the prompt" not in text
    assert "not used" not in text.lower()
    assert {judged.judged.verdict for judged in panel.comparisons if judged.level != "whole"} == {"cannot_tell"}


def test_one_document_is_why_there_is_no_interval_and_more_questions_would_not_help(panel_of: Any) -> None:
    panel = panel_of()
    text = text_of(panel)
    assert "all questions are of one document" in text
    assert "needs about" not in text
    assert evidence_head(panel.rows) == "evidence"
    assert "whole: not known" not in legend(panel)


def test_a_question_without_an_answer_counts_in_no_way(panel_of: Any) -> None:
    assert {row.level: row.evidence_known for row in panel_of().rows} == {"whole": 2, "passages=1": 2, "nothing": 2}


def test_an_answer_that_was_cut_is_explained_with_what_helps(panel_of: Any) -> None:
    panel = panel_of()
    first = replace(panel.rows[0], failures={"cut_answer": 2})
    assert "raise --output-tokens" in text_of(replace(panel, rows=(first, *panel.rows[1:])))


def test_memory_in_which_a_smaller_cache_is_not_seen_is_no_difference_of_nothing(panel_of: Any) -> None:
    panel = panel_of()
    caches = {"whole": 20 << 20, "passages=1": 4 << 20}
    rows = tuple(replace(row, peak_bytes=1 << 30, cache_bytes=caches.get(row.level)) for row in panel.rows)
    text = text_of(replace(panel, rows=rows))
    assert "peaks like the whole document in memory: 16.0 MiB less" in text
    assert "0.0 MiB" not in text.replace("16.0 MiB", "")
