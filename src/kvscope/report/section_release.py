"""6. Did the memory come back?"""

from collections.abc import Mapping

from kvscope.analysis.release import Release
from kvscope.analysis.study import Study
from kvscope.report.blocks import Block, Bullets, Link, Paragraph, Section, Table, columns, row
from kvscope.report.charts_memory import release_chart
from kvscope.report.claims import claims
from kvscope.report.numbers import mib_cell
from kvscope.report.section_time import level_text
from kvscope.report.words import name_of, say

_LEFT_TERMS = ("heap", "arenas", "stacks", "library_data")


def release_section(study: Study, anchors: Mapping[str, Link]) -> Section:
    """Section 6."""
    if not study.releases:
        text = Paragraph(text=say("release.not_measured"), kind="lead")
        return Section(slug="release", title=say("title.release"), blocks=(text,))
    blocks: list[Block] = [Paragraph(text=say("release.lead"), kind="lead"), *claims(study, anchors, "release_")]
    factor = study.releases[0].factor
    blocks.append(release_chart(study.releases, factor))
    blocks.append(_verdicts(study, factor))
    blocks += _left(study)
    blocks.append(Bullets(items=_remarks(study)))
    return Section(slug="release", title=say("title.release"), blocks=tuple(blocks))


def _verdicts(study: Study, factor: str) -> Table:
    titles = ("step", "host_per_conversation", "host_limit", "added_total", "kept", "after_exit", "active")
    return Table(
        caption=say("caption.verdicts"),
        columns=(*columns(name_of("factor", factor)), *columns(say("col.verdict"), *(say(f"col.{t}") for t in titles))),
        rows=tuple(
            row(
                level_text(r.level),
                say(f"verdict.{r.verdict}"),
                mib_cell(r.step.value, 2),
                _host_step(r),
                mib_cell(r.host_cache_limit_bytes) if r.host_cache_limit_bytes is not None else say("none"),
                mib_cell(r.added_bytes, 2),
                mib_cell(r.kept_bytes, 2),
                mib_cell(r.exited_bytes, 2),
                _active(r),
            )
            for r in study.releases
        ),
    )


def _host_step(release: Release) -> str:
    """Growth of the host prompt cache from one conversation to the next, as the engine's log states it."""
    stated = [c.host_cache_bytes for c in release.conversations if c.host_cache_bytes is not None]
    if len(stated) < 2:
        return say("none")
    return mib_cell((stated[-1] - stated[0]) / (len(stated) - 1), 2)


def _active(release: Release) -> str:
    known = [c.active_requests for c in release.conversations if c.active_requests is not None]
    return str(max(known)) if known else say("unknown")


def _left(study: Study) -> list[Table]:
    """Of what the memory after the engine's own release is made, by the mappings that were still there."""
    rows = []
    for release in study.releases:
        if release.left is None or not release.left.maps_read:
            continue
        cells = [mib_cell(release.left.term_bytes(term), 2) for term in _LEFT_TERMS]
        rest = mib_cell(release.left.unexplained_anon_bytes, 2, signed=True)
        rows.append(row(level_text(release.level), *cells, rest, mib_cell(release.left.anon_growth_bytes, 2)))
    if not rows:
        return []
    table = Table(
        caption=say("caption.left"),
        columns=columns(
            say("col.level"), *(name_of("term", t) for t in _LEFT_TERMS), say("row.unexplained"), say("col.sum")
        ),
        rows=tuple(rows),
        summary=say("summary.left"),
    )
    return [table]


def _remarks(study: Study) -> tuple[str, ...]:
    items = [say("release.how"), say("release.ours_only")]
    if any(r.cause == "host_cache" for r in study.releases):
        items.insert(0, say("release.host_cache"))
    return tuple(items)
