"""What the document adds to the likelihood of a fact, in nats per token: the log-probability of its tokens behind the
document that states it, less the same behind the twin that does not. 0: the document is of no use to the model.

Positions of one fact are averaged by the row itself (``AnswerRow.score``), facts of one document here; intervals are
Student's over documents, which gains allow: they are differences of logarithms, and not skewed as divergences are.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from kvscope.analysis.attempts import Attempt, latest_attempts
from kvscope.analysis.effects import FIXED
from kvscope.analysis.fit import Estimate, mean
from kvscope.analysis.levels import level_key
from kvscope.analysis.quality_work import baseline_of
from kvscope.record.rows import AnswerRow, DesignRow, Json

COPY_GAIN = "copy_gain"
GainVerdict = Literal["used", "not_used", "cannot_tell"]
ChangeVerdict = Literal["loss", "gain", "cannot_tell"]

# (document, item) → log-probability behind the document, behind its twin.
Pairs = Mapping[tuple[str, str], tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GainCell:
    """One level. ``present``, ``absent``: log-probability per token with and without the fact; ``gain``: their
    difference; all are means over documents with 95 % intervals. ``verdict``: *used* where the gain's interval lies
    above zero, *not_used* where it lies at or below, else *cannot_tell*. ``change``: gain − that of ``baseline_level``
    (of a grid the level that does the same work with the baseline's settings) on the same items, its interval holding
    for all levels together; None at the baseline, or where it was asked other items.
    ``num_unpaired``: items scored behind only one of the two."""

    level: Json
    baseline_level: Json
    language: str
    num_items: int
    num_documents: int
    present: Estimate
    absent: Estimate
    gain: Estimate
    verdict: GainVerdict
    change: Estimate | None
    change_verdict: ChangeVerdict | None
    num_unpaired: int


def copy_gains(levels: Sequence[tuple[Json, Iterable[AnswerRow]]]) -> tuple[GainCell, ...]:
    """A cell for each level and language with scored facts, the baseline's level being the first. Rows of an item that
    was scored several times (repeats) count once, by their mean."""
    rows = [(level, [row for row in each if row.task == COPY_GAIN]) for level, each in levels]
    num_levels = max(1, sum(bool(each) for _, each in rows) - 1)
    cells = []
    for language in sorted({row.language for _, each in rows for row in each}):
        mine = [(level, [row for row in each if row.language == language]) for level, each in rows]
        pairs = {level_key(level): _pairs(each) for level, each in mine}
        known = [level for level, each in mine if each]
        for level in known:
            base = baseline_of(level, rows[0][0], known)
            found, unpaired = pairs[level_key(level)]
            is_first = level_key(level) == level_key(rows[0][0])
            change = None if is_first else _change(pairs[level_key(base)][0], found, num_levels)
            cells.append(_cell((level, base), language, found, unpaired, change))
    return tuple(cells)


def design_gains(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[GainCell, ...]:
    """The gains of one design, from its last attempts at each trial; empty where none was scored."""
    here = [each for each in latest_attempts(attempts) if each.design.design_id == design.design_id]
    rows: dict[str, list[AnswerRow]] = {}
    for attempt in here:
        if attempt.is_measured:
            rows.setdefault(level_key(attempt.trial.level), []).extend(attempt.result.answers)
    base_key = level_key(design.baseline_level)
    levels = sorted(design.levels, key=lambda level: level_key(level) != base_key)
    return copy_gains([(level, rows.get(level_key(level), [])) for level in levels])


def _pairs(rows: Sequence[AnswerRow]) -> tuple[Pairs, int]:
    found: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    for row in rows:
        if row.reading == "scored" and row.score is not None:
            found.setdefault((row.document, row.item), ([], []))[row.is_twin].append(row.score)
    pairs = {key: (fmean(present), fmean(absent)) for key, (present, absent) in found.items() if present and absent}
    return pairs, len(found) - len(pairs)


def _cell(levels: tuple[Json, Json], language: str, pairs: Pairs, unpaired: int, change: Estimate | None) -> GainCell:
    gain = _over_documents({key: present - absent for key, (present, absent) in pairs.items()})
    return GainCell(
        level=levels[0],
        baseline_level=levels[1],
        language=language,
        num_items=len(pairs),
        num_documents=len({document for document, _ in pairs}),
        present=_over_documents({key: present for key, (present, _) in pairs.items()}),
        absent=_over_documents({key: absent for key, (_, absent) in pairs.items()}),
        gain=gain,
        verdict=_verdict(gain),
        change=change,
        change_verdict=None if change is None else _change_verdict(change),
        num_unpaired=unpaired,
    )


def _change(baseline: Pairs, pairs: Pairs, num_levels: int) -> Estimate | None:
    both = baseline.keys() & pairs.keys()
    if not both:
        return None
    changes = {key: (pairs[key][0] - pairs[key][1]) - (baseline[key][0] - baseline[key][1]) for key in sorted(both)}
    return _over_documents(changes, confidence=1 - FIXED.call / num_levels)


def _over_documents(values: Mapping[tuple[str, str], float], *, confidence: float | None = None) -> Estimate:
    documents: dict[str, list[float]] = {}
    for (document, _), value in values.items():
        documents.setdefault(document, []).append(value)
    means = [fmean(each) for each in documents.values()]
    return mean(means) if confidence is None else mean(means, confidence=confidence)


def _verdict(gain: Estimate) -> GainVerdict:
    if gain.low is None or gain.high is None:
        return "cannot_tell"
    if gain.low > 0:
        return "used"
    return "not_used" if gain.high <= 0 else "cannot_tell"


def _change_verdict(change: Estimate) -> ChangeVerdict:
    if change.low is None or change.high is None:
        return "cannot_tell"
    if change.high < 0:
        return "loss"
    return "gain" if change.low > 0 else "cannot_tell"
