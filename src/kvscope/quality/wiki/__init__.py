"""The bundled wiki: invented pages of two harbours, English and Korean, with questions whose answers stand in them.

The pages lie in ``pages/``, the questions in ``questions.jsonl``; tools/make_wiki.py makes both (``LICENSE.md``). Three
stages, each within the next: *small* fits any model's window, *medium* one of 8k to 32k, *large* is the whole wiki. A
question belongs to the stage from which on all of its evidence is there.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvscope.errors import OutputExists, UnknownName
from kvscope.quality.retrieval.markdown_text import read_markdown
from kvscope.quality.retrieval.questions import AskedQuestion, Questions
from kvscope.quality.retrieval.source import Corpus, SourceDocument

STAGES = ("small", "medium", "large")
LANGUAGES = ("en", "ko")
# What a file of questions holds besides, for readers of the wiki alone.
_OURS = ("kind", "stage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiki:
    """``corpus`` and ``questions``: as they would be read from a folder and a file. ``kinds``: of each question's id,
    ``fact``, ``number``, ``name``, ``date``; ``changed`` (an older page says otherwise); ``two_pages`` (the evidence
    stands on two); ``not_answerable`` (no page says it: no answer, no evidence). ``stages``: from which on it can be
    asked."""

    stage: str
    language: str | None
    corpus: Corpus
    questions: Questions
    kinds: Mapping[str, str]
    stages: Mapping[str, str]


def wiki(stage: str = "small", language: str | None = None) -> Wiki:
    """The pages and questions of a stage, in one language or (None) both. Raises UnknownName."""
    pages, asked = _chosen(stage, language)
    documents = tuple(_document(name) for name in sorted(pages))
    questions = tuple(
        AskedQuestion(
            id=each["id"],
            text=each["question"],
            expected=tuple(each["answers"]),
            evidence=tuple(each["evidence"]),
            document=each["document"],
            language=each["language"],
            line=line,
        )
        for line, each in enumerate(asked, start=1)
    )
    return Wiki(
        stage=stage,
        language=language,
        corpus=Corpus(documents=documents),
        questions=Questions(asked=questions),
        kinds={each["id"]: each["kind"] for each in asked},
        stages={each["id"]: each["stage"] for each in asked},
    )


def write_wiki(folder: Path, stage: str = "large", language: str | None = None) -> tuple[Path, Path]:
    """The same as files, to look at or to change: ``folder/pages`` and ``folder/questions.jsonl``, which are returned.
    Raises UnknownName, and OutputExists where one of the two is there already."""
    pages, asked = _chosen(stage, language)
    documents, questions = folder / "pages", folder / "questions.jsonl"
    for path in (documents, questions):
        if path.exists():
            raise OutputExists(f"{path} is there already.", hint="Name a folder that does not exist yet.")
    for name in pages:
        path = documents / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_text(f"pages/{name}").encode("utf-8"))
    kept = ({name: value for name, value in each.items() if name not in _OURS} for each in asked)
    lines = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in kept)
    questions.write_bytes(lines.encode("utf-8"))
    return documents, questions


def _chosen(stage: str, language: str | None) -> tuple[Sequence[str], Sequence[Mapping[str, Any]]]:
    """The names of the pages, and the questions."""
    if stage not in STAGES:
        raise UnknownName("stage of the wiki", stage, STAGES)
    if language is not None and language not in LANGUAGES:
        raise UnknownName("language of the wiki", language, LANGUAGES)
    within = STAGES[: STAGES.index(stage) + 1]
    stages: dict[str, str] = json.loads(_text("stages.json"))
    pages = [
        name
        for name, each in stages.items()
        if each in within and (language is None or name.startswith(f"{language}/"))
    ]
    asked = [json.loads(line) for line in _text("questions.jsonl").splitlines()]
    return pages, [each for each in asked if each["stage"] in within and language in (None, each["language"])]


@cache
def _text(name: str) -> str:
    """Read byte for byte: no line end is changed on any system."""
    return files("kvscope.quality.wiki").joinpath(*name.split("/")).read_bytes().decode("utf-8")


@cache
def _document(name: str) -> SourceDocument:
    text, title, headings = read_markdown(_text(f"pages/{name}"))
    return SourceDocument(
        name=name, path=f"kvscope's wiki: {name}", text=text, kind="markdown", title=title, headings=headings
    )
