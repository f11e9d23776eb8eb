"""Two sides held against each other, as plain text of at most 80 columns: from what ``kvscope compare --json`` prints.

The difference stands with its interval; the two means beside it only say what it is a difference of.
"""

from collections.abc import Callable, Mapping, Sequence
from math import log10
from typing import Any

from kvscope.analysis.compare_metrics import SHOWN
from kvscope.report.terminal_table import aligned, is_too_wide
from kvscope.report.terminal_text import joined, wrapped, wrapped_note
from kvscope.report.words import has_words, name_of, say
from kvscope.units import MIB, format_number

_LEFT_OUT = {"only_in_a": "a", "only_in_b": "b"}
# The warning that goes with the mark client_limited.
_LIMITED = "client-limited"
# Not of the engine: what was predicted, the health of our own client, and how long a trial took with all around it.
_ASIDE = ("_predicted", "client_", "coalesced_", "duration_")


def render_comparison(found: Mapping[str, Any]) -> str:
    """What differs, every place that was compared, what was left out, and the conditions of failing."""
    lines = [line for side in "ab" for line in wrapped(_side(side, found[side]), later="    ")]
    lines += ["", *_differing(found["differs"])]
    if found["not_comparable"] and not found["places"]:
        return joined([*lines, "", *_refused(found["not_comparable"])])
    for place in found["places"]:
        lines += ["", *_place(place, found["places"])]
    if not found["places"]:
        lines += ["", *wrapped_note(say("compare.nothing_common"))]
    if found["left_out"]:
        left_out = [line for text in _left_out(found["left_out"]) for line in wrapped_note(text)]
        lines += ["", say("compare.not_compared"), *left_out]
    if found["not_comparable"]:
        lines += ["", *_refused(found["not_comparable"])]
    if found["fail_if"]:
        lines += ["", *(line for each in found["fail_if"] for line in _state(each))]
    return joined(lines)


def _side(side: str, what: str) -> str:
    return say("compare.side", side=side.upper(), what=what)


def _differing(differs: Sequence[Mapping[str, Any]]) -> list[str]:
    if not differs:
        return [say("compare.nothing_differs")]
    lines = [say("compare.differs"), *(line for each in differs for line in wrapped_note(_difference(each)))]
    # A setting that the level makes is one thing with the level.
    causes = [each for each in differs if each["kind"] != "kvscope" and each["because"] is None]
    return [*lines, *(wrapped_note(say("compare.many_differ", count=len(causes))) if len(causes) > 1 else [])]


def _difference(each: Mapping[str, Any]) -> str:
    if each["kind"] == "unnamed":
        return say("compare.unnamed", a=each["a"], b=each["b"])
    slug = "compare.difference_level" if each["because"] == "level" else "compare.difference"
    return say(slug, kind=_kind(each["kind"]), name=each["name"], a=_value(each["a"]), b=_value(each["b"]))


def _kind(kind: str) -> str:
    return say(f"compare.kind.{kind}")


def _value(value: Any) -> str:
    if value is None:
        return say("compare.not_set")
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_value(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_value, value)) or say("compare.none")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refused(differs: Sequence[Mapping[str, Any]]) -> list[str]:
    kinds = list(dict.fromkeys(each["kind"] for each in differs))
    flags = " ".join(f"--across {kind}" for kind in kinds)
    return [
        *wrapped_note(say("compare.refused", kinds=", ".join(map(_kind, kinds)))),
        *wrapped_note(say("compare.across", flags=flags)),
    ]


