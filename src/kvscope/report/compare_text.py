"""Two sides held against each other, as plain text of at most 80 columns: from what ``kvscope compare --json`` prints.

The difference stands with its interval; the two means beside it only say what it is a difference of.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from math import log10
from typing import Any

from kvscope.analysis.compare_metrics import SHOWN
from kvscope.report.terminal_table import aligned
from kvscope.units import MIB, format_number

WIDTH = 80
_KINDS = {
    "machine": "machine",
    "model": "model",
    "engine": "engine",
    "system": "system",
    "question": "what was asked",
    "setting": "setting",
    "kvscope": "kvscope",
}
_UNNAMED = "something else differs (the design's identity does), which the record does not name: {a} → {b}"
_LEFT_OUT = {"only_in_a": "only A has it", "only_in_b": "only B has it"}
_STATES = {
    "failed": "FAILED: {condition}",
    "passed": "ok: not {condition}",
    "undecided": "undecided: {condition} (the interval reaches over the limit: more repeats would tell)",
    "not_measured": "FAILED: {condition} could not be checked: it was not measured on both sides",
}
_VERDICTS = {"more": "yes", "less": "yes", "no_difference_seen": "no", "unknown": "n = 1"}
# The warning that goes with the mark client_limited.
_LIMITED = "client-limited"
# Not of the engine: what was predicted, the health of our own client, and how long a trial took with all around it.
_ASIDE = ("_predicted", "client_", "coalesced_", "duration_")


def render_comparison(found: Mapping[str, Any]) -> str:
    """What differs, every place that was compared, what was left out, and the conditions of failing."""
    lines = [*_wrapped(f"A: {found['a']}", ""), *_wrapped(f"B: {found['b']}", ""), "", *_differing(found["differs"])]
    if found["not_comparable"] and not found["places"]:
        return "\n".join([*lines, "", *_refused(found["not_comparable"])]) + "\n"
    for place in found["places"]:
        lines += ["", *_place(place, found["places"])]
    if not found["places"]:
        lines += ["", *_wrapped("Nothing was measured on both sides: no design and level is in both.")]
    if found["left_out"]:
        lines += ["", "Not compared:", *(line for text in _left_out(found["left_out"]) for line in _wrapped(text))]
    if found["not_comparable"]:
        lines += ["", *_refused(found["not_comparable"])]
    if found["fail_if"]:
        lines += ["", *(line for each in found["fail_if"] for line in _wrapped(_state(each)))]
    return "\n".join(lines) + "\n"


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    later = f"{indent}    "
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=later, break_on_hyphens=False)


def _differing(differs: Sequence[Mapping[str, Any]]) -> list[str]:
    if not differs:
        return ["Nothing differs in settings, versions or machine."]
    lines = ["What differs:", *(line for each in differs for line in _wrapped(_difference(each)))]
    # A setting that the level makes is one thing with the level.
    causes = [each for each in differs if each["kind"] != "kvscope" and each["because"] is None]
    if len(causes) > 1:
        lines += _wrapped(f"{len(causes)} things differ, so no difference below can be laid to one of them alone.")
    return lines


def _difference(each: Mapping[str, Any]) -> str:
    if each["kind"] == "unnamed":
        return _UNNAMED.format(a=each["a"], b=each["b"])
    made = " (made by the level)" if each["because"] == "level" else ""
    return f"{_KINDS[each['kind']]}: {each['name']} {_value(each['a'])} → {_value(each['b'])}{made}"


def _value(value: Any) -> str:
    if value is None:
        return "(not set)"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_value(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_value, value)) or "(none)"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refused(differs: Sequence[Mapping[str, Any]]) -> list[str]:
    kinds = list(dict.fromkeys(each["kind"] for each in differs))
    words = ", ".join(_KINDS[kind] for kind in kinds)
    return [
        *_wrapped(f"Not compared: these rows are of another {words}. A difference would be all of that at once."),
        *_wrapped(f"If that is what you want to compare, add {' '.join(f'--across {kind}' for kind in kinds)}."),
    ]


def _place(place: Mapping[str, Any], places: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [*_wrapped(_heading(place, places), ""), *_counts(place)]
    if not place["metrics"]:
        return [*lines, "  No metric was measured on both sides."]
    return [*lines, *_table({metric: place["metrics"][metric] for metric in _shown_metrics(place["metrics"])})]


def _heading(place: Mapping[str, Any], places: Sequence[Mapping[str, Any]]) -> str:
    asked = [(place["design"], place["factor"]), (place["design_b"], place["factor_b"])]
    levels = [_value(place["level_a"]), _value(place["level_b"])]
    where = f"{asked[0][0]}, {asked[0][1]} = {levels[0]}"
    if asked[0] != asked[1]:
        where += f" → {asked[1][0]}, {asked[1][1]} = {levels[1]}"
    elif levels[0] != levels[1]:
        where += f" → {levels[1]}"
    same = [p for p in places if [(p[n], p[f"{n}_b"]) for n in ("design", "factor")] == [*zip(*asked, strict=True)]]
    if len({(each["design_id_a"], each["design_id_b"]) for each in same}) > 1:
        where += f", designs {place['design_id_a'][:8]} and {place['design_id_b'][:8]}"
    if not place["is_paired"]:
        return f"{where} (not paired)"
    num = place["pairs_across_sittings"]
    return f"{where} (paired by block{f'; {num} of the pairs span two sittings' if num else ''})"


def _counts(place: Mapping[str, Any]) -> list[str]:
    sides, doubts = [], []
    for side in ("a", "b"):
        failed = f", {place[f'failed_{side}']} failed" if place[f"failed_{side}"] else ""
        sides.append(f"{side.upper()}: {place[f'num_{side}']} measured{failed}")
        limited = place[f"client_limited_{side}"]
        told = {slug: num for slug, num in place[f"warnings_{side}"].items() if not limited or slug != _LIMITED}
        found = [f"{slug} {num}" for slug, num in told.items()]
        if limited:
            found.insert(0, f"{limited} client_limited (times may be too long)")
        if found:
            doubts += _wrapped(f"{side.upper()} with warnings: {', '.join(found)}")
    return [f"  {' · '.join(sides)}", *doubts]


def _shown_metrics(metrics: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Those that say most, and of the others those with a difference; the rest says the same less clearly."""
    return [
        metric
        for metric, effect in metrics.items()
        if metric in SHOWN or (effect["verdict"] in ("more", "less") and not any(part in metric for part in _ASIDE))
    ]


