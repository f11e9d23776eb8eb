"""Two sides held against each other, as plain text of at most 80 columns: from what ``kvscope compare --json`` prints.

The difference stands with its interval; the two means beside it only say what it is a difference of.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.report.prediction_text import aligned, wrapped
from kvscope.units import MIB, format_number

_KINDS = {
    "machine": "machine",
    "model": "model",
    "engine": "engine",
    "question": "what was asked",
    "setting": "setting",
    "kvscope": "kvscope",
}
_LEFT_OUT = {"only_in_a": "only A has it", "only_in_b": "only B has it"}
_STATES = {
    "failed": "FAILED: {condition}",
    "passed": "ok: not {condition}",
    "undecided": "undecided: {condition} (the interval reaches over the limit: more repeats would tell)",
    "not_measured": "FAILED: {condition} could not be checked: it was not measured on both sides",
}
_VERDICTS = {"more": "yes", "less": "yes", "no_difference_seen": "no", "unknown": "n = 1"}
# Shown only where a difference is seen: the others say the same less clearly, and a terminal has 80 columns.
_QUIET = ("_file", "_device", "baseline", "first_answer", "itl_")


def render_comparison(found: Mapping[str, Any]) -> str:
    """What differs, every place that was compared, what was left out, and the conditions of failing."""
    lines = [f"A: {found['a']}", f"B: {found['b']}", "", *_differing(found["differs"])]
    if found["not_comparable"]:
        return "\n".join([*lines, "", *_refused(found["not_comparable"])]) + "\n"
    for place in found["places"]:
        lines += ["", *_place(place)]
    if not found["places"]:
        lines += ["", wrapped("Nothing was measured on both sides: no design and level is in both.")]
    lines += (
        ["", "Not compared:", *(wrapped(_left_out(each)) for each in found["left_out"])] if found["left_out"] else []
    )
    lines += ["", *(wrapped(_state(each)) for each in found["fail_if"])] if found["fail_if"] else []
    return "\n".join(lines) + "\n"


def _differing(differs: Sequence[Mapping[str, Any]]) -> list[str]:
    if not differs:
        return ["Nothing differs in settings, versions or machine."]
    lines = ["What differs:", *(wrapped(_difference(each)) for each in differs)]
    causes = [each for each in differs if each["kind"] != "kvscope"]
    if len(causes) > 1:
        lines.append(wrapped(f"{len(causes)} things differ, so no difference below can be laid to one of them alone."))
    return lines


def _difference(each: Mapping[str, Any]) -> str:
    return f"{_KINDS[each['kind']]}: {each['name']} {_value(each['a'])} → {_value(each['b'])}"


def _value(value: Any) -> str:
    if value is None:
        return "(not set)"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refused(differs: Sequence[Mapping[str, Any]]) -> list[str]:
    kinds = list(dict.fromkeys(each["kind"] for each in differs))
    words = ", ".join(_KINDS[kind] for kind in kinds)
    return [
        wrapped(f"Not compared: these rows are of another {words}. A difference would be all of that at once."),
        wrapped(f"If that is what you want to compare, add {' '.join(f'--across {kind}' for kind in kinds)}."),
    ]


def _place(place: Mapping[str, Any]) -> list[str]:
    level = _value(place["level_a"])
    if place["level_a"] != place["level_b"]:
        level += f" → {_value(place['level_b'])}"
    how = "paired by block" if place["is_paired"] else "not paired"
    lines = [f"{place['design']}, {place['factor']} = {level} ({how})", _counts(place)]
    if not place["metrics"]:
        return [*lines, "  No metric was measured on both sides."]
    rows = [["", "A", "B − A", "95 % interval", "share", "seen?"]]
    rows += [_row(metric, effect) for metric, effect in place["metrics"].items() if _is_shown(metric, effect)]
    return [*lines, *aligned(rows)]


def _counts(place: Mapping[str, Any]) -> str:
    sides = []
    for side in ("a", "b"):
        failed = f", {place[f'failed_{side}']} failed" if place[f"failed_{side}"] else ""
        sides.append(f"{side.upper()}: {place[f'num_{side}']} measured{failed}")
    return f"  {' · '.join(sides)}"


def _is_shown(metric: str, effect: Mapping[str, Any]) -> bool:
    return effect["verdict"] in ("more", "less") or not any(part in metric for part in _QUIET)


def _row(metric: str, effect: Mapping[str, Any]) -> list[str]:
    name, scale, digits = _shown(metric)
    before = format_number(effect["a"] / scale, digits)
    change = _signed(effect["difference"] / scale, digits)
    interval = ""
    if effect["low"] is not None:
        interval = f"{_signed(effect['low'] / scale, digits)} to {_signed(effect['high'] / scale, digits)}"
    share = "" if effect["share"] is None else f"{_signed(effect['share'] * 100, 1)} %"
    return [name, before, change, interval, share, _VERDICTS[effect["verdict"]]]


def _shown(metric: str) -> tuple[str, float, int]:
    """Name with its unit, the unit's size, decimals."""
    if "_bytes" in metric:
        return f"{metric.replace('_bytes', '').replace('_', ' ')}, MiB", MIB, 1
    if metric.endswith("_per_s"):
        return f"{metric.removesuffix('_per_s').replace('_', ' ')}/s", 1.0, 0
    return f"{metric.removesuffix('_s').replace('_', ' ')}, ms", 1e-3, 2


def _signed(value: float, digits: int) -> str:
    text = format_number(value, digits)
    return f"+{text}" if value > 0 and text.strip("0.,") else text


def _left_out(each: Mapping[str, Any]) -> str:
    level = f" = {_value(each['values']['level'])}" if "level" in each["values"] else ""
    return f"{each['what']}, {each['values']['factor']}{level}: {_LEFT_OUT[each['reason']]}"


def _state(each: Mapping[str, Any]) -> str:
    where = f"{each['design']} at {_value(each['level_b'])}: "
    return where + _STATES[each["state"]].format(condition=each["condition"])
