"""The charts of memory: by context limit, against the context limit, over time, added by requests, after release."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvscope.analysis.attempts import Attempt, has_engine_rules
from kvscope.analysis.attribute import Attribution
from kvscope.analysis.growth import ContextGrowth, InputGrowth
from kvscope.analysis.study import MemoryView
from kvscope.record.rows import MarkRow, SampleRow
from kvscope.report.blocks import Chart, Table, columns, row
from kvscope.report.charts import (
    AXIS,
    FAILED,
    HEIGHT,
    INK,
    MEASURED,
    PARTS,
    PREDICTED,
    SECOND,
    WIDTH,
    KeyItem,
    apart,
    crosses,
    key,
    plot,
    to_spec,
)
from kvscope.report.numbers import mib_cell, number_cell, seconds_cell
from kvscope.report.words import name_of, say
from kvscope.units import MIB, format_count

# Part of the chart → terms of the identity that it holds.
PART_TERMS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights", "model_file"),
    "kv_cache": ("kv_cache", "recurrent_state"),
    "buffers": ("compute_buffer", "output_buffer", "working_buffers", "work_buffer", "work_in_use"),
    "runtime": ("runtime", "vocabulary", "prompt_growth", "heap", "heap_kept", "arenas", "python_arenas", "swapped"),
    "libraries": ("stacks", "library_data", "library_code"),
    "host_cache": ("host_cache",),
    "checkpoint": ("checkpoint",),
}
_PREDICTED_PARTS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights",),
    "kv_cache": ("kv_cache", "recurrent_state"),
    "buffers": ("compute_buffer", "output_buffer"),
}
# Sampled quantity → words of its series, colour, dashes.
CURVES: Mapping[str, tuple[str, str, tuple[int, int]]] = {
    "anon_bytes": ("series.anon", MEASURED, (1, 0)),
    "file_bytes": ("series.file", SECOND, (5, 3)),
    "device_bytes": ("series.device", PREDICTED, (2, 2)),
}
# Most points drawn of one sampled curve.
CURVE_POINTS = 90


def parts_of(attribution: Attribution) -> dict[str, int]:
    """The identity's terms summed into the parts of the chart, the unexplained rest among them."""
    parts = {part: sum(attribution.term_bytes(t) for t in terms) for part, terms in PART_TERMS.items()}
    return {**parts, "unexplained": attribution.unexplained_bytes}


def _predicted_parts(view: MemoryView) -> dict[str, int]:
    sizes = {c.slug: c.allocated_bytes or 0 for c in view.components_loaded}
    return {part: sum(sizes.get(slug, 0) for slug in slugs) for part, slugs in _PREDICTED_PARTS.items()}


def _sum_cell(parts: Mapping[str, int], used: Sequence[str]) -> str:
    size = mib_cell(sum(parts.values()))
    return size if all(part in parts for part in used) else say("cell.at_least", size=size)


def by_context_chart(views: Sequence[MemoryView]) -> Chart | None:
    """Two bars for each context limit: predicted, and seen in memory after the load."""
    import altair as alt

    bars: list[tuple[str, Mapping[str, int]]] = []
    for view in views:
        if view.loaded is None or not view.loaded.maps_read:
            continue
        tokens = view.attempt.context_tokens
        if has_engine_rules(view.attempt.prediction):
            bars.append((say("bar.predicted", tokens=tokens), _predicted_parts(view)))
        bars.append((say("bar.seen", tokens=tokens), parts_of(view.loaded)))
    if not bars:
        return None
    has_prediction = any(has_engine_rules(view.attempt.prediction) for view in views)
    used = [part for part in PARTS if any(parts.get(part) for _, parts in bars)]
    names = {part: name_of("part", part) for part in used}
    data = [
        {"bar": label, "part": names[part], "mib": max(0, parts.get(part, 0)) / MIB, "order": used.index(part)}
        for label, parts in bars
        for part in used
    ]
    chart = (
        plot(data)
        .mark_bar()
        .encode(
            y=alt.Y("bar:N", sort=[label for label, _ in bars], title=None, axis=alt.Axis(labelLimit=160, ticks=False)),
            x=alt.X("mib:Q", title=say("axis.mib"), stack="zero"),
            color=_part_colour(names),
            order=alt.Order("order:Q"),
        )
    )
    chart = alt.layer(chart, *key(_part_items(names), -120)).properties(width=WIDTH - 130, height=30 * len(bars))
    return Chart(
        slug="memory-by-context",
        title=say("chart.by_context.title" if has_prediction else "chart.seen_only.title"),
        description=say("chart.by_context.description" if has_prediction else "chart.seen_only.description"),
        spec=to_spec(chart),
        table=Table(
            caption=say("chart.by_context.caption"),
            columns=columns(say("col.bar"), *names.values(), say("col.sum")),
            rows=tuple(
                row(label, *[mib_cell(parts.get(p)) for p in used], _sum_cell(parts, used)) for label, parts in bars
            ),
            summary=say("chart.as_table"),
        ),
    )


