"""Charts: a Vega-Lite specification becomes a static SVG when the report is made.

Specifications use placeholder colours. In the page they become CSS variables, so that a chart follows light, dark and
print; in a file of its own they become plain colours. Filled areas get a pattern each: colour is never the only sign.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape
from itertools import pairwise
from typing import Any

from kvscope.report.blocks import Chart
from kvscope.report.plain_characters import drawable, plain
from kvscope.report.terminal_text import display_width, wrapped

WIDTH = 440
HEIGHT = 230
# Letters of a line of the title above a chart in a file of its own.
TITLE_COLUMNS = 56

INK, AXIS, GRID = "#000011", "#000012", "#000013"
MEASURED, PREDICTED, FAILED, SECOND = "#000021", "#000022", "#000023", "#000024"

# Placeholder → (CSS variable, colour in a file of its own).
_LINES: Mapping[str, tuple[str, str]] = {
    INK: ("--ink", "#1c2733"),
    AXIS: ("--muted", "#5c6770"),
    GRID: ("--grid", "#dfe3e7"),
    MEASURED: ("--measured", "#14508c"),
    PREDICTED: ("--predicted", "#a8500a"),
    FAILED: ("--failed", "#b3151c"),
    SECOND: ("--second", "#1d7a5f"),
}

# Part of memory → (placeholder, CSS variable, colour, pattern).
PARTS: Mapping[str, tuple[str, str, str, str]] = {
    "weights": ("#000031", "--part-weights", "#7a8ea0", "solid"),
    "kv_cache": ("#000032", "--part-kv", "#d97a1a", "stripes"),
    "buffers": ("#000033", "--part-buffers", "#2a9d8f", "dots"),
    "runtime": ("#000034", "--part-runtime", "#8467ad", "cross"),
    "libraries": ("#000035", "--part-libraries", "#b6bec6", "lines"),
    "host_cache": ("#000036", "--part-host", "#b8961d", "columns"),
    "checkpoint": ("#000038", "--part-checkpoint", "#6f8f3d", "rings"),
    "unexplained": ("#000037", "--part-unexplained", "#c8434a", "stripes_back"),
}

_STROKES = {
    "stripes": '<path d="M0,6L6,0" stroke="{paper}" stroke-width="1.6" stroke-opacity=".7"/>',
    "stripes_back": '<path d="M0,0L6,6" stroke="{paper}" stroke-width="2.4" stroke-opacity=".9"/>',
    "dots": '<circle cx="3" cy="3" r="1.2" fill="{paper}" fill-opacity=".85"/>',
    "cross": '<path d="M0,0L6,6M0,6L6,0" stroke="{paper}" stroke-width=".9" stroke-opacity=".7"/>',
    "lines": '<path d="M0,3H6" stroke="{paper}" stroke-width="1.4" stroke-opacity=".8"/>',
    "columns": '<path d="M3,0V6" stroke="{paper}" stroke-width="1.4" stroke-opacity=".8"/>',
    "rings": '<circle cx="3" cy="3" r="1.8" fill="none" stroke="{paper}" stroke-width=".9" stroke-opacity=".85"/>',
    "solid": "",
}

# On paper a pattern is stripes or rings made of a gradient that repeats: Chromium writes those into a PDF as they are,
# and patterns as pictures, megabytes of them. Pattern → (gradient, width of its stripes, their share in the colour).
_PRINTED: Mapping[str, tuple[str, int, float]] = {
    "stripes": ('x2="{w}" y2="{w}"', 4, 0.7),
    "stripes_back": ('x1="{w}" y2="{w}"', 5, 0.55),
    "dots": ('y2="{w}"', 3, 0.6),
    "cross": ('x2="{w}"', 3, 0.6),
    "lines": ('y2="{w}"', 6, 0.7),
    "columns": ('x2="{w}"', 6, 0.7),
    "rings": ('r="{w}" cx="0" cy="0"', 6, 0.7),
}

# Begins the names of the patterns of live charts, and of those on paper.
_LIVE, _PAPER = "live", "paper"

_TAG = re.compile(r"<[^>]+>")
_LONG_NUMBER = re.compile(r"(?<![#.\d])(-?\d+\.\d{2,})")
_NOISE = re.compile(
    r'\s(?:class|aria-[a-z]+|role|pointer-events|xmlns:xlink|font-family|version)="[^"]*"|\sopacity="1"|\sdisplay="none"'
)
_EMPTY_PATH = re.compile(r'<path(?: d=""| d="M0,0h0v0h0Z")+\s*(?:stroke="[^"]*")?\s*/>')
_EMPTY_GROUP = re.compile(r"<g(?: [^>]*)?></g>")
# A dot as Vega draws it, all around by two arcs: a third of the letters as a circle.
_DOT = re.compile(
    r'<path transform="translate\(([-\d.]+),([-\d.]+)\)" d="M([\d.]+),0A\3,\3,0,1,1,-\3,0A\3,\3,0,1,1,\3,0"'
)
# The width of a line that a dot has not.
_NO_LINE = re.compile(r'(<circle (?:(?! stroke=)[^>])*?) stroke-width="[\d.]+"(?=(?:(?! stroke=)[^>])*>)')
_ATTRIBUTELESS_GROUP = re.compile(r"<g>((?:(?!<g[ >]|</g>).)*)</g>")


def apart(levels: Sequence[int]) -> list[int]:
    """Levels to write under the axis: one that is too near to the next would print over it."""
    widest = levels[-1] - levels[0]
    kept = [levels[-1]]
    for low, _ in reversed(list(pairwise(levels))):
        if (kept[-1] - low) > widest * 0.07:
            kept.append(low)
    return sorted(kept)


def base_config() -> dict[str, Any]:
    """The look that all charts share."""
    return {
        "background": None,
        "padding": {"left": 8, "right": 8, "top": 4, "bottom": 4},
        "font": "sans-serif",
        "view": {"stroke": None},
        "axis": {
            "labelColor": AXIS,
            "titleColor": INK,
            "titleFontWeight": "normal",
            "labelFontSize": 13,
            "titleFontSize": 13,
            "gridColor": GRID,
            "domainColor": AXIS,
            "tickColor": AXIS,
            "labelAngle": 0,
        },
        "axisQuantitative": {"labelOverlap": "greedy", "labelSeparation": 8},
        "text": {"color": INK, "fontSize": 13},
    }


@contextmanager
def unvalidated() -> Iterator[None]:
    """Altair does not hold each part of a chart against Vega-Lite's schema while it is made, as it does for those who
    write charts by hand: of our own, which a test holds against it, that takes longer than all the rest."""
    from altair.utils.schemapi import debug_mode

    with debug_mode(False):
        yield


def to_spec(chart: Any) -> dict[str, Any]:
    """An Altair chart as a specification with the common look. The data are small and stay inside; layers that have
    none are left out. Not held against Vega-Lite's schema: they are ours, and a test does that."""
    spec: dict[str, Any] = chart.to_dict(validate=False)
    if "layer" in spec:
        spec["layer"] = [layer for layer in spec["layer"] if layer.get("data", {}).get("values") != []]
    spec["config"] = base_config()
    return spec


