"""What kvscope measure prints of answers: side by side with memory and time, by task, and of prompts that were cut."""

import json
import re
from pathlib import Path

from click.testing import CliRunner, Result

from kvscope.cli.main import cli
from kvscope.record.store import open_records

LAW = ("--set", "ttft_s=0.01", "--set", "itl_s=0.0", "--set", "load_s=0.0")


def run(tmp_path: Path, *asked: str) -> Result:
    records = ("--records", str(tmp_path / "r.db"))
    found = CliRunner().invoke(cli, [*asked, *records], standalone_mode=False)
    assert found.exception is None, found.output
    return found


def measure(tmp_path: Path, design: str, *more: str) -> list[str]:
    asked = ("measure", design, "--engine", "fake", *LAW, "--quality-documents", "6", *more)
    return run(tmp_path, *asked).stdout.splitlines()


def test_a_design_shows_memory_time_and_quality_side_by_side(tmp_path: Path) -> None:
    lines = measure(
        tmp_path,
        "context_limit",
        "--levels",
        "1k,2k",
        "--quality",
        "keys",
        "--repeats",
        "2",
        "--set",
        "answer_right=0.8",
    )
    start = next(n for n, line in enumerate(lines) if "side by side" in line)
    table = lines[start : start + 10]
    assert any(line.startswith("  1,024") for line in table)
    assert any(line.startswith("  2,048") and line.endswith(("beaten", "unknown")) for line in table)
    # The same items at both levels, and an engine that errs on the same ones.
    row = next(line for line in table if line.startswith("  2,048"))
    assert " 0.0 " in row
    assert max(len(line) for line in lines if not line.startswith(("- ", "    "))) <= 100
    said = " ".join(" ".join(lines).split())
    assert "keys (en) with 2,048 against 1,024: cannot tell, too few items" in said
    assert "to see a loss of 5 points about" in said
    page = tmp_path / "page.html"
    run(tmp_path, "report", "--out", str(page))
    assert "keys (en)" in page.read_text(encoding="utf-8")
    found = json.loads(run(tmp_path, "report", "--json").stdout)
    slugs = [finding["slug"] for study in found["studies"] for finding in study["findings"]]
    assert {"quality_share", "quality_cannot_tell", "quality_not_beaten"} <= set(slugs)


def test_the_design_quality_shows_its_tasks_and_no_effects_between_them(tmp_path: Path) -> None:
    lines = measure(tmp_path, "quality", "--levels", "needle,keys", "--set", "answer_right=1")
    tasks = [line.split()[0] for line in lines if line.startswith(("  keys ", "  needle "))]
    assert tasks == ["keys", "needle"]
    assert not any("against needle" in line for line in lines)
    with open_records(tmp_path / "r.db") as records:
        answers = [row for trial in records.trials() for row in records.result(trial).answers if row.task == "keys"]
    right = sum(row.reading == "right" and not row.is_twin for row in answers)
    asked = sum(not row.is_twin for row in answers)
    assert right == asked
    assert any(f"{right}/{asked}" in line and line.endswith("ceiling") for line in lines)


def test_a_prompt_that_was_cut_is_no_wrong_answer_and_is_told(tmp_path: Path) -> None:
    cut = ("--set", "answer_right=1", "--set", "cuts_at_tokens=300", "--set", "cut_states=0")
    lines = measure(tmp_path, "quality", "--levels", "keys", "--input-tokens", "600", *cut)
    said = " ".join(" ".join(lines).split())
    # The server states no count, so that the markers at head and tail of each document tell.
    assert "quality-cut-by-markers" in said
    assert re.search(r"(\d+) of \1 answers are in no share: \1 prompt cut\.", said)
    assert re.search(r"Cannot tell: no answer could be read \(\d+ prompt cut\)\.", said)
