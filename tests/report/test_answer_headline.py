"""The head of a report is what was asked: of answers how many were right, what was lost, what it costs."""

from dataclasses import replace
from pathlib import Path

import pytest
from answer_rows import answers, turned
from study_rows import answered, attempt, memory, trial_row, write_record
from test_quality_shown import a_design, attempts_of, numbered

from kvscope.analysis.finding import Finding
from kvscope.analysis.study import Analysis, analyse
from kvscope.record.store import open_records
from kvscope.report.answer_headline import _EVEN, answered_text
from kvscope.report.claims import claim_text
from kvscope.report.section_answer import headline, interval_line
from kvscope.report.sections import study_page
from kvscope.report.text import render_text
from kvscope.report.words_en import WORDS

TASKS = ("needle", "keys", "variables", "copy", "count", "reworded")


def analysis_of(path: Path) -> Analysis:
    with open_records(path) as records:
        return analyse(records)


def of_tasks(path: Path) -> Path:
    design = a_design("quality", TASKS, factor="quality_task")
    rows = [answers(8, 3, 0.7, seed=n, tokens=512, task=task) for n, task in enumerate(TASKS)]
    return write_record(path / "r.db", attempts_of(design, rows, repeats=1))


def test_tasks_are_answered_at_the_head_with_their_intervals(tmp_path: Path) -> None:
    study = analysis_of(of_tasks(tmp_path)).studies[0]
    text = headline(study)
    rows = answers(8, 3, 0.7, seed=0, tokens=512, task="needle")
    right = sum(row.reading == "right" for row in rows if not row.is_twin)
    assert text.startswith(f"Right answers, of those that could be read: needle {right} of 24, keys ")
    assert "1,000 tokens" not in text
    assert "needle" in interval_line(study)
    assert study_page(study, "").answer.headline == text


def test_no_task_is_cut_off_and_no_verdict_on_memory_is_named_as_one_of_a_task(tmp_path: Path) -> None:
    text = render_text(analysis_of(of_tasks(tmp_path)))
    for task in TASKS:
        assert f"- {task} (en), 512 tokens:" in text
    assert "quality_task = needle: cannot tell" not in text
    assert "growth" not in text


def test_a_release_that_no_question_asked_for_says_that_it_is_memory(tmp_path: Path) -> None:
    design = a_design()
    rows = [answers(8, 3, 0.7, seed=1)] * 3
    text = " ".join(render_text(analysis_of(write_record(tmp_path / "r.db", attempts_of(design, rows)))).split())
    for line in text.split(" - "):
        assert not line.startswith("kv_dtype = ")


def test_losses_against_the_baseline_stand_at_the_head(tmp_path: Path) -> None:
    base = answers(150, 4, 0.7, seed=1)
    design = a_design()
    made = attempts_of(design, [base, base, turned(base, lost=0.3, gained=0.0)])
    text = answered_text(analysis_of(write_record(tmp_path / "r.db", made)).studies[0])
    assert "q4_0 loses against f16: keys -" in text
    assert "No loss is seen in 1 comparison" in text


def test_without_answers_the_head_is_what_it_was(tmp_path: Path) -> None:
    design = a_design()
    row = attempt(trial_row(design, "f16"), design=design, **memory(), **answered())
    study = analysis_of(write_record(tmp_path / "r.db", [row])).studies[0]
    assert answered_text(study) == ""
    assert headline(study).startswith("Each 1,000 tokens of context should add")


@pytest.mark.parametrize("is_grid", [False, True])
def test_what_one_task_takes_longer_than_another_is_no_effect(tmp_path: Path, is_grid: bool) -> None:
    levels = [{"quality_task": task, "prompt_tokens": 512} for task in TASKS[:2]] if is_grid else list(TASKS[:2])
    factor = "quality_task × prompt_tokens" if is_grid else "quality_task"
    design = a_design("grid" if is_grid else "quality", levels, factor=factor, is_grid=is_grid)
    made = []
    for number, level in enumerate(levels):
        for repeat in range(3):
            base = attempt(trial_row(design, level, repeat, block=repeat), design=design, **memory(), **answered())
            rows = numbered(answers(4, 2, 0.7, task=TASKS[number]))
            metrics = replace(base.metrics, ttft_s=1.0 + number + repeat / 1000)
            made.append(replace(base, metrics=metrics, result=replace(base.result, answers=rows)))
    study = analysis_of(write_record(tmp_path / "r.db", made)).studies[0]
    changes = next(each for each in study_page(study, "").sections if each.slug == "changes")
    (table,) = [block for block in changes.blocks if hasattr(block, "rows")]
    assert not any("+" in cell or "baseline" in cell for each in table.rows for cell in each.cells)
    assert not [each.slug for each in study.findings if "effect" in each.slug or "ttft" in each.slug]


@pytest.mark.parametrize(("share", "is_told"), [(0.2, True), (5.833, False)])
def test_a_bound_that_is_larger_than_the_value_itself_is_not_told(share: float, is_told: bool) -> None:
    values = {"metric": "ttft_s", "factor": "kv_dtype", "level": "q8_0", "baseline_level": "f16", "needed": 320}
    values |= {"ruled_out_share": share, "ruled_out_s": share, "target_s": 0.124}
    text = claim_text(Finding(slug="time_cannot_tell", values=values))
    assert ("is ruled out" in text) is is_told
    assert ("320" in text) is is_told
    assert ("tell nothing" in text) is not is_told


def test_every_way_to_tell_a_break_even_has_words_at_the_head() -> None:
    told = {slug.removeprefix("finding.") for slug in WORDS if slug.startswith("finding.retrieval_")}
    told = {slug for slug in told if "even" in slug and "tokens" not in slug}
    assert told == set(_EVEN)
    assert all(f"answered.{slug}" in WORDS for slug in told)
