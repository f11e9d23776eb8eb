"""The identity of one row as lines of four columns that are never merged: what the tokens need, what the engine
reserves by its rules, what its log says, and what is in memory."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.attribution import Attribution
from kvscope.analysis.compare import Component, compare_components
from kvscope.analysis.identity import RowIdentity

# Line → the terms of the identity that are in memory of it. A line of the engine's own is one term.
LINE_TERMS: Mapping[str, tuple[str, ...]] = {
    "weights": ("model_file", "weights"),
    "kv_cache": ("kv_cache",),
    "recurrent_state": ("recurrent_state",),
    "compute_buffer": ("compute_buffer", "working_buffers", "work_buffer", "work_in_use"),
    "output_buffer": ("output_buffer",),
    "host_cache": ("host_cache",),
    "checkpoint": ("checkpoint",),
}
OWN_LINES = (
    *("runtime", "vocabulary", "prompt_growth", "heap", "arenas", "heap_kept", "python_arenas"),
    *("stacks", "library_data", "library_code", "swapped"),
)
_NOT_SEEN = ("calibrated", "counted", "computed", "rule")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """``resident``: moment → bytes; a moment at which nothing of it is known to be in memory is absent, never 0.
    ``bases``: how its terms are known (see ``attribution.Term``); ``calibrated_on``: on what, where one of them was.
    ``calibrated_bytes``: for kinds of memory that every trial sees for itself, what a tiny model held after its load.
    """

    slug: str
    needed_bytes: int | None
    allocated_bytes: int | None
    reported_mib: str | None
    resident: Mapping[str, int]
    bases: tuple[str, ...]
    calibrated_on: str | None = None
    calibrated_bytes: int | None = None

    @property
    def is_seen(self) -> bool:
        """Whether all of it was seen among the mappings of this very trial."""
        return not any(basis in _NOT_SEEN for basis in self.bases)


def identity_lines(attempt: Attempt, identity: RowIdentity) -> tuple[Line, ...]:
    """The lines of one row that have a number in any column, buffers first."""
    moments = {each.phase: each.attribution for each in identity.moments}
    latest = identity.after or identity.loaded
    found = compare_components(attempt.result, attempt.prediction, latest.attribution if latest else None)
    known = {component.slug: component for component in found}
    lines = [_line(slug, terms, known.get(slug), moments) for slug, terms in LINE_TERMS.items()]
    lines += [_own_line(slug, moments, identity) for slug in OWN_LINES]
    return tuple(line for line in lines if line is not None)


def _line(
    slug: str, terms: tuple[str, ...], component: Component | None, moments: Mapping[str, Attribution]
) -> Line | None:
    resident = {phase: sum(each.term_bytes(t) for t in terms) for phase, each in moments.items() if _has(each, terms)}
    if component is None and not any(resident.values()):
        return None
    return Line(
        slug=slug,
        needed_bytes=component.needed_bytes if component else None,
        allocated_bytes=component.allocated_bytes if component else None,
        reported_mib=component.reported_total_mib if component else None,
        resident=resident,
        bases=_bases(terms, moments),
    )


def _own_line(slug: str, moments: Mapping[str, Attribution], identity: RowIdentity) -> Line | None:
    resident = {phase: each.term_bytes(slug) for phase, each in moments.items() if _has(each, (slug,))}
    if not resident:
        return None
    terms = [term for each in moments.values() for term in each.terms if term.slug == slug]
    return Line(
        slug=slug,
        needed_bytes=None,
        allocated_bytes=None,
        reported_mib=None,
        resident=resident,
        bases=_bases((slug,), moments),
        calibrated_on=next((term.calibrated_on for term in terms if term.calibrated_on), None),
        calibrated_bytes=_compared(slug, identity),
    )


def _compared(slug: str, identity: RowIdentity) -> int | None:
    if identity.calibration is None:
        return None
    tiny = identity.calibration.vocabulary or identity.calibration.fixed
    return {
        "heap_kept": tiny.loaded.kept,
        "stacks": tiny.loaded.stacks,
        "library_data": tiny.loaded.library_data,
        "library_code": tiny.loaded.library_code,
    }.get(slug)


def _has(attribution: Attribution, terms: tuple[str, ...]) -> bool:
    return any(term.slug in terms for term in attribution.terms)


def _bases(terms: tuple[str, ...], moments: Mapping[str, Attribution]) -> tuple[str, ...]:
    found = [t for each in moments.values() for t in each.terms if t.slug in terms]
    return tuple(dict.fromkeys(t.basis for t in [t for t in found if t.num_bytes] or found))
