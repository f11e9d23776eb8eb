"""What a design says, as lines of a terminal: the sentence, its interval, what else could explain it, how to check."""

import re
import textwrap
from collections.abc import Sequence

from kvscope.analysis.finding import Finding
from kvscope.report.claims import claim_text, remarks
from kvscope.report.words import NO_BREAK, say

WIDTH = 100
SHOWN_TRIALS = 3


def claim_lines(findings: Sequence[Finding]) -> list[str]:
    """Each finding as a sentence with its remarks and the trials behind it below; nothing for no findings."""
    lines: list[str] = []
    for finding in findings:
        lines += _wrapped(claim_text(finding), "≠ " if finding.is_contradiction else "- ")
        for remark in remarks(finding):
            lines += _wrapped(remark, "    ")
        if finding.evidence:
            shown = [*finding.evidence[:SHOWN_TRIALS], *(["…"] if len(finding.evidence) > SHOWN_TRIALS else [])]
            trials = ", ".join(shown)
            lines += _wrapped(say("claim.evidence", total=len(finding.evidence), trials=trials), "    ")
    return lines


def _wrapped(text: str, mark: str) -> list[str]:
    plain = re.sub(r"[ \n]+", " ", text.replace(NO_BREAK, " "))
    later = " " * len(mark)
    return textwrap.wrap(plain, WIDTH, initial_indent=mark, subsequent_indent=later, break_on_hyphens=False)
