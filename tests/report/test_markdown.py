"""The report as Markdown: by a parser of CommonMark, and within what an issue takes."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from study_rows import answered, attempt, design_row, memory, trial_row, whole_lab, write_record

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.study import analyse
from kvscope.record.store import open_records
from kvscope.report.blocks import Bullets, Paragraph, Table, columns, row
from kvscope.report.markdown import _block, _fitted, _Part, escaped, render_markdown

# "Body is too long (maximum is 65536 characters)": GitHub's answer to a longer issue.
ISSUE_CHARACTERS = 65_536


def rendered(tmp_path: Path, attempts: list[Attempt]) -> str:
    with open_records(write_record(tmp_path / "r.db", attempts)) as records:
        return render_markdown(analyse(records))


def kinds(text: str) -> list[str]:
    return [token.type for token in MarkdownIt("commonmark").enable("table").parse(text)]


@pytest.mark.parametrize("text", ["- no list", "+ 3.4 MiB", "1. no list", "12) no list", "= no heading", "-", "1."])
def test_a_sentence_that_begins_like_a_list_is_a_sentence(text: str) -> None:
    assert kinds(_block(Paragraph(text=text))) == ["paragraph_open", "inline", "paragraph_close"]
    items = MarkdownIt("commonmark").parse(_block(Bullets(items=(text,))))
    assert [token.content for token in items if token.type == "inline"] == [_block(Paragraph(text=text))]
    (shown,) = [token for token in MarkdownIt("commonmark").parse(_block(Paragraph(text=text))) if token.children]
    assert "".join(child.content for child in shown.children or ()) == text


@pytest.mark.parametrize("text", ["3.4 MiB", "-6.5 to 2", "1,000 tokens", "2026-11-30", "+3.4"])
def test_numbers_stay_as_they_are(text: str) -> None:
    assert _block(Paragraph(text=text)) == text


def test_nobody_is_called_and_nothing_linked() -> None:
    text = escaped("@octocat fixed #12, see https://example.invalid or www.example.invalid, a@b.example")
    assert not re.search(r"@\w|#\d|://|www\.", text)
    # What is seen is the same: one character that has no width stands in each.
    assert text.replace("\u2060", "").replace("\\", "").startswith("@octocat fixed #12, see https://example.invalid")


def test_a_table_is_one_table_whatever_its_cells_hold() -> None:
    cells = ("a|b", "c\nd", "\r| e |\x85", "`f|`", "\\|")
    table = Table(caption="c", columns=columns(*cells), rows=(row(*cells),))
    tokens = MarkdownIt("commonmark").enable("table").parse(_block(table))
    assert [token.type for token in tokens].count("td_open") == [t.type for t in tokens].count("th_open") == len(cells)


def test_a_report_of_many_trials_fits_an_issue_and_says_so(tmp_path: Path) -> None:
    design = design_row()
    trials = [trial_row(design, 512 * (1 + n % 4), trial_id=f"t{n}", repeat=n // 4, block=n // 4) for n in range(400)]
    many = [attempt(trial, design=design, **memory(512), **answered()) for trial in trials]
    text = rendered(tmp_path, many)
    assert len(text) <= ISSUE_CHARACTERS
    assert "This report is shortened" in text
    assert "400 lines, left out here" in text
    # The argument stays whole: only lists were taken.
    assert [line[3:5] for line in text.splitlines() if line.startswith("## ")][:2] == ["2.", "3."]
    assert "## 11." in text


def test_a_short_report_is_not_shortened(tmp_path: Path) -> None:
    text = rendered(tmp_path, whole_lab())
    assert len(text) <= ISSUE_CHARACTERS
    assert "shortened" not in text
    assert "left out here" not in text


def test_what_has_no_shorter_form_is_cut_at_the_end() -> None:
    parts = [_Part(text=f"{n} {'x' * 999}") for n in range(100)]
    kept = _fitted(parts)
    assert sum(len(part.text) + 2 for part in kept) <= ISSUE_CHARACTERS
    assert kept[0] == parts[0]
    assert kept[-1].text == "_The rest is left out here._"


def test_the_longest_of_the_most_dispensable_goes_first() -> None:
    def part(name: str, size: int, *, is_first_to_go: bool = False) -> _Part:
        return _Part(text=name + "x" * size, instead=f"no {name}", is_first_to_go=is_first_to_go)

    parts = [_Part(text="head"), part("a", 40_000), part("b", 20_000, is_first_to_go=True), part("c", 9_000)]
    assert [p.text[:4] for p in _fitted(parts)] == ["head", "_Thi", "axxx", "no b", "cxxx"]
    parts[2] = replace(parts[2], text="b" * 50, instead="")
    parts.append(part("d", 30_000))
    assert [p.text[:4] for p in _fitted(parts)][2] == "no a"
