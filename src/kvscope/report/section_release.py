"""6. Did the memory come back?"""

from collections.abc import Mapping, Sequence

from kvscope.analysis.fit import Estimate
from kvscope.analysis.match import SHARED_SLACK_BYTES
from kvscope.analysis.release import Release, Step
from kvscope.analysis.release_curve import GROWTH_STEP_BYTES, STILL_BYTES
from kvscope.analysis.study import Study
from kvscope.report.blocks import Block, Bullets, Column, Link, Paragraph, Row, Section, Table, columns, row
from kvscope.report.charts_release import release_chart
from kvscope.report.claims import bounds_text, claims
from kvscope.report.numbers import estimate_cell, mib_cell
from kvscope.report.section_time import level_text
from kvscope.report.words import name_of, say

# Terms of the identity that have a column of their own, by the column's name.
REMAINS: Mapping[str, tuple[str, ...]] = {
    "component.weights": ("weights",),
    "component.kv_cache": ("kv_cache", "recurrent_state"),
    "col.buffers": ("compute_buffer", "output_buffer", "working_buffers"),
    "col.copies": ("host_cache", "checkpoint"),
    "col.heaps": ("heap", "heap_kept", "arenas", "python_arenas", "swapped"),
    "col.libraries": ("library_data", "stacks"),
}


def release_section(study: Study, anchors: Mapping[str, Link]) -> Section:
    """Section 6."""
    if not study.releases:
        text = Paragraph(text=say("release.not_measured"), kind="lead")
        return Section(slug="release", title=say("title.release"), blocks=(text,))
    blocks: list[Block] = [Paragraph(text=say("release.lead"), kind="lead"), *claims(study, anchors, "release_")]
    factor = study.releases[0].factor
    read = [r for r in study.releases if r.conversations]
    if read:
        blocks.append(release_chart(read, factor))
    blocks.append(_verdicts(study.releases, factor))
    blocks += [table for table in (steps_table(study.releases, factor),) if table.rows]
    blocks.append(Bullets(items=_remarks(study.releases)))
    return Section(slug="release", title=say("title.release"), blocks=tuple(blocks))


def verdict_text(release: Release) -> str:
    """The verdict in the reader's words; a release that only the end of the process brought says so."""
    verdict = say(f"verdict.{release.verdict}")
    return say("release.at_exit", verdict=verdict) if release.released_at == "exit" else verdict


def per_token_text(release: Release) -> str:
    """Growth for each token of a conversation, beside what the cache takes for one; empty where nothing grew."""
    each = release.per_token
    if each is None or each.growth.value is None or each.predicted_bytes is None:
        return ""
    text = say(
        "release.per_token" if each.growth.has_interval else "release.per_token_alone",
        tokens=each.tokens_per_conversation,
        growth_bytes=each.growth.value,
        low_bytes=each.growth.low,
        high_bytes=each.growth.high,
        predicted_bytes=each.predicted_bytes,
    )
    if release.copies_carry_checkpoints:
        return say("release.copies_carry", text=text)
    if each.growth.low is None or each.growth.low <= each.predicted_bytes:
        return text
    return f"{text} {say('release.per_token_more', more_bytes=each.growth.value - each.predicted_bytes)}"


def slope_text(slope: Estimate | None) -> str:
    """A slope in MiB with its interval."""
    return say("none") if slope is None else estimate_cell(slope, lambda value: mib_cell(value, 2, signed=True))


def _verdicts(releases: Sequence[Release], factor: str) -> Table:
    titles = ("step", "again", "host_per_conversation", "added_total", "kept", "after_exit", "active")
    return Table(
        caption=say("caption.verdicts"),
        columns=(
            *columns(name_of("factor", factor)),
            *columns(say("col.verdict")),
            *columns(say("col.kept_by")),
            *(Column(title=say(f"col.{t}"), is_number=True) for t in titles),
        ),
        rows=tuple(
            row(
                level_text(r.level),
                verdict_text(r),
                bounds_text(r.bounds) if r.bounds else say("none"),
                slope_text(r.step),
                slope_text(r.same_text_step),
                _host_step(r),
                mib_cell(r.added_bytes, 2),
                mib_cell(r.kept_bytes, 2),
                mib_cell(r.exited_bytes, 2),
                _active(r),
            )
            for r in releases
        ),
    )


def _host_step(release: Release) -> str:
    """Growth of the host prompt cache from one conversation to the next, as the engine's log states it."""
    stated = [c.host_cache_bytes for c in release.host.different if c.host_cache_bytes is not None]
    if len(stated) < 2:
        return say("none")
    return mib_cell((stated[-1] - stated[0]) / (len(stated) - 1), 2)


def _active(release: Release) -> str:
    known = [c.active_requests for c in release.conversations if c.active_requests is not None]
    return str(max(known)) if known else say("unknown")


def steps_table(releases: Sequence[Release], factor: str) -> Table:
    """What each step of the release gave back, and of what the rest is made, one row for each step of each level."""
    on_device = any(step.device_bytes is not None for release in releases for step in release.steps)
    titles = [say("col.held"), say("col.given_back"), *([name_of("place", "device")] if on_device else [])]
    titles.append(say("col.start"))
    names = [say(title) for title in REMAINS] + [say("row.unexplained")]
    return Table(
        caption=say("caption.steps"),
        columns=(*columns(name_of("factor", factor)), *columns(say("col.moment"), *titles, *names)),
        rows=tuple(_step_row(release, step, on_device) for release in releases for step in release.steps),
    )


def _step_row(release: Release, step: Step, on_device: bool) -> Row:
    back = say("none") if step.phase == "after_request" else mib_cell(step.given_back_bytes, 2)
    cells = [mib_cell(step.held_bytes, 2), back]
    cells += [mib_cell(step.device_bytes, 2)] if on_device else []
    cells.append(_start(release, step))
    return row(level_text(release.level), name_of("phase", step.phase), *cells, *_remains(step))


def _start(release: Release, step: Step) -> str:
    """What was held before the model was loaded: with the names beside it, all that is held."""
    if step.phase == "exited":
        return say("none")
    return mib_cell(release.host.launched_bytes, 2)


def _remains(step: Step) -> list[str]:
    if step.remains is None or not step.remains.maps_read:
        word = say("none") if step.phase == "exited" else say("unknown")
        return [word] * (len(REMAINS) + 1)
    anonymous = [term for term in step.remains.terms if term.backing == "anonymous"]
    cells = []
    for title, slugs in REMAINS.items():
        found = sum(t.num_bytes for t in anonymous if t.slug in slugs)
        stated = step.stated.get(title.partition(".")[2], 0)
        if stated > found + SHARED_SLACK_BYTES:
            cells.append(say("cell.of_stated", found=mib_cell(found, 2), stated=mib_cell(stated, 2)))
        else:
            cells.append(mib_cell(found, 2))
    return [*cells, mib_cell(step.remains.unexplained_anon_bytes, 2, signed=True)]


def _remarks(releases: Sequence[Release]) -> tuple[str, ...]:
    items = [say("release.how"), say("release.ours_only")]
    items[:0] = [f"{level_text(r.level)}: {text}" for r in releases if (text := per_token_text(r))]
    steps = [max(2, len(r.host.different) // 2) for r in releases if len(r.host.different) > 2]
    if steps:
        items.insert(-1, say("release.detectable", step_bytes=max(GROWTH_STEP_BYTES, STILL_BYTES / max(steps))))
    if any(r.verdict == "growing" for r in releases):
        items.insert(-1, say("release.period"))
    if any(r.cause == "host_cache" for r in releases):
        items.insert(0, say("release.host_cache"))
    return tuple(items)
