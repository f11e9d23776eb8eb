"""What a reader does with the page in a real browser: read it section by section, switch, sort, point, press keys,
print it, and have it read out."""

import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
from chromium import Chromium

pytestmark = pytest.mark.browser

# In the order of the report's argument; what a lab has nothing to say on is left out.
ORDER = ["memory", "growth", "time", "changes", "release", "quality", "failed", "trust", "rows", "sources"]
SECTIONS = "[...document.querySelectorAll('main section[id] > h2')].map(each => each.parentElement.id)"


def test_language_and_title_follow_the_switch(browser: Chromium, lab_page: Path) -> None:
    browser.open(lab_page)
    told = "[document.documentElement.lang, document.title]"
    english = browser.evaluate(told)
    browser.evaluate("document.getElementById('speak-ko').click()")
    korean = browser.evaluate(told)
    assert (english[0], korean[0]) == ("en", "ko")
    assert korean[1] != english[1]
    browser.evaluate("document.getElementById('speak-en').click()")
    assert browser.evaluate(told) == english


def test_every_section_is_there_in_its_order_and_can_be_gone_to(browser: Chromium, lab_page: Path) -> None:
    browser.open(lab_page)
    ids = browser.evaluate(SECTIONS)
    assert [name for name in ids if name in ORDER] == [name for name in ORDER if name in ids]
    assert {"memory", "growth", "time", "release", "failed", "trust", "rows", "sources"} <= set(ids)
    for name in ids:
        browser.evaluate(f"document.querySelector('nav a[href=\"#{name}\"]').click()")
        top = browser.evaluate(f"document.getElementById('{name}').getBoundingClientRect().top")
        assert -5 <= top < 900


@pytest.mark.parametrize(("dark", "width", "language"), [(False, 1280, "en"), (True, 1280, "ko"), (False, 360, "ko")])
def test_contrast_and_roles_are_as_wcag_aa_asks(
    browser: Chromium, lab_page: Path, dark: bool, width: int, language: str
) -> None:
    browser.open(lab_page, dark=dark, width=width)
    browser.evaluate(f"document.getElementById('speak-{language}').click()")
    assert browser.complaints() == []