def draw(chart: Chart, prefix: str = "") -> str:
    """The chart as SVG for the page, with a title and a description; ``prefix`` keeps ids of one page apart."""
    return _finish(chart, prefix + chart.slug, in_page=True)


def draw_file(chart: Chart) -> str:
    """The chart as an SVG file of its own, in plain colours on white, its title above it."""
    return _finish(replace(chart, spec=_titled(chart)), chart.slug, in_page=False)


def _titled(chart: Chart) -> dict[str, Any]:
    lines = wrapped(chart.title, later="", width=TITLE_COLUMNS)
    title = {"text": lines, "anchor": "start", "frame": "bounds", "fontSize": 15, "color": INK, "offset": 12}
    return {**chart.spec, "title": title, "background": "#ffffff"}


# A chart whose words differ is asked for once as part of one drawing for all languages, and again by itself.
@lru_cache(maxsize=64)
def _drawn(spec: str) -> str:
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(spec, vl_version="6.4")
    return svg


def _finish(chart: Chart, name: str, *, in_page: bool) -> str:
    svg = _compact(_drawn(json.dumps(drawable(chart.spec), sort_keys=True)))
    name = re.sub(r"[^a-z0-9-]", "-", name.lower())
    svg = re.sub(r'\bid="([^"]+)"', lambda m: f'id="{name}-{m[1]}"', svg)
    svg = svg.replace("url(#", f"url(#{name}-")
    svg, patterns = _with_patterns(svg, name, in_page=in_page)
    for placeholder, (variable, colour) in _LINES.items():
        svg = svg.replace(placeholder, f"var({variable})" if in_page else colour)
    head = (
        f'<title id="{name}-title">{escape(plain(chart.title))}</title>'
        f'<desc id="{name}-desc">{escape(plain(chart.description))}</desc>'
        f"{f'<defs>{patterns}</defs>' if patterns else ''}"
    )
    opening = f'<svg role="img" aria-labelledby="{name}-title {name}-desc"'
    if not in_page:
        opening = f'<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" {opening[5:]}'
    size = re.search(r'<svg[^>]*?(width="\d+" height="\d+" viewBox="[^"]+")[^>]*>', svg)
    assert size is not None  # vl-convert always writes all three
    return svg.replace(size[0], f"{opening} {size[1]}>{head}", 1)


