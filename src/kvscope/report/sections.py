"""The report's argument, in order: the answer, where, why it grows, why it slows, one change, back?, right?, failed,
trusted, every row, sources."""

from kvscope.analysis.study import Analysis, Study
from kvscope.report.blocks import Chart, StudyPage
from kvscope.report.charts import draw_file
from kvscope.report.claims import row_anchors
from kvscope.report.section_answer import answer
from kvscope.report.section_effects import changes_section
from kvscope.report.section_growth import growth_section
from kvscope.report.section_memory import memory_section
from kvscope.report.section_quality import quality_section
from kvscope.report.section_release import release_section
from kvscope.report.section_rows import rows_section, sources_section
from kvscope.report.section_time import time_section
from kvscope.report.section_trust import failures_section, trust_section
from kvscope.report.words import say


def study_page(study: Study, prefix: str) -> StudyPage:
    """One study as blocks. ``prefix`` begins every anchor, so that several studies can share a page."""
    anchors = row_anchors(study, prefix)
    return StudyPage(
        anchor=prefix,
        answer=answer(study, anchors, prefix),
        sections=(
            memory_section(study, anchors),
            growth_section(study, anchors),
            time_section(study, anchors),
            changes_section(study, anchors),
            release_section(study, anchors),
            quality_section(study, anchors),
            failures_section(study, anchors),
            trust_section(study),
            rows_section(study, anchors),
            sources_section(study),
        ),
    )


def study_pages(analysis: Analysis) -> tuple[StudyPage, ...]:
    """All studies of a record; their anchors begin with ``s1-``, ``s2-`` … where there are several."""
    several = len(analysis.studies) > 1
    return tuple(study_page(s, f"s{n}-" if several else "") for n, s in enumerate(analysis.studies, start=1))


def chart_files(analysis: Analysis) -> dict[str, str]:
    """File name → SVG, of every chart once."""
    charts = {
        f"{page.anchor}{block.slug}.svg": block
        for page in study_pages(analysis)
        for section in page.sections
        for block in section.blocks
        if isinstance(block, Chart)
    }
    return {name: draw_file(chart) for name, chart in charts.items()}


def several_studies(analysis: Analysis) -> str | None:
    """Why the studies of one record are kept apart."""
    if len(analysis.studies) < 2:
        return None
    parts: dict[str, set[object]] = {
        "machine": {s.machine_id for s in analysis.studies},
        "model": {s.model_fingerprint for s in analysis.studies},
        "engine": {_engine(s) for s in analysis.studies},
    }
    what = ", ".join(say(f"differs.{name}") for name, found in parts.items() if len(found) > 1)
    return say("page.several", count=len(analysis.studies), what=what)


def _engine(study: Study) -> tuple[str, str, str]:
    return study.engine, study.engine_version, study.engine_build
