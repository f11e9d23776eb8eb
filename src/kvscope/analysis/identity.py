"""The identity of every row of a study, after the load, after its requests and at its peak, and between any two rows.

    resident = weights + KV cache + recurrent state + compute touched so far + output + host prompt cache + checkpoints
               + the engine's run time + vocabulary and tables + its own growth with the prompt
               + what the allocator keeps + libraries and stacks
               + unexplained

Each term stands by itself (``attribution.Term`` says how it is known); the rest is signed and nobody's. How far the
readings themselves can be off is a bound beside it (``probe_bounds``), and no term.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.attribute import attribute
from kvscope.analysis.attribution import Attribution, Term
from kvscope.analysis.calibrated_terms import work_bytes_at_most
from kvscope.analysis.calibration import Calibration, calibration_of
from kvscope.analysis.calibration_record import why_not_calibrated
from kvscope.analysis.own_heap import heap_at_peak
from kvscope.analysis.probe_bounds import ReadingBound, reading_bound
from kvscope.record.metrics import held_bytes, last_mark
from kvscope.record.rows import TrialResult

PEAK = "peak"
# Of all pairs of so many rows each is looked at; of more only those that lie furthest apart.
MOST_ROWS_PAIRED = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The identity at one moment. ``bound``: how far the readings that it is made of can be off."""

    attribution: Attribution
    bound: ReadingBound

    @property
    def phase(self) -> str:
        return self.attribution.phase

    @property
    def growth_bytes(self) -> int:
        return self.attribution.growth_bytes

    @property
    def unexplained_bytes(self) -> int:
        return self.attribution.unexplained_bytes

    @property
    def unexplained_share(self) -> float | None:
        """Of the growth; the rests of the two kinds of memory count without sign, so that they cannot cancel."""
        return self.attribution.unexplained_share


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIdentity:
    """One row. A moment is None where memory, or its mappings, were not read. ``calibration`` None: the row was
    recorded without one that can be taken, ``why_not_calibrated``, and its engine's own memory is named by place
    only."""

    key: str
    run_id: str
    design: str
    level: object
    loaded: Moment | None
    after: Moment | None
    peak: Moment | None
    calibration: Calibration | None
    why_not_calibrated: str | None = None

    @property
    def moments(self) -> tuple[Moment, ...]:
        return tuple(each for each in (self.loaded, self.after, self.peak) if each is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """Two rows at one moment. ``terms``: name of a term → by how much the second row has more of it, in the order in
    which they are shown; with ``unexplained_bytes`` they sum to ``growth_bytes``. ``unexplained_share``: of the smaller
    one's growth."""

    first: str
    second: str
    phase: str
    growth_bytes: int
    terms: Mapping[str, int]
    unexplained_bytes: int
    unexplained_share: float | None


def row_identity(attempt: Attempt) -> RowIdentity:
    """The identity of one attempt at each moment that it reached."""
    found = {phase: attribute(attempt.result, attempt.prediction, phase) for phase in ("loaded", "after_request")}
    read = {phase: each for phase, each in found.items() if each is not None and each.maps_read}
    peak = peak_attribution(attempt, read.get("after_request") or read.get("loaded"))
    calibration = calibration_of(attempt.result)
    return RowIdentity(
        key=attempt.key,
        run_id=attempt.trial.run_id,
        design=attempt.design.name,
        level=attempt.trial.level,
        loaded=_moment(attempt, read.get("loaded")),
        after=_moment(attempt, read.get("after_request")),
        peak=_moment(attempt, peak),
        calibration=calibration,
        why_not_calibrated=None if calibration is not None else why_not_calibrated(attempt.result),
    )


def _moment(attempt: Attempt, found: Attribution | None) -> Moment | None:
    if found is None:
        return None
    return Moment(attribution=found, bound=reading_bound(attempt.run.machine, attempt.result, found))


def peak_attribution(attempt: Attempt, after: Attribution | None) -> Attribution | None:
    """The identity at the highest memory between load and the end of the last request, of the process's own and of
    files each. Its terms are those of the last moment at which mappings were read, ``after``; where an engine counts
    its heap they are what that counted at its highest, instead. None where there is no peak or no such moment."""
    metrics, start = attempt.metrics, last_mark(attempt.result, "launched")
    if after is None or metrics.memory_peak_bytes is None or metrics.memory_peak_bytes_file is None:
        return None
    return replace(
        after,
        phase=PEAK,
        anon_growth_bytes=metrics.memory_peak_bytes - (held_bytes(start) if start else 0),
        file_growth_bytes=metrics.memory_peak_bytes_file - (start.file_bytes if start else 0),
        terms=_terms_at_peak(attempt.result, after),
    )


def _terms_at_peak(result: TrialResult, after: Attribution) -> tuple[Term, ...]:
    """Where the engine counts its heap: what was kept then, and what was in use beyond what stayed in use, no more than
    computing such a prompt takes by the model's widths (``work_in_use``). What was in use beyond that has no name; so
    has all of it where the widths were not recorded. By place it is the heap's."""
    heap, mark = heap_at_peak(result, after), last_mark(result, after.phase)
    if not heap or mark is None:
        return after.terms
    changed = {"heap_kept": heap["kept"], "heap": after.term_bytes("heap") + heap["more"]}
    terms = tuple(replace(term, num_bytes=changed.get(term.slug, term.num_bytes)) for term in after.terms)
    most = work_bytes_at_most(result, mark) if after.is_calibrated else None
    if most is None:
        return terms
    size = min(heap["more"], most)
    return (*terms, Term(slug="work_in_use", backing="anonymous", num_bytes=size, basis="computed"))


def row_identities(attempts: Iterable[Attempt]) -> tuple[RowIdentity, ...]:
    """Of every measured attempt whose memory was read with its mappings."""
    rows = (row_identity(attempt) for attempt in attempts if attempt.is_measured and attempt.result.maps)
    return tuple(row for row in rows if row.moments)


def between(first: RowIdentity, second: RowIdentity, phase: str = PEAK) -> Between | None:
    """What tells two rows apart at a moment; None where one of them has no such moment."""
    before, after = _at(first, phase), _at(second, phase)
    if before is None or after is None:
        return None
    slugs = dict.fromkeys(term.slug for each in (before, after) for term in each.terms)
    terms = {slug: after.term_bytes(slug) - before.term_bytes(slug) for slug in slugs}
    smaller = min(before.growth_bytes, after.growth_bytes)
    apart = abs(after.unexplained_anon_bytes - before.unexplained_anon_bytes)
    apart += abs(after.unexplained_file_bytes - before.unexplained_file_bytes)
    apart += abs(after.shared_growth_bytes - before.shared_growth_bytes)
    return Between(
        first=first.key,
        second=second.key,
        phase=phase,
        growth_bytes=after.growth_bytes - before.growth_bytes,
        terms=terms,
        unexplained_bytes=after.unexplained_bytes - before.unexplained_bytes,
        unexplained_share=apart / smaller if smaller > 0 else None,
    )


def _at(row: RowIdentity, phase: str) -> Attribution | None:
    return next((each.attribution for each in row.moments if each.phase == phase), None)


def worst_between(rows: Sequence[RowIdentity], phase: str = PEAK) -> tuple[Between, ...]:
    """Of each sitting with two rows or more: the two whose unexplained rests differ by the largest share."""
    runs: dict[str, list[RowIdentity]] = {}
    for row in rows:
        if _at(row, phase) is not None:
            runs.setdefault(row.run_id, []).append(row)
    worst = [max(_pairs(each, phase), key=_share, default=None) for each in runs.values()]
    return tuple(each for each in worst if each is not None)


def _pairs(rows: Sequence[RowIdentity], phase: str) -> list[Between]:
    if len(rows) > MOST_ROWS_PAIRED:
        ordered = sorted(rows, key=lambda row: _rest(row, phase))
        rows = [*ordered[: MOST_ROWS_PAIRED // 2], *ordered[-MOST_ROWS_PAIRED // 2 :]]
    found = (between(first, second, phase) for first, second in combinations(rows, 2))
    return [each for each in found if each is not None]


def _rest(row: RowIdentity, phase: str) -> int:
    found = _at(row, phase)
    return 0 if found is None else found.unexplained_bytes


def _share(pair: Between) -> float:
    return pair.unexplained_share or 0.0