def _compact(svg: str) -> str:
    """Without what only an interactive chart needs, and with coordinates to a tenth of a pixel."""

    def tidy(tag: re.Match[str]) -> str:
        short = _NOISE.sub("", tag[0])
        return _LONG_NUMBER.sub(lambda n: f"{float(n[1]):.1f}".removesuffix(".0"), short)

    svg = _NO_LINE.sub(r"\1", _DOT.sub(r'<circle cx="\1" cy="\2" r="\3"', _TAG.sub(tidy, svg)))
    before = None
    while before != svg:
        before = svg
        svg = _EMPTY_GROUP.sub("", _EMPTY_PATH.sub("", svg))
        svg = _ATTRIBUTELESS_GROUP.sub(r"\1", svg)
    return svg


def _with_patterns(svg: str, name: str, *, in_page: bool) -> tuple[str, str]:
    patterns = []
    for part, (placeholder, *_) in PARTS.items():
        if placeholder in svg:
            patterns.append(_pattern(name, part, in_page=in_page))
            svg = svg.replace(placeholder, f"url(#{_pattern_id(name, part)})")
    return svg, "".join(patterns)


def _pattern(name: str, part: str, *, in_page: bool) -> str:
    _, variable, colour, kind = PARTS[part]
    fill = f"var({variable})" if in_page else colour
    stroke = _STROKES[kind].format(paper="var(--paper)" if in_page else "#ffffff")
    return (
        f'<pattern id="{_pattern_id(name, part)}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<rect width="6" height="6" fill="{fill}"/>{stroke}</pattern>'
    )


def _pattern_id(name: str, part: str) -> str:
    return f"{name}-{part.replace('_', '-')}"


def live_colours(text: str) -> str:
    """A specification as text, its placeholders made colours of the page, and patterns of ``live_patterns``."""
    for part, (placeholder, *_) in PARTS.items():
        text = text.replace(placeholder, f"url(#{_pattern_id(_LIVE, part)})")
    for placeholder, (variable, _) in _LINES.items():
        text = text.replace(placeholder, f"var({variable})")
    return text


