"""The growth curve as a picture: what a conversation needs at every length, stacked by what it is."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.errors import MissingDependency
from kvscope.language import shown
from kvscope.predict.curve import Curve, Point, curve_points, growth_curve
from kvscope.predict.prediction import Component, Prediction
from kvscope.report.blocks import Chart, Table, columns, row
from kvscope.report.charts import (
    AXIS,
    HEIGHT,
    INK,
    PARTS,
    PREDICTED,
    WIDTH,
    KeyItem,
    draw_file,
    key,
    plot,
    to_spec,
)
from kvscope.report.terminal_text import plain_blanks
from kvscope.report.words import say
from kvscope.units import MIB, format_count

# Part of the picture → whose colour and pattern of the report's parts.
_PARTS: Mapping[Component, str] = {
    "weights": "weights",
    "recurrent_state": "checkpoint",
    "index_cache": "buffers",
    "kv_cache": "kv_cache",
}
# Weights are drawn while they leave the cache room to be seen: at most so many times its largest size.
_MOST_WEIGHTS = 3


def prediction_svg(prediction: Prediction, lengths: Sequence[int]) -> str:
    """The curve from 0 to the longest of ``lengths`` as an SVG file. Raises MissingDependency without the libraries
    that draw."""
    try:
        import altair  # noqa: F401 - asked for here, so that the message names what is missing
        import vl_convert  # noqa: F401 - the same
    except ImportError as error:
        package = "vl-convert-python" if error.name == "vl_convert" else "altair"
        missing = MissingDependency("Drawing a chart", "", package)
        missing.hint = f"Install it: pip install {package}. The table and --json need no chart."
        raise missing from error
    return draw_file(prediction_chart(prediction, lengths))


def prediction_chart(prediction: Prediction, lengths: Sequence[int]) -> Chart:
    """The chart and its numbers as a table."""
    points = curve_points(prediction, lengths)
    curve = growth_curve(prediction)
    weights = prediction.component_bytes("weights")
    largest = sum(points[-1].needed_bytes.values())
    shown = weights if weights is not None and weights <= _MOST_WEIGHTS * largest else 0
    parts = [
        part
        for part in _PARTS
        if (part == "weights" and shown) or any(point.needed_bytes.get(part) for point in points)
    ]
    return Chart(
        slug="growth-curve",
        title=_title(prediction, curve),
        description=_description(prediction, curve, weights if weights and not shown else None),
        spec=to_spec(_layers(prediction, points, curve, parts, shown)),
        table=_table(points, parts, shown, set(lengths)),
    )


def _layers(
    prediction: Prediction, points: Sequence[Point], curve: Curve, parts: Sequence[Component], weights: int
) -> Any:
    import altair as alt

    names = {part: _name(part) for part in parts}
    data = [
        {"x": point.tokens, "part": names[part], "mib": _bytes(point, part, weights) / MIB, "order": order}
        for point in points
        for order, part in enumerate(parts)
    ]
    scale = alt.Scale(domain=list(names.values()), range=[PARTS[_PARTS[part]][0] for part in parts])
    x = alt.X("x:Q", title=say("growth_chart.tokens"), axis=alt.Axis(format=",d"))
    area = plot(data).mark_area(opacity=1).encode(
        x=x,
        y=alt.Y("mib:Q", title="MiB", stack="zero"),
        color=alt.Color("part:N", scale=scale, legend=None),
        order=alt.Order("order:Q"),
    )  # fmt: skip
    layers = [area]
    items = [KeyItem(label=names[part], sign="square", colour=PARTS[_PARTS[part]][0]) for part in parts]
    if curve.is_reserved:
        line = [{"x": p.tokens, "y": (p.allocated_bytes + weights) / MIB} for p in (points[0], points[-1])]
        layers.append(plot(line).mark_line(strokeDash=[6, 4], strokeWidth=2, color=PREDICTED).encode(x=x, y="y:Q"))
        items.append(
            KeyItem(label=say("growth_chart.reserved", engine=_engine(prediction)), sign="dashed", colour=PREDICTED)
        )
    knees = [{"x": knee.tokens, "label": format_count(knee.tokens)} for knee in _knees(prediction, points)]
    if knees:
        rules = plot(knees)
        layers.append(rules.mark_rule(strokeDash=[2, 3], color=AXIS).encode(x=x))
        layers.append(
            rules.mark_text(align="left", dx=4, fontSize=12, color=INK).encode(x=x, y=alt.value(8), text="label:N")
        )
    return alt.layer(*layers, *key(items)).properties(width=WIDTH - 60, height=HEIGHT)


def _knees(prediction: Prediction, points: Sequence[Point]) -> list[Any]:
    return [knee for knee in prediction.knees if knee.tokens <= points[-1].tokens]


def _bytes(point: Point, part: Component, weights: int) -> int:
    return weights if part == "weights" else point.needed_bytes[part]


def _engine(prediction: Prediction) -> str:
    return prediction.scenario.settings.engine


def _name(part: Component) -> str:
    return say(f"growth_chart.part.{part}")


def _title(prediction: Prediction, curve: Curve) -> str:
    first, last = curve.segments[0], curve.segments[-1]
    told = {"model": prediction.model.name, "per_token": first.bytes_per_token}
    if last.why is None:
        return plain_blanks(say("growth_chart.title", **told))
    later = {"later": last.bytes_per_token, "tokens": last.from_tokens}
    return plain_blanks(say("growth_chart.title_knee", **told, **later))


def _description(prediction: Prediction, curve: Curve, hidden_weights: int | None) -> str:
    sequences = prediction.scenario.workload.num_sequences
    slug = "growth_chart.description_one" if sequences == 1 else "growth_chart.description"
    texts = [say(slug, sequences=sequences)]
    if curve.is_reserved:
        texts.append(say("growth_chart.dashed", engine=_engine(prediction)))
    for segment in curve.segments[1:]:
        texts.append(say("growth_chart.knee", tokens=segment.from_tokens, why=shown(segment.why or "")))
    if hidden_weights is not None:
        texts.append(say("growth_chart.no_weights", weights=hidden_weights))
    return plain_blanks(" ".join(texts))


def _table(points: Sequence[Point], parts: Sequence[Component], weights: int, lengths: set[int]) -> Table:
    rows = [
        row(format_count(point.tokens), *(format_count(_bytes(point, part, weights)) for part in parts))
        for point in points
        if point.tokens in lengths
    ]
    return Table(
        caption=say("growth_chart.caption"),
        columns=columns(say("predict.col_tokens"), *map(_name, parts)),
        rows=tuple(rows),
    )
