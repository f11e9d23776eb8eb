"""Nothing that a record holds runs, and nothing of it breaks the layout: hundreds of hostile texts through every door
of a report, in a real browser, in Markdown, in a terminal, and in exported files."""

import csv
import io
import json
import re
import unicodedata
from html.parser import HTMLParser
from pathlib import Path

import pytest
from chromium import Chromium
from hostile_payloads import ENCODABLE, PAYLOADS
from hostile_records import everywhere, everywhere_small, failures, levels, of_each_table, rename_ids, written

from kvscope.analysis.study import analyse
from kvscope.analysis.table import answer_rows, table_rows
from kvscope.cli.output import printable
from kvscope.errors import KvscopeError
from kvscope.experiment.echoed_text import OwnText
from kvscope.hiding import hide_secrets
from kvscope.language import shown, speaking
from kvscope.record.export import write_csv, write_jsonl
from kvscope.record.store import open_records
from kvscope.report.markdown import render_markdown
from kvscope.report.page import render_page
from kvscope.report.plain_characters import plain
from kvscope.report.summary import summary
from kvscope.report.text import render_text

# Elements of the page itself, and those of its charts; nothing else stands in a page.
OURS = set(
    "html head meta title style body main article section header footer nav h1 h2 h3 p span strong b i em ul ol li a "
    "table caption thead tbody tr th td details summary pre code figure figcaption div input label template script "
    "button dl dt dd abbr br svg g path line rect circle text tspan defs pattern desc clippath use "
    "lineargradient radialgradient stop".split()
)
VOID = ("meta", "input", "br")
_CALL = re.compile(r"owned\(\d+\)")