def paper_patterns() -> str:
    """What page.css fills the parts of memory with on paper, for all charts of a page."""
    made = []
    for part, (_, variable, _, kind) in PARTS.items():
        if kind not in _PRINTED:
            continue
        place, width, share = _PRINTED[kind]
        element = "radialGradient" if kind == "rings" else "linearGradient"
        colours = ((0, variable), (share, variable), (share, "--paper"), (1, "--paper"))
        stops = "".join(f'<stop offset="{at}" stop-color="var({colour})"/>' for at, colour in colours)
        ends = f"{'' if 'r=' in place else _ends(place)}{place.format(w=width)}"
        made.append(
            f'<{element} id="{_pattern_id(_PAPER, part)}" gradientUnits="userSpaceOnUse" spreadMethod="repeat" '
            f"{ends}>{stops}</{element}>"
        )
    return f'<svg class="patterns" width="0" height="0" aria-hidden="true"><defs>{"".join(made)}</defs></svg>'


def _ends(place: str) -> str:
    """Zeros for those ends that a gradient does not name: by default the second is a percentage."""
    return "".join(f'{name}="0" ' for name in ("x1", "y1", "x2", "y2") if f"{name}=" not in place)


def live_patterns() -> str:
    """The patterns of all parts of memory, for charts that a script draws in the page."""
    patterns = "".join(_pattern(_LIVE, part, in_page=True) for part in PARTS)
    return f'<svg class="patterns" width="0" height="0" aria-hidden="true"><defs>{patterns}</defs></svg>'


def plot(values: Sequence[Mapping[str, Any]]) -> Any:
    """An Altair chart on these values, which stay inside its specification."""
    import altair as alt

    data: Any = alt.Data
    return alt.Chart(data(values=[dict(value) for value in values]))


def crosses(values: Sequence[Mapping[str, Any]], **encoding: Any) -> Any:
    """Failures: a × at each of ``values``."""
    return plot(values).mark_point(shape="cross", angle=45, size=120, filled=True, color=FAILED).encode(**encoding)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyItem:
    """One entry of a chart's key. ``sign``: dot, square, line, dashed or cross."""

    label: str
    sign: str
    colour: str


def key(items: Sequence[KeyItem], start: int = -40) -> list[Any]:
    """A key above the plot that shows each sign as it is drawn: Vega-Lite's own legends cannot mix dots and lines.
    Entries are set in rows from ``start`` (0 is the plot's left edge) over the chart's whole width; the width of each
    is estimated from its letters."""
    rows: list[list[tuple[int, KeyItem]]] = [[]]
    at = start
    for item in items:
        need = 40 + round(6.9 * display_width(item.label))
        if at + need > start + WIDTH and rows[-1]:
            rows.append([])
            at = start
        rows[-1].append((at, item))
        at += need
    lift = 18 * len(rows)
    return [
        mark for n, entries in enumerate(rows) for x, item in entries for mark in _key_marks(item, x, 18 * n - lift)
    ]


def _key_marks(item: KeyItem, x: int, y: int) -> list[Any]:
    import altair as alt

    channel: Any = alt
    one = plot([{}])
    # Values of the channels' own kinds: of others Altair works out the kind, which takes it longer than all the rest.
    place = {"x": channel.XValue(x + 9), "y": channel.YValue(y)}
    text = one.mark_text(text=item.label, align="left", baseline="middle", dx=14, fontSize=13, color=INK)
    if item.sign in ("line", "dashed"):
        dash = [5, 3] if item.sign == "dashed" else [1, 0]
        span = {"x": channel.XValue(x), "x2": channel.X2Value(x + 19), "y": channel.YValue(y)}
        sign = one.mark_rule(color=item.colour, strokeWidth=2, strokeDash=dash).encode(**span)
    elif item.sign == "cross":
        sign = one.mark_point(shape="cross", angle=45, size=90, filled=True, color=item.colour).encode(**place)
    else:
        shape = {"dot": "circle"}.get(item.sign, item.sign)
        size = 150 if item.sign == "square" else 70
        sign = one.mark_point(shape=shape, size=size, filled=True, color=item.colour, opacity=1).encode(**place)
    return [sign, text.encode(**place)]
