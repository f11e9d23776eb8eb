"""A prompt that a server cut in silence is never a wrong answer of retrieval: on the fake engine, whose tokens are
words, of whose prompts only a part reaches it, and which then states no count, or that of what was sent."""

from pathlib import Path
from typing import Any

import pytest
from retrieval_material import HOUSES, write_documents, write_questions

from kvscope.experiment.measure import measure
from kvscope.experiment.retrieval_marks import marked
from kvscope.record.rows import QUALITY, TrialResult
from kvscope.record.store import open_records

LAW = {"load_s": 0.0, "ttft_s": 0.0, "ttft_s_per_token": 0.001, "itl_s": 0.0, "answer_right": 1.0}


def results(folder: Path, levels: tuple[str, ...], **law: Any) -> dict[str, TrialResult]:
    """The measured trial of each level."""
    summary = measure(
        "retrieval",
        engine="fake",
        documents=str(write_documents(folder / "docs")),
        questions=str(write_questions(folder / "q.jsonl")),
        levels=levels,
        settings={**LAW, **law},
        passage_tokens=24,
        repeats=1,
        records=folder / "r.db",
    )
    with open_records(folder / "r.db") as records:
        trials = [records.result(row) for row in records.trials(summary.design_id) if row.role == "measured"]
    return {str(trial.trial.level): trial for trial in trials}


def own(result: TrialResult) -> list[Any]:
    return [row for row in result.answers if row.task == "retrieval"]


@pytest.mark.parametrize("states", [0, 2])
@pytest.mark.parametrize("keeps_head", [0, 1])
def test_what_a_cut_prompt_lacks_is_never_said_not_to_be_used(tmp_path: Path, states: int, keeps_head: int) -> None:
    found = results(tmp_path, ("whole",), cuts_at_tokens=120, cut_keeps_head=keeps_head, cut_states=states)["whole"]
    rows = own(found)
    assert len(rows) == len(HOUSES)
    assert {row.facts["prompt_whole"] for row in rows} == {False}
    assert not {row.facts["failure"] for row in rows} & {"buried", "retrieved_not_used"}
    assert {warning.slug for warning in found.warnings} & {"retrieval-cut-by-marks", "retrieval-maybe-cut"}


def test_marks_that_are_found_show_that_prompts_are_whole(tmp_path: Path) -> None:
    found = results(tmp_path, ("whole", "passages=2", "evidence", "nothing"))
    for level in ("whole", "passages=2", "evidence"):
        assert {row.facts["prompt_whole"] for row in own(found[level])} == {True}
        assert not {w.slug for w in found[level].warnings} & {"retrieval-cut-by-marks", "retrieval-maybe-cut"}
        marks = [row for row in found[level].requests if row.role == QUALITY]
        assert 2 <= len(marks) <= 3
        measured = [row for row in found[level].requests if row.role == "measured"]
        assert len(measured) == len(HOUSES)
    assert not [row for row in found["nothing"].requests if row.role == QUALITY]
    assert [row.reading for row in own(found["whole"])] == ["right"] * len(HOUSES)


def test_a_mark_breaks_no_sentence_and_the_first_stands_first() -> None:
    text = "One is here. Two is here.\n\nThree is here. Four is here."
    found = marked(text, ("aaa", "bbb", "ccc"), "en")
    head, one, middle, three, tail = found.split("\n\n")
    assert (one, three) == tuple(text.split("\n\n"))
    assert [word in part for word, part in (("aaa", head), ("bbb", middle), ("ccc", tail))] == [True] * 3
    assert marked("No place inside", ("aaa", "bbb", "ccc"), "en").count("\n\n") == 2
