"""Markdown as it is given to a model: as it was written, without its front matter; and where its headings are."""

import re
from itertools import pairwise

from kvscope.quality.retrieval.source import Heading

_FRONT_MATTER = re.compile(r"\A(---|\+\+\+)[ \t]*\n(?P<fields>.*?)(?:^|\n)\1[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
# YAML writes `title: x`, TOML `title = "x"`.
_TITLE = re.compile(r"^title\s*[:=]\s*(.+?)\s*$", re.IGNORECASE | re.MULTILINE)
# How the first line of front matter begins: a field, a comment, a table of TOML. A paragraph between two rules begins
# with a blank line, or with words.
_FIRST_LINE = re.compile(r"\Z|#|\[|[\w-]+[ \t]*[:=]")


def read_markdown(text: str) -> tuple[str, str | None, tuple[Heading, ...]]:
    """The text without front matter, its title (of the front matter, else its first heading where that is of level 1),
    and its headings: those of the document, not "#" lines inside code."""
    body, title = without_front_matter(text)
    headings = _headings(body)
    if title is None and headings and headings[0].level == 1:
        title = headings[0].text
    return body, title, headings


def without_front_matter(text: str) -> tuple[str, str | None]:
    """The text behind its front matter, and the title that stands there. A rule ("---") that begins a text without
    fields behind it is no front matter."""
    found = _FRONT_MATTER.match(text)
    if found is None or not _FIRST_LINE.match(found["fields"]):
        return text, None
    title = _TITLE.search(found["fields"])
    return text[found.end() :].lstrip("\n"), title.group(1).strip("\"'") if title else None


def _headings(text: str) -> tuple[Heading, ...]:
    from markdown_it import MarkdownIt

    if "#" not in text and "\n=" not in text and "\n-" not in text:
        return ()
    line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
    tokens = MarkdownIt("commonmark").disable("inline").parse(text)  # links and emphasis: of headings alone
    inside = MarkdownIt("commonmark")
    headings = []
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open" and opening.map is not None:
            children = inside.parseInline(inline.content)[0].children or ()
            words = "".join(child.content or " " for child in children if child.type in _WORDS)
            start = line_starts[opening.map[0]]
            headings.append(Heading(start=start, level=int(opening.tag[1:]), text=" ".join(words.split())))
    return tuple(headings)


_WORDS = {"text", "code_inline", "softbreak", "hardbreak"}
