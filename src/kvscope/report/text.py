"""The same findings in a terminal, in few lines, and the whole report as Markdown."""

import re
import textwrap
from collections.abc import Iterable

from kvscope.analysis.findings import Finding
from kvscope.analysis.study import Analysis, DesignStudy, Study
from kvscope.analysis.turns import turn_tables
from kvscope.report.answer_headline import is_main
from kvscope.report.blocks import Block, Bullets, Chart, Claim, Download, Fold, Paragraph, StudyPage, Table
from kvscope.report.claims import claim_text, spoken
from kvscope.report.held_text import design_title
from kvscope.report.quality_words import is_of_quality
from kvscope.report.section_answer import headline, interval_line, is_answered_first, strip
from kvscope.report.section_growth import formula_line
from kvscope.report.sections import several_studies, study_pages
from kvscope.report.turns import turn_lines
from kvscope.report.words import NO_BREAK, has_words, name_of, say

WIDTH = 80
# Of a study as a whole, and of what each of its designs says besides; what was asked of answers is never cut off.
MOST_LINES = 25
MOST_DESIGN_LINES = 10
# Findings that the lines above them already say.
_SAID = ("failed",)
_PER_TOKEN = ("slope_", "step_")


def render_text(analysis: Analysis) -> str:
    """Each study in at most 25 lines of at most 80 columns, failures first; then each of its designs in a few more."""
    if not analysis.studies:
        return say("page.empty")
    several = several_studies(analysis)
    parts = [several] if several else []
    parts += ["\n".join(study_lines(study)) for study in analysis.studies]
    return "\n\n".join(parts).replace(NO_BREAK, " ")


def study_lines(study: Study) -> list[str]:
    """The lines of one study. What does not fit is said to be on the page; doubts always fit."""
    lines = _wrapped(", ".join(strip(study)))
    lines += _failed(study)
    lines += _wrapped(headline(study))
    lines += _wrapped(interval_line(study), "  ")
    formula = None if is_answered_first(study) else formula_line(study)
    overall = [f for f in study.findings if f.design_id is None and f.slug not in _SAID]
    per_token = [f for f in overall if f.slug.startswith(_PER_TOKEN)]
    for finding in per_token:
        lines += _finding_lines(finding)
    lines += _wrapped(f"{formula}.", "  ") if formula else []
    for finding in overall:
        if finding not in per_token:
            lines += _finding_lines(finding)
    doubts = _doubts(study)
    lines = [*_cut(lines, MOST_LINES - len(doubts)), *doubts]
    for design in study.designs:
        lines += _design_lines(study, design)
    return lines


def _cut(lines: list[str], most: int) -> list[str]:
    return lines if len(lines) <= most else [*lines[: most - 1], say("text.more")]


def _design_lines(study: Study, design: DesignStudy) -> list[str]:
    """What one design says of itself, under its name; nothing where it says nothing."""
    own = [finding for finding in study.findings if finding.design_id == design.design.design_id]
    # What was asked for beside memory and time is not what a short text leaves out.
    main = [line for finding in own if is_main(finding) for line in _finding_lines(finding)]
    rest = sorted((f for f in own if not is_main(f)), key=lambda finding: not is_of_quality(finding))
    beside = [line for finding in rest for line in _finding_lines(finding)]
    said = [*main, *_cut(beside, max(2, MOST_DESIGN_LINES - len(main)))]
    turns = turn_lines(turn_tables(design.attempts))
    if not said and not turns:
        return []
    title = design_title(design.design, [each.design for each in study.designs])
    return ["", *_wrapped(f"{title}:"), *said, *turns]


def _failed(study: Study) -> list[str]:
    if not study.failures:
        return []
    causes = ", ".join(f"{name_of('outcome', g.outcome)} × {len(g.attempts)}" for g in study.failures[:3])
    return _wrapped(say("text.failed", failed=study.num_failed, total=len(study.trials), causes=causes))


