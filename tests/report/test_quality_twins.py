"""What twins show, refusals, and levels of which nothing is known."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from answer_rows import answers
from study_rows import attempt, trial_row, write_record
from test_answer_headline import analysis_of
from test_quality_shown import a_design, attempts_of, section_of, texts

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.finding import Finding
from kvscope.analysis.quality_effects import quality_effects
from kvscope.analysis.quality_findings import quality_findings
from kvscope.record.rows import AnswerRow, DesignRow
from kvscope.report.blocks import Claim, Table
from kvscope.report.quality_cells import is_in_tables
from kvscope.report.quality_text import quality_lines
from kvscope.report.terminal_text import WIDTH


def guessed(rows: Sequence[AnswerRow]) -> list[AnswerRow]:
    """Of 12 twins the first 9 name another value and one says that it is not there; 2 facts are said not to be."""
    twins, asked = [row for row in rows if row.is_twin], [row for row in rows if not row.is_twin]
    wrong = [row for row in asked if row.reading == "wrong"][:2]
    named = [replace(row, facts={"also_named": ["7"]}) for row in twins[:9]]
    refused = [replace(row, facts={"refused": True}) for row in (twins[9], *wrong)]
    return [*named, *refused, *twins[10:], *(row for row in asked if row not in wrong)]


def of_one_task() -> tuple[DesignRow, list[Attempt]]:
    design = a_design("quality", ("keys",), factor="quality_task")
    return design, attempts_of(design, [guessed(answers(4, 3, 0.5, seed=3))], repeats=1)


def test_twins_that_name_another_value_are_told_beside_the_share_that_is_right(tmp_path: Path) -> None:
    design, attempts = of_one_task()
    effects = quality_effects(design, attempts)
    assert effects is not None
    lines = quality_lines(design, effects)
    said = " ".join(" ".join(lines).split())
    assert "said not to be there: keys (en) 9 and 1 of 12." in said
    assert "Facts that are there and were said not to be: keys (en) 2." in said
    assert max(map(len, lines)) <= WIDTH
    (share,) = [each for each in quality_findings(design, attempts) if each.slug == "quality_share"]
    assert (share.values["twin_named"], share.values["twins"], share.values["refused"]) == (9, 12, 2)


def test_the_page_has_them_in_its_table_and_no_sentence_for_each_cell(tmp_path: Path) -> None:
    study = analysis_of(write_record(tmp_path / "r.db", of_one_task()[1])).studies[0]
    section = section_of(study)
    panel = next(block for block in section.blocks if isinstance(block, Table) and "by task" in block.caption)
    named = dict(zip((column.title for column in panel.columns), panel.rows[0].cells, strict=True))
    assert named["without, names another value"] == "9/12"
    assert named["without, says so"] == "1/12"
    assert named["says it is not there"] == "2"
    assert not any("right; without" in block.text for block in section.blocks if isinstance(block, Claim))
    assert "one of many facts told alike" in texts(section)


def test_a_level_that_was_not_measured_is_no_candidate_and_pairs_are_told_once() -> None:
    design = a_design("context_limit", (512, 2048, 8192))
    rows = [answers(4, 2, 0.5, seed=1)] * 3
    attempts = [each for each in attempts_of(design, rows) if each.trial.level != 512]
    attempts += [attempt(trial_row(design, 512, outcome="truncated_input"), design=design)]
    (found,) = [each for each in quality_findings(design, attempts) if each.slug == "quality_not_beaten"]
    assert 512 not in found.values["levels"]
    pairs = [frozenset((level, other)) for level, other, _ in found.values["unknown"]]
    assert len(pairs) == len(set(pairs))
    assert not any(512 in pair for pair in pairs)


def test_levels_of_which_no_answer_could_be_read_are_none_either() -> None:
    design = a_design("context_limit", (512, 2048))
    cut = [replace(row, reading="truncated_input", score=None) for row in answers(4, 2, 0.5, seed=1)]
    found = quality_findings(design, attempts_of(design, [cut, cut]))
    assert "quality_not_beaten" not in [each.slug for each in found]


@pytest.mark.parametrize(
    ("slug", "values", "is_told_once"),
    [
        ("quality_share", {"items": 4}, True),
        ("quality_share", {"items": 0}, False),  # why nothing was read stands in the sentence alone
        ("fidelity_loss", {"lost": ()}, True),
        ("fidelity_loss", {"lost": ("d1",)}, False),
        ("fidelity_cannot_tell", {"lost": ()}, False),  # nor is there a column for the reason
        ("copy_gain_used", {}, True),
        ("quality_loss", {}, False),
    ],
)
def test_what_the_tables_say_whole_is_not_said_again(slug: str, values: dict[str, object], is_told_once: bool) -> None:
    assert is_in_tables(Finding(slug=slug, values=values)) is is_told_once
