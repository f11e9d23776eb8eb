"""A cell of the panel against the baseline's: on the same items, and called a loss only by an interval that holds for
all comparisons of the study."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.analysis.effects import FIXED
from kvscope.analysis.fit import Estimate
from kvscope.analysis.items_needed import ItemsNeeded, items_needed
from kvscope.analysis.proportions import (
    PairedCounts,
    clustered_share,
    mcnemar,
    paired_counts,
    share_clustering,
    unpaired_difference,
)
from kvscope.analysis.quality_gate import Gate, Judged, judge
from kvscope.analysis.quality_items import Item, by_document, grouped, items_of
from kvscope.record.rows import AnswerRow, Json

PAIRED, UNPAIRED, NO_METHOD = "tango_paired", "newcombe_unpaired", "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityComparison:
    """A cell against the baseline's. ``difference`` has the 95 % interval by itself, ``together`` the wider one that
    holds for all ``num_comparisons``. ``losses``, ``gains``: items that were right (wrong) more often at the baseline;
    ``p_value``: McNemar's exact test of them, which knows nothing of documents; None where the items differ.
    ``num_unread``: items that were read at the baseline and not here. ``needed``: items for a five-point loss, from the
    differences seen; None where more items would not help, because the answers are not read."""

    task: str
    language: str
    level: Json
    baseline_level: Json
    method: str
    baseline: float | None
    changed: float | None
    difference: Estimate
    together: Estimate
    num_comparisons: int
    num_items: int
    num_documents: int
    losses: int | None
    gains: int | None
    p_value: float | None
    num_unread: int
    design_effect: float
    gate: Gate
    judged: Judged
    needed: ItemsNeeded | None


def compare(
    baseline: Sequence[AnswerRow],
    changed: Sequence[AnswerRow],
    *,
    levels: tuple[Json, Json],
    gate: Gate,
    num_comparisons: int = 1,
    changed_gate: Gate | None = None,
) -> QualityComparison:
    """Rows of one task in one language at two levels (``levels``: baseline, changed). ``gate``: the baseline's.
    ``changed_gate``: the other's, of which it only matters whether its prompts may have been cut."""
    gate = "maybe_cut" if changed_gate == "maybe_cut" else gate
    first = (*baseline, *changed)[0]
    cells = _Cells(task=first.task, language=first.language, levels=levels, gate=gate, num_comparisons=num_comparisons)
    before = [item for item in items_of(baseline) if not item.is_twin]
    after = [item for item in items_of(changed) if not item.is_twin]
    asked_here = {_same(row) for row in changed if not row.is_twin}
    if not before or any(item.same in asked_here for item in before):
        return _paired(cells, before, after, asked_here)
    return _unpaired(cells, before, after, len(asked_here - {item.same for item in after}))


def _same(row: AnswerRow) -> tuple[object, ...]:
    """As ``Item.same``, of a row whatever it was read as."""
    return (row.item, row.document, row.is_twin, row.expected)


def together_confidence(num_comparisons: int) -> float:
    """Confidence of the interval by which differences are called: as in ``effects``, for so many comparisons."""
    return 1 - FIXED.call / max(1, num_comparisons)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cells:
    """What both ways of comparing have in common."""

    task: str
    language: str
    levels: tuple[Json, Json]
    gate: Gate
    num_comparisons: int


def _paired(
    cells: _Cells, before: Sequence[Item], after: Sequence[Item], asked_here: set[tuple[object, ...]]
) -> QualityComparison:
    read_here = {item.same: item for item in after}
    pairs = [item for item in before if item.same in read_here]
    unread = sum(item.same in asked_here and item.same not in read_here for item in before)
    changes = [[read_here[item.same].right - item.right for item in here] for here in grouped(pairs).values()]
    counts = paired_counts(changes)
    difference = counts.difference()
    together = counts.difference(together_confidence(cells.num_comparisons))
    losses = sum(value < 0 for here in changes for value in here)
    gains = sum(value > 0 for here in changes for value in here)
    baseline = sum(item.right for item in pairs) / len(pairs) if pairs else None
    judged = judge(cells.gate, difference, together, unread_share=unread / len(before) if before else 0.0)
    return QualityComparison(
        task=cells.task,
        language=cells.language,
        level=cells.levels[1],
        baseline_level=cells.levels[0],
        method=PAIRED if pairs else NO_METHOD,
        baseline=baseline,
        changed=sum(read_here[item.same].right for item in pairs) / len(pairs) if pairs else None,
        difference=difference,
        together=together,
        num_comparisons=cells.num_comparisons,
        num_items=len(pairs),
        num_documents=counts.clustering.num_documents,
        losses=losses,
        gains=gains,
        p_value=mcnemar(losses, gains) if pairs else None,
        num_unread=unread,
        design_effect=counts.clustering.design_effect,
        gate=cells.gate,
        judged=judged,
        needed=None if baseline is None else _needed(judged, baseline, counts, cells.num_comparisons),
    )


def _is_helped(judged: Judged) -> bool:
    """Whether more items of the kind would tell."""
    return judged.reason not in ("unread", "maybe_cut")


def _needed(judged: Judged, share: float, counts: PairedCounts, num_comparisons: int) -> ItemsNeeded | None:
    if not _is_helped(judged):
        return None
    return items_needed(share, clustering=counts.clustering, seen=counts, num_comparisons=num_comparisons)


def _unpaired(cells: _Cells, before: Sequence[Item], after: Sequence[Item], num_unread: int) -> QualityComparison:
    old, new = by_document(before), by_document(after)
    found = share_clustering(old)
    difference = unpaired_difference(old, new)
    together = unpaired_difference(old, new, confidence=together_confidence(cells.num_comparisons))
    share = clustered_share(old).value
    # Of different items nothing of the baseline's answers helps: as many again are needed as for unrelated answers.
    needed = items_needed(share or 0.0, clustering=found, num_comparisons=cells.num_comparisons)
    num_asked = len(after) + num_unread
    judged = judge(cells.gate, difference, together, unread_share=num_unread / num_asked if num_asked else 0.0)
    return QualityComparison(
        task=cells.task,
        language=cells.language,
        level=cells.levels[1],
        baseline_level=cells.levels[0],
        method=UNPAIRED if after else NO_METHOD,
        baseline=share,
        changed=clustered_share(new).value,
        difference=difference,
        together=together,
        num_comparisons=cells.num_comparisons,
        num_items=min(len(before), len(after)),
        num_documents=min(len(old), len(new)),
        losses=None,
        gains=None,
        p_value=None,
        num_unread=num_unread,
        design_effect=max(found.design_effect, share_clustering(new).design_effect),
        gate=cells.gate,
        judged=judged,
        needed=needed if _is_helped(judged) else None,
    )
