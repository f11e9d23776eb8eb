"""The levels of a design by how far each moves the model: means over documents with intervals, the floors beside them,
their order, and what may be said of each.

Documents are the clusters, because positions of one document are not independent. Their divergences are never negative
and often skewed (one document may lose ten times as much as the next), where a mean ± t errors reaches too low on both
sides. So an interval is that of the mean of a log-normal quantity (Cox's method: Olsson 2005), with Student's quantile;
how often it covers, by simulation on real documents: docs/accuracy.md. Two levels are ordered by the ratio of their
divergences on the same documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log, sqrt
from statistics import fmean, variance
from typing import Literal

from kvscope.analysis.attempts import Attempt, latest_attempts
from kvscope.analysis.effects import FIXED
from kvscope.analysis.fidelity import FIDELITY, FLOOR, Comparison, compare_floor, compare_scores, most_complete
from kvscope.analysis.fit import CONFIDENCE, Estimate, mean, t_quantile
from kvscope.analysis.levels import level_key
from kvscope.analysis.notes import note
from kvscope.analysis.quality_work import baseline_of
from kvscope.record.rows import DesignRow, Json, TrialResult

Verdict = Literal["reference", "loss", "no_loss_larger_than_floor", "cannot_tell"]
# Fewer documents give no interval that means anything.
LEAST_DOCUMENTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityFloors:
    """What no setting had a part in. ``same_pattern``: the reference scored again by a fresh engine in the same passes;
    ``batch_shape``: the same positions in passes of another shape. None: not measured."""

    same_pattern: Estimate | None
    batch_shape: Estimate | None

    @property
    def high(self) -> float | None:
        """The most that the floor can be, by the intervals of both; None where one of the two is not known. An engine
        that repeats itself exactly says nothing of passes of another shape."""
        return self._most([None if each is None else each.high for each in (self.same_pattern, self.batch_shape)])

    @property
    def low(self) -> float | None:
        """The least that it can be; None as for ``high``."""
        return self._most([None if each is None else each.low for each in (self.same_pattern, self.batch_shape)])

    def _most(self, limits: Sequence[float | None]) -> float | None:
        known = [limit for limit in limits if limit is not None]
        return max(known) if len(known) == len(limits) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityLevel:
    """One level against the reference. ``divergence``: mean over documents, nats per position, with its 95 % interval;
    ``together``: the wider interval that holds for all levels of the design, by which verdicts are given.
    ``logprob_change``: of the texts' own tokens, setting − reference. ``perplexities``: of reference and setting, shown
    and never judged. ``reference_level``, ``floors``: what it was held against, and that one's noise; of a grid the
    level that scored the same texts with the baseline's settings. ``reason``: of a verdict *cannot_tell*: too_few
    (documents), floor_unknown, near_floor, lost_texts (no loss is seen on those that were scored, but others were not),
    or why nothing could be compared (``fidelity.NO_REFERENCE`` ...)."""

    level: Json
    reference_level: Json
    floors: FidelityFloors
    comparison: Comparison
    divergence: Estimate
    together: Estimate
    logprob_change: Estimate
    verdict: Verdict
    reason: str | None = None

    @property
    def perplexities(self) -> tuple[float, float] | None:
        return self.comparison.perplexities


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityOrder:
    """Two levels on the same documents. ``ratio``: divergence of ``more`` ÷ of ``less`` (geometric mean over
    documents), its interval holding for all pairs of the design together; above 1: ``more`` loses more.
    ``num_documents_more``: in how many documents it does."""

    less: Json
    more: Json
    ratio: Estimate
    num_documents: int
    num_documents_more: int

    @property
    def is_certain(self) -> bool:
        """Whether the interval lies above 1."""
        return self.ratio.low is not None and self.ratio.low > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityPanel:
    """``levels``: the reference's first. ``orders``: every pair of levels that lost something, the lesser one first.
    ``floors``: the reference's."""

    reference_level: Json
    levels: tuple[FidelityLevel, ...]
    orders: tuple[FidelityOrder, ...]
    floors: FidelityFloors

    @property
    def references(self) -> tuple[FidelityLevel, ...]:
        """Levels that others are held against: one, or of a grid one for each kind of work."""
        return tuple(each for each in self.levels if each.verdict == "reference")

    def level(self, level: Json) -> FidelityLevel | None:
        """The row of one level, if it was scored."""
        return next((each for each in self.levels if each.level == level), None)


