"""Make docs/examples/report.html and report.png of a record: python tools/make_example_report.py demo/kvscope.db

The record is copied first; in the copy names of other programs and folders of this machine are left out. The picture is
the first screen as Chromium shows it (with a Korean font, so that the name of the other language can be read). Nothing
is written, and that is an error, if the page still names a folder of this machine.
"""

import re
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "report"))

from chromium import Chromium

from kvscope.report.page import write_report

EXAMPLES = ROOT / "docs" / "examples"
WIDTH, HEIGHT = 1200, 860
# A path from the root, or from a home folder, with at least two parts.
PATH = re.compile(r"(?<![\w.:/<])(?:~|/(?:home|root|tmp|work|Users|var|opt|srv|mnt|data))(?:/[\w.+-]+)+")


def main(record: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy = scrubbed(record, Path(folder) / "kvscope.db")
        page = write_report(copy, Path(folder) / "report.html")
        named = sorted(set(PATH.findall(page.read_text(encoding="utf-8"))))
        if named:
            raise SystemExit(f"The page names folders of this machine: {', '.join(named[:5])}")
        picture = Path(folder) / "report.png"
        take_picture(page, picture)
        for made in (page, picture):
            shutil.copyfile(made, EXAMPLES / made.name)
            print(f"Wrote {EXAMPLES / made.name} ({made.stat().st_size:,} bytes)")


def scrubbed(record: Path, copy: Path) -> Path:
    """A copy of the record without names of other programs, and with paths cut to their last part."""
    with sqlite3.connect(f"file:{record}?mode=ro", uri=True) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    with sqlite3.connect(copy) as found:
        names = [name for (name,) in found.execute("SELECT DISTINCT name FROM occupants ORDER BY name")]
        for number, name in enumerate(names, start=1):
            found.execute("UPDATE occupants SET name = ?, pid = ? WHERE name = ?", (f"program {number}", number, name))
        for rowid, command in found.execute("SELECT rowid, command FROM runs").fetchall():
            found.execute("UPDATE runs SET command = ? WHERE rowid = ?", (PATH.sub(last_part, command), rowid))
    found.close()
    return copy


def last_part(path: re.Match[str]) -> str:
    return path[0].rsplit("/", 1)[-1]


def take_picture(page: Path, picture: Path) -> None:
    """The first screen, light, in English."""
    with Chromium() as browser:
        browser.open(page, width=WIDTH, height=HEIGHT)
        browser.screenshot(picture, whole=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