def test_axe_would_have_complained(browser: Chromium, lab_page: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    bad = '<p style="color:#bbb;background:#fff">faint</p><img src="data:,"><a href="#rows"></a>'
    path.write_text(lab_page.read_text(encoding="utf-8").replace("</main>", f"{bad}</main>", 1), encoding="utf-8")
    browser.open(path)
    assert {text.split(":")[0] for text in browser.complaints()} >= {"color-contrast", "image-alt", "link-name"}


CELLS = "[...document.querySelectorAll('#rows table tbody tr')].map(row => row.cells[%d].innerText)"
SORTED_COLUMN = """(() => {
  document.querySelectorAll('details').forEach(each => { each.open = true });
  const heads = [...document.querySelectorAll('#rows thead th')];
  return heads.findIndex(head => head.classList.contains('n') && head.querySelector('button.sort'));
})()"""


def test_a_table_is_sorted_up_down_and_back(browser: Chromium, lab_page: Path) -> None:
    browser.open(lab_page)
    column = browser.evaluate(SORTED_COLUMN)
    assert column >= 0
    button = f"#rows thead th:nth-child({column + 1}) button.sort"
    head = f"document.querySelector('#rows thead th:nth-child({column + 1})').getAttribute('aria-sort')"
    before = browser.evaluate(CELLS % column)
    seen = {}
    for _ in range(3):
        browser.evaluate(f"document.querySelector('{button}').click()")
        seen[browser.evaluate(head)] = browser.evaluate(CELLS % column)
    assert set(seen) == {"ascending", "descending", None}
    assert seen[None] == before
    numbers = [_number(text) for text in seen["ascending"] if _number(text) is not None]
    assert numbers == sorted(numbers)
    assert [n for text in seen["descending"] if (n := _number(text)) is not None] == sorted(numbers, reverse=True)


def _number(text: str) -> float | None:
    try:
        return float(text.split()[0].replace(",", "").replace("−", "-"))
    except (ValueError, IndexError):
        return None


def test_what_stands_under_the_pointer_is_said_beside_it(browser: Chromium, live_page: Path) -> None:
    browser.open(live_page)
    browser.wait_for("document.querySelectorAll('.live svg').length > 2")
    assert browser.messages == []
    assert browser.requests == [live_page.as_uri()]
    place = browser.evaluate("""(() => {
      const points = '.live svg [aria-roledescription="point"], .live svg .mark-symbol path';
      const marks = [...document.querySelectorAll(points)]
        .filter(each => each.getBoundingClientRect().width > 2);
      marks[0].scrollIntoView({ block: 'center' });
      const box = marks[0].getBoundingClientRect();
      return [box.x + box.width / 2, box.y + box.height / 2];
    })()""")
    browser.do(lambda: browser.page.mouse.move(*place))
    browser.wait_for("document.querySelector('#vg-tooltip-element.visible')")
    said = browser.evaluate("document.querySelector('#vg-tooltip-element').innerText")
    assert any(character.isdigit() for character in said)


FOCUSED = """(() => {
  const on = document.activeElement, box = on.getBoundingClientRect();
  return {
    what: `${on.localName}.${on.className}#${on.id}`, top: box.top + scrollY, left: box.left, seen: box.width > 0,
    outline: getComputedStyle(on).outlineStyle,
    name: on.innerText || on.getAttribute('aria-labelledby') || on.id,
  };
})()"""


def test_keys_alone_go_through_the_page_from_its_top_to_its_end(browser: Chromium, lab_page: Path) -> None:
    browser.open(lab_page)
    steps = []
    for _ in range(40):
        browser.press("Tab")
        steps.append(browser.evaluate(FOCUSED))
    assert steps[0]["what"].startswith("a.skip")
    assert steps[1]["what"].startswith("input")
    assert len({(step["what"], step["top"], step["left"]) for step in steps}) == len(steps)
    assert all(step["seen"] and step["name"] for step in steps)
    assert all(step["outline"] != "none" for step in steps if not step["what"].startswith("input"))
    tops = [step["top"] for step in steps[1:]]
    # From above to below, but for what stands beside it in the same row of the first screen.
    assert sum(later < earlier - 700 for earlier, later in pairwise(tops)) == 0


def test_keys_switch_the_language_open_what_is_folded_and_skip(browser: Chromium, lab_page: Path) -> None:
    browser.open(lab_page)
    browser.press("Tab")
    browser.press("Enter")
    assert browser.evaluate("location.hash") == "#answer"
    browser.evaluate("document.getElementById('speak-en').focus()")
    browser.press("ArrowRight")
    assert browser.evaluate("document.getElementById('speak-ko').checked")
    assert "토큰" in browser.evaluate("document.querySelector('h1').innerText")
    browser.evaluate("document.querySelector('main details:not([open]) > summary').focus()")
    browser.press("Enter")
    assert browser.evaluate("document.activeElement.parentElement.open")


def test_it_prints_whole_on_paper_in_the_language_that_is_shown(browser: Chromium, lab_page: Path) -> None:
    from io import BytesIO

    from pypdf import PdfReader

    browser.open(lab_page, dark=True)
    pages = PdfReader(BytesIO(browser.pdf())).pages
    assert 3 <= len(pages) <= 60
    assert [float(side) for side in pages[0].mediabox[2:]] == pytest.approx([595.3, 841.9], abs=1.5)  # A4 in points
    text = _letters(" ".join(page.extract_text() for page in pages))
    assert _letters("Each 1,000 tokens") in text
    for title in browser.evaluate("[...document.querySelectorAll('main h2')].map(each => each.innerText)"):
        assert _letters(title.split("\n")[-1]) in text, title


PARTS = ("weights", "kv-cache", "buffers", "runtime", "libraries", "host-cache", "checkpoint", "unexplained")


def test_on_paper_nothing_is_a_picture(browser: Chromium, lab_page: Path) -> None:
    """Patterns would be: 16 MB of them for a lab's page."""
    from io import BytesIO

    from pypdf import PdfReader

    browser.open(lab_page, media="print")
    printed = browser.pdf()
    assert len(printed) < 3_000_000
    assert not any(page.images for page in PdfReader(BytesIO(printed)).pages)
    both = browser.evaluate("""[...document.querySelectorAll("[fill^='url(']")]
      .map(each => [each.getAttribute("fill"), getComputedStyle(each).fill])""")
    of_part: dict[str, set[str]] = {}
    for pattern, on_paper in both:
        of_part.setdefault(next(part for part in PARTS if pattern.endswith(f"-{part})")), set()).add(on_paper)
    assert len(of_part) >= 4
    assert all(len(fills) == 1 for fills in of_part.values())
    fills = {fill for fills in of_part.values() for fill in fills}
    assert len(fills) == len(of_part)  # no two parts look the same
    for fill in fills - {fill for fill in fills if fill.startswith("rgb")}:
        name = fill.removeprefix('url("#').removesuffix('")')
        assert browser.evaluate(f"document.getElementById('{name}').tagName").endswith("Gradient")


def _letters(text: str) -> str:
    """Without blanks and ligatures, which are lost or made where letters are placed on paper."""
    return "".join(unicodedata.normalize("NFKC", text).split())


@pytest.mark.parametrize("width", [320, 360, 768, 1920])
def test_no_width_makes_it_scroll_sideways(browser: Chromium, lab_page: Path, width: int) -> None:
    browser.open(lab_page, width=width)
    for language in ("ko", "en"):
        browser.evaluate(f"document.getElementById('speak-{language}').click()")
        browser.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
