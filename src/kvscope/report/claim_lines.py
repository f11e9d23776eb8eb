"""What a design says, as lines of a terminal: each sentence with its interval and what else could explain it; how to
check, once for all."""

from collections.abc import Sequence

from kvscope.analysis.finding import Finding
from kvscope.report.claims import claim_text, size_text
from kvscope.report.terminal_text import display_width, wrapped
from kvscope.report.words import say


def claim_lines(findings: Sequence[Finding]) -> list[str]:
    """Each finding as a sentence, its interval and what else could explain it below; at the end how to check them, and
    where the trials behind each are named. Nothing for no findings."""
    lines: list[str] = []
    for finding in findings:
        lines += _wrapped(claim_text(finding), "≠ " if finding.is_contradiction else "- ")
        size = size_text(finding)
        told = [*([size] if size else []), *(say(f"also.{slug}") for slug in finding.also_possible)]
        lines += _wrapped(" ".join(told), "    ")
    if findings:
        checks = dict.fromkeys(f.how_to_check for f in findings if f.how_to_check is not None)
        for check in checks:
            lines += _wrapped(say(f"check_by.{check}"), "  ")
        lines += _wrapped(say("claim.evidence"), "  ")
    return lines


def _wrapped(text: str, mark: str) -> list[str]:
    return wrapped(text, mark, " " * display_width(mark))
