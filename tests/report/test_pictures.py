"""Pictures of the page held against those that were looked at, ``pictures/*.png``.

Fonts differ between machines, so no two machines draw the same pixels. What is compared is how dark each part of a
coarse grid is on average. Seen: a wide serif font moves up to 8 % of its cells, a narrow one 18 %; without styles it is
27 %, in one narrow column 45 %. What is missing without moving the rest, other tests see.
After a change that was meant: ``KVSCOPE_RENEW_PICTURES=1 pytest tests/report/test_pictures.py``, and look at them.
"""

import io
import os
from pathlib import Path
from typing import Any

import pytest
from chromium import Chromium

pytestmark = pytest.mark.browser

PICTURES = Path(__file__).parent / "pictures"
VIEWS: dict[str, dict[str, Any]] = {
    "first-screen": {},
    "dark": {"dark": True},
    "korean": {"language": "ko"},
    "telephone": {"width": 360, "height": 800},
    "print": {"media": "print", "width": 800, "height": 1100},
    "memory": {"section": "memory"},
}
# A cell of the grid, in pixels of the picture; how far its mean may be off (of 255); how many cells may be further off.
CELL, OFF, SHARE = 80, 14, 0.2
FONTS = "* { font-family: 'DejaVu Serif', serif !important; letter-spacing: .2px }"
BROKEN = {
    "no styles": "",
    "one narrow column": "main { max-width: 20rem !important }",
    "another ground": "body { background: #888 !important }",
}


def taken(browser: Chromium, page: Path, *, section: str = "", language: str = "en", **how: Any) -> bytes:
    browser.open(page, **how)
    browser.evaluate(f"document.getElementById('speak-{language}').click()")
    if section:
        browser.evaluate(f"document.getElementById('{section}').scrollIntoView()")
    return browser.screenshot(whole=False)


def share_off(picture: bytes, reference: bytes) -> float:
    """The share of cells whose mean darkness differs by more than OFF."""
    from PIL import Image

    ours, theirs = (Image.open(io.BytesIO(each)).convert("L") for each in (picture, reference))
    if ours.size != theirs.size:
        return 1.0
    grid = (ours.width // CELL, ours.height // CELL)
    cells = [each.resize(grid, Image.Resampling.BOX).tobytes() for each in (ours, theirs)]
    return sum(abs(a - b) > OFF for a, b in zip(*cells, strict=True)) / len(cells[0])


def small(picture: bytes) -> bytes:
    """The picture with 24 colours: readable, and a fraction of the size."""
    from PIL import Image

    out = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(24).save(out, "PNG", optimize=True)
    return out.getvalue()


@pytest.mark.parametrize("view", VIEWS)
def test_the_page_looks_as_it_was_looked_at(browser: Chromium, lab_page: Path, view: str) -> None:
    picture = taken(browser, lab_page, **VIEWS[view])
    path = PICTURES / f"{view}.png"
    if os.environ.get("KVSCOPE_RENEW_PICTURES") == "1":
        PICTURES.mkdir(exist_ok=True)
        path.write_bytes(small(picture))
    assert share_off(picture, path.read_bytes()) <= SHARE


def changed(page: Path, folder: Path, style: str) -> Path:
    text = page.read_text(encoding="utf-8")
    start, end = text.index("<style>"), text.index("</style>")
    kept = text[start:end] if style else "<style>"
    path = folder / "changed.html"
    path.write_text(f"{text[:start]}{kept}\n{style}{text[end:]}", encoding="utf-8")
    return path


@pytest.mark.parametrize("view", ["first-screen", "telephone"])
def test_another_font_is_no_difference(browser: Chromium, lab_page: Path, tmp_path: Path, view: str) -> None:
    picture = taken(browser, changed(lab_page, tmp_path, FONTS), **VIEWS[view])
    assert share_off(picture, taken(browser, lab_page, **VIEWS[view])) <= SHARE


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_layout_is_one(browser: Chromium, lab_page: Path, tmp_path: Path, how: str) -> None:
    picture = taken(browser, changed(lab_page, tmp_path, BROKEN[how]))
    assert share_off(picture, taken(browser, lab_page)) > SHARE


def test_the_pictures_are_few_and_small() -> None:
    assert {path.stem for path in PICTURES.glob("*.png")} == set(VIEWS)
    assert sum(path.stat().st_size for path in PICTURES.glob("*.png")) < 400_000
