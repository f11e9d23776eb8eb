"""Make the bundled wiki and its questions of the texts in tools/wiki: python tools/make_wiki.py

What it writes lies checked in under src/kvscope/quality/wiki; tests/quality/test_wiki_made.py makes it again and
compares every byte.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from wiki.sources import Made, made_pages

SOURCES = Path(__file__).parent / "wiki"
TARGET = Path(__file__).parent.parent / "src" / "kvscope" / "quality" / "wiki"
LANGUAGES = ("en", "ko")
STAGES = ("small", "medium", "large")


def main() -> None:
    files = made_files()
    for old in sorted((TARGET / "pages").rglob("*.md")):
        if old.relative_to(TARGET).as_posix() not in files:
            old.unlink()
    for name, text in files.items():
        path = TARGET / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8"))
    print(f"{len(files) - 2} pages, {sum(len(text.encode('utf-8')) for text in files.values()):,} bytes")


def made_files() -> dict[str, str]:
    """Every file of the wiki, by its path below the package: the pages, their stages, the questions."""
    pages = {f"{language}/{page.path}": page for language in LANGUAGES for page in made_pages(SOURCES / language)}
    files = {f"pages/{name}": page.text for name, page in pages.items()}
    stages = {name: page.stage for name, page in pages.items()}
    files["stages.json"] = json.dumps(stages, indent=1, ensure_ascii=False) + "\n"
    asked = (_question(json.loads(line), pages) for line in _question_lines())
    files["questions.jsonl"] = "".join(json.dumps(question, ensure_ascii=False) + "\n" for question in asked)
    return files


def _question_lines() -> list[str]:
    lines = []
    for language in LANGUAGES:
        lines += (SOURCES / f"questions_{language}.jsonl").read_text(encoding="utf-8").splitlines()
    return lines


def _question(asked: dict[str, object], pages: dict[str, Made]) -> dict[str, object]:
    """The question with the page that its evidence stands on, and the stage at which all of it is there."""
    documents, stage = [], str(asked.get("stage", "small"))
    for evidence in asked["evidence"]:  # type: ignore[attr-defined]
        holding = [name for name, page in pages.items() if evidence in page.text]
        if len(holding) != 1:
            sys.exit(f"{asked['id']}: {len(holding)} pages hold {evidence!r}: {holding}")
        documents += [name for name in holding if name not in documents]
        stage = max(stage, pages[holding[0]].stage, key=STAGES.index)
    document = documents[0] if len(documents) == 1 else None
    return {**asked, "language": str(asked["id"])[:2], "document": document, "stage": stage}


if __name__ == "__main__":
    main()
