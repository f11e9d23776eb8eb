"""What was answered, in a few sentences for the head of a report: how many were right, what was lost, what it costs.

Made from the findings, so that the head and the section behind it cannot disagree."""

from collections.abc import Sequence
from typing import Any

from kvscope.analysis.answer_designs import is_of_answers
from kvscope.analysis.finding import Finding
from kvscope.analysis.quality_findings import OF_SIGN
from kvscope.analysis.study import Study
from kvscope.report.level_words import level_text
from kvscope.report.quality_words import right_text
from kvscope.report.words import say

# Shares, and intervals, that find room in a head.
MOST_NAMED = 8
_TOLD = {"quality_loss": "loss", "quality_gain": "gain", "fidelity_loss": "moves"}
_CANNOT_TELL = ("quality_cannot_tell", "fidelity_cannot_tell")
_NO_LOSS = ("quality_no_loss", "fidelity_no_loss")
_EVEN = ("retrieval_even", "retrieval_even_at_once", "retrieval_never_even", "retrieval_even_not_told")
_RIGHT = ("retrieval_right", "retrieval_right_sent", "retrieval_guessed", "quality_share")
# What was asked for, before what there is to say beside it.
_MAIN = (*OF_SIGN.values(), *_RIGHT, *_TOLD, *_CANNOT_TELL, *_NO_LOSS, "retrieval_lost", *_EVEN, "quality_not_beaten")


def is_main(finding: Finding) -> bool:
    """Whether a finding says what was asked for: shares, what was lost, costs; no short text leaves these out."""
    return finding.slug in _MAIN or finding.slug.startswith("copy_gain_")


def is_about_answers(study: Study) -> bool:
    """Whether no design of a study asked for anything else than answers and what they cost."""
    return bool(study.designs) and all(is_of_answers(design.design) for design in study.designs)


def answered_text(study: Study) -> str:
    """What each design's answers come to; empty where nothing was answered or scored."""
    parts = []
    for design in study.designs:
        own = [each for each in study.findings if each.design_id == design.design.design_id]
        parts += _of_design(own)
    return " ".join(dict.fromkeys(parts))


def intervals_text(study: Study) -> str:
    """The 95 % intervals of shares and divergences, where there are any; empty where nothing was answered."""
    shares = [each for each in study.findings if each.slug in _RIGHT and each.size is not None]
    known = [each for each in shares if each.size is not None and each.size.has_interval]
    told = tuple(
        say("answered.interval", what=_what(each), low=each.size.low, high=each.size.high)
        for each in known[:MOST_NAMED]
        if each.size is not None
    )
    if told:
        return say("answered.intervals", intervals=told)
    return say("answered.no_intervals") if shares else ""


def _of_design(found: Sequence[Finding]) -> list[str]:
    parts = []
    shares = [each for each in found if each.slug in _RIGHT]
    if shares:
        named = tuple(_right(each) for each in shares[:MOST_NAMED])
        more = len(shares) - len(named)
        parts.append(say("answered.right", shares=named, more=say("answered.more", count=more) if more else ""))
    gates = [each.values["gate"] for each in shares if "gate" in each.values]
    if gates:
        judged = gates.count("measured")
        parts.append(say("answered.judged" if judged else "answered.judged_none", judged=judged, total=len(gates)))
    parts += _against_baseline(found)
    evens = [each for each in found if each.slug in _EVEN]
    ways = [each.values["level"] for each in evens]
    parts += [_lost(each) for each in found if each.slug == "retrieval_lost" and _can_have_lost(each, ways)]
    parts += [_even(each) for each in evens]
    gains = [each for each in found if each.slug.startswith("copy_gain_")]
    parts += [say(f"answered.{each.slug}", gain=None if each.size is None else each.size.value) for each in gains[:1]]
    return parts


def _right(finding: Finding) -> str:
    values = finding.values
    read = values.get("scored", values.get("items"))
    return say("answered.share", what=_what(finding), right=right_text(float(str(values["right"]))), read=read)


def _what(finding: Finding) -> str:
    """A way to give documents; a task, at its level where that is something else."""
    values = finding.values
    if "task" not in values:
        return level_text(values["level"])
    level = values["level"]
    return str(values["task"]) if level == values["task"] else f"{values['task']} ({level_text(level)})"


def _against_baseline(found: Sequence[Finding]) -> list[str]:
    """Losses and gains by name; of the others how many."""
    parts = []
    for finding in found:
        if finding.slug in _TOLD:
            values: dict[str, Any] = {"level": level_text(finding.values["level"])}
            values["base"] = level_text(finding.values["baseline_level"])
            values |= {"size": None if finding.size is None else finding.size.value, "task": finding.values.get("task")}
            parts.append(say(f"answered.{_TOLD[finding.slug]}", **values))
    for name, slugs in (("no_loss", _NO_LOSS), ("cannot_tell", _CANNOT_TELL)):
        count = sum(each.slug in slugs for each in found)
        parts += [say(f"answered.{name}", count=count)] if count else []
    return parts


def _can_have_lost(finding: Finding, ways: Sequence[object]) -> bool:
    """Whether it is one of these ways, and the whole document got anything right that it could lose."""
    return finding.values["level"] in ways and bool(finding.values["whole_right"])


def _lost(finding: Finding) -> str:
    values = finding.values
    slug = "answered.lost" if values["lost"] else "answered.lost_nothing"
    return say(slug, level=level_text(values["level"]), lost=values["lost"])


def _even(finding: Finding) -> str:
    values = finding.values
    return say(f"answered.{finding.slug}", level=level_text(values["level"]), questions=values["questions"])
