"""The whole report as Markdown, for an issue or a wiki: no picture, no HTML, charts by their tables. What is recorded
is text there too: it is no markup, no link, and calls nobody.

Issues have a limit. A report above it is shortened, longest lists first, and says what was left out and where it is.
"""

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kvscope.analysis.study import Analysis
from kvscope.report.blocks import (
    Answer,
    Block,
    Bullets,
    Chart,
    Claim,
    Download,
    Fold,
    Link,
    Paragraph,
    StudyPage,
    Table,
)
from kvscope.report.sections import several_studies, study_pages
from kvscope.report.words import NO_BREAK, say

# GitHub takes no text of an issue above 65,536 characters; some room is left for words around it.
MOST_CHARACTERS = 64_000
_LINE_ENDS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")
_MARKS = re.compile(r"([\\`*_\[\]#|~])")
# What sites make links or messages of without any mark: @name, #12, addresses.
_CALLS = re.compile(r"(@(?=[\w-])|#(?=\d)|:(?=//)|\bwww(?=\.))", re.ASCII)
# Joins two characters without being seen: what stands around it is one word no more.
_JOINER = "\u2060"
_LIST_MARK = re.compile(r"^([-+=]|\d{1,9}(?=[.)]))(?=[.)]?(?:\s|$))")
# Sections whose tables are left out first; then the longest ones.
_FIRST_TO_GO = ("rows", "sources")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A block of the text. ``instead``: what takes its place where the whole is too long; None: it always stays."""

    text: str
    instead: str | None = None
    is_first_to_go: bool = False


def render_markdown(analysis: Analysis) -> str:
    """The whole report as Markdown; charts are given by their tables."""
    pages = study_pages(analysis)
    if not pages:
        return f"# kvscope\n\n{say('page.empty')}\n"
    several = several_studies(analysis)
    parts = [_Part(text=_line(several))] if several else []
    parts += [part for page in pages for part in _study(page)]
    return _joined(_fitted(parts)).replace(NO_BREAK, " ") + "\n"


def escaped(text: str) -> str:
    """Recorded text as text: nothing in it becomes Markdown, HTML, a link or a call to somebody."""
    text = _CALLS.sub(rf"\1{_JOINER}", _LINE_ENDS.sub(" ", text))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKS.sub(r"\\\1", text)


def _line(text: str) -> str:
    """A text that begins a line, where a dash or a number would begin a list."""
    plain = escaped(text.strip())
    return _LIST_MARK.sub(lambda mark: f"{mark[1]}\\" if mark[1].isdigit() else f"\\{mark[1]}", plain)


def _joined(parts: Iterable[_Part]) -> str:
    return "\n\n".join(part.text for part in parts if part.text)


def _fitted(parts: Sequence[_Part]) -> list[_Part]:
    """The parts within the limit: the most dispensable ones by a line in their place, and a note of it at the top."""
    kept = list(parts)
    size = sum(len(part.text) + 2 for part in kept)
    if size <= MOST_CHARACTERS:
        return kept
    note = _Part(text=f"_{_line(say('markdown.shortened'))}_")
    size += len(note.text) + 2
    order = sorted(range(len(kept)), key=lambda n: (not kept[n].is_first_to_go, -len(kept[n].text)))
    for place in order:
        instead = kept[place].instead
        if size <= MOST_CHARACTERS:
            break
        if instead is not None and len(instead) < len(kept[place].text):
            size -= len(kept[place].text) - len(instead)
            kept[place] = _Part(text=instead)
    return _cut([kept[0], note, *kept[1:]])


def _cut(parts: Sequence[_Part]) -> list[_Part]:
    """The parts up to the limit, where even their shortest forms are too long."""
    last = _Part(text=f"_{_line(say('markdown.cut'))}_")
    kept, size = list[_Part](), len(last.text) + 2
    for part in parts:
        size += len(part.text) + 2
        if size > MOST_CHARACTERS:
            return [*kept, last]
        kept.append(part)
    return kept


def _study(page: StudyPage) -> list[_Part]:
    parts = [_Part(text=text) for text in _answer(page.answer)]
    for section in page.sections:
        number = f"{section.number}. " if section.number else ""
        parts.append(_Part(text=f"## {number}{escaped(section.title)}"))
        is_first_to_go = section.slug in _FIRST_TO_GO
        parts += [replace(_part(block), is_first_to_go=is_first_to_go) for block in section.blocks]
    return parts


def _answer(answer: Answer) -> list[str]:
    rows = _evidence(answer.evidence)
    parts = [f"# {escaped(answer.headline)}", _line(" · ".join(answer.strip)), f"{_line(answer.interval)}{rows}"]
    parts.append("\n".join(f"- {badge.mark} {escaped(badge.text)}" for badge in answer.badges))
    parts += [_block(doubt) for doubt in answer.doubts]
    parts += [_table(answer.table)] if answer.table is not None else []
    parts += [f"{_line(say('page.top_advice'))}\n\n{_items(answer.advice)}"] if answer.advice else []
    return [*parts, _items(answer.remarks)]


def _part(block: Block) -> _Part:
    text = _block(block)
    match block:
        case Table():
            return _Part(text=text, instead=_left_out(block.caption, len(block.rows)))
        case Chart():
            return _Part(text=text, instead=_left_out(block.title, len(block.table.rows)))
        case Fold():
            return _Part(text=text, instead=_left_out(block.summary, block.text.count("\n") + 1))
    return _Part(text=text)


def _left_out(what: str, rows: int) -> str:
    return _line(say("markdown.left_out", what=what, rows=rows))


def _block(block: Block) -> str:
    match block:
        case Paragraph():
            return _line(block.text)
        case Claim():
            tag = f"**≠ {say('page.contradiction')}.** " if block.is_contradiction else ""
            remarks = escaped(" ".join(block.remarks))
            return f"{tag}**{escaped(block.text.strip())}** {remarks}{_evidence(block.evidence)}".rstrip()
        case Bullets():
            return _items(block.items)
        case Table():
            return _table(block)
        case Chart():
            return f"**{escaped(block.title)}**\n\n{_table(block.table)}"
        case Fold():
            # Indented, so that no fence inside the text can end it.
            return f"{_line(block.summary)}:\n\n{textwrap.indent(block.text, '    ', lambda _: True)}"
        case Download():
            return ""


def _evidence(links: Iterable[Link]) -> str:
    rows = ", ".join(link.text for link in links)
    return f" {say('page.evidence')} {escaped(rows)}." if rows else ""


def _items(items: Iterable[str]) -> str:
    return "\n".join(f"- {_line(item)}" for item in items)


def _table(table: Table) -> str:
    has_rows = any(each.evidence for each in table.rows)
    titles = [*(column.title for column in table.columns), *([say("col.rows")] if has_rows else [])]
    head = "| " + " | ".join(map(escaped, titles)) + " |"
    rule = "|" + "|".join("--:" if c.is_number else "---" for c in table.columns) + ("|---|" if has_rows else "|")
    rows = []
    for each in table.rows:
        cells = [*each.cells, *([", ".join(link.text for link in each.evidence)] if has_rows else [])]
        rows.append("| " + " | ".join(map(escaped, cells)) + " |")
    return "\n".join([f"{_line(table.caption)}\n", head, rule, *rows])
