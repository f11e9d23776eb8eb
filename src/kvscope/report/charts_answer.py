"""The chart of the first screen: predicted parts as areas, their sum as a line, the measured mean with its interval,
and a × where trials failed."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.analysis.attempts import Attempt, has_engine_rules
from kvscope.analysis.fit import Estimate, mean
from kvscope.analysis.growth import predicted_bytes
from kvscope.record.metrics import last_mark
from kvscope.record.rows import MarkRow
from kvscope.report.blocks import Chart, Row, Table, columns, row
from kvscope.report.charts import (
    FAILED,
    HEIGHT,
    MEASURED,
    PARTS,
    PREDICTED,
    WIDTH,
    KeyItem,
    apart,
    crosses,
    key,
    plot,
    to_spec,
)
from kvscope.report.numbers import estimate_cell, mib_cell
from kvscope.report.words import name_of, say
from kvscope.units import MIB, format_count

# Part of the picture → the sums of a prediction that it stands for, from the bottom up.
_SUMS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights_bytes",),
    "buffers": ("compute_buffer_bytes", "output_buffer_bytes"),
    "kv_cache": ("cache_bytes",),
}


def grown_bytes(attempt: Attempt) -> int | None:
    """All that the load added, the process's own and what is backed by files; None if a moment was not read."""
    start, loaded = last_mark(attempt.result, "launched"), last_mark(attempt.result, "loaded")
    return None if loaded is None else _whole(loaded) - (_whole(start) if start is not None else 0)


def _whole(mark: MarkRow) -> int:
    return mark.anon_bytes + mark.swap_bytes + mark.file_bytes


def answer_chart(attempts: Sequence[Attempt], failed_tokens: Sequence[int]) -> Chart | None:
    """Of attempts that differ in their context limit; None where fewer than two limits were measured."""
    measured = _measured(attempts)
    if len(measured) < 2:
        return None
    predicted = _predicted(attempts)
    chart = _layers(measured, predicted, failed_tokens).properties(width=WIDTH - 60, height=HEIGHT)
    description = say("chart.answer.description" if predicted else "chart.context.measured_only")
    if failed_tokens:
        description += f" {say('chart.answer.failed')}"
    return Chart(
        slug="answer",
        title=say("chart.answer.title"),
        description=description,
        spec=to_spec(chart),
        table=_table(measured, predicted, failed_tokens),
    )


def _measured(attempts: Sequence[Attempt]) -> dict[int, Estimate]:
    """Context limit → the mean of what the load added."""
    grown: dict[int, list[float]] = {}
    for attempt in attempts:
        size, tokens = grown_bytes(attempt), attempt.context_tokens
        if attempt.is_measured and size is not None and tokens is not None:
            grown.setdefault(tokens, []).append(size)
    return {tokens: mean(sizes) for tokens, sizes in sorted(grown.items())}


def _predicted(attempts: Sequence[Attempt]) -> dict[int, dict[str, int]]:
    """Context limit → predicted bytes by part; only where an engine's rules give all of them."""
    found: dict[int, dict[str, int]] = {}
    for attempt in attempts:
        if attempt.context_tokens in found or attempt.context_tokens is None:
            continue
        sizes = {part: [predicted_bytes(attempt, name) for name in names] for part, names in _SUMS.items()}
        if has_engine_rules(attempt.prediction) and not any(None in each for each in sizes.values()):
            found[attempt.context_tokens] = {p: sum(s for s in each if s is not None) for p, each in sizes.items()}
    return dict(sorted(found.items())) if len(found) > 1 else {}


def _layers(measured: Mapping[int, Estimate], predicted: Mapping[int, Mapping[str, int]], failed: Sequence[int]) -> Any:
    import altair as alt

    levels = sorted({*measured, *failed})
    names = {part: name_of("part", part) for part in _SUMS}
    areas = [
        {"x": x, "part": names[part], "mib": size / MIB, "order": list(_SUMS).index(part)}
        for x, parts in predicted.items()
        for part, size in parts.items()
    ]
    line = [{"x": x, "y": sum(parts.values()) / MIB} for x, parts in predicted.items()]
    dots = [{"x": x, "y": each.value / MIB} for x, each in measured.items() if each.value is not None]
    bars = [
        {"x": x, "low": each.low / MIB, "high": each.high / MIB}
        for x, each in measured.items()
        if each.low is not None and each.high is not None
    ]
    top = max([dot["y"] for dot in dots] + [point["y"] for point in line])
    lost = [{"x": x, "y": top * 1.08} for x in failed]
    x = alt.X("x:Q", title=say("axis.context_tokens"), axis=alt.Axis(values=apart(levels), format=",d"))
    y = alt.Y("y:Q", title=say("axis.mib"))
    scale = alt.Scale(domain=list(names.values()), range=[PARTS[part][0] for part in names])
    return alt.layer(
        plot(areas)
        .mark_area()
        .encode(
            x=x,
            y=alt.Y("mib:Q", title=say("axis.mib"), stack="zero"),
            color=alt.Color("part:N", scale=scale, legend=None),
            order=alt.Order("order:Q"),
        ),
        plot(line).mark_line(strokeDash=[6, 4], strokeWidth=2, color=PREDICTED).encode(x=x, y=y),
        plot(bars).mark_rule(color=MEASURED, strokeWidth=2).encode(x=x, y=alt.Y("low:Q"), y2="high:Q"),
        plot(dots).mark_point(filled=True, size=70, color=MEASURED, opacity=1).encode(x=x, y=y),
        crosses(lost, x=x, y=y),
        *key(_key(names if predicted else {}, has_failures=bool(lost))),
    )


def _key(names: Mapping[str, str], *, has_failures: bool) -> list[KeyItem]:
    items = [KeyItem(label=say("series.measured_mean"), sign="dot", colour=MEASURED)]
    items += [KeyItem(label=say("series.predicted"), sign="dashed", colour=PREDICTED)] if names else []
    items += [KeyItem(label=label, sign="square", colour=PARTS[part][0]) for part, label in names.items()]
    items += [KeyItem(label=say("series.failed"), sign="cross", colour=FAILED)] if has_failures else []
    return items


def _table(
    measured: Mapping[int, Estimate], predicted: Mapping[int, Mapping[str, int]], failed: Sequence[int]
) -> Table:
    names = [name_of("part", part) for part in _SUMS] if predicted else []
    titles = [*names, *([say("col.predicted")] if predicted else []), say("col.measured"), say("col.repeats")]

    def level(x: int) -> Row:
        parts = predicted.get(x, {})
        cells = [mib_cell(parts.get(part)) for part in _SUMS] if predicted else []
        cells += [mib_cell(sum(parts.values()) if parts else None)] if predicted else []
        seen = measured.get(x)
        told = say("series.failed") if seen is None else estimate_cell(seen, mib_cell)
        return row(format_count(x), *cells, told, str(seen.num if seen else 0), kind="" if seen else "failed")

    return Table(
        caption=say("chart.answer.caption"),
        columns=columns(say("col.context_tokens"), *titles),
        rows=tuple(level(x) for x in sorted({*measured, *failed})),
        summary=say("chart.as_table"),
    )