def _part_colour(names: Mapping[str, str]) -> Any:
    """Parts of memory in their colours. ``names``: part → the reader's name."""
    import altair as alt

    scale = alt.Scale(domain=list(names.values()), range=[PARTS[part][0] for part in names])
    return alt.Color("part:N", scale=scale, legend=None)


def _part_items(names: Mapping[str, str]) -> list[KeyItem]:
    return [KeyItem(label=label, sign="square", colour=PARTS[part][0]) for part, label in names.items()]


def context_chart(growth: ContextGrowth, failed_tokens: Sequence[int]) -> Chart:
    """Measured growth at load as dots, the predicted KV cache as a line, failures as crosses at the top."""
    import altair as alt

    dots = [{"x": x, "y": y / MIB} for x, y in growth.points]
    levels = sorted({x for x, _ in growth.points} | set(failed_tokens))
    predicted = dict(growth.predicted_points)
    line = [{"x": x, "y": y / MIB} for x, y in growth.predicted_points]
    lost = [{"x": x, "y": max(y for _, y in growth.points) / MIB * 1.08} for x in failed_tokens]
    place = {
        "x": alt.X("x:Q", title=say("axis.context_tokens"), axis=alt.Axis(values=apart(levels), format=",d")),
        "y": alt.Y("y:Q", title=say("axis.mib")),
    }
    items = [KeyItem(label=say("series.measured"), sign="dot", colour=MEASURED)]
    items += [KeyItem(label=say("series.predicted_kv"), sign="dashed", colour=PREDICTED)] if line else []
    items += [KeyItem(label=say("series.failed"), sign="cross", colour=FAILED)] if lost else []
    chart = alt.layer(
        plot(line).mark_line(strokeDash=[6, 4], strokeWidth=2, color=PREDICTED).encode(**place),
        plot(dots).mark_point(filled=True, size=60, color=MEASURED, opacity=1).encode(**place),
        crosses(lost, **place),
        *key(items),
    ).properties(width=WIDTH - 60, height=HEIGHT)
    return Chart(
        slug="memory-against-context",
        title=say("chart.context.title"),
        description=say("chart.context.description" if line else "chart.context.measured_only"),
        spec=to_spec(chart),
        table=Table(
            caption=say("chart.context.caption"),
            columns=columns(say("col.context_tokens"), say("col.measured_growth"), say("col.predicted_kv")),
            rows=tuple(row(format_count(x), mib_cell(y, 2), mib_cell(predicted.get(x), 2)) for x, y in growth.points),
            summary=say("chart.as_table"),
        ),
    )


def timeline_chart(attempt: Attempt) -> Chart:
    """Sampled memory of one attempt, with a numbered line at each mark."""
    import altair as alt

    found = _sampled(attempt.result.samples)
    points = CURVE_POINTS * 2 // max(len(found), 2)
    curves = [
        {"x": s.at_s, "y": s.value_bytes / MIB, "what": say(CURVES[quantity][0])}
        for quantity, samples in found.items()
        for s in thinned(samples, points)
    ]
    top = max((s.value_bytes for samples in found.values() for s in samples), default=1) / MIB * 1.16
    marks = [m for m in attempt.result.marks if m.phase != "exited"]
    # Labels of moments that lie close together take turns in height, so that none covers another.
    flags = [{"x": m.at_s, "y": top * (1 - 0.07 * (n % 4)), "n": str(n + 1)} for n, m in enumerate(marks)]
    curve = plot(curves).mark_line(strokeWidth=2, interpolate="step-after")
    rules = plot(flags).mark_rule(strokeDash=[2, 3], color=AXIS)
    labels = plot(flags).mark_text(dx=7, fontSize=12, fontWeight="bold", color=INK)
    x = alt.X("x:Q", title=say("axis.seconds"))
    looks = [CURVES[quantity] for quantity in found]
    names = [say(name) for name, *_ in looks]
    chart = alt.layer(
        rules.encode(x=x),
        curve.encode(
            x=x,
            y=alt.Y("y:Q", title=say("axis.mib"), scale=alt.Scale(domainMax=top)),
            color=alt.Color("what:N", scale=alt.Scale(domain=names, range=[c for _, c, _ in looks]), legend=None),
            strokeDash=alt.StrokeDash(
                "what:N", scale=alt.Scale(domain=names, range=[list(dash) for *_, dash in looks]), legend=None
            ),
        ),
        labels.encode(x=x, y="y:Q", text="n:N"),
        *key(
            [
                KeyItem(label=say(name), sign="line" if dash == (1, 0) else "dashed", colour=colour)
                for name, colour, dash in looks
            ]
        ),
    ).properties(width=WIDTH - 60, height=HEIGHT)
    return Chart(
        slug="memory-over-time",
        title=say("chart.timeline.title", tokens=attempt.prompt_tokens),
        description=say("chart.timeline.description"),
        spec=to_spec(chart),
        table=_marks_table(marks),
    )