def fidelity_panel(levels: Sequence[tuple[Json, Sequence[TrialResult]]]) -> FidelityPanel | None:
    """``levels``: each with its measured attempts in order, the reference's first. Each level's most complete attempt
    is held against the reference's most complete one (of a grid: against that of the same work); the reference's others
    are the floor of the same pattern. Levels of which nothing was scored are unknown. None where nothing was scored at
    all."""
    scored = [(level, [each for each in results if _has_scores(each)]) for level, results in levels]
    if not any(results for _, results in scored):
        return None
    reference_level, of_reference = scored[0]
    known = [level for level, results in scored if results]
    of_level = [(level, results, baseline_of(level, reference_level, known)) for level, results in scored]
    others = {level_key(base) for level, _, base in of_level if level_key(base) != level_key(level)}
    references = {level_key(level): results for level, results, _ in of_level if level_key(level) in others}
    references[level_key(reference_level)] = of_reference
    num_levels = len(known) - sum(bool(results) for results in references.values())
    rows = []
    for level, results, base in of_level:
        if results and level_key(level) in references:
            rows.append(_reference_level(level, results))
        elif level_key(level) != level_key(reference_level):
            rows.append(_level(level, results, (base, references[level_key(base)]), num_levels=num_levels))
    return FidelityPanel(
        reference_level=reference_level, levels=tuple(rows), orders=_orders(rows), floors=_floors(of_reference)
    )


def design_fidelity(design: DesignRow, attempts: Sequence[Attempt]) -> FidelityPanel | None:
    """The panel of one design, from its last attempts at each trial; None where nothing was scored."""
    here = [each for each in latest_attempts(attempts) if each.design.design_id == design.design_id]
    by_level: dict[str, list[TrialResult]] = {}
    for attempt in sorted(here, key=lambda each: each.trial.position):
        if attempt.is_measured:
            by_level.setdefault(level_key(attempt.trial.level), []).append(attempt.result)
    base_key = level_key(design.baseline_level)
    levels = sorted(design.levels, key=lambda level: level_key(level) != base_key)
    return fidelity_panel([(level, by_level.get(level_key(level), [])) for level in levels])


