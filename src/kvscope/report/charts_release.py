"""The chart of a release: memory held after each conversation and each step, one line for each level."""

from collections.abc import Sequence

from kvscope.analysis.release import Release
from kvscope.report.blocks import Chart, Table, columns, row
from kvscope.report.charts import FAILED, HEIGHT, MEASURED, PREDICTED, SECOND, WIDTH, KeyItem, key, plot, to_spec
from kvscope.report.numbers import mib_cell
from kvscope.report.words import name_of, say
from kvscope.units import MIB

_PALETTE = (MEASURED, SECOND, PREDICTED, FAILED)
_SIGNS = ("dot", "diamond", "square", "triangle-up")


def release_chart(releases: Sequence[Release], factor: str) -> Chart:
    """Memory held at each moment of the release check, one line for each level."""
    import altair as alt

    order = list(
        dict.fromkeys(moment for release in sorted(releases, key=_by_length) for moment, _ in _moments(release))
    )
    names = {n: say("series.level", factor=factor, level=r.level) for n, r in enumerate(releases)}
    data = [
        {"x": moment, "y": held / MIB, "what": names[n]}
        for n, r in enumerate(releases)
        for moment, held in _moments(r)
        if held is not None
    ]
    colours = {name: _PALETTE[n % len(_PALETTE)] for n, name in names.items()}
    signs = {name: _SIGNS[n % len(_SIGNS)] for n, name in names.items()}
    place = {
        "x": alt.X("x:N", sort=order, title=None, axis=alt.Axis(labelAngle=-35)),
        "y": alt.Y("y:Q", title=say("axis.mib")),
    }
    layers = []
    for name in names.values():
        one = plot([d for d in data if d["what"] == name])
        shape = {"dot": "circle"}.get(signs[name], signs[name])
        layers.append(one.mark_line(strokeWidth=2, color=colours[name]).encode(**place))
        layers.append(one.mark_point(filled=True, size=70, color=colours[name], shape=shape, opacity=1).encode(**place))
    items = [KeyItem(label=name, sign=signs[name], colour=colours[name]) for name in names.values()]
    chart = alt.layer(*layers, *key(items)).properties(width=WIDTH - 60, height=HEIGHT)
    return Chart(
        slug="memory-after-conversations",
        title=_finding(releases),
        description=say("chart.release.description"),
        spec=to_spec(chart),
        table=_release_table(releases, order, list(names.values())),
    )


def _finding(releases: Sequence[Release]) -> str:
    """What is held at the three moments that matter, of the level that holds most after its conversations."""
    read = [release for release in releases if release.judged.conversations]
    if not read:
        return say("chart.release.title")
    most = max(read, key=lambda release: release.judged.conversations[-1].held_bytes)
    curve = most.judged
    again = len(curve.conversations) - len(curve.different)
    slug = "chart.release.one" if len(releases) == 1 else "chart.release.most"
    return say(
        f"{slug}_again" if again else slug,
        level=say("series.level", factor=most.factor, level=most.level),
        loaded_bytes=most.judged.loaded_bytes,
        held_bytes=most.judged.conversations[-1].held_bytes,
        count=len(curve.different),
        again=again,
        unloaded_bytes=most.judged.unloaded_bytes,
    )


def _release_table(releases: Sequence[Release], order: Sequence[str], names: Sequence[str]) -> Table:
    held = [dict(_moments(release)) for release in releases]
    return Table(
        caption=say("chart.release.caption"),
        columns=columns(say("col.moment"), *names),
        rows=tuple(row(moment, *[mib_cell(at.get(moment), 2) for at in held]) for moment in order),
        summary=say("chart.as_table"),
    )


def _by_length(release: Release) -> int:
    return -len(release.conversations)


def _moments(release: Release) -> list[tuple[str, int | None]]:
    curve = release.judged
    again = len(curve.different)
    moments: list[tuple[str, int | None]] = [
        (name_of("phase", "launched"), release.launched_bytes),
        (name_of("phase", "loaded"), release.loaded_bytes),
    ]
    for number, conversation in enumerate(curve.conversations, start=1):
        is_same = conversation.is_same_text
        name = say("moment.again", number=number - again) if is_same else say("moment.conversation", number=number)
        moments.append((name, conversation.held_bytes))
    if curve.cleared_bytes is not None:
        moments.append((name_of("phase", "cache_cleared"), curve.cleared_bytes))
    return [
        *moments,
        (name_of("phase", "unloaded"), release.unloaded_bytes),
        (name_of("phase", "exited"), release.exited_bytes),
    ]
