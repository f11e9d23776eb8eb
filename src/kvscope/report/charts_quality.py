"""The chart of quality against memory: what of it can be had, and which levels none beats."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.analysis.fit import Estimate
from kvscope.analysis.quality_effects import QualityEffects, QualityLevel
from kvscope.report.blocks import Chart, Table
from kvscope.report.charts import AXIS, HEIGHT, MEASURED, SECOND, WIDTH, KeyItem, key, plot, to_spec
from kvscope.report.quality_cells import short_level
from kvscope.report.quality_words import task_text
from kvscope.report.words import say
from kvscope.units import MIB

# Beyond so many levels names overlap: the table has them all.
MOST_LEVELS = 10
MOST_NAME = 24


def quality_chart(slug: str, effects: QualityEffects, table: Table) -> Chart | None:
    """A point for each level: its memory, and the share right of the first task that several levels were asked; without
    one, its divergence from the reference. None where levels are no choice, or fewer than two have both. ``table`` has
    the same numbers, and those of every other task."""
    if not effects.is_choice or len(effects.levels) > MOST_LEVELS:
        return None
    kinds = dict.fromkeys((each.task, each.language) for each in effects.panel.comparisons)
    kind = next(iter(kinds), None)
    values = [value for level in effects.levels if (value := _value(effects, level, kind)) is not None]
    if len(values) < 2:
        return None
    axis = say("quality.axis_kl") if kind is None else say("quality.axis_right", what=task_text(*kind))
    return Chart(
        slug=slug,
        title=say("quality.chart_best", best=sum(bool(v["is_best"]) for v in values), total=len(values)),
        description=say("quality.chart_description"),
        spec=to_spec(_drawn(values, axis)),
        table=table,
    )


def _drawn(values: Sequence[Mapping[str, Any]], axis: str) -> Any:
    import altair as alt

    place = {
        "x": alt.X("x:Q", title=say("quality.axis_memory"), scale=alt.Scale(zero=False, nice=True, padding=30)),
        "y": alt.Y("y:Q", title=axis, scale=alt.Scale(zero=True, nice=True)),
    }
    best, rest = [v for v in values if v["is_best"]], [v for v in values if not v["is_best"]]
    bars = [v for v in values if v["low"] is not None]
    items = [KeyItem(label=say("quality_beaten.no"), sign="dot", colour=MEASURED)] if best else []
    items += [KeyItem(label=say("quality.series_rest"), sign="square", colour=SECOND)] if rest else []
    return alt.layer(
        plot(bars).mark_rule(color=AXIS, strokeWidth=2).encode(x="x:Q", y="low:Q", y2="high:Q"),
        plot(best).mark_point(shape="circle", filled=True, size=80, opacity=1, color=MEASURED).encode(**place),
        plot(rest).mark_point(shape="square", filled=True, size=80, opacity=1, color=SECOND).encode(**place),
        plot(values).mark_text(align="left", dx=8, dy=-8).encode(**place, text="name:N"),
        *key(items),
    ).properties(width=WIDTH - 60, height=HEIGHT)


def _value(effects: QualityEffects, level: QualityLevel, kind: tuple[str, str] | None) -> dict[str, object] | None:
    memory, found = level.row.means[effects.memory_metric].value, _quality(level, kind)
    if memory is None or found is None or found.value is None:
        return None
    factor = 1.0 if kind is None else 100.0
    name = short_level(level.level)
    return {
        "name": name if len(name) <= MOST_NAME else f"{name[:MOST_NAME]}…",
        "x": memory / MIB,
        "y": found.value * factor,
        "low": None if found.low is None else found.low * factor,
        "high": None if found.high is None else found.high * factor,
        "is_best": not level.beaten_by and not level.unknown_against,
    }


def _quality(level: QualityLevel, kind: tuple[str, str] | None) -> Estimate | None:
    if kind is not None:
        return next((cell.share for cell in level.cells if (cell.task, cell.language) == kind), None)
    if level.fidelity is None:
        return None
    # The reference is as far from itself as nothing.
    return Estimate(value=0.0) if level.fidelity.verdict == "reference" else level.fidelity.divergence
