"""Charts that live in the page (``--interactive``): the bundle that draws them there, and their specifications with
what the pointer is over said beside it. The page is complete without: each stands beside the chart that was drawn when
the page was made."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from typing import Any

from kvscope.report.blocks import Chart
from kvscope.report.charts import FAILED, live_colours
from kvscope.report.numbers import number_cell
from kvscope.report.plain_characters import drawable, plain
from kvscope.report.words import say

# The version of Vega-Lite that draws a chart, in the page as before.
VEGA_LITE = "6.4"
# Kinds of marks that have no one place for the pointer to be over, or nothing to say.
_SILENT = ("line", "area")
_ENDS = {"x2": "x", "y2": "y"}


@cache
def bundle() -> str:
    """Vega-Lite, Vega and what reads their expressions without making code of text, as one script. It names
    ``kvscopeEmbed``."""
    import vl_convert

    text: str = vl_convert.javascript_bundle("window.kvscopeEmbed = vegaEmbed;", vl_version=VEGA_LITE)
    # Within a script these end it, or change how its end is found.
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def live_data(chart: Chart) -> str:
    """The specification as JSON that can stand in a script element: nothing in it ends that element."""
    spec = with_tips(drawable(chart.spec))
    spec["description"] = plain(chart.title)
    spec["usermeta"] = {"embedOptions": {"actions": False}}
    text = live_colours(json.dumps(spec, ensure_ascii=False, separators=(",", ":")))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\u2028", "\\u2028")


def with_tips(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the specification in which every mark that shows a value says it under the pointer, by the titles of
    its axes."""
    new: dict[str, Any] = deepcopy(dict(spec))
    layers = new.get("layer") or [new]
    titles = _titles(layers)
    for layer in layers:
        _add_tip(layer, titles)
    return new


def _titles(layers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Channel → the title of its axis, wherever a layer states it."""
    found: dict[str, str] = {}
    for layer in layers:
        for channel, definition in layer.get("encoding", {}).items():
            if isinstance(definition, Mapping) and definition.get("title"):
                found.setdefault(channel, str(definition["title"]))
    return found


def _add_tip(layer: dict[str, Any], titles: Mapping[str, str]) -> None:
    values = layer.get("data", {}).get("values") or []
    mark = layer["mark"] if isinstance(layer["mark"], Mapping) else {"type": layer["mark"]}
    if mark["type"] in _SILENT or not values or not any(values):
        return
    shown = _shown(layer["encoding"], titles, is_failure=mark.get("color") == FAILED and mark.get("shape") == "cross")
    for value in values:
        value.update({f"tip {field}": _written(value.get(field)) for field, _ in shown})
    layer["encoding"]["tooltip"] = [
        {"field": f"tip {field}", "title": title, "type": "nominal"} for field, title in shown
    ]


def _shown(encoding: Mapping[str, Any], titles: Mapping[str, str], *, is_failure: bool) -> list[tuple[str, str]]:
    """(field, title) of what a mark says. A cross stands at the top whatever failed: its height is no value."""
    shown = []
    for channel in ("color", "x", "x2", "y", "y2", "text"):
        field = encoding.get(channel, {}).get("field")
        if field is None or (is_failure and channel == "y"):
            continue
        is_span = f"{channel}2" in encoding
        shown.append((field, _title(channel, titles, is_span=is_span)))
    return list(dict(shown).items())


def _title(channel: str, titles: Mapping[str, str], *, is_span: bool) -> str:
    plain = titles.get(_ENDS.get(channel, channel)) or say(f"tip.{_ENDS.get(channel, channel)}")
    if is_span:
        return say("tip.from", what=plain)
    return say("tip.to", what=plain) if channel in _ENDS else plain


def _written(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    if float(value).is_integer():
        return number_cell(int(value))
    return number_cell(value, 2 if abs(value) >= 10 else 4)
