"""The report's argument, in order: the answer, where, why it grows, why it slows, one change, back?, right?, failed,
trusted, every row, sources. A part keeps its number on every page."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from kvscope.analysis.study import Analysis, Study
from kvscope.report.blocks import Answer, Link, Section, StudyPage
from kvscope.report.charts import unvalidated
from kvscope.report.claims import row_anchors
from kvscope.report.links import anchors_in, sourced, sourced_table
from kvscope.report.quality_words import TASK_FACTOR
from kvscope.report.section_advice import advice_section
from kvscope.report.section_answer import answer
from kvscope.report.section_effects import changes_section
from kvscope.report.section_growth import growth_section
from kvscope.report.section_memory import memory_section
from kvscope.report.section_quality import quality_section
from kvscope.report.section_release import release_section
from kvscope.report.section_rows import rows_section, shown_attempts
from kvscope.report.section_sources import sources_section
from kvscope.report.section_time import time_section
from kvscope.report.section_trust import failures_section, trust_section
from kvscope.report.used_words import used_words
from kvscope.report.words import say

# Section → its number. 1 is the answer; 0 has none.
NUMBERS: Mapping[str, int] = {
    "memory": 2,
    "growth": 3,
    "time": 4,
    "changes": 5,
    "release": 6,
    "quality": 7,
    "failed": 8,
    "advice": 0,
    "trust": 9,
    "rows": 10,
    "sources": 11,
}
# What a page keeps where nothing was measured; failures and rows beside them where anything was tried.
_PREDICTED_ALONE = ("memory", "growth", "trust", "sources")
_TRIED = ("failed", "advice", "rows")


def study_page(study: Study, prefix: str) -> StudyPage:
    """One study as blocks. ``prefix`` begins every anchor, so that several studies can share a page."""
    shown = {attempt.key for attempt in shown_attempts(study)}
    anchors = {key: link for key, link in row_anchors(study, prefix).items() if key in shown}
    makers: Mapping[str, Callable[[], Section]] = {
        "memory": lambda: memory_section(study, anchors),
        "growth": lambda: growth_section(study, anchors, prefix),
        "time": lambda: time_section(study, anchors),
        "changes": lambda: changes_section(study, anchors),
        "release": lambda: release_section(study, anchors),
        "quality": lambda: quality_section(study, anchors),
        "failed": lambda: failures_section(study, anchors),
        "advice": lambda: advice_section(study, anchors),
        "trust": lambda: trust_section(study),
        "rows": lambda: rows_section(study, anchors),
    }
    kept = kept_sections(study)

    def made() -> list[Section]:
        return [replace(make(), number=NUMBERS[name]) for name, make in makers.items() if name in kept]

    def all_but_words() -> list[Answer | Section]:
        return [answer(study, anchors, prefix, kept), *made(), sources_section(study, prefix, frozenset())]

    with unvalidated():
        used = None if study.attempts else used_words(all_but_words)
        return _with_sources(study, anchors, prefix, made(), used)


def kept_sections(study: Study) -> tuple[str, ...]:
    """The sections that have something to say of a study: all of them where anything was measured."""
    if study.is_measured:
        return tuple(NUMBERS)
    tried = (*_TRIED, *(("quality",) if _asked(study) else ())) if study.attempts else ()
    if "what_if" in (study.prediction or {}):
        tried = (*tried, "advice")
    return tuple(name for name in NUMBERS if name in (*_PREDICTED_ALONE, *tried))


def _asked(study: Study) -> bool:
    """Whether questions were asked, even if nothing came of it."""
    return any(TASK_FACTOR in each.design.held or TASK_FACTOR in each.design.factor for each in study.designs)


def _with_sources(
    study: Study,
    anchors: Mapping[str, Link],
    prefix: str,
    sections: list[Section],
    used: Collection[str] | None,
) -> StudyPage:
    """The page, its words defined (those ``used``, or all) and its numbers led to their sources in the last section."""
    first = answer(study, anchors, prefix, kept_sections(study))
    sources = replace(sources_section(study, prefix, used), number=NUMBERS["sources"])
    known = anchors_in([*sections, sources]) | {f"{prefix}engine-lines"}
    if first.table is not None:
        first = replace(first, table=sourced_table(first.table, known, prefix))
    return StudyPage(
        anchor=prefix,
        answer=first,
        sections=tuple(sourced(section, known, prefix) for section in (*sections, sources)),
    )


def study_pages(analysis: Analysis) -> tuple[StudyPage, ...]:
    """All studies of a record; their anchors begin with ``s1-``, ``s2-`` … where there are several."""
    several = len(analysis.studies) > 1
    return tuple(study_page(s, f"s{n}-" if several else "") for n, s in enumerate(analysis.studies, start=1))


def several_studies(analysis: Analysis) -> str | None:
    """Why the studies of one record are kept apart."""
    if len(analysis.studies) < 2:
        return None
    parts: dict[str, set[object]] = {
        "machine": {s.machine_id for s in analysis.studies},
        "model": {s.model_fingerprint for s in analysis.studies},
        "engine": {_engine(s) for s in analysis.studies},
    }
    what = tuple(say(f"differs.{name}") for name, found in parts.items() if len(found) > 1)
    return say("page.several", count=len(analysis.studies), what=what)


def _engine(study: Study) -> tuple[str, str, str]:
    return study.engine, study.engine_version, study.engine_build
