"""8. What failed? 9. Can these numbers be trusted?"""

from collections.abc import Mapping, Sequence

from kvscope.analysis.checks import Check
from kvscope.analysis.failures import FailureGroup
from kvscope.analysis.study import Study
from kvscope.language import shown
from kvscope.record.rows import DesignRow
from kvscope.report.blocks import Block, Bullets, Column, Fold, Link, Paragraph, Row, Section, Table, row
from kvscope.report.links import some_rows
from kvscope.report.private_paths import last_line, without_home, without_places
from kvscope.report.section_time import level_text
from kvscope.report.words import has_words, name_of, say

SHOWN_ROWS = 8
_GRAVEST = (
    "failures",
    *("cut_prompts", "stuck_count", "token_counts", "own_counts", "cached_tokens", "swap", "client_limits"),
    *("memory_drift", "drift", "late_samples", "coalesced", "unexplained", "unexplained_between"),
)
# Factors that put several requests on their way at once.
_AT_ONCE = ("concurrency", "rate_per_s")
_SIGNS = {True: "passed", False: "doubt", None: "not_looked"}


def failures_section(study: Study, anchors: Mapping[str, Link]) -> Section:
    """Section 8."""
    if not study.failures:
        lead = say("failures.none", total=len(study.trials))
    else:
        lead = say("failures.lead", failed=study.num_failed, total=len(study.trials))
    blocks: list[Block] = [Paragraph(text=lead, kind="lead")]
    if study.num_repeated:
        blocks.append(Paragraph(text=say("failures.repeated", count=study.num_repeated)))
    if study.failures:
        blocks.append(_failures_table(study, anchors))
    for group in study.failures:
        blocks += _evidence(group)
    return Section(slug="failed", title=say("title.failed"), blocks=tuple(blocks))


def _failures_table(study: Study, anchors: Mapping[str, Link]) -> Table:
    names = ("cause", "count", "levels", "message", "known_by", "first_line", "what_to_do", "rows")
    return Table(
        caption=say("caption.failures"),
        columns=tuple(Column(title=say(f"col.{name}"), is_number=name == "count") for name in names),
        rows=tuple(_failure_row(group, anchors) for group in study.failures),
    )


def _failure_row(group: FailureGroup, anchors: Mapping[str, Link]) -> Row:
    levels = dict.fromkeys(level_text(a.trial.level) for a in group.attempts)
    rows = some_rows(anchors[key] for key in group.evidence if key in anchors)
    return row(
        name_of("outcome", group.outcome),
        str(len(group.attempts)),
        ", ".join(list(levels)[:SHOWN_ROWS]),
        clipped(without_home(shown(group.message or "")) or say("unknown")),
        name_of("known_by", group.known_by) if group.known_by is not None else say("none"),
        clipped(without_home(group.first_line or "") or say("none")),
        clipped(shown(group.hint or "") or name_of("advice", group.outcome)),
        ", ".join(link.text for link in rows),
        kind="failed",
        evidence=rows,
    )


def _evidence(group: FailureGroup) -> list[Block]:
    """The first attempt's engine log and traceback, folded."""
    first = group.attempts[0].trial
    cause = name_of("outcome", group.outcome)
    blocks: list[Block] = []
    if first.engine_log_tail:
        log = clipped(without_home(first.engine_log_tail), 4000)
        blocks.append(Fold(summary=say("summary.log", cause=cause), text=log, is_raw=True))
    if first.traceback:
        trace = without_places(first.traceback)
        summary = say("summary.traceback", cause=cause, error=clipped(last_line(trace)))
        blocks.append(Fold(summary=summary, text=clipped(trace, 4000), is_raw=True))
    return blocks


def clipped(text: str, limit: int = 300) -> str:
    """The end of long text is cut, and says so: the whole of it is in the record."""
    return text if len(text) <= limit else say("clipped", text=text[:limit], left=len(text) - limit)


def trust_section(study: Study) -> Section:
    """Section 9."""
    doubts = sum(check.passed is False for check in study.checks)
    lead = say("trust.lead" if doubts else "trust.clean", doubts=doubts, total=len(study.checks))
    lead = lead if study.checks else say("trust.predicted")
    table = Table(
        caption=say("caption.checks"),
        columns=tuple(Column(title=say(f"col.{name}")) for name in ("result", "check", "seen", "why_and_next")),
        rows=tuple(_check_row(check) for check in study.checks),
    )
    missing = Bullets(items=tuple(say(f"not_measured.{name}") for name in _not_measured(study)))
    blocks: tuple[Block, ...] = (
        Paragraph(text=lead, kind="lead"),
        *((table,) if study.checks else ()),
        Paragraph(text=say("trust.not_measured")),
        missing,
    )
    return Section(slug="trust", title=say("title.trust"), blocks=blocks)


def _not_measured(study: Study) -> list[str]:
    """What the record cannot tell, for want of anything that measured it."""
    has_devices = any(m.device_bytes is not None for a in study.attempts for m in a.result.marks)
    told = [] if study.has_answers else ["quality"]
    told += [] if has_devices else ["device"]
    told += [] if not study.attempts or any(_asks_at_once(each.design) for each in study.designs) else ["concurrency"]
    return [*told, "others"]


def _asks_at_once(design: DesignRow) -> bool:
    """Whether a design may have several requests on their way at once."""
    return any(name in design.factor or name in design.held for name in _AT_ONCE)


def _check_row(check: Check) -> Row:
    return row(
        say(f"check.{_SIGNS[check.passed]}"),
        say(f"check_name.{check.slug}"),
        check_text(check),
        why_and_next(check) if check.passed is False else "",
        kind="" if check.passed is not False else "doubt",
    )


def doubt_name(check: Check) -> str:
    """A doubt in a word or two; of one that trials recorded, which."""
    return say(f"check_short.{check.slug}", warning=check.values.get("warning"))


def by_weight(doubts: Sequence[Check]) -> list[Check]:
    """The gravest first: numbers of something else, then numbers that are wrong, then numbers that are unsure."""
    return sorted(doubts, key=lambda each: _GRAVEST.index(each.slug) if each.slug in _GRAVEST else len(_GRAVEST))


def why_and_next(check: Check) -> str:
    """What a doubt does to the numbers, and what to do about it."""
    why = say(f"check_why.{check.slug}")
    return f"{why} {next_step(check)}"


def next_step(check: Check) -> str:
    """What to do about a doubt, in a sentence: what mends the failure, what goes on with a run that was interrupted."""
    hint, command = (shown(str(check.values.get(name) or "")) for name in ("hint", "command"))
    if check.slug == "failures":
        known = f"advice.{check.values.get('outcome')}"
        return clipped(hint) if hint else say(known if has_words(known) else "check_next.failures")
    if check.slug == "repeats" and command:
        return say("check_next.goes_on", command=clipped(command))
    return say(f"check_next.{check.slug}", hint=clipped(shown(str(check.values.get("hint") or ""))))


def check_text(check: Check) -> str:
    """What a check saw, with the limit it used."""
    if check.passed is None:
        return say("check.nothing")
    values = dict(check.values)
    if "level" in values:
        values["level"] = level_text(values["level"])
    if check.slug == "warning":
        values["message"] = clipped(shown(str(values["message"])))
    slug = check.slug
    if slug == "unexplained":
        values["moment"] = name_of("moment", str(values["phase"]))
        slug = slug if values["is_calibrated"] else "unexplained_by_place"
    return say(f"check.{slug}", **values)