def _place(place: Mapping[str, Any], places: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [*wrapped(_heading(place, places), later="    "), *_counts(place)]
    if not place["metrics"]:
        return [*lines, *wrapped_note(say("compare.no_metric"))]
    return [*lines, *_table({metric: place["metrics"][metric] for metric in _shown_metrics(place["metrics"])})]


def _heading(place: Mapping[str, Any], places: Sequence[Mapping[str, Any]]) -> str:
    asked = [(place["design"], place["factor"]), (place["design_b"], place["factor_b"])]
    levels = [_value(place["level_a"]), _value(place["level_b"])]
    told = {"design": asked[0][0], "factor": asked[0][1], "level": levels[0]}
    told |= {"design_b": asked[1][0], "factor_b": asked[1][1], "level_b": levels[1]}
    slug = "compare.place_both" if asked[0] != asked[1] else "compare.place"
    where = say("compare.place_levels" if slug == "compare.place" and levels[0] != levels[1] else slug, **told)
    same = [p for p in places if [(p[n], p[f"{n}_b"]) for n in ("design", "factor")] == [*zip(*asked, strict=True)]]
    if len({(each["design_id_a"], each["design_id_b"]) for each in same}) > 1:
        ids = {"a": place["design_id_a"][:8], "b": place["design_id_b"][:8]}
        where = say("compare.place_designs", place=where, **ids)
    if not place["is_paired"]:
        return say("compare.not_paired", place=where)
    count = place["pairs_across_sittings"]
    return say("compare.paired_sittings" if count else "compare.paired", place=where, count=count)


def _counts(place: Mapping[str, Any]) -> list[str]:
    sides, doubts = [], []
    for side in ("a", "b"):
        failed, measured = place[f"failed_{side}"], place[f"num_{side}"]
        slug = "compare.count_failed" if failed else "compare.count"
        sides.append(say(slug, side=side.upper(), measured=measured, failed=failed))
        limited = place[f"client_limited_{side}"]
        told = {slug: num for slug, num in place[f"warnings_{side}"].items() if not limited or slug != _LIMITED}
        found = [f"{slug} {num}" for slug, num in told.items()]
        if limited:
            found.insert(0, say("compare.limited", count=limited))
        if found:
            doubts += wrapped_note(say("compare.warnings", side=side.upper(), warnings=", ".join(found)))
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
    heads = (say(f"compare.col_{name}") for name in ("difference", "interval", "share", "seen"))
    head = ["", "A", *heads]
    rows = [head, *(_row(metric, effect, _numeral) for metric, effect in effects.items())]
    if is_too_wide(rows):
        rows = [[*row[:4], row[5]] for row in rows]
    if is_too_wide(rows):
        rows = [head, *(_row(metric, effect, _rough) for metric, effect in effects.items())]
        rows = [[*row[:4], row[5]] for row in rows]
    return aligned(rows)


def _row(metric: str, effect: Mapping[str, Any], numeral: Callable[[float, int], str]) -> list[str]:
    name, scale, most = _shown(metric)
    numbers = {each: effect[each] / scale for each in ("a", "difference", "low", "high") if effect[each] is not None}
    digits = _digits(list(numbers.values()), most)
    text = {each: numeral(value, digits) for each, value in numbers.items()}
    signed = {each: _signed(numbers[each], text[each]) for each in numbers}
    interval = say("compare.interval", low=signed["low"], high=signed["high"]) if "low" in signed else ""
    share = "" if effect["share"] is None else _percent(effect["share"] * 100)
    return [name, text["a"], signed["difference"], interval, share, say(f"compare.seen.{effect['verdict']}")]


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
        return say("compare.in_mib", name=_plain(metric.replace("_bytes", ""))), MIB, 1
    if "_per_s" in metric:
        return _plain(metric.replace("_per_s", "/s")), 1.0, 0
    if metric.endswith("_s"):
        return say("compare.in_ms", name=_plain(metric.removesuffix("_s"))), 1e-3, 2
    return _plain(metric), 1.0, 3 if metric.endswith(("_score", "_share", "_fraction")) else 1


def _plain(name: str) -> str:
    slug = name.replace("_", "-")
    return name_of("compared", slug) if has_words(f"compared.{slug}") else name.replace("_", " ")


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
            say(
                "compare.left_others_one" if len(ids) == 1 else "compare.left_others",
                what=what,
                factor=factor,
                count=len(ids),
                side=side,
                ids=_some(ids),
            )
            for (what, factor, side), ids in others.items()
        ),
        *(_left(each) for each in left_out if each["reason"] != "another_compared"),
    ]


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:4]) + (" ..." if len(ids) > 4 else "")


def _left(each: Mapping[str, Any]) -> str:
    values = each["values"]
    kind = _LEFT_OUT.get(each["reason"], "kinds")
    return say(
        f"compare.left_level_{kind}" if "level" in values else f"compare.left_{kind}",
        what=each["what"],
        factor=values["factor"],
        level=_value(values.get("level")),
        kinds=", ".join(map(_kind, values.get("kinds", ()))),
    )


def _state(each: Mapping[str, Any]) -> list[str]:
    level = each["level_a"] if each["level_b"] is None else each["level_b"]
    state = say(f"compare.state.{each['state']}", condition=each["condition"])
    slug = "compare.state" if level is None else "compare.state_at"
    told = say(slug, design=each["design"], level=_value(level), state=state)
    mark = {"passed": "  ", "undecided": "! "}.get(each["state"], "× ")
    return wrapped(told, mark, "      ")
