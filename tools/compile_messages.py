"""Compile the catalogues: every ``src/kvscope/locale/<language>/*.po`` into that language's one ``kvscope.mo``.

Used when the package is built or installed (``hatch_build.py``), and by hand after a catalogue was changed:
``python tools/compile_messages.py``. The result is not kept under version control.
"""

from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po

LOCALE = Path("src", "kvscope", "locale")
NO_DATE = datetime(2000, 1, 1, tzinfo=UTC)
COMPILED = Path("LC_MESSAGES", "kvscope.mo")


def compiled(folder: Path) -> bytes:
    """The compiled catalogue of a language's folder. Messages without a translation, or with a doubtful one, are left
    out. ValueError if two files say different things of one message."""
    # Dates would make each build another.
    whole = Catalog(locale=folder.name, creation_date=NO_DATE, revision_date=NO_DATE)
    for path in sorted(folder.glob("*.po")):
        with path.open("rb") as file:
            catalogue = read_po(file, locale=folder.name, abort_invalid=True)
        for message in catalogue:
            if not message.id or not message.string or message.fuzzy:
                continue
            there = whole.get(message.id, context=message.context)
            if there is not None and there.string != message.string:
                raise ValueError(f"{path}: {message.id!r} is translated in two ways")
            whole.add(message.id, message.string, context=message.context)
    out = BytesIO()
    write_mo(out, whole)
    return out.getvalue()


def compile_all(root: Path) -> list[Path]:
    """Compile every language below ``root``, the folder of the project; the files written."""
    written = []
    for folder in sorted(path for path in (root / LOCALE).iterdir() if path.is_dir()):
        target = folder / COMPILED
        target.parent.mkdir(exist_ok=True)
        # Another process may be reading it.
        fresh = target.with_suffix(".new")
        fresh.write_bytes(compiled(folder))
        fresh.replace(target)
        written.append(target)
    return written


if __name__ == "__main__":
    for path in compile_all(Path(__file__).parent.parent):
        print(f"Wrote {path}.")
