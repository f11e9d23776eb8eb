"""What fits, as plain text for the terminal: from the dictionary that ``kvscope fit --json`` prints."""

from collections.abc import Mapping
from typing import Any

from kvscope.language import shown
from kvscope.report.prediction_text import change_words, of_sequences
from kvscope.report.terminal_table import aligned
from kvscope.report.terminal_text import joined, wrapped, wrapped_note
from kvscope.report.words import say
from kvscope.units import format_bytes


def render_fit(found: Mapping[str, Any], budget_source: str) -> str:
    """``budget_source``: where the budget comes from, in words."""
    reserve = found["reserve_bytes"]
    asked = {"model": found["model"], "engine": found["engine"], "budget": found["budget_bytes"]}
    lines = [
        *wrapped(say("fit.head_reserve" if reserve else "fit.head", **asked, reserve=reserve)),
        *wrapped_note(say("fit.budget", source=budget_source)),
        *wrapped_note(say("fit.rules", rules=found["engine_version"])),
        "",
        *_largest(found),
        *_most(found),
        "",
        *_options(found),
        "",
        say("fit.left_out"),
        *(line for text in found["left_out"] for line in wrapped_note(shown(text))),
        *(line for text in found["notes"] for line in wrapped_note(say("note", text=shown(text)))),
    ]
    return joined(lines)


def _largest(found: Mapping[str, Any]) -> list[str]:
    tokens = found["largest_context_tokens"]
    slug = "fit.largest_endless" if tokens is None else "fit.largest"
    return [*wrapped(of_sequences(slug, found, tokens=tokens)), *wrapped_note(shown(found["because"]))]


def _most(found: Mapping[str, Any]) -> list[str]:
    most = found["most_sequences"]
    return wrapped(say("fit.most_endless" if most is None else "fit.most", tokens=found["tokens"], number=most))


def _options(found: Mapping[str, Any]) -> list[str]:
    options = found["cheapest"]
    rows = [[say("fit.col_fits"), say("predict.col_total"), say("what_if.change")]]
    for each in options:
        fits = say("fit.yes" if each["fits"] else "fit.no")
        rows.append([fits, format_bytes(each["total_bytes"]), change_words(each["change"])])
    lines = [*wrapped(of_sequences("fit.options", found, tokens=found["tokens"])), *aligned(rows, at_end=1)]
    costs = dict.fromkeys(
        say("fit.cost", change=change_words(each["change"]), cost=shown(each["cost"]))
        for each in options
        if each["cost"]
    )
    if costs:
        lines += ["", say("what_if.costs"), *(line for cost in costs for line in wrapped_note(cost))]
    return lines
