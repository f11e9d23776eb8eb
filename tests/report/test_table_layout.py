"""Tables where there is little room: by the browser's own measure, and what their attributes can hold."""

from pathlib import Path

import pytest
from chromium import Chromium

from kvscope.report.blocks import Column, Table, row
from kvscope.report.spoken import Spoken
from kvscope.report.table_layout import attributes

UNFOLD = "document.querySelectorAll('details').forEach(each => { each.open = true })"
# Cells in view whose text takes more than four lines in less than 40 pixels. A line is a bottom of its own.
NARROW = """[...document.querySelectorAll('th, td')].filter(cell => {
  const width = cell.getBoundingClientRect().width;
  if (!width || width >= 40) return false;
  const text = document.createRange();
  text.selectNodeContents(cell);
  return new Set([...text.getClientRects()].filter(r => r.width).map(r => Math.round(r.bottom / 4))).size > 4;
}).map(cell => cell.innerText.slice(0, 40))"""
TOO_WIDE = """[...document.querySelectorAll('.scroll')]
  .filter(box => box.getClientRects().length && box.scrollWidth > box.clientWidth + 1)
  .map(box => [box.scrollWidth, box.clientWidth, box.innerText.slice(0, 60)])"""


def opened(browser: Chromium, page: Path, language: str, **how: int) -> None:
    browser.open(page, **how)
    browser.evaluate(f"document.getElementById('speak-{language}').click()")
    browser.evaluate(UNFOLD)


@pytest.mark.browser
@pytest.mark.parametrize("language", ["ko", "en"])
@pytest.mark.parametrize("width", [360, 1280])
def test_no_table_is_wider_than_its_place_and_no_cell_a_syllable_a_line(
    browser: Chromium, lab_page: Path, width: int, language: str
) -> None:
    opened(browser, lab_page, language, width=width)
    assert browser.evaluate("document.querySelectorAll('td').length") > 500
    assert browser.evaluate(NARROW) == []
    assert browser.evaluate(TOO_WIDE) == []


@pytest.mark.browser
def test_the_measure_of_narrow_cells_sees_a_syllable_a_line(browser: Chromium, lab_page: Path, tmp_path: Path) -> None:
    squeezed = tmp_path / "squeezed.html"
    style = "</title><style>td { display: block; width: 30px; word-break: break-all !important }</style>"
    squeezed.write_text(lab_page.read_text(encoding="utf-8").replace("</title>", style, 1), encoding="utf-8")
    opened(browser, squeezed, "ko", width=1280)
    assert len(browser.evaluate(NARROW)) > 20


@pytest.mark.browser
def test_a_card_says_the_head_of_each_cell_in_the_language_that_is_shown(browser: Chromium, lab_page: Path) -> None:
    """What stands before a cell is its column's head, letter for letter."""
    for language in ("ko", "en"):
        opened(browser, lab_page, language, width=360)
        both = browser.evaluate(
            """[...document.querySelectorAll('.card')].filter(table => table.getClientRects().length).flatMap(table => {
              const heads = [...table.tHead.rows[0].cells];
              return [...table.tBodies[0].rows[0].cells].map((cell, index) => {
                const spoken = heads[index].cloneNode(true);
                spoken.querySelectorAll('button').forEach(button => button.remove());
                const wanted = spoken.querySelector(`[lang=${document.querySelector('input:checked').id.slice(6)}]`);
                const said = getComputedStyle(cell, '::before').content;
                return [said, (wanted || spoken).textContent];
              })
            })"""
        )
        assert len(both) > 50
        for said, head in both:
            pieces = [piece for piece in said.replace('\\"', "'").split('"') if piece.strip()]
            assert "".join(pieces).split() == head.replace('"', "'").split(), (said, head)


# Of what is printed: the size of each text in points, without charts; and texts that end beyond the sheet.
SIZES = """[...document.querySelectorAll('main th, main td, main p, main li, main caption')]
  .filter(each => each.getClientRects().length).map(each => parseFloat(getComputedStyle(each).fontSize) * 0.75)"""
CUT = """[...document.querySelectorAll('main th, main td, main .chart')]
  .filter(each => each.getBoundingClientRect().right > innerWidth + 1).map(each => each.innerText.slice(0, 40))"""


@pytest.mark.browser
@pytest.mark.parametrize("language", ["ko", "en"])
def test_paper_is_readable_and_nothing_on_it_is_cut(browser: Chromium, lab_page: Path, language: str) -> None:
    # As wide as A4 less its margins of 11 mm: (210 - 22) / 25.4 × 96 pixels.
    browser.open(lab_page, media="print", width=710)
    browser.evaluate(f"document.getElementById('speak-{language}').click()")
    assert min(browser.evaluate(SIZES)) >= 8
    assert browser.evaluate(CUT) == []
    assert browser.evaluate(NARROW) == []


@pytest.mark.browser
def test_paper_has_tables_unfolded_and_logs_not(browser: Chromium, lab_page: Path) -> None:
    browser.open(lab_page, media="print", width=710)
    shown = "each.checkVisibility({contentVisibilityAuto: true}) && each.getClientRects().length > 0"
    of = "[...document.querySelectorAll('{}')].map(each => {})".format
    assert all(browser.evaluate(of("details:not(.raw) td", "each.getClientRects().length > 0 || !each.innerText")))
    raw = browser.evaluate(of("details.raw pre", shown))
    assert raw
    assert not any(raw)


def test_a_head_ends_neither_its_string_nor_its_attribute() -> None:
    """By hand: a quotation mark is 22 or 27, "&" 26, a backslash 5c, "<" 3c, "}" 7d; an escape is written out."""
    hostile = "a\"; } ' & </style>\\\x1b" + "w" * 80
    table = Table(caption="", columns=(Column(title=hostile), Column(title="b")), rows=(row("1", "2"),))
    made = attributes(table)
    assert (
        made == rf""" class="card" style='--h1:"a\22 ; \7d  \27  \26  \3c /style\3e \5c \5c x1b{"w" * 80}";--h2:"b"'"""
    )


def test_a_head_is_written_once_where_all_languages_say_the_same() -> None:
    both = Spoken({"en": "row", "ko": "행"})
    table = Table(caption="", columns=(Column(title=both), Column(title="MiB")), rows=(row("w" * 80, "2"),))
    assert attributes(table) == """ class="t1 card" style='--h1:var(--x-en,"row") var(--x-ko,"행");--h2:"MiB"'"""


def test_a_small_table_stays_one() -> None:
    table = Table(
        caption="", columns=(Column(title="part"), Column(title="MiB", is_number=True)), rows=(row("KV", "1.0"),)
    )
    assert attributes(table) == ' class="n2"'
