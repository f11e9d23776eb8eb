"""The bundled wiki as it is reached: from an installation, from a zip file, written out as files."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kvscope.errors import OutputExists, UnknownName
from kvscope.quality.retrieval.questions import read_questions
from kvscope.quality.retrieval.reading import read_documents
from kvscope.quality.wiki import LANGUAGES, STAGES, wiki, write_wiki

SOURCE = Path(__file__).parent.parent.parent / "src"


@pytest.mark.parametrize("language", [None, *LANGUAGES])
@pytest.mark.parametrize("stage", STAGES)
def test_written_out_and_read_as_a_users_own_it_is_the_same(tmp_path: Path, stage: str, language: str | None) -> None:
    bundled = wiki(stage, language)
    documents, questions = write_wiki(tmp_path / "wiki", stage, language)
    corpus, asked = read_documents(documents), read_questions(questions)
    assert (corpus.left_out, corpus.duplicates) == ((), {})
    assert [
        (each.name, each.text, each.kind, each.title, each.headings, each.problems) for each in corpus.documents
    ] == [
        (each.name, each.text, each.kind, each.title, each.headings, each.problems) for each in bundled.corpus.documents
    ]
    assert asked.asked == bundled.questions.asked
    assert [remark.slug for remark in asked.problems] == ["questions-without-answers"]


def test_stages_grow(tmp_path: Path) -> None:
    for language in (None, *LANGUAGES):
        small, medium, large = (wiki(stage, language) for stage in STAGES)
        for lesser, greater in ((small, medium), (medium, large)):
            assert {each.name for each in lesser.corpus.documents} < {each.name for each in greater.corpus.documents}
            assert {each.id for each in lesser.questions.asked} < {each.id for each in greater.questions.asked}


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text("mine", encoding="utf-8")
    with pytest.raises(OutputExists):
        write_wiki(tmp_path)
    assert (tmp_path / "questions.jsonl").read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "pages").exists()


def test_an_unknown_stage_or_language_is_named() -> None:
    with pytest.raises(UnknownName, match="'smal'"):
        wiki("smal")
    with pytest.raises(UnknownName, match="'fr'"):
        wiki("small", "fr")


def test_it_is_read_from_a_zip_file(tmp_path: Path) -> None:
    archive = tmp_path / "kvscope.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted((SOURCE / "kvscope").rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                file.write(path, path.relative_to(SOURCE).as_posix())
    code = (
        "import json, kvscope; from kvscope.quality.wiki import wiki; w = wiki('large');"
        "print(json.dumps([kvscope.__file__, len(w.corpus.documents), len(w.questions.asked)]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(archive), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path, check=True
    )
    where, documents, questions = json.loads(done.stdout)
    assert where.startswith(str(archive))
    assert (documents, questions) == (len(wiki("large").corpus.documents), 60)
