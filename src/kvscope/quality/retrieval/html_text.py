"""The text of a page of HTML, block by block. The parser is selectolax's (lexbor): broken pages are read as browsers
read them, nothing else is brought along. Scripts, styles, forms and navigation are left out."""

import re
from typing import TYPE_CHECKING, Any

from kvscope.errors import MissingDependency
from kvscope.quality.retrieval.source import Heading

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEFT_OUT = {
    *("script", "style", "noscript", "template", "head", "nav", "svg", "math", "iframe", "object", "canvas", "audio"),
    *("video", "select", "button", "input", "textarea", "dialog"),
}
_PARAGRAPHS = {
    *("p", "div", "section", "article", "main", "header", "footer", "aside", "blockquote", "pre", "ul", "ol", "dl"),
    *("table", "figure", "figcaption", "address", "details", "summary", "hr", "form", "fieldset", "body"),
    *("h1", "h2", "h3", "h4", "h5", "h6"),
}
_LINES = {"li", "tr", "dt", "dd", "br", "caption", "option", "legend"}
_HEADING = re.compile(r"h[1-6]")
_BEFORE_WORDS = re.compile(r"\A[ \n]*(?:\| |- )?[ \n]*")  # line ends, and the mark of an item or a cell
_BLANKS = re.compile(r"[ \t\n\r\f]+")


def read_html(page: str) -> tuple[str, str | None, tuple[Heading, ...]]:
    """The text of a page, its title and its headings. A row of a table is a line, its cells apart by " | "; an item of
    a list begins with "- ". Raises MissingDependency."""
    try:
        from selectolax.lexbor import LexborHTMLParser
    except ImportError:
        raise MissingDependency("Reading HTML", "documents", "selectolax") from None
    tree = LexborHTMLParser(page)
    title = tree.css_first("title")
    writer = _Writer()
    if tree.body is not None:
        for node, is_entered in _walk(tree.body):
            writer.take(node, is_entered)
    text = writer.text()
    found = " ".join((title.text_content or title.text() or "").split()) if title is not None else ""
    headings = tuple(writer.headings)
    return text, found or next((each.text for each in headings if each.level == 1), None), headings


def _walk(root: Any) -> "Iterator[tuple[Any, bool]]":
    """Every node twice, entered and left, in the order of the page; without recursion: pages nest deeper than Python
    calls."""
    waiting = [(root, True)]
    while waiting:
        node, is_entered = waiting.pop()
        yield node, is_entered
        if is_entered and not _is_left_out(node):
            waiting.append((node, False))
            waiting += [(child, True) for child in reversed(list(node.iter(include_text=True)))]


def _is_left_out(node: Any) -> bool:
    return node.tag in _LEFT_OUT or (node.is_element_node and "hidden" in node.attributes)


class _Writer:
    """Text in the making. ``_break``: line ends that are due before the next word; blanks at either end of a line are
    dropped, others become one space."""

    def __init__(self) -> None:
        self.headings: list[Heading] = []
        self._pieces: list[str] = []
        self._length = 0
        self._break = 0
        self._space = False
        self._pre = 0
        self._mark = ""
        self._heading_start: int | None = None

    def text(self) -> str:
        return "".join(self._pieces) + ("\n" if self._pieces else "")

    def take(self, node: Any, is_entered: bool) -> None:
        if node.is_text_node:
            if is_entered:
                self._write(node.text_content or "")
        elif node.is_element_node and not _is_left_out(node):
            self._tag(node.tag, is_entered)

    def _tag(self, tag: str, is_entered: bool) -> None:
        self._pre += (1 if is_entered else -1) if tag == "pre" else 0
        if not is_entered and _HEADING.fullmatch(tag):
            self._close_heading(int(tag[1]))
        if tag in _PARAGRAPHS:
            self._end_line(2)
        elif tag in _LINES:
            self._end_line(1)
        if is_entered and _HEADING.fullmatch(tag):
            self._heading_start = len(self._pieces)
        if is_entered and tag == "li":
            self._mark = "- "
        elif tag == "tr":
            self._mark = ""
        elif not is_entered and tag in ("td", "th"):
            self._mark, self._space = " | ", False

    def _end_line(self, lines: int) -> None:
        self._break, self._space = max(self._break, lines), False

    def _close_heading(self, level: int) -> None:
        if self._heading_start is None:
            return
        pieces = self._pieces[self._heading_start :]
        text = _BEFORE_WORDS.sub("", "".join(pieces))
        if text.strip():
            start = self._length - len(text)
            self.headings.append(Heading(start=start, level=level, text=" ".join(text.split())))
        self._heading_start = None

    def _write(self, raw: str) -> None:
        if self._pre:
            self._put(raw.strip("\n"))
            return
        text = _BLANKS.sub(" ", raw)
        if text.startswith(" "):
            self._space = True
        words = text.strip(" ")
        if words:
            self._put(words)
            self._space = text.endswith(" ")

    def _put(self, words: str) -> None:
        if not words:
            return
        before = "\n" * self._break if self._pieces else ""
        if self._mark:
            before += self._mark
        elif self._space and not self._break:
            before += " "
        self._break, self._space, self._mark = 0, False, ""
        self._pieces.append(before + words)
        self._length += len(before) + len(words)
