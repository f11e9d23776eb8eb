"""The release check in a terminal: each verdict with its slope, and what each step gave back."""

from collections.abc import Sequence

from kvscope.analysis.findings import release_finding
from kvscope.analysis.fit import Estimate
from kvscope.analysis.release import Release
from kvscope.report.claims import claim_text
from kvscope.report.section_release import per_token_text, steps_table
from kvscope.report.terminal_table import aligned
from kvscope.report.terminal_text import wrapped
from kvscope.report.words import say
from kvscope.units import MIB

# Moment, held and given back are always shown; a name for which nothing is held is left out.
_ALWAYS = 3
_NOTHING = ("0.00", "+0.00", say("none"), say("unknown"))


def release_lines(releases: Sequence[Release]) -> list[str]:
    """Each verdict, and under it what each step of the release gave back; nothing for no releases. At most 80
    columns wide."""
    lines: list[str] = []
    for release in releases:
        lines += [""] if lines else []
        lines += wrapped(claim_text(release_finding(release)))
        if release.step.value is not None:
            slope = say("release.slope", value=_mib(release.step), again=_mib(release.same_text_step))
            lines += wrapped(f"{slope}.", "  ")
        lines += wrapped(per_token_text(release), "  ")
        lines += _steps(release)
    return lines


def _steps(release: Release) -> list[str]:
    if not release.steps:
        return []
    table = steps_table([release], release.factor)
    rows = [[column.title for column in table.columns[1:]], *(list(row.cells[1:]) for row in table.rows)]
    told = [n for n in range(len(rows[0])) if n < _ALWAYS or any(row[n] not in _NOTHING for row in rows[1:])]
    return aligned([[row[n] for n in told] for row in rows], left=1)


def _mib(slope: Estimate | None) -> str:
    if slope is None or slope.value is None:
        return say("release.not_asked")
    value = f"{slope.value / MIB:+,.2f}"
    if slope.low is None or slope.high is None:
        return say("release.slope_alone", value=value)
    return say("release.slope_interval", value=value, low=f"{slope.low / MIB:+,.2f}", high=f"{slope.high / MIB:+,.2f}")
