"""Answers in a terminal and on the page: the numbers, the width, and that what others wrote stays text."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from answer_rows import answer, answers, turned
from study_rows import answered, attempt, design_row, memory, trial_row, write_record

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.quality_effects import quality_effects
from kvscope.analysis.study import Study, analyse
from kvscope.record.rows import AnswerRow, DesignRow, Json
from kvscope.record.store import open_records
from kvscope.report.blocks import Claim, Section, Table
from kvscope.report.markdown import render_markdown
from kvscope.report.page import render_page
from kvscope.report.quality_text import quality_lines
from kvscope.report.sections import study_page
from kvscope.report.terminal_text import WIDTH
from kvscope.report.text import render_text
from kvscope.units import MIB

LEVELS = ("f16", "q8_0", "q4_0")
HOSTILE = '<script>alert(1)</script> & "q" ```\n| a | b |'


def a_design(name: str = "kv_dtype", levels: Sequence[Json] = LEVELS, **more: object) -> DesignRow:
    held = {"quality_task": "keys"}
    base = replace(design_row("context_limit"), name=name, factor=name, levels=tuple(levels), baseline_level=levels[0])
    return replace(base, held=held, **more)  # type: ignore[arg-type]


def attempts_of(design: DesignRow, rows: Sequence[Sequence[AnswerRow]], repeats: int = 3) -> list[Attempt]:
    """Each level takes 100 MiB less than the one before, and as long."""
    made = []
    for number, (level, each) in enumerate(zip(design.levels, rows, strict=True)):
        for repeat in range(repeats):
            base = attempt(trial_row(design, level, repeat, block=repeat), design=design, **memory(), **answered())
            wiggle = 1 + (repeat - 1) / 1000
            size = round((1000 - 100 * number) * MIB * wiggle)
            metrics = replace(base.metrics, memory_peak_bytes=size, completion_s=2.0 * wiggle)
            made.append(replace(base, metrics=metrics, result=replace(base.result, answers=numbered(each))))
    return made


def numbered(rows: Sequence[AnswerRow]) -> tuple[AnswerRow, ...]:
    return tuple(replace(row, index=index) for index, row in enumerate(rows))


def lines_of(design: DesignRow, attempts: Sequence[Attempt]) -> list[str]:
    effects = quality_effects(design, attempts)
    assert effects is not None
    return quality_lines(design, effects)


def test_memory_time_and_quality_stand_side_by_side() -> None:
    base = answers(150, 4, 0.7, seed=1)
    design = a_design()
    lines = lines_of(design, attempts_of(design, [base, base, turned(base, lost=0.3, gained=0.0)]))
    assert max(map(len, lines)) <= WIDTH == 80
    side = lines[: next(n for n, line in enumerate(lines) if line.startswith("Answers"))]
    (best,) = [line.split() for line in side if line.startswith("  q8_0")]
    assert best[1:4] == ["-100.0", "0", "0.0"]
    assert best[-2:] == ["not", "beaten"]
    assert next(line for line in side if line.startswith("  f16")).endswith("beaten")
    (panel,) = [line for line in lines if line.split()[:2] == ["keys", "q4_0"]]
    assert panel.endswith(" loss")
    right = sum(row.reading == "right" for row in base if not row.is_twin)
    assert f"{right}/600" in " ".join(lines)


def test_levels_that_are_different_work_are_not_marked() -> None:
    design = a_design("input_length", (200, 400, 800))
    rows = [answers(20, 2, 0.7, seed=n, tokens=tokens) for n, tokens in enumerate((200, 400, 800))]
    lines = lines_of(design, attempts_of(design, rows))
    assert not any("beaten" in line for line in lines)
    assert any(line.startswith("  400") for line in lines)


def test_tasks_as_levels_have_a_panel_alone() -> None:
    design = a_design("quality", ("needle", "keys"), factor="quality_task")
    rows = [answers(20, 2, 0.7, seed=n, tokens=512, task=task) for n, task in enumerate(("needle", "keys"))]
    lines = lines_of(design, attempts_of(design, rows, repeats=1))
    assert not any("side by side" in line for line in lines)
    assert [line.split()[0] for line in lines if "512" in line] == ["keys", "needle"]


def test_many_tasks_and_long_names_stay_within_the_terminal() -> None:
    levels = [{"cache_type_k": "f16", "n_ubatch": size} for size in (128, 256, 512)]
    design = a_design("grid", levels, factor="cache_type_k × n_ubatch")
    tasks = ("needle", "keys", "variables", "reworded")
    one = [row for task in tasks for row in answers(20, 2, 0.7, task=task, language="ko")]
    lines = lines_of(design, attempts_of(design, [one] * 3))
    assert max(map(len, lines)) <= WIDTH
    assert any("more than fits" in line for line in lines)
    assert any("cache_type_k, n_ubatch" in line for line in lines)
    assert any(line.startswith("  f16, 512") for line in lines)


# --- the page -----------------------------------------------------------------------------------------------------


def study_of(path: Path, attempts: Sequence[Attempt]) -> Study:
    with open_records(write_record(path / "r.db", attempts)) as records:
        return analyse(records).studies[0]


def section_of(study: Study) -> Section:
    return next(each for each in study_page(study, "").sections if each.slug == "quality")


def texts(section: Section) -> str:
    return " ".join(str(getattr(block, "text", "")) for block in section.blocks)


def test_the_page_says_it_with_rows_to_follow(tmp_path: Path) -> None:
    base = answers(60, 4, 0.7, seed=1)
    design = a_design()
    study = study_of(tmp_path, attempts_of(design, [base, base, turned(base, lost=0.3, gained=0.0)], repeats=2))
    section = section_of(study)
    assert "1 with a loss, 1 without a loss beyond its bound." in texts(section)
    claims = [block for block in section.blocks if isinstance(block, Claim)]
    assert all(each.evidence for each in claims)
    tables = [block for block in section.blocks if isinstance(block, Table)]
    panel = next(table for table in tables if "by task" in table.caption)
    assert [row.cells[1] for row in panel.rows] == ["f16", "q8_0", "q4_0"]
    assert panel.rows[0].cells[-1] == "1, 2"
    answer = study_page(study, "").answer
    assert not any("quality was not measured" in text for text in answer.remarks)
    changes = next(each for each in study_page(study, "").sections if each.slug == "changes")
    assert "Does it still answer?".lower() in texts(changes).lower()
    assert "a loss." not in texts(changes)


def test_without_questions_the_page_says_so(tmp_path: Path) -> None:
    design = replace(a_design(), held={})
    study = study_of(tmp_path, attempts_of(design, [[], [], []], repeats=1))
    assert "was not measured" in texts(section_of(study))
    assert any("quality was not measured" in text for text in study_page(study, "").answer.remarks)


def test_where_every_trial_failed_the_page_says_that(tmp_path: Path) -> None:
    design = a_design()
    failed = [attempt(trial_row(design, level, outcome="truncated_input"), design=design) for level in LEVELS]
    assert "3 of 3 trials failed" in texts(section_of(study_of(tmp_path, failed)))


@pytest.mark.parametrize("name", ["kv_dtype", "retrieval"])
def test_what_models_and_documents_say_stays_text(tmp_path: Path, name: str) -> None:
    rows = [
        replace(
            answer(f"{HOSTILE}{n}", is_right=n % 2 == 0, document=f"d{n}"),
            answer=HOSTILE,
            expected=HOSTILE,
            facts={"question": HOSTILE, "failure": "buried"},
        )
        for n in range(12)
    ]
    design = a_design(name, ("whole", "passages=3", "nothing"), factor="given" if name == "retrieval" else name)
    path = write_record(tmp_path / "r.db", attempts_of(design, [rows] * 3, repeats=1))
    with open_records(path) as records:
        found = analyse(records)
    html = render_page(found)
    assert html.count("<script") == 1  # our own, by its hash
    assert "&lt;script&gt;" in html
    assert "<script" not in render_markdown(found)
    assert render_text(found)


def test_gains_of_several_levels_and_languages_stay_within_the_terminal() -> None:
    def scored(language: str) -> list[AnswerRow]:
        made = [
            answer(f"{n}", document=f"d{n}", task="copy_gain", reading="scored", is_twin=is_twin, language=language)
            for n in range(4)
            for is_twin in (False, True)
        ]
        return [replace(row, score=-10.1 - int(row.document[1]) / 7 - 2 * row.is_twin) for row in made]

    rows = [*scored("en"), *scored("ko")]
    levels = [{"cache_type_k": "f16", "n_ubatch": size} for size in (128, 256)]
    design = a_design("grid", levels, factor="cache_type_k × n_ubatch")
    lines = lines_of(design, attempts_of(design, [rows, rows], repeats=1))
    assert max(map(len, lines)) <= WIDTH
    (row,) = [line.split() for line in lines if line.split()[:4] == ["copy_gain", "(ko)", "f16,", "128"]]
    assert row[4] == "2.0"
