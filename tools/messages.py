"""The texts that users read, taken from the code into the catalogues of each language (``src/kvscope/locale/*/*.po``).

    python tools/messages.py update     take new texts in, drop those that no longer exist; nothing is ever "fuzzy"
    python tools/messages.py missing    print what is not translated yet; exit status 1 if there is any
    python tools/messages.py compile    write the one catalogue (.mo) that kvscope reads

``update`` and ``missing`` take names of catalogues (report, messages_engine ...) to do no other.

A text has its slug as context where it has one. Its file says where it is from: ``report`` (the page, findings, names),
``terminal``, ``help`` (commands and options), ``messages`` (errors, hints, warnings, notes of a prediction). Files are
sorted and hold no dates, no line numbers and no paths, so that a change of one text is a change of one line.
"""

import argparse
import ast
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from io import BytesIO
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from help_texts import help_texts
from message_templates import templates

from kvscope.report.words import WORDS

LOCALE = ROOT / "src" / "kvscope" / "locale"
REPORT = ROOT / "src" / "kvscope" / "report"
HEADER = """msgid ""
msgstr ""
"Language: {language}\\n"
"MIME-Version: 1.0\\n"
"Content-Type: text/plain; charset=utf-8\\n"
"Content-Transfer-Encoding: 8bit\\n"
"Plural-Forms: nplurals=1; plural=0;\\n"

"""
Key = tuple[str, str]  # context and English


def domain_of(module: str) -> str:
    """The catalogue of a module's words: those of a terminal's texts apart, as they are written for 80 columns."""
    return "terminal" if "text" in module or module.startswith("terminal") else "report"


def slugs_in(path: Path) -> Iterator[str]:
    """The slugs whose sentences a module of words writes down itself."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for key in node.keys if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value in WORDS:
                yield key.value


@cache
def extracted() -> dict[str, set[Key]]:
    """Every text by catalogue."""
    found: dict[str, set[Key]] = {"report": set(), "terminal": set()}
    placed: dict[str, str] = {}
    for path in sorted(REPORT.glob("*_en.py")):
        placed |= dict.fromkeys(slugs_in(path), domain_of(path.stem.removesuffix("_en")))
    for slug, english in WORDS.items():
        found[placed.get(slug, "report")].add((slug, english))
    found["help"] = help_texts()
    for english, domain in templates().items():
        found.setdefault(domain, set()).add(("", english))
    return found


def catalogue(path: Path) -> Catalog:
    """What a file holds; empty where there is none."""
    if not path.exists():
        return Catalog()
    with path.open("rb") as file:
        return read_po(file)


def translated(path: Path) -> dict[Key, str]:
    """The translations of a file that are there and certain."""
    messages: Iterator[Message] = iter(catalogue(path))
    return {(m.context or "", str(m.id)): str(m.string) for m in messages if m.id and m.string and not m.fuzzy}


def written(language: str, texts: Mapping[Key, str]) -> bytes:
    """A catalogue as the bytes of its file."""
    result = Catalog()
    for (context, english), text in sorted(texts.items()):
        result.add(english, text, context=context or None)
    # Babel would find a colon-separated time or a brace and mark formats: those marks say nothing here.
    for message in result:
        message.flags.clear()
    buffer = BytesIO()
    write_po(buffer, result, width=0, omit_header=True, sort_output=False)
    return HEADER.format(language=language).encode() + buffer.getvalue()


def languages() -> list[str]:
    """The languages that there are catalogues of."""
    return sorted(path.name for path in LOCALE.iterdir() if path.is_dir())


def update(wanted: Collection[str] = ()) -> None:
    """Take new texts into every catalogue and drop those that the code no longer has. A text that is the same under
    another slug is left to the translator: one English text may have two translations."""
    for language in languages():
        for domain, keys in extracted().items():
            if wanted and domain not in wanted:
                continue
            path = LOCALE / language / f"{domain}.po"
            known = translated(path)
            if keys or path.exists():
                path.write_bytes(written(language, {key: known.get(key, "") for key in keys}))


def missing(wanted: Collection[str] = ()) -> list[tuple[str, str, Key]]:
    """Language, catalogue and key of every text that is not translated as it stands in the code."""
    return [
        (language, domain, key)
        for language in languages()
        for domain, keys in extracted().items()
        if not wanted or domain in wanted
        for key in sorted(keys - set(translated(LOCALE / language / f"{domain}.po")))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("update", "missing", "compile"))
    parser.add_argument("catalogues", nargs="*")
    arguments = parser.parse_args()
    what, wanted = arguments.what, arguments.catalogues
    if what == "update":
        update(wanted)
    elif what == "compile":
        from compile_messages import compile_all

        compile_all(ROOT)
    else:
        for language, domain, (context, english) in (found := missing(wanted)):
            print(f"{language}/{domain}: {context} | {english}")
        return int(bool(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
