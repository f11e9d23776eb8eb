"""What fits, as plain text for the terminal: from the dictionary that ``kvscope fit --json`` prints."""

from collections.abc import Mapping
from typing import Any

from kvscope.report.prediction_text import aligned, wrapped
from kvscope.units import format_bytes, format_count


def render_fit(found: Mapping[str, Any], budget_source: str) -> str:
    """``budget_source``: where the budget comes from, in words."""
    reserve = found["reserve_bytes"]
    room = f", {format_bytes(reserve)} of it reserved" if reserve else ""
    lines = [
        f"{found['model']} on {found['engine']} in {format_bytes(found['budget_bytes'])}{room}",
        wrapped(f"Budget: {budget_source}"),
        wrapped(f"Rules: {found['engine_version']}"),
        "",
        *_largest(found),
        *_most(found),
        "",
        *_options(found),
        "",
        "In none of these bytes, or not certain:",
        *(wrapped(text) for text in found["left_out"]),
        *(wrapped(f"Note: {text}") for text in found["notes"]),
    ]
    return "\n".join(lines) + "\n"


def _largest(found: Mapping[str, Any]) -> list[str]:
    largest, sequences = found["largest_context_tokens"], found["sequences"]
    each = "one sequence" if sequences == 1 else f"each of {sequences} sequences"
    head = "without end" if largest is None else f"{format_count(largest)} tokens"
    return [f"Largest context of {each}: {head}", wrapped(found["because"])]


def _most(found: Mapping[str, Any]) -> list[str]:
    most = found["most_sequences"]
    number = "without end" if most is None else format_count(most)
    return [f"Most sequences of {format_count(found['tokens'])} tokens: {number}"]


def _options(found: Mapping[str, Any]) -> list[str]:
    options = found["cheapest"]
    sequences = found["sequences"]
    each = "one sequence" if sequences == 1 else f"each of {sequences} sequences"
    head = f"For {format_count(found['tokens'])} tokens in {each}, what fits first, and of that what costs least:"
    rows = [["fits", "total known", ""]]
    rows += [["yes" if o["fits"] else "no", format_bytes(o["total_bytes"]), ""] for o in options]
    changes = ["change", *(_words(option["change"]) for option in options)]
    lines = [head, *(f"{left}  {change}" for left, change in zip(aligned(rows), changes, strict=True))]
    costs = [wrapped(f"{_words(option['change'])}: {option['cost']}") for option in options if option["cost"]]
    return [*lines, "", "What they are known to cost:", *dict.fromkeys(costs)] if costs else lines


def _words(change: Mapping[str, Any]) -> str:
    if not change:
        return "as asked"
    return ", ".join(f"{k} = {str(v).lower() if isinstance(v, bool) else v}" for k, v in change.items())
