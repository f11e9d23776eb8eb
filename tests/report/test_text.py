"""The terminal's lines, the Markdown, the JSON, and the command that gives them."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from study_rows import answered, attempt, conversations, design_row, trial_row, whole_lab, write_record

from kvscope.analysis.study import Analysis, analyse
from kvscope.cli.main import cli
from kvscope.errors import OutputExists, RecordNotFound
from kvscope.language import LANGUAGES, speaking
from kvscope.record.store import open_records
from kvscope.report.markdown import escaped, render_markdown
from kvscope.report.text import MOST_DESIGN_LINES, MOST_LINES, _overall, _shown_findings, render_text
from kvscope.report.words import say


def analysis_of(path: Path) -> Analysis:
    with open_records(path) as records:
        return analyse(records)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_record(tmp_path_factory.mktemp("text") / "r.db", whole_lab())


def without_advice(lines: list[str]) -> list[str]:
    """The lines of the study as a whole, without what to change first, which stands before the checks, and without what
    to do about doubts, which stands behind them."""
    whole = lines[: lines.index("")]
    advice = next(number for number, line in enumerate(whole) if line.startswith("→ "))
    checks = next(number for number, line in enumerate(whole) if number > advice and line[0] in "=!")
    steps = next((n for n, line in enumerate(whole) if n > checks and re.match("  [a-z ]+: ", line)), len(whole))
    return [*whole[:advice], *whole[checks:steps]]


def test_the_lab_in_a_few_lines(lab: Path) -> None:
    lines = render_text(analysis_of(lab)).splitlines()
    # Of the study as a whole, besides what to change first; then each design, after an empty line.
    assert len(without_advice(lines)) <= MOST_LINES == 32
    assert max(map(len, lines)) <= 80
    blocks = "\n".join(lines).split("\n\n")[1:]
    assert [block.split(":")[0] for block in blocks] == ["context_limit", "input_length", "output_length"]
    assert max(len(block.splitlines()) for block in blocks) <= 1 + MOST_DESIGN_LINES
    text = " ".join(" ".join(lines).split())
    assert "× 1 of 25 trials failed (engine died × 1)" in text
    assert "23,040 predicted, 23,040 measured" in text
    assert "30 full attention layers × (3 × 64 keys + 3 × 64 values) in float16 = 23,040 bytes" in text
    assert "First token:" in text
    assert "host prompt" in text
    assert "unexplained" in text


def test_failures_come_before_the_answer(lab: Path) -> None:
    text = render_text(analysis_of(lab))
    assert text.index("trials failed") < text.index("Each 1,000 tokens")


def test_not_all_checks_passed_where_every_trial_failed(tmp_path: Path) -> None:
    died = {"outcome": "engine_died", "error_hint": "Look at the engine's log."}
    rows = [attempt(trial_row(design_row(), 512, r, **died)) for r in range(2)]
    lines = render_text(analysis_of(write_record(tmp_path / "r.db", rows))).splitlines()
    assert "= All checks passed." not in lines
    assert "  failures: Look at the engine's log." in lines


def test_a_number_is_not_parted_from_its_unit(lab: Path) -> None:
    starts = [line.split()[0] for line in render_text(analysis_of(lab)).splitlines() if line]
    assert not {"MiB", "GiB", "s", "ms", "%"} & set(starts)


def test_too_many_findings_say_that_there_are_more(tmp_path: Path) -> None:
    design = design_row("release", levels=tuple(range(30)), baseline_level=0)
    rows = whole_lab()
    rows += [attempt(trial_row(design, n, trial_id=f"r{n}"), design=design, **conversations(13_800)) for n in range(30)]
    rows = [r for r in rows if r.design.name != "release" or r.design is design]
    lines = render_text(analysis_of(write_record(tmp_path / "r.db", rows))).splitlines()
    whole = without_advice(lines)
    assert MOST_LINES - 4 <= len(whole) <= MOST_LINES  # a finding is there whole or not at all
    # What it may be doubted for is never what is left out.
    assert [whole[-2], whole[-1][0]] == ["… more on the page.", "="]


def test_what_a_design_says_stands_under_its_name_and_under_what_tells_it_from_its_namesakes(tmp_path: Path) -> None:
    # As measured: two studies of output_length with other context limits gave two sentences "Each further output token
    # takes …" with no word which was which, and of what came after them only that there is more.
    rows = [row for row in whole_lab() if row.design.name == "output_length"]
    other = replace(
        rows[0].design, design_id="other", held={**rows[0].design.held, "settings": {"n_ctx": 4096}}, seed=7
    )
    again = [
        replace(row, design=other, result=replace(row.result, trial=replace(row.trial, design_id="other")))
        for row in rows
    ]
    analysis = analysis_of(write_record(tmp_path / "r.db", [*rows, *again]))
    text = render_text(analysis)
    heads = [line for line in text.splitlines() if line.startswith("output_length")]
    assert len(heads) == 2
    assert "seed = 7" in heads[1]
    assert "context limit (n_ctx) = 4,096" in heads[1]
    assert text.count("Each further output token takes") == 2


def test_a_release_that_cannot_be_told_is_one_sentence_with_one_full_stop(tmp_path: Path) -> None:
    design = design_row("release")
    path = write_record(
        tmp_path / "r.db", [attempt(trial_row(design, 8192), design=design, **conversations(13_800, 1))]
    )
    text = " ".join(render_text(analysis_of(path)).split())
    assert "cannot tell: one conversation cannot tell growth from a bound; it takes 3, better 6." in text
    assert "6.." not in text


def test_nothing_measured_and_nothing_there(tmp_path: Path) -> None:
    assert "no trials yet" in render_text(analysis_of(write_record(tmp_path / "a.db", [])))
    design = design_row()
    lost = attempt(trial_row(design, 512, outcome="timed_out"), design=design, **answered())
    assert "Nothing could be measured" in render_text(analysis_of(write_record(tmp_path / "b.db", [lost])))


def test_markdown_has_the_whole_argument(lab: Path) -> None:
    text = render_markdown(analysis_of(lab))
    assert text.startswith("# Each 1,000 tokens of context adds 22.0 MiB")
    # What to change first stands among them without a number of its own.
    assert [line[3:5] for line in text.splitlines() if re.match(r"## \d", line)] == [
        "2.", "3.", "4.", "5.", "6.", "7.", "8.", "9.", "10", "11",
    ]  # fmt: skip
    for table in text.split("\n\n"):
        rows = [line for line in table.splitlines() if line.startswith("|")]
        assert len({line.replace("\\|", "").count("|") for line in rows}) <= 1


def test_markdown_escapes() -> None:
    assert escaped("<b>|`*_[x]~#") == "&lt;b&gt;\\|\\`\\*\\_\\[x\\]\\~\\#"


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(cli, ["report", *arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    assert result.return_value == code
    return result.stdout, result.stderr


def test_text_on_standard_output_by_default(lab: Path) -> None:
    out, err = run("--records", str(lab))
    assert "Each 1,000 tokens" in out
    assert err == ""


@pytest.mark.parametrize(
    ("name", "start"), [("page.html", "<!doctype html>"), ("page.md", "# Each"), ("page.txt", "SmolLM2")]
)
def test_the_form_follows_the_files_name(lab: Path, tmp_path: Path, name: str, start: str) -> None:
    out, err = run("--records", str(lab), "--out", str(tmp_path / name))
    assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)
    assert out == ""
    assert err == f"Wrote {tmp_path / name}.\n"


def test_a_file_is_not_overwritten_without_force(lab: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("mine")
    with pytest.raises(OutputExists):
        run("--records", str(lab), "--out", str(out))
    assert out.read_text() == "mine"
    run("--records", str(lab), "--out", str(out), "--force")
    assert out.read_text() != "mine"


def test_findings_as_json(lab: Path) -> None:
    (study,) = json.loads(run("--records", str(lab), "--json")[0])["studies"]
    assert study["trials"] == 25
    assert study["failed"] == 1
    assert round(study["bytes_per_token_measured"]["value"]) == 23_040
    assert study["bytes_per_token_predicted"] == 23_040
    assert study["unexplained_bytes"] == 0
    assert {f["slug"] for f in study["findings"]} >= {"slope_agrees", "release_host_cache"}


def test_charts_as_files(lab: Path, tmp_path: Path) -> None:
    folder = tmp_path / "charts"
    out, err = run("--records", str(lab), "--charts", str(folder))
    assert out == ""
    assert "Wrote 8 charts" in err
    assert {p.suffix for p in folder.iterdir()} == {".svg", ".png"}
    with pytest.raises(OutputExists):
        run("--records", str(lab), "--charts", str(folder))


def test_no_record(tmp_path: Path) -> None:
    with pytest.raises(RecordNotFound):
        run("--records", str(tmp_path / "none.db"))


def left_out(tmp_path: Path) -> Path:
    """The lab whose sitting ended in its second design: of the last nothing was begun."""
    rows = [
        row
        for row in whole_lab()
        if row.design.name == "context_limit" or (row.design.name == "input_length" and row.trial.block == 0)
    ]
    return write_record(tmp_path / "early.db", rows)


def test_what_a_sitting_that_ended_early_left_out_is_said(tmp_path: Path) -> None:
    analysis = analysis_of(left_out(tmp_path))
    (study,) = analysis.studies
    planned = sum(len(design.design.levels) * design.design.repeats for design in study.designs)
    run = len({a.trial.trial_id for a in study.attempts if a.trial.role == "measured"})
    assert run < planned
    text = " ".join(render_text(analysis).split())
    assert f"{planned - run} of {planned} planned trials were not run" in text
    page = render_markdown(analysis)
    assert f"{planned - run} of {planned} planned trials were not run" in page
    assert re.search(r"\| input\\_length \|.*\| 1 of \d \|", page)  # its repeats as they were run


def test_a_design_that_was_not_begun_is_named_and_has_no_table(tmp_path: Path) -> None:
    analysis = analysis_of(left_out(tmp_path))
    (study,) = analysis.studies
    unbegun = replace(study.designs[1], attempts=())
    page = render_markdown(replace(analysis, studies=(replace(study, designs=(study.designs[0], unbegun)),)))
    assert "Planned, and not begun: input\\_length" in page
    section = page[page.index("What did one change do?") : page.index("Did the memory come back?")]
    assert section.count("context\\_limit") >= 1
    assert "Nothing of an earlier prompt is reused" not in section


def test_a_terminal_shows_the_same_findings_in_every_language(lab: Path) -> None:
    analysis = analysis_of(lab)
    marks = {}
    for language in LANGUAGES:
        with speaking(language):
            lines = render_text(analysis).splitlines()
            marks[language] = [line[:2] for line in lines[: lines.index("")] if line[:2] in ("- ", "≠ ")]
            assert any(line.startswith(say("text.more")) for line in lines) == (
                len(_shown_findings(analysis.studies[0])) < len(_overall(analysis.studies[0]))
            )
    assert len(set(map(tuple, marks.values()))) == 1


def test_a_terminal_says_how_far_this_machine_goes(lab: Path) -> None:
    text = " ".join(render_text(analysis_of(lab)).split())
    assert "- Fits here: " in text
