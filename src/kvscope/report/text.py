"""The same findings in a terminal, in few lines."""

from collections.abc import Sequence

from kvscope.analysis.checks import Check
from kvscope.analysis.findings import Finding
from kvscope.analysis.study import Analysis, DesignStudy, Study
from kvscope.analysis.turns import turn_tables
from kvscope.report.advice_words import advice_lines, growth_line
from kvscope.report.answer_headline import is_main
from kvscope.report.claims import claim_text, spoken
from kvscope.report.held_text import design_title
from kvscope.report.left_out_text import left_out_text
from kvscope.report.quality_words import is_of_quality
from kvscope.report.section_answer import headline, interval_line, is_answered_first, limit_text, strip
from kvscope.report.section_growth import formula_line
from kvscope.report.section_trust import by_weight, doubt_name, next_step
from kvscope.report.sections import several_studies
from kvscope.report.spoken import in_each
from kvscope.report.terminal_text import display_width, wrapped
from kvscope.report.turns import turn_lines
from kvscope.report.words import NO_BREAK, has_words, name_of, say

# Of a study as a whole, without what to change first and what to do about doubts; and of what each of its designs says
# besides. What was asked of answers is never cut off.
MOST_LINES = 32
MOST_DESIGN_LINES = 10
# Of doubts that many say what to do; the page has all of them.
MOST_STEPS = 3
# Findings that the lines above them already say.
_SAID = ("failed",)
_PER_TOKEN = ("slope_", "step_")
# What has no name, how the wait grows, and whether memory comes back.
_VERDICTS = ("unexplained_", "ttft_", "release_")


def render_text(analysis: Analysis) -> str:
    """Each study in at most 32 lines of at most 80 columns, failures first, and what to change in a few more; then each
    of its designs."""
    if not analysis.studies:
        return say("page.empty")
    several = several_studies(analysis)
    parts = ["\n".join(_wrapped(several))] if several else []
    parts += ["\n".join(study_lines(study)) for study in analysis.studies]
    return "\n\n".join(parts).replace(NO_BREAK, " ")


def study_lines(study: Study) -> list[str]:
    """The lines of one study. What does not fit is said to be on the page; advice and doubts always fit."""
    lines = _wrapped(", ".join(strip(study)))
    lines += _failed(study)
    lines += _wrapped(headline(study))
    lines += _wrapped(interval_line(study), "  ")
    lines += _growth(study)
    doubts, shown = _doubts(study), _shown_findings(study)
    overall = _overall(study)
    told = [finding for finding in overall if finding in shown]
    price = [finding for finding in told if finding.slug.startswith(_PER_TOKEN)]
    first = [finding for finding in told if finding.is_contradiction and finding not in price]
    rest = [finding for finding in told if finding not in (*first, *price)]
    lines += [line for finding in (*first, *price) for line in _finding_lines(finding)]
    lines += _formula_lines(study)
    lines += [line for finding in rest for line in _finding_lines(finding)]
    lines += [*_how_far(study), *_left_out(study)]
    lines += [say("text.more")] if len(shown) < len(overall) else []
    lines += [*_change_first(study), *doubts, *_steps(study)]
    for design in study.designs:
        lines += _design_lines(study, design)
    return lines


def _overall(study: Study) -> list[Finding]:
    """What is found of the study as a whole: what a token costs first."""
    found = [f for f in study.findings if f.design_id is None and f.slug not in _SAID]
    return sorted(found, key=lambda f: not f.slug.startswith(_PER_TOKEN))


def _growth(study: Study) -> list[str]:
    """What grows without a limit stands before all that is found."""
    return _wrapped(growth_line(study) or "", "→ ")


def _formula_lines(study: Study) -> list[str]:
    formula = None if is_answered_first(study) else formula_line(study)
    return _wrapped(f"{formula}.", "  ") if formula else []


def _how_far(study: Study) -> list[str]:
    """How far this machine goes, in a line."""
    text = limit_text(study)
    return _wrapped(text, "- ") if text and study.is_measured else []


def _left_out(study: Study) -> list[str]:
    """What was planned and not run, and what the headline lacks for it."""
    return _wrapped(left_out_text(study) or "", "- ")


def _shown_findings(study: Study) -> list[Finding]:
    """Those that there is room for, the weightiest first. Every language shows the same: a finding has room where it
    has in the language that needs the most lines."""
    overall = _overall(study)
    weighty = sorted(overall, key=_is_detail)
    shown = overall
    for lines in in_each(lambda: _heights(study, weighty)).values():
        room = MOST_LINES - lines[0] - 1  # a line for that there is more
        if sum(lines[1:]) <= room + 1:
            continue
        fits = []
        for finding, count in zip(weighty, lines[1:], strict=True):
            if count <= room:
                fits.append(finding)
                room -= count
        shown = [finding for finding in shown if finding in fits]
    return shown


def _heights(study: Study, findings: Sequence[Finding]) -> list[int]:
    """Lines of what is never left out, then of each finding."""
    always = [_wrapped(", ".join(strip(study))), _failed(study), _wrapped(headline(study))]
    always += [
        _wrapped(interval_line(study), "  "),
        _growth(study),
        _formula_lines(study),
        _how_far(study),
        _left_out(study),
    ]
    always.append(_doubts(study))
    return [sum(map(len, always)), *(len(_finding_lines(finding)) for finding in findings)]


def _is_detail(finding: Finding) -> int:
    """What a token costs, then contradictions and the verdicts of the main questions, then all else."""
    if finding.slug.startswith(_PER_TOKEN):
        return 0
    return 1 if finding.is_contradiction or finding.slug.startswith(_VERDICTS) else 2


def _cut(lines: list[str], most: int) -> list[str]:
    """At most so many lines; a finding is there whole or not at all."""
    if len(lines) <= most:
        return lines
    end = next((n for n in range(most - 1, 0, -1) if not lines[n].startswith("  ")), most - 1)
    return [*lines[:end], say("text.more")]


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


def change_first(study: Study) -> list[str]:
    """What grows without a limit and what to change first, as lines of a terminal; nothing where nothing was
    measured."""
    return [*_growth(study), *_change_first(study)]


def _change_first(study: Study) -> list[str]:
    told = [line for line in advice_lines(study) if line != growth_line(study)]
    if study.advice:
        told = [say("advice_short.line", line=line) for line in told]
    return [part for line in told for part in _wrapped(line, "→ ")]


def _doubts(study: Study) -> list[str]:
    names = dict.fromkeys(map(doubt_name, _failing(study)))
    if names:
        return _wrapped(say("text.doubts", names=", ".join(names)))
    # Where every trial failed there is nothing that checks could be of.
    return [] if study.failures and not study.is_measured else [say("text.no_doubts")]


def _steps(study: Study) -> list[str]:
    """What to do about the gravest doubts."""
    steps = {doubt_name(c): next_step(c) for c in reversed(by_weight([c for c in study.checks if c.passed is False]))}
    told = [say("text.doubt_step", name=name, step=step) for name, step in reversed(steps.items())]
    return [line for text in told[:MOST_STEPS] for line in _wrapped(text, "  ")]


def _failing(study: Study) -> list[Check]:
    return [c for c in study.checks if c.passed is False and c.slug != "failures"]


def _wrapped(text: str, mark: str = "") -> list[str]:
    return wrapped(text, mark, " " * max(2, display_width(mark)))