def _sampled(samples: Sequence[SampleRow]) -> dict[str, list[SampleRow]]:
    """The curves to draw. What was swapped out is held, so it is part of the process's own."""
    swapped = {s.at_s: s.value_bytes for s in samples if s.quantity == "swap_bytes"}
    found: dict[str, list[SampleRow]] = {quantity: [] for quantity in CURVES}
    for sample in samples:
        if sample.quantity == "anon_bytes":
            sample = replace(sample, value_bytes=sample.value_bytes + swapped.get(sample.at_s, 0))
        if sample.quantity in found:
            found[sample.quantity].append(sample)
    return {quantity: rows for quantity, rows in found.items() if rows}


def _marks_table(marks: Sequence[MarkRow]) -> Table:
    """The numbered moments of the curve. Devices have a column where any was read."""
    has_devices = any(m.device_bytes is not None for m in marks)
    titles = ("number", "at_s", "anon_mib", "file_mib", *(["device_mib"] if has_devices else []))
    return Table(
        caption=say("chart.timeline.caption"),
        columns=columns(say("col.moment"), *(say(f"col.{title}") for title in titles)),
        rows=tuple(
            row(
                name_of("phase", m.phase),
                str(n + 1),
                seconds_cell(m.at_s),
                mib_cell(m.anon_bytes + m.swap_bytes, 2),
                mib_cell(m.file_bytes, 2),
                *([mib_cell(m.device_bytes, 2)] if has_devices else []),
            )
            for n, m in enumerate(marks)
        ),
    )


def thinned(samples: Sequence[SampleRow], most: int = CURVE_POINTS) -> list[SampleRow]:
    """At most ``most`` samples that still show every peak: of each stretch, the lowest and the highest."""
    if len(samples) <= most:
        return list(samples)
    stretch = -(-len(samples) * 2 // most)
    kept: list[SampleRow] = []
    for start in range(0, len(samples), stretch):
        part = samples[start : start + stretch]
        ends = {min(part, key=lambda s: s.value_bytes).at_s, max(part, key=lambda s: s.value_bytes).at_s}
        kept += [s for s in part if s.at_s in ends]
    return kept


def added_chart(growth: InputGrowth) -> Chart | None:
    """What requests added after the load, by cause, against what the KV cache would be if it came with the tokens."""
    import altair as alt

    if not growth.added:
        return None
    parts = {"kv_cache": "kv_cache_bytes", "buffers": "working_bytes", "host_cache": "host_cache_bytes"}
    parts |= {"checkpoint": "checkpoint_bytes"}
    parts |= {"runtime": "runtime_bytes", "unexplained": "unexplained_bytes"}
    used = [p for p, field in parts.items() if p == "kv_cache" or any(getattr(a, field) for a in growth.added)]
    names = {p: name_of("part", p) for p in used}
    bars = [
        {"x": a.prompt_tokens, "part": names[p], "mib": max(0, getattr(a, parts[p])) / MIB, "order": used.index(p)}
        for a in growth.added
        for p in used
    ]
    ghost = [
        {"x": a.prompt_tokens, "y": a.kv_formula_bytes / MIB} for a in growth.added if a.kv_formula_bytes is not None
    ]
    x = alt.X("x:O", title=say("axis.prompt_tokens"), axis=alt.Axis(format=",d"))
    items = [*_part_items(names), KeyItem(label=say("series.if_kv"), sign="dashed", colour=PREDICTED)]
    expected = plot(ghost).mark_line(strokeDash=[6, 4], color=PREDICTED, point={"color": PREDICTED, "size": 40})
    chart = alt.layer(
        plot(bars)
        .mark_bar(size=46)
        .encode(
            x=x,
            y=alt.Y("mib:Q", title=say("axis.added_mib"), stack="zero"),
            color=_part_colour(names),
            order=alt.Order("order:Q"),
        ),
        expected.encode(x=x, y="y:Q"),
        *key(items),
    ).properties(width=WIDTH - 60, height=HEIGHT)
    return Chart(
        slug="memory-added",
        title=say("chart.added.title"),
        description=say("chart.added.description"),
        spec=to_spec(chart),
        table=_added_table(growth),
    )


def _added_table(growth: InputGrowth) -> Table:
    fields = {
        "added": "added_bytes",
        "kv_added": "kv_cache_bytes",
        "buffers_added": "working_bytes",
        "host_added": "host_cache_bytes",
        "checkpoints_added": "checkpoint_bytes",
        "runtime_added": "runtime_bytes",
        "unexplained_short": "unexplained_bytes",
        "if_kv": "kv_formula_bytes",
    }
    for name in ("host_added", "checkpoints_added"):
        if not any(getattr(a, fields[name]) for a in growth.added):
            del fields[name]
    return Table(
        caption=say("chart.added.caption"),
        columns=columns(say("col.prompt_tokens"), say("col.naive"), *(say(f"col.{name}") for name in fields)),
        rows=tuple(
            row(
                format_count(a.prompt_tokens),
                number_cell(a.per_token_bytes),
                *[mib_cell(getattr(a, field), 2) for field in fields.values()],
            )
            for a in growth.added
        ),
    )
