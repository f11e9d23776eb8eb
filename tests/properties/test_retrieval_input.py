"""Whatever a page or a file of questions looks like: it is read, or an error says why not."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.errors import UsageError
from kvscope.quality.retrieval.html_text import read_html
from kvscope.quality.retrieval.questions import read_questions

TAGS = ["p", "td", "th", "table", "tr", "h1", "h2", "li", "ul", "pre", "br", "script", "title", "body", "nav", "svg"]
PAGE = st.lists(
    st.sampled_from(
        [*(f"<{tag}>" for tag in TAGS), *(f"</{tag}>" for tag in TAGS), "text ", "가", "&#0;", "<", "<!--", "\n"]
    ),
    max_size=60,
).map("".join)
PIECES = [
    '{"question": "a?"',
    ', "answer": "x"',
    "}",
    "\n",
    "[",
    "]",
    '"',
    "1.5",
    "null",
    ",",
    ":",
    "id",
    ";",
    "\t",
    "답",
]
FILE = st.tuples(st.booleans(), st.lists(st.sampled_from(PIECES), max_size=40).map("".join))


@settings(max_examples=150, deadline=None)
@given(page=PAGE)
def test_headings_of_a_page_are_in_its_text(page: str) -> None:
    text, _, headings = read_html(page)
    assert [heading.start for heading in headings] == sorted(heading.start for heading in headings)
    for heading in headings:
        assert " ".join(text[heading.start :].split()).startswith(heading.text)


@settings(max_examples=150, deadline=None)
@given(file=FILE, ending=st.sampled_from(["jsonl", "json", "csv", "tsv", "txt"]))
def test_questions_have_ids_of_their_own_and_a_text(file: tuple[bool, str], ending: str) -> None:
    has_header, rest = file
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"q.{ending}"
        path.write_text(("question,answer\n" if has_header else "") + rest, encoding="utf-8")
        try:
            asked = read_questions(path).asked
        except UsageError:
            return
    assert asked
    assert len({each.id for each in asked}) == len(asked)
    assert all(each.text.strip() for each in asked)