def mean_divergence(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Estimate:
    """Mean of documents' divergences (nats, none below zero). Its interval is Cox's for a log-normal quantity; where a
    document lost nothing at all it is Student's, ended at zero. Fewer than LEAST_DOCUMENTS have none, though all be
    zero."""
    count = len(values)
    if count == 0:
        return Estimate(value=None, reason=note("nothing_measured"))
    center = fmean(values)
    if count < LEAST_DOCUMENTS:
        return Estimate(value=center, num=count, reason=note("few_documents"))
    if not any(values):
        return Estimate(value=0.0, low=0.0, high=0.0, num=count)
    if min(values) <= 0:
        return mean(values, floor=0.0, confidence=confidence)
    logs = [log(value) for value in values]
    spread = variance(logs)
    middle = fmean(logs) + spread / 2
    half = t_quantile(count - 1, confidence) * sqrt(spread / count + spread * spread / (2 * (count - 1)))
    low, high = exp(middle - half), exp(min(700.0, middle + half))
    return Estimate(value=center, low=min(low, center), high=max(high, center), num=count)


def _has_scores(result: TrialResult) -> bool:
    return any(row.task == FIDELITY and FLOOR not in row.facts for row in result.answers)


def _floors(of_reference: Sequence[TrialResult]) -> FidelityFloors:
    """The same pattern's, of the attempts beside the most complete one; the batch shape's, of the attempt that has most
    of it, against its own scores."""
    reference = most_complete(of_reference)
    if reference is None:
        return FidelityFloors(same_pattern=None, batch_shape=None)
    repeats = [compare_scores(each, reference) for each in of_reference if each is not reference]
    values = [document.divergence for each in repeats for document in each.documents]
    shape = max((compare_floor(each) for each in of_reference), key=lambda each: len(each.positions))
    return FidelityFloors(
        same_pattern=mean_divergence(values) if values else None,
        batch_shape=mean_divergence([each.divergence for each in shape.documents]) if shape.positions else None,
    )


def _reference_level(level: Json, results: Sequence[TrialResult]) -> FidelityLevel:
    reference = most_complete(results)
    itself = Comparison(positions=(), left_out={}) if reference is None else compare_scores(reference, reference)
    nothing = Estimate(value=None, reason=note("is_reference"))
    return FidelityLevel(
        level=level,
        reference_level=level,
        floors=_floors(results),
        comparison=itself,
        divergence=nothing,
        together=nothing,
        logprob_change=nothing,
        verdict="reference",
    )


def _level(
    level: Json, results: Sequence[TrialResult], reference: tuple[Json, Sequence[TrialResult]], *, num_levels: int
) -> FidelityLevel:
    """``results``: its attempts with scores, none where all failed. ``reference``: the level that it is held against,
    with that one's attempts."""
    result = most_complete(results)
    nothing = Comparison(positions=(), left_out={})
    comparison = nothing if result is None else compare_scores(result, most_complete(reference[1]))
    floors = _floors(reference[1])
    values = [each.divergence for each in comparison.documents]
    together = mean_divergence(values, confidence=1 - FIXED.call / max(1, num_levels))
    verdict, reason = _verdict(together, floors, comparison)
    return FidelityLevel(
        level=level,
        reference_level=reference[0],
        floors=floors,
        comparison=comparison,
        divergence=mean_divergence(values),
        together=together,
        logprob_change=mean([each.logprob_change for each in comparison.documents]),
        verdict=verdict,
        reason=reason,
    )


def _verdict(found: Estimate, floors: FidelityFloors, comparison: Comparison) -> tuple[Verdict, str | None]:
    """From intervals alone: a loss lies above the most that the floor can be; no loss larger than the floor reaches no
    further than the least that it can be, on all texts of the reference. A floor that is hardly known makes neither
    easier, and without both floors there is neither."""
    if found.value is None:
        return "cannot_tell", next(iter(comparison.left_out), "nothing_measured")
    if found.low is None or found.high is None:
        return "cannot_tell", "too_few"
    high, low = floors.high, floors.low
    if high is None or low is None:
        return "cannot_tell", "floor_unknown"
    if found.low > high:
        return "loss", None
    if found.high > low:
        return "cannot_tell", "near_floor"
    return ("cannot_tell", "lost_texts") if comparison.lost else ("no_loss_larger_than_floor", None)


def _orders(rows: Sequence[FidelityLevel]) -> tuple[FidelityOrder, ...]:
    known = sorted((row for row in rows if row.divergence.value), key=lambda row: row.divergence.value or 0.0)
    pairs = [
        (less, more)
        for less, more in combinations(known, 2)
        if level_key(less.reference_level) == level_key(more.reference_level)
    ]
    confidence = 1 - FIXED.call / max(1, len(pairs))
    return tuple(_order(less, more, confidence) for less, more in pairs)


def _order(less: FidelityLevel, more: FidelityLevel, confidence: float) -> FidelityOrder:
    """On the items that both have."""
    less_here, more_here = (one.comparison.on_items_of(other.comparison) for one, other in ((less, more), (more, less)))
    before = {each.document: each.divergence for each in less_here.documents}
    pairs = [(before[each.document], each.divergence) for each in more_here.documents]
    logs = [log(after / then) for then, after in pairs if then > 0 and after > 0]
    if len(logs) < max(LEAST_DOCUMENTS, len(pairs)):
        ratio = Estimate(value=None, num=len(pairs), reason=note("few_documents"))
    else:
        found = mean(logs, confidence=confidence)
        low = None if found.low is None else exp(found.low)
        high = None if found.high is None else exp(found.high)
        ratio = Estimate(value=exp(found.value or 0.0), low=low, high=high, num=len(logs))
    return FidelityOrder(
        less=less.level,
        more=more.level,
        ratio=ratio,
        num_documents=len(pairs),
        num_documents_more=sum(after > then for then, after in pairs),
    )
