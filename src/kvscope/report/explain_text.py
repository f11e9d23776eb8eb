"""What ``kvscope explain`` prints."""

from collections.abc import Mapping
from typing import Any

from kvscope.language import shown
from kvscope.report.terminal_text import WIDTH, cut_off, joined, wrapped
from kvscope.report.words import say


def render_explanation(explanation: Mapping[str, Any]) -> str:
    """The JSON of kvscope.explain/1 as text."""
    matches = explanation["matches"]
    if not matches:
        return joined(wrapped(say("explain.nothing"), later=""))
    lines: list[str] = []
    for match in matches:
        lines += ["", f"> {cut_off(match['line'], WIDTH - 2)}", *wrapped(match["kind"], "  ", "    ")]
        lines += wrapped(shown(match["because"]), "  = ", "    ")
        for other in match["also"]:
            lines += wrapped(say("explain.or", other=shown(other)), "    ", "    ")
        if not match["certain"]:
            lines += wrapped(say("explain.likeliest"), "  ? ", "    ")
        lines += wrapped(say("what_to_do", advice=shown(match["advice"])), "  ", "    ")
    return joined(lines[1:])
