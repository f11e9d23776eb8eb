"""Shares of right answers, and differences between them, with intervals that mind which items are of one document.

Items of one document are not independent: a document that is hard is hard for all its questions. So an interval is made
in two steps (Rao and Scott 1992): the *design effect* says how many times as wide the documents' own scatter makes the
variance, and the interval is that of so many times fewer items. The interval itself is a score interval (Wilson 1927
for a share, Tango 1998 for a difference on the same items, Newcombe 1998 for one on other items), which stays honest
near 0 and 1 where a mean ± t errors does not. With several items per document the quantile is Student's t with
documents − 1 degrees of freedom.

The scatter between documents cannot be seen while hardly any item differs from the rest; until then items of one
document are taken to hang together by ``ASSUMED_CORRELATION``.

Values are 0 (wrong) to 1 (right) for each item; an item that was put several times has the mean of its answers, and is
one item.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import NormalDist

from kvscope.analysis.fit import CONFIDENCE, Estimate, t_quantile
from kvscope.analysis.notes import note
from kvscope.record.quality_metrics import wilson_limits

# How far answers on one document are taken to hang together (0 not at all, 1 entirely) until it can be seen, and how
# many documents with a rare answer weigh as much as this assumption. Found by simulation (docs/accuracy.md).
ASSUMED_CORRELATION = 0.3
ASSUMED_WEIGHT = 5.0

Documents = Sequence[Sequence[float]]


def quantile(confidence: float, degrees: float | None = None) -> float:
    """Two-sided quantile: of the normal distribution, or of Student's t with so many degrees of freedom."""
    return NormalDist().inv_cdf(0.5 + confidence / 2) if degrees is None else t_quantile(degrees, confidence)


def wilson(right: float, num: float, *, confidence: float = CONFIDENCE) -> Estimate:
    """The share right ÷ num with Wilson's interval, of independent items."""
    if num <= 0:
        return Estimate(value=None, reason=note("nothing_measured"))
    low, high = wilson_limits(right, num, quantile(confidence))
    return Estimate(value=right / num, low=low, high=high, num=round(num))


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustering:
    """How items hang together by document. ``num_items``, ``num_documents``. ``size``: Σ m² ÷ Σ m of the numbers m of
    items per document, their number where all are equal. ``design_effect``: how many times as large the variance is
    as that of independent items, never below 1 nor above ``size``. ``width_degrees``: degrees of freedom of the
    quantile; None where each document has one item, so that items are independent."""

    num_items: int
    num_documents: int
    size: float
    design_effect: float
    width_degrees: int | None

    @property
    def items(self) -> float:
        """So many independent items tell as much."""
        return self.num_items / self.design_effect

    @property
    def correlation(self) -> float:
        """How far two items of one document hang together: (design effect − 1) ÷ (size − 1)."""
        return (self.design_effect - 1) / (self.size - 1) if self.size > 1 else 0.0

    @property
    def has_interval(self) -> bool:
        """Several items of a single document say nothing of other documents."""
        return self.num_items > 0 and self.width_degrees != 0

    def width(self, confidence: float) -> float:
        """The quantile at that confidence."""
        return quantile(confidence, self.width_degrees)


def clustering(documents: Documents, *, variance: float, center: float, num_rare: int) -> Clustering:
    """``variance``: of one value if items were independent; ``center``: the mean of all values; ``num_rare``: of how
    many documents any value differs from the common one."""
    sizes = [len(values) for values in documents if values]
    count, num = sum(sizes), len(sizes)
    size = sum(m * m for m in sizes) / count if count else 1.0
    effect = 1 + (size - 1) * assumed_correlation(num_rare)
    if num > 1 and variance > 0:
        scatter = sum((sum(values) - center * len(values)) ** 2 for values in documents if values)
        effect = max(effect, num / (num - 1) * scatter / (count * variance))
    return Clustering(
        num_items=count,
        num_documents=num,
        size=size,
        design_effect=min(effect, size) if size > 1 else 1.0,
        width_degrees=num - 1 if size > 1 else None,
    )


def assumed_correlation(num_rare: float) -> float:
    """The least correlation that is reckoned with where so many documents differ."""
    return ASSUMED_CORRELATION * ASSUMED_WEIGHT / (ASSUMED_WEIGHT + num_rare)


def share_clustering(documents: Documents) -> Clustering:
    """Of shares: how the answers hang together by document."""
    values = [value for each in documents for value in each]
    center = sum(values) / len(values) if values else 0.0
    common = 1.0 if center >= 0.5 else 0.0
    rare = sum(any(abs(value - common) > 0.5 for value in each) for each in documents)
    return clustering(documents, variance=center * (1 - center), center=center, num_rare=rare)


