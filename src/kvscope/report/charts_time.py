"""The charts of time: the first token and the later ones against the input, completion against the output."""

from collections.abc import Sequence
from typing import Any

from kvscope.analysis.fit import FEW_REPEATS, Estimate
from kvscope.analysis.latency import TimeLaw
from kvscope.report.blocks import Chart, Table, columns, row
from kvscope.report.charts import AXIS, FAILED, HEIGHT, MEASURED, WIDTH, KeyItem, apart, crosses, key, plot, to_spec
from kvscope.report.numbers import estimate_cell, number_cell
from kvscope.report.words import say
from kvscope.units import format_count

# More trials than this are drawn as the mean and the span of each length, more lengths as evenly chosen ones.
MOST_DOTS = 150
MOST_LEVELS = 60
_Level = tuple[int, Estimate]


def ttft_chart(law: TimeLaw, failed_tokens: Sequence[int]) -> Chart:
    """The wait for the first token, against the prompt's length."""
    return _law_chart("first-token", "ttft", law, 1.0, failed_tokens)


def tpot_chart(law: TimeLaw, failed_tokens: Sequence[int]) -> Chart:
    """The time of every later token, in milliseconds, against the length."""
    return _law_chart("later-tokens", "tpot", law, 1000.0, failed_tokens)


def completion_chart(law: TimeLaw, failed_tokens: Sequence[int]) -> Chart:
    """The time of a whole answer, against its length."""
    return _law_chart("completion", "completion", law, 1.0, failed_tokens)


def _law_chart(slug: str, words: str, law: TimeLaw, factor: float, failed_tokens: Sequence[int]) -> Chart:
    """Every measured point, the mean of each level with its interval, the fitted line where the times lie on one, and
    failures as crosses."""
    levels = _evenly(law.levels)
    return Chart(
        slug=slug,
        title=_finding(words, law),
        description=_how(law, levels),
        spec=to_spec(_drawn(words, law, levels, factor, failed_tokens)),
        table=_table(words, law, levels, factor),
    )


def _finding(words: str, law: TimeLaw) -> str:
    """What the chart shows, as a sentence: the price of 1,000 tokens where it can be told, else both ends."""
    slope = law.line.slope
    if words != "tpot" and law.is_line and law.trend == "grows" and slope.value is not None and slope.low is not None:
        high = slope.high if slope.high is not None else slope.value
        tokens = 1 if words == "completion" else 1000
        each = {"each_s": slope.value * tokens, "low_s": slope.low * tokens, "high_s": high * tokens}
        return say(f"chart.{words}.finding", **each)
    (first, start), (last, end) = law.levels[0], law.levels[-1]
    if first == last:
        return say(f"chart.{words}.one", time_s=start.value, tokens=first)
    return say(f"chart.{words}.ends", first_s=start.value, first=first, last_s=end.value, last=last)


def _how(law: TimeLaw, levels: Sequence[_Level]) -> str:
    """How to read the chart; what of a large record it leaves out."""
    if len(levels) < len(law.levels):
        return say("chart.law.chosen", shown=len(levels), total=len(law.levels))
    return say("chart.law.many", count=len(law.points)) if len(law.points) > MOST_DOTS else say("chart.law.description")


def _drawn(words: str, law: TimeLaw, levels: Sequence[_Level], factor: float, failed_tokens: Sequence[int]) -> Any:
    import altair as alt

    dots, spans = _dots(law, levels, factor)
    bars = [
        {"x": x, "low": mean.low * factor, "high": mean.high * factor}
        for x, mean in levels
        if mean.low is not None and mean.high is not None and mean.num >= FEW_REPEATS
    ]
    line = [{"x": x, "y": y * factor} for x, _ in levels if law.is_line and (y := law.line.at(x)) is not None]
    top = max([y * factor for _, y in law.points] + [b["high"] for b in bars])
    lost = [{"x": x, "y": top * 1.08} for x in failed_tokens]
    ticks = sorted({x for x, _ in levels} | set(failed_tokens))
    place = {
        "x": alt.X("x:Q", title=say(f"axis.{words}_x"), axis=alt.Axis(values=apart(ticks), format=",d")),
        "y": alt.Y("y:Q", title=say(f"axis.{words}_y"), scale=alt.Scale(zero=True)),
    }
    items = [KeyItem(label=say("series.means" if spans else "series.measured"), sign="dot", colour=MEASURED)]
    items += [KeyItem(label=say("series.span"), sign="line", colour=AXIS)] if spans else []
    items += [KeyItem(label=say("series.fitted"), sign="dashed", colour=AXIS)] if line else []
    items += [KeyItem(label=say("series.failed"), sign="cross", colour=FAILED)] if lost else []
    return alt.layer(
        plot(line).mark_line(strokeDash=[6, 4], strokeWidth=1.5, color=AXIS).encode(**place),
        plot(spans).mark_rule(color=AXIS, strokeWidth=1).encode(x="x:Q", y="low:Q", y2="high:Q"),
        plot(bars).mark_rule(color=MEASURED, strokeWidth=4 if spans else 2).encode(x="x:Q", y="low:Q", y2="high:Q"),
        plot(dots).mark_point(filled=True, size=45, opacity=1, color=MEASURED).encode(**place),
        crosses(lost, **place),
        *key(items),
    ).properties(width=WIDTH - 60, height=HEIGHT)


def _dots(
    law: TimeLaw, levels: Sequence[_Level], factor: float
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """A dot for each trial; of too many trials one for each mean, and what its trials span."""
    drawn = {x for x, _ in levels}
    points = [(x, y * factor) for x, y in law.points if x in drawn]
    if len(points) <= MOST_DOTS:
        return [{"x": x, "y": y} for x, y in points], []
    at_level: dict[int, list[float]] = {}
    for x, y in points:
        at_level.setdefault(x, []).append(y)
    means = [{"x": x, "y": mean.value * factor} for x, mean in levels if mean.value is not None]
    return means, [{"x": x, "low": min(ys), "high": max(ys)} for x, ys in at_level.items()]


def _evenly(levels: Sequence[_Level]) -> tuple[_Level, ...]:
    """All lengths, or of too many the first, the last and evenly chosen ones between them."""
    if len(levels) <= MOST_LEVELS:
        return tuple(levels)
    places = {round(n * (len(levels) - 1) / (MOST_LEVELS - 1)) for n in range(MOST_LEVELS)}
    return tuple(levels[place] for place in sorted(places))


def _table(words: str, law: TimeLaw, levels: Sequence[_Level], factor: float) -> Table:
    """Mean of each level with its interval, and what each further thousand tokens cost on the way to it."""
    digits = 3 if factor == 1.0 else 2
    steps = {step.to_tokens: step.per_token_s for step in law.steps}

    def write(value: float | None) -> str:
        return number_cell(None if value is None else value * factor, digits)

    return Table(
        caption=say(f"chart.{words}.caption"),
        columns=columns(say(f"axis.{words}_x"), say("col.repeats"), say(f"axis.{words}_y"), say(f"col.{words}_step")),
        rows=tuple(
            row(
                format_count(x),
                str(mean.num),
                estimate_cell(mean, write),
                say("none") if x not in steps else number_cell(steps[x] * factor * 1000, digits),
            )
            for x, mean in levels
        ),
        summary=say("chart.as_table"),
    )