def _finding_lines(finding: Finding) -> list[str]:
    """The finding in its short wording, where it has one; else the claim."""
    mark = "≠ " if finding.is_contradiction else "- "
    if not has_words(f"text.{finding.slug}"):
        return _wrapped(claim_text(finding), mark)
    text = say(f"text.{finding.slug}", **spoken(finding))
    if finding.slug.startswith(_PER_TOKEN) and finding.size is not None and finding.size.has_interval:
        text += say("text.interval_bytes", low=finding.size.low, high=finding.size.high)
    return _wrapped(f"{text.removesuffix('.')}.", mark)


def _doubts(study: Study) -> list[str]:
    names = dict.fromkeys(
        say(f"check_short.{c.slug}") for c in study.checks if c.passed is False and c.slug != "failures"
    )
    return _wrapped(say("text.doubts", names=", ".join(names))) if names else [say("text.no_doubts")]


def _wrapped(text: str, mark: str = "") -> list[str]:
    # Not str.split: it would take the space between a number and its unit for a place to break.
    plain = re.sub(r"[ \n\r\t]+", " ", text)
    indent = " " * max(2, len(mark))
    return textwrap.wrap(plain, WIDTH, initial_indent=mark, subsequent_indent=indent, break_on_hyphens=False)


def render_markdown(analysis: Analysis) -> str:
    """The whole report as Markdown; charts are given by their tables."""
    pages = study_pages(analysis)
    if not pages:
        return f"# kvscope\n\n{say('page.empty')}\n"
    several = several_studies(analysis)
    parts = [escaped(several)] if several else []
    parts += [_markdown_study(page) for page in pages]
    return "\n\n".join(parts).replace(NO_BREAK, " ") + "\n"


def escaped(text: str) -> str:
    """Recorded text as text: nothing in it becomes Markdown or HTML."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for sign in "\\`*_[]#|~":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("\n", " ")


def _markdown_study(page: StudyPage) -> str:
    answer = page.answer
    parts = [f"# {escaped(answer.headline)}", escaped(" · ".join(answer.strip)), escaped(answer.interval)]
    parts.append("\n".join(f"- {badge.mark} {escaped(badge.text)}" for badge in answer.badges))
    parts += [_markdown_block(doubt) for doubt in answer.doubts]
    parts += [_markdown_block(answer.table)] if answer.table is not None else []
    parts.append(_items(answer.remarks))
    for number, section in enumerate(page.sections, start=2):
        parts.append(f"## {number}. {escaped(section.title)}")
        parts += [text for block in section.blocks if (text := _markdown_block(block))]
    return "\n\n".join(parts)


def _markdown_block(block: Block) -> str:
    match block:
        case Paragraph():
            return escaped(block.text)
        case Claim():
            rows = ", ".join(link.text for link in block.evidence)
            evidence = f" {say('page.evidence')} {rows}." if rows else ""
            tag = f"**≠ {say('page.contradiction')}.** " if block.is_contradiction else ""
            return f"{tag}**{escaped(block.text)}** {escaped(' '.join(block.remarks))}{evidence}".rstrip()
        case Bullets():
            return _items(block.items)
        case Table():
            return _markdown_table(block)
        case Chart():
            return f"**{escaped(block.title)}**\n\n{_markdown_table(block.table)}"
        case Fold():
            # Indented, so that no fence inside the text can end it.
            return f"{escaped(block.summary)}:\n\n{textwrap.indent(block.text, '    ', lambda _: True)}"
        case Download():
            return ""


def _items(items: Iterable[str]) -> str:
    return "\n".join(f"- {escaped(item)}" for item in items)


def _markdown_table(table: Table) -> str:
    head = "| " + " | ".join(escaped(c.title) for c in table.columns) + " |"
    rule = "|" + "|".join("--:" if c.is_number else "---" for c in table.columns) + "|"
    rows = ["| " + " | ".join(escaped(cell) for cell in r.cells) + " |" for r in table.rows]
    return "\n".join([f"{escaped(table.caption)}\n", head, rule, *rows])
