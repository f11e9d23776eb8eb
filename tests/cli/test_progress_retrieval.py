"""What is said of retrieval under way and before: the first question reads everything, the later ones reuse it, and one
number for both would be of neither; what was left out is named before anything runs."""

from pathlib import Path

from click.testing import CliRunner

from kvscope.cli.main import cli
from kvscope.errors import KvscopeError


def test_first_and_later_questions_are_told_apart(tmp_path: Path) -> None:
    arguments = ["measure", "retrieval", "--engine", "fake", "--levels", "whole", "--repeats", "1", "--requests", "4"]
    law = ["--set", "ttft_s=0", "--set", "ttft_s_per_token=0.001", "--set", "itl_s=0", "--set", "load_s=0"]
    found = CliRunner().invoke(cli, [*arguments, *law, "--records", str(tmp_path / "r.db")])
    line = next(line for line in found.output.splitlines() if "given=whole, repeat 1" in line)
    assert "first token after" in line
    assert "of later questions" in line


def test_the_page_compares_no_median_of_a_cold_and_many_warm_questions(tmp_path: Path) -> None:
    records, page = str(tmp_path / "r.db"), tmp_path / "page.html"
    levels = ["--levels", "whole,passages=1", "--repeats", "2", "--requests", "3"]
    law = ["--set", "ttft_s=0", "--set", "ttft_s_per_token=0.001", "--set", "itl_s=0", "--set", "load_s=0"]
    CliRunner().invoke(cli, ["measure", "retrieval", "--engine", "fake", *levels, *law, "--records", records])
    found = CliRunner().invoke(cli, ["report", "--records", records, "--out", str(page)])
    assert found.exit_code == 0, found.output
    text = page.read_text(encoding="utf-8")
    changes = text[text.index('id="changes"') : text.index('id="', text.index('id="changes"') + 5000)]
    assert "first token (s)" not in changes


def test_a_dry_run_names_what_is_left_out_and_asked(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.md").write_text("The gate code is 4417. The lamp is green.", encoding="utf-8")
    (docs / "broken.pdf").write_bytes(b"%PDF-1.4 no")
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"question": "대문의 번호는 무엇입니까?", "answer": "4417"}\n', encoding="utf-8")
    base = ["measure", "retrieval", "--engine", "fake", "--dry-run", "--documents"]
    found = CliRunner().invoke(cli, [*base, str(docs), "--questions", str(questions)])
    assert found.exit_code == 0, found.output
    assert "broken.pdf" in found.output
    assert "Questions by language: 1 ko" in found.output
    assert "sha256" not in found.output


def test_documents_that_are_not_there_come_before_missing_questions(tmp_path: Path) -> None:
    found = CliRunner().invoke(cli, ["measure", "retrieval", "--engine", "fake", "--documents", str(tmp_path / "no")])
    assert isinstance(found.exception, KvscopeError)
    assert "No such file" in str(found.exception)
