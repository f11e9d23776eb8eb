"""Comparisons whose truth is known: answers of a baseline and of a changed level on the same items, documents that hang
together by a known correlation, a known loss, a known share of items that are answered otherwise.

Each document has its own chance of being right, of losing what was right and of gaining what was wrong (beta
distributions with the wanted means, and the correlation between two items of one document). Used by the tests, on few,
and by ``benchmarks/quality_statistics.py``, on a thousand each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvscope.analysis.items_needed import ItemsNeeded, items_needed
from kvscope.analysis.proportions import clustered_share, paired_counts, share_clustering, unpaired_difference
from kvscope.analysis.quality_comparison import together_confidence

Chance = np.random.Generator
Answers = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """``share``: of the baseline; ``loss``: how much less the level has; ``discordance``: the share of items that are
    answered otherwise, at least ``loss``; ``per_document`` items on each document."""

    share: float
    loss: float = 0.0
    discordance: float = 0.1
    per_document: int = 1
    correlation: float = 0.0

    @property
    def is_possible(self) -> bool:
        """Whether no more is lost than was right, and no more gained than was wrong."""
        lost, gained = (self.discordance + self.loss) / 2, (self.discordance - self.loss) / 2
        return -1e-12 <= gained <= 1 - self.share + 1e-12 and lost <= self.share + 1e-12


def study(chance: Chance, truth: Truth, documents: int) -> tuple[Answers, Answers]:
    """(baseline, changed): for each document its items, 1.0 right or 0.0 wrong."""
    shape = (documents, truth.per_document)
    lost, gained = (truth.discordance + truth.loss) / 2, (truth.discordance - truth.loss) / 2
    right = chance.random(shape) < _chances(chance, truth.share, truth.correlation, documents)
    loses = chance.random(shape) < _chances(chance, lost / truth.share, truth.correlation, documents)
    gains = chance.random(shape) < _chances(chance, gained / (1 - truth.share), truth.correlation, documents)
    changed = np.where(right, ~loses, gains)
    return right.astype(float).tolist(), changed.astype(float).tolist()


def answers_of(chance: Chance, truth: Truth, documents: int, *, lost: float = 0.0) -> Answers:
    """One level's items alone, of documents of its own."""
    shape = (documents, truth.per_document)
    right = chance.random(shape) < _chances(chance, truth.share - lost, truth.correlation, documents)
    return right.astype(float).tolist()


def _chances(chance: Chance, mean: float, correlation: float, documents: int) -> Any:
    mean = min(max(mean, 0.0), 1.0)
    if correlation <= 0 or mean in (0.0, 1.0):
        return np.full((documents, 1), mean)
    scale = (1 - correlation) / correlation
    return chance.beta(mean * scale, (1 - mean) * scale, (documents, 1))


def differences(baseline: Answers, changed: Answers) -> Answers:
    """changed − baseline, item by item."""
    return [
        [after - before for before, after in zip(old, new, strict=True)]
        for old, new in zip(baseline, changed, strict=True)
    ]


def is_loss_called(baseline: Answers, changed: Answers, num_comparisons: int = 1) -> bool:
    """By the rule of the panel: the interval that holds for all comparisons together lies below zero."""
    together = paired_counts(differences(baseline, changed)).difference(together_confidence(num_comparisons))
    return together.high is not None and together.high < 0


def asked_for(chance: Chance, truth: Truth, documents: int, num_comparisons: int = 1) -> ItemsNeeded | None:
    """How many items the panel asks for after a first study of so many documents."""
    baseline, changed = study(chance, truth, documents)
    share = clustered_share(baseline).value
    counts = paired_counts(differences(baseline, changed))
    assert share is not None
    return items_needed(share, clustering=counts.clustering, seen=counts, num_comparisons=num_comparisons)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Of ``num`` studies: how many called a loss where there is none, how many found one of five points with as many
    items as had been asked for; ``items``: the median of those."""

    num: int
    false_calls: int
    found: int
    items: int


def rates(chance: Chance, truth: Truth, num: int, *, first_documents: int, num_levels: int = 1) -> Rates:
    """``truth``: with its loss. The panel asks after a first study, which in one half of the cases had the loss in it
    and in the other only what differs beside it. A null study counts as a false call if any of its ``num_levels``
    levels is called."""
    null = replace(truth, loss=0.0)
    before = replace(truth, loss=0.0, discordance=max(0.0, truth.discordance - truth.loss))
    asked, false_calls, found = [], 0, 0
    for number in range(num):
        needed = asked_for(chance, before if number % 2 else truth, first_documents, num_levels)
        if needed is None:
            continue
        asked.append(needed.documents * truth.per_document)
        found += is_loss_called(*study(chance, truth, needed.documents), num_levels)
        false_calls += any(
            is_loss_called(*study(chance, null, needed.documents), num_levels) for _ in range(num_levels)
        )
    return Rates(num=len(asked), false_calls=false_calls, found=found, items=int(np.median(asked)))


def unpaired_rates(chance: Chance, truth: Truth, num: int, *, first_documents: int) -> Rates:
    """The same of levels with other items: the panel asks by the share of a first study alone."""
    asked, false_calls, found = [], 0, 0
    for _ in range(num):
        first = answers_of(chance, truth, first_documents)
        needed = items_needed(clustered_share(first).value or 0.0, clustering=share_clustering(first))
        if needed is None:
            continue
        asked.append(needed.documents * truth.per_document)
        before, same, less = (answers_of(chance, truth, needed.documents, lost=lost) for lost in (0.0, 0.0, truth.loss))
        false_calls += _is_fall(before, same)
        found += _is_fall(before, less)
    return Rates(num=len(asked), false_calls=false_calls, found=found, items=int(np.median(asked)))


def _is_fall(before: Answers, after: Answers) -> bool:
    together = unpaired_difference(before, after, confidence=together_confidence(1))
    return together.high is not None and together.high < 0