def _table(effects: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Aligned; where a row is too long for the page, without the column that follows from the others, and then with
    numbers of two digits."""
    head = ["", "A", "B − A", "95 % interval", "share", "seen?"]
    rows = [head, *(_row(metric, effect, _numeral) for metric, effect in effects.items())]
    lines = aligned(rows)
    if max(map(len, lines)) > WIDTH:
        lines = aligned([[*row[:4], row[5]] for row in rows])
    if max(map(len, lines)) > WIDTH:
        rows = [head, *(_row(metric, effect, _rough) for metric, effect in effects.items())]
        lines = aligned([[*row[:4], row[5]] for row in rows])
    return lines


def _row(metric: str, effect: Mapping[str, Any], numeral: Callable[[float, int], str]) -> list[str]:
    name, scale, most = _shown(metric)
    numbers = {each: effect[each] / scale for each in ("a", "difference", "low", "high") if effect[each] is not None}
    digits = _digits(list(numbers.values()), most)
    text = {each: numeral(value, digits) for each, value in numbers.items()}
    signed = {each: _signed(numbers[each], text[each]) for each in numbers}
    interval = f"{signed['low']} to {signed['high']}" if "low" in signed else ""
    share = "" if effect["share"] is None else _percent(effect["share"] * 100)
    return [name, text["a"], signed["difference"], interval, share, _VERDICTS[effect["verdict"]]]


def _numeral(value: float, digits: int) -> str:
    return format_number(value, digits)


def _rough(value: float, digits: int) -> str:
    return f"{value:.1e}" if abs(value) >= 100_000 else format_number(value, digits)


def _percent(value: float) -> str:
    return f"{_signed(value, format_number(value, _digits([value], 1)))} %"


def _digits(numbers: Sequence[float], most: int) -> int:
    """Decimals: none where the whole part has so many digits that they say nothing."""
    largest = max(map(abs, numbers))
    return max(0, most - max(0, int(log10(largest)) - 2)) if largest >= 1 else most


def _shown(metric: str) -> tuple[str, float, int]:
    """Name with its unit, the unit's size, decimals at most."""
    if "_bytes" in metric:
        return f"{metric.replace('_bytes', '').replace('_', ' ')}, MiB", MIB, 1
    if "_per_s" in metric:
        return f"{metric.replace('_per_s', '/s').replace('_', ' ')}", 1.0, 0
    if metric.endswith("_s"):
        return f"{metric.removesuffix('_s').replace('_', ' ')}, ms", 1e-3, 2
    return metric.replace("_", " "), 1.0, 3 if metric.endswith(("_score", "_share", "_fraction")) else 1


def _signed(value: float, text: str) -> str:
    return f"+{text}" if value > 0 and text.strip("0.,") else text


def _left_out(left_out: Sequence[Mapping[str, Any]]) -> list[str]:
    """One text for each, but one for all other designs of a question that a side has."""
    others: dict[tuple[str, str, str], list[str]] = {}
    for each in left_out:
        if each["reason"] == "another_compared":
            key = (each["what"], each["values"]["factor"], each["values"]["side"].upper())
            others.setdefault(key, []).append(each["values"]["design_id"][:8])
    return [
        *(
            f"{what}, {factor}: {len(ids)} other design{'s' if len(ids) > 1 else ''} of {side} ({_some(ids)}): another "
            "of the same question was compared"
            for (what, factor, side), ids in others.items()
        ),
        *(_left(each) for each in left_out if each["reason"] != "another_compared"),
    ]


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:4]) + (" ..." if len(ids) > 4 else "")


def _left(each: Mapping[str, Any]) -> str:
    values = each["values"]
    level = f" = {_value(values['level'])}" if "level" in values else ""
    reason = _LEFT_OUT.get(each["reason"]) or f"of another {', '.join(_KINDS[kind] for kind in values['kinds'])}"
    return f"{each['what']}, {values['factor']}{level}: {reason}"


def _state(each: Mapping[str, Any]) -> str:
    level = each["level_a"] if each["level_b"] is None else each["level_b"]
    where = f"{each['design']} at {_value(level)}: " if level is not None else f"{each['design']}: "
    return where + _STATES[each["state"]].format(condition=each["condition"])