def doors(folder: Path) -> dict[str, Path]:
    paths = {name: written(folder, name, made) for name, made in (("all", everywhere()), ("failed", failures()))}
    paths["ids"] = written(folder, "ids", everywhere_small())
    rename_ids(paths["ids"])
    return paths


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return doors(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def pages(records: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, found = tmp_path_factory.mktemp("pages"), {}
    for name, path in records.items():
        with open_records(path) as opened:
            text = render_page(analyse(opened))
        found[name] = folder / f"{name}.html"
        found[name].write_text(text, encoding="utf-8")
        # Without its policy, so that it is seen what was taken for markup, and not what the policy then refused.
        (folder / f"{name}-bare.html").write_text(without_policy(text), encoding="utf-8")
    return found


def without_policy(page: str) -> str:
    bare = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page, count=1)
    assert bare != page
    return bare


@pytest.mark.browser
@pytest.mark.parametrize("name", ["all", "failed", "ids"])
@pytest.mark.parametrize("kind", ["", "-bare"])
def test_nothing_runs_and_the_layout_holds(browser: Chromium, pages: dict[str, Path], name: str, kind: str) -> None:
    path = pages[name].with_name(f"{name}{kind}.html")
    for width in (1280, 360) if not kind else (1280,):
        browser.open(path, width=width)
        browser.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        assert browser.messages == []
        assert browser.requests == [path.as_uri()]
        assert browser.ran() == []
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        found = browser.evaluate(LOOK)
        assert set(found["tags"]) <= OURS
        assert found["handlers"] == []
        assert found["addresses"] == []
        assert found["sections"] >= 5
        assert found["shown"] > 5000


# What stands in the page once the browser has made a document of it.
LOOK = """(() => {
  const every = [...document.querySelectorAll('*')];
  const attributes = every.flatMap(each => [...each.attributes].map(one => [each.localName, one.name, one.value]));
  return {
    tags: [...new Set(every.map(each => each.localName.toLowerCase()))],
    handlers: attributes.filter(one => one[1].startsWith('on')),
    addresses: attributes.filter(one => /^(href|src|action|formaction|data|srcset|xlink:href)$/.test(one[1])
      && !/^#/.test(one[2]) && !/^data:(application|text).(x-ndjson|jsonl|json|csv);/.test(one[2])),
    sections: document.querySelectorAll('main section h2').length,
    shown: document.body.innerText.length,
  };
})()"""


class Elements(HTMLParser):
    """Names of elements and of attributes, as Python's own parser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_every_text_column_edited_by_hand_is_text_or_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Charts of hostile texts are drawn and opened in a browser below; here they would take most of the time.
    monkeypatch.setattr("kvscope.report.page.draw", lambda chart, prefix="": f"<svg><title>{prefix}</title></svg>")
    monkeypatch.setattr("kvscope.report.spoken.languages", lambda: ("en",))
    tiny = written(tmp_path, "tiny", everywhere_small())
    shown = 0
    for table, path in of_each_table(tiny, tmp_path):
        try:
            with open_records(path) as opened:
                analysis = analyse(opened)
        except KvscopeError:
            continue  # a damaged record, named; it is printed as any other message is
        page = Elements(render_page(analysis))
        assert page.names <= OURS, page.names - OURS
        assert not {name for name in page.attributes if name.startswith("on")}
        assert is_plain(printable(render_text(analysis)))
        if table in ("designs", "answers"):
            assert_is_inert_markdown(render_markdown(analysis))
        shown += 1
    assert shown >= 8


def assert_is_inert_markdown(text: str) -> None:
    """By a parser that takes HTML in Markdown for what it is, as the places do where people paste a report."""
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark", {"html": True, "linkify": False}).enable("table").parse(text)
    inner = [each for token in tokens for each in (token, *(token.children or ()))]
    for token in inner:
        assert token.type not in ("html_block", "html_inline", "image", "link_open"), token.content[:200]
    assert not _CALL.search("".join(token.info for token in inner))


@pytest.mark.parametrize("name", ["all", "failed", "ids"])
def test_as_markdown_it_is_inert_and_tables_keep_their_columns(records: dict[str, Path], name: str) -> None:
    with open_records(records[name]) as opened:
        text = render_markdown(analyse(opened))
    assert_is_inert_markdown(text)
    tables = [block.split("\n") for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]
    assert tables
    for rows in tables:
        assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows if row}) == 1


def is_plain(text: str) -> bool:
    """Whether a terminal only shows it: no control characters, nothing that turns its direction."""
    return all(c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs") for c in text)


@pytest.mark.parametrize("name", ["all", "failed", "ids"])
def test_a_terminal_obeys_nothing_of_it(records: dict[str, Path], name: str) -> None:
    with open_records(records[name]) as opened:
        text = printable(render_text(analyse(opened)))
    assert is_plain(text)


@pytest.mark.parametrize("name", ["all", "failed"])
def test_json_and_json_lines_hold_the_texts_and_nothing_else(records: dict[str, Path], name: str) -> None:
    with open_records(records[name]) as opened:
        json.dumps(summary(analyse(opened)))
        out = io.StringIO()
        write_jsonl(table_rows(opened), out)
    rows = [json.loads(line) for line in out.getvalue().split("\n") if line]
    if name == "failed":
        # Word for word, but for the half of a character that no file holds and the password that no record holds.
        assert {row["error_message"] for row in rows} >= {
            text for text in ENCODABLE if "user:" not in text and "\ud800" not in PAYLOADS[ENCODABLE.index(text)]
        }


@pytest.mark.parametrize("name", ["all", "failed"])
def test_no_cell_of_a_csv_file_is_a_formula(records: dict[str, Path], name: str) -> None:
    limit = csv.field_size_limit(1 << 20)
    for rows in (table_rows, answer_rows):
        with open_records(records[name]) as opened:
            out = io.StringIO(newline="")
            write_csv(rows(opened), out)
        read = list(csv.reader(io.StringIO(out.getvalue(), newline="")))
        assert len({len(row) for row in read}) <= 1
        cells = {cell for row in read for cell in row}
        risky = {cell for cell in cells if cell[:1] in "=+-@\t\r＝＋－＠" and cell}
        assert all(re.fullmatch(r"[-+]?[0-9.e+-]+", cell) for cell in risky), risky
    csv.field_size_limit(limit)


@pytest.fixture(scope="module")
def interactive(tmp_path_factory: pytest.TempPathFactory) -> str:
    attempts = [*everywhere_small()[:2], *levels()]
    with open_records(written(tmp_path_factory.mktemp("levels"), "levels", attempts)) as opened:
        return render_page(analyse(opened), interactive=True)


@pytest.mark.browser
@pytest.mark.parametrize("kind", ["with its policy", "bare"])
def test_where_charts_are_drawn_by_a_script_nothing_of_a_record_is_one(
    browser: Chromium, interactive: str, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "live.html"
    path.write_text(without_policy(interactive) if kind == "bare" else interactive, encoding="utf-8")
    browser.open(path)
    browser.wait_for("document.querySelectorAll('.live svg').length > 2")
    assert browser.messages == []
    assert browser.requests == [path.as_uri()]
    assert browser.ran() == []


@pytest.mark.browser
@pytest.mark.parametrize("kind", ["still", "live"])
def test_a_script_that_got_into_the_page_is_refused_by_its_policy(
    browser: Chromium, pages: dict[str, Path], interactive: str, tmp_path: Path, kind: str
) -> None:
    text = interactive if kind == "live" else pages["ids"].read_text(encoding="utf-8")
    injected = (
        "<script>owned('script')</script><img src=x onerror=\"owned('handler')\"><svg onload=\"owned('svg')\"></svg>"
        "<a id=go href=\"javascript:owned('address')\">go</a><iframe srcdoc=\"<script>parent.owned('frame')</script>\">"
        '</iframe><script src="http://example.invalid/x.js"></script><link rel=stylesheet href="http://example.invalid/x">'
        '<img src="http://example.invalid/x.png"><base href="http://example.invalid/"><style>@import '
        'url(http://example.invalid/y.css);</style><form id=f action="http://example.invalid/"></form>'
    )
    path = tmp_path / "injected.html"
    path.write_text(text.replace("<main", f"{injected}<main", 1), encoding="utf-8")
    browser.open(path)
    browser.evaluate("document.getElementById('go').click()")
    browser.evaluate("setTimeout(\"owned('timeout')\", 0)")
    browser.evaluate("document.getElementById('f').submit()")
    browser.evaluate("new Promise(done => setTimeout(done, 100))")
    assert browser.ran() == []
    assert browser.requests == [path.as_uri()]
    assert sum("Content Security Policy" in message for message in browser.messages) >= 6


def test_long_texts_of_one_sign_do_not_hold_anything_up() -> None:
    """Each of these takes minutes where a pattern looks at every place for the end of what never ends."""
    own = OwnText(["A text of one's own, with a word 4GX7Q in it. " * 500])
    for sign in (
        "x",
        "-",
        "a-",
        "key=",
        'api_key="',
        "\\",
        "eyJ",
        "a://",
        "&a",
        "cookie:",
        "bearer ",
        "A_",
        "1a",
        ". a",
    ):
        text = sign * (60_000 // len(sign)) + " key"
        assert hide_secrets(text)
        assert own.hide(text) == text
        assert plain(text) == text
        with speaking("ko"):
            assert shown(text)