def clustered_share(documents: Documents, *, confidence: float = CONFIDENCE) -> Estimate:
    """The share right of all items, with Wilson's interval of as many independent items as tell the same. ``num`` is
    the number of items. One document with several items has no interval."""
    found = share_clustering(documents)
    if not found.num_items:
        return Estimate(value=None, reason=note("nothing_measured"))
    share = sum(map(sum, documents)) / found.num_items
    if not found.has_interval:
        return Estimate(value=share, num=found.num_items, reason=note("one_document"))
    low, high = wilson_limits(share * found.items, found.items, found.width(confidence))
    return Estimate(value=share, low=low, high=high, num=found.num_items)


def mcnemar(losses: int, gains: int) -> float:
    """McNemar's exact test, two-sided: how likely so uneven a split of the items that differ is, if each were as likely
    a loss as a gain. It knows nothing of documents."""
    total, rarer = losses + gains, min(losses, gains)
    if losses == gains:
        return 1.0
    return min(1.0, float(2 * sum(comb(total, each) for each in range(rarer + 1)) / 2**total))


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedCounts:
    """Differences changed − baseline of the same items, by document: ``losses`` is the sum of those below zero (as a
    number above it), ``gains`` of those above."""

    losses: float
    gains: float
    clustering: Clustering

    @property
    def discordance(self) -> float:
        """The share of items that are answered otherwise."""
        return (self.losses + self.gains) / self.clustering.num_items

    def difference(self, confidence: float = CONFIDENCE) -> Estimate:
        """Share changed − share baseline, with Tango's interval."""
        found = self.clustering
        if not found.num_items:
            return Estimate(value=None, reason=note("nothing_measured"))
        value = (self.gains - self.losses) / found.num_items
        if not found.has_interval:
            return Estimate(value=value, num=found.num_items, reason=note("one_document"))
        effect = found.design_effect
        low, high = tango_limits(self.gains / effect, self.losses / effect, found.items, found.width(confidence))
        return Estimate(value=value, low=low, high=high, num=found.num_items)


def paired_counts(differences: Documents) -> PairedCounts:
    """From each document's differences changed − baseline, one for each item, between −1 and 1."""
    values = [value for each in differences for value in each]
    center = sum(values) / len(values) if values else 0.0
    variance = sum(value * value for value in values) / len(values) - center * center if values else 0.0
    rare = sum(any(value != 0 for value in each) for each in differences)
    return PairedCounts(
        losses=-sum(value for value in values if value < 0),
        gains=sum(value for value in values if value > 0),
        clustering=clustering(differences, variance=variance, center=center, num_rare=rare),
    )


def tango_limits(gains: float, losses: float, num: float, width: float) -> tuple[float, float]:
    """Tango's limits of (gains − losses) ÷ num: those differences d at which the score statistic of d is ± ``width``.
    Counts need not be whole. Exactly zero differing items give ± width² ÷ (num + width²)."""

    def score(difference: float) -> float:
        """Above zero where more was gained than ``difference`` says, in standard errors under that difference."""
        above = gains - losses - num * difference
        half_b = -gains - losses + (2 * num - gains + losses) * difference
        rest = -losses * difference * (1 - difference)
        losing = (sqrt(max(0.0, half_b * half_b - 8 * num * rest)) - half_b) / (4 * num)
        squared = num * (2 * losing + difference * (1 - difference))
        if squared <= 0:
            return 0.0 if above == 0 else float("inf") if above > 0 else float("-inf")
        return above / sqrt(squared)

    value = (gains - losses) / num
    low = _crossing(lambda d: score(d) >= width, -1.0, value)
    high = _crossing(lambda d: score(d) > -width, value, 1.0)
    return low, high


def _crossing(is_before: Callable[[float], bool], low: float, high: float) -> float:
    """Where ``is_before`` ends to hold between two places, to the last bit but a few."""
    for _ in range(60):
        middle = (low + high) / 2
        if is_before(middle):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def unpaired_difference(baseline: Documents, changed: Documents, *, confidence: float = CONFIDENCE) -> Estimate:
    """Share changed − share baseline of different items: Newcombe's interval from the two shares' own, each with its
    documents' scatter."""
    before = clustered_share(baseline, confidence=confidence)
    after = clustered_share(changed, confidence=confidence)
    count = before.num + after.num
    if before.value is None or after.value is None:
        return Estimate(value=None, num=count, reason=note("nothing_measured"))
    value = after.value - before.value
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return Estimate(value=value, num=count, reason=note("one_document"))
    below = sqrt((after.value - after.low) ** 2 + (before.high - before.value) ** 2)
    above = sqrt((after.high - after.value) ** 2 + (before.value - before.low) ** 2)
    return Estimate(value=value, low=value - below, high=value + above, num=count)
