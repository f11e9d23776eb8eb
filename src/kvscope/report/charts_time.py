"""The charts of time: the first token and the later ones against the input, completion against the output."""

from collections.abc import Sequence

from kvscope.analysis.latency import TimeLaw
from kvscope.report.blocks import Chart, Table, columns, row
from kvscope.report.charts import AXIS, FAILED, HEIGHT, MEASURED, WIDTH, KeyItem, apart, crosses, key, plot, to_spec
from kvscope.report.numbers import estimate_cell, number_cell
from kvscope.report.words import say
from kvscope.units import format_count


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
    """Every measured point, the mean of each level with its interval, the fitted line, and failures as crosses."""
    import altair as alt

    dots = [{"x": x, "y": y * factor} for x, y in law.points]
    bars = [
        {"x": x, "low": mean.low * factor, "high": mean.high * factor}
        for x, mean in law.levels
        if mean.low is not None and mean.high is not None
    ]
    line = [{"x": x, "y": y * factor} for x, _ in law.levels if (y := law.line.at(x)) is not None]
    top = max([y * factor for _, y in law.points] + [b["high"] for b in bars])
    lost = [{"x": x, "y": top * 1.08} for x in failed_tokens]
    levels = sorted({x for x, _ in law.points} | set(failed_tokens))
    place = {
        "x": alt.X("x:Q", title=say(f"axis.{words}_x"), axis=alt.Axis(values=apart(levels), format=",d")),
        "y": alt.Y("y:Q", title=say(f"axis.{words}_y"), scale=alt.Scale(zero=True)),
    }
    items = [KeyItem(label=say("series.measured"), sign="dot", colour=MEASURED)]
    items += [KeyItem(label=say("series.fitted"), sign="dashed", colour=AXIS)] if line else []
    items += [KeyItem(label=say("series.failed"), sign="cross", colour=FAILED)] if lost else []
    chart = alt.layer(
        plot(line).mark_line(strokeDash=[6, 4], strokeWidth=1.5, color=AXIS).encode(**place),
        plot(bars).mark_rule(color=MEASURED, strokeWidth=2).encode(x="x:Q", y="low:Q", y2="high:Q"),
        plot(dots).mark_point(filled=True, size=45, opacity=1, color=MEASURED).encode(**place),
        crosses(lost, **place),
        *key(items),
    ).properties(width=WIDTH - 60, height=HEIGHT)
    return Chart(
        slug=slug,
        title=say(f"chart.{words}.title"),
        description=say("chart.law.description"),
        spec=to_spec(chart),
        table=_table(words, law, factor),
    )


def _table(words: str, law: TimeLaw, factor: float) -> Table:
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
            for x, mean in law.levels
        ),
        summary=say("chart.as_table"),
    )
