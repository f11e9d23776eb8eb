"""The chart of effects: each change as a share of the baseline, with its interval and the line of no change."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.analysis.effects import Effect
from kvscope.analysis.levels import LevelRow
from kvscope.record.rows import DesignRow
from kvscope.report.blocks import Chart, Table
from kvscope.report.charts import AXIS, MEASURED, SECOND, WIDTH, KeyItem, key, plot, to_spec
from kvscope.report.claims import level_text
from kvscope.report.effect_cells import shown_metrics
from kvscope.report.words import name_of, say

ROW_HEIGHT = 22
# Beyond so many rows a chart is no help: the table has them all.
MOST_ROWS = 24
# In the chart only these, while one of their kind (times, memory) was seen to differ: the others say nearly the same.
CHARTED = ("ttft_s", "tpot_s", "load_wall_s", "memory_loaded_bytes", "memory_peak_bytes", "memory_peak_bytes_device")


def effects_chart(slug: str, design: DesignRow, rows: Sequence[LevelRow], table: Table) -> Chart | None:
    """A row for each changed level and quantity; None where no share with an interval is known, or there are too many.
    ``table`` has the same numbers."""
    import altair as alt

    values = [
        value
        for name in _charted(rows)
        for row in rows
        if name in row.effects and (value := _value(row, row.effects[name])) is not None
    ]
    if not values or len(values) > MOST_ROWS:
        return None
    chart = alt.layer(*_marks(values)).properties(width=WIDTH - 190, height=ROW_HEIGHT * len(values) + 20)
    return Chart(
        slug=slug,
        title=_finding(design, values),
        description=say("effects.chart_description"),
        spec=to_spec(chart),
        table=table,
    )


def _finding(design: DesignRow, values: Sequence[Mapping[str, Any]]) -> str:
    """How many differences are seen, and the largest of them."""
    seen = [value for value in values if value["seen"]]
    if not seen:
        return say("effects.chart_none", name=design.name, count=len(values))
    largest = max(seen, key=lambda value: abs(value["share"]))
    return say(
        "effects.chart_seen",
        name=design.name,
        seen=len(seen),
        count=len(values),
        what=largest["row"],
        share=largest["share"] / 100,
    )


def _marks(values: Sequence[Mapping[str, object]]) -> list[Any]:
    """The line of no change, the intervals, and a mark for each value."""
    import altair as alt

    order = [str(value["row"]) for value in values]
    place = {
        "y": alt.Y("row:N", title=None, sort=order, axis=alt.Axis(labelLimit=250, grid=False)),
        "x": alt.X(
            "share:Q",
            title=say("effects.axis_share"),
            scale=alt.Scale(zero=True, nice=True),
            # The chart is narrow, and a share may have five digits.
            axis=alt.Axis(tickCount=5, labelOverlap="greedy", labelSeparation=10),
        ),
    }
    seen = [v for v in values if v["seen"]]
    unsure = [v for v in values if not v["seen"]]
    items = [KeyItem(label=say("series.seen"), sign="dot", colour=MEASURED)] if seen else []
    items += [KeyItem(label=say("series.not_seen"), sign="square", colour=SECOND)] if unsure else []
    return [
        plot([{"share": 0}]).mark_rule(color=AXIS, strokeDash=[4, 3]).encode(x="share:Q"),
        plot(values).mark_rule(color=AXIS, strokeWidth=2).encode(y=place["y"], x="low:Q", x2="high:Q"),
        plot(seen).mark_point(shape="circle", filled=True, size=80, opacity=1, color=MEASURED).encode(**place),
        plot(unsure).mark_point(shape="square", filled=True, size=80, opacity=1, color=SECOND).encode(**place),
        *key(items),
    ]


def _charted(rows: Sequence[LevelRow]) -> list[str]:
    """What has rows in the chart: nothing that was seen to differ is left out where its like was not."""
    shown = shown_metrics(rows)
    seen = [name for name in shown if any(name in row.effects and row.effects[name].is_seen for row in rows)]
    told = {_is_memory(name) for name in seen if name in CHARTED}
    return [name for name in shown if name in CHARTED or (name in seen and _is_memory(name) not in told)]


def _is_memory(metric: str) -> bool:
    return metric.startswith("memory_")


def _value(row: LevelRow, effect: Effect) -> dict[str, Any] | None:
    share = effect.share
    if share.value is None or share.low is None or share.high is None:
        return None
    return {
        "row": f"{level_text(row.level)}: {name_of('effect_name', effect.metric)}",
        "share": share.value * 100,
        "low": share.low * 100,
        "high": share.high * 100,
        "seen": effect.is_seen,
    }
