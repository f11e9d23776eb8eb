"""How many items a loss of a few points would need, so that it is found nine times out of ten."""

from dataclasses import dataclass
from math import ceil, sqrt

from kvscope.analysis.effects import FIXED
from kvscope.analysis.proportions import Clustering, PairedCounts, assumed_correlation, quantile
from kvscope.record.quality_metrics import wilson_limits

# What a panel asks for unless told otherwise: a loss of five points, found in nine of ten studies.
LOSS = 0.05
POWER = 0.90
# The seen share of items that are answered otherwise is taken at the upper end of an interval of this confidence: one
# time in ten the truth is above it.
DISCORDANCE_CONFIDENCE = 0.8
# What the estimate of the design effect costs: it scatters, and only its upward errors are kept.
EFFECT_SPARE = 0.05
# What Newcombe's interval of other items costs beside the formula's. Found by simulation (docs/accuracy.md).
OTHER_ITEMS_SPARE = 0.1
MOST_ITEMS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsNeeded:
    """``items`` in ``documents`` find a loss of ``loss`` with ``power``. ``discordance``: the share of items answered
    otherwise that was reckoned with; ``is_discordance_seen``: whether it comes from a comparison that was made, at the
    upper end of what that leaves open; otherwise it is the most that answers without any relation would give, and
    ``least_items`` are enough where the loss is all that changes."""

    items: int
    documents: int
    least_items: int
    loss: float
    power: float
    discordance: float
    is_discordance_seen: bool
    items_per_document: float
    correlation: float
    num_comparisons: int


def items_needed(
    share: float,
    *,
    clustering: Clustering,
    seen: PairedCounts | None = None,
    loss: float = LOSS,
    power: float = POWER,
    num_comparisons: int = 1,
) -> ItemsNeeded | None:
    """``share``: the baseline's, as seen: the truth may be one that needs more, and is taken to. ``clustering``: of its
    items, or of the differences seen. ``seen``: the differences of one comparison. None where the share is below
    ``loss``: so much cannot be lost."""
    if share < loss - 1e-12 or not clustering.num_items:
        return None
    most = max(loss, *(_unrelated(each, loss) for each in _share_between(share, clustering)))
    discordance = most if seen is None else max(loss, min(most, _seen_at_most(seen) + loss / 2))
    per_document = clustering.num_items / max(1, clustering.num_documents)
    cluster = _Cluster(size=clustering.size, per_document=per_document, correlation=clustering.correlation)
    items = _clustered(discordance, loss, power, num_comparisons, cluster)
    if seen is None:  # it may be asked of other items
        items = ceil(items * (1 + OTHER_ITEMS_SPARE))
    return ItemsNeeded(
        items=items,
        documents=ceil(items / per_document),
        least_items=_clustered(loss, loss, power, num_comparisons, cluster),
        loss=loss,
        power=power,
        discordance=discordance,
        is_discordance_seen=seen is not None,
        items_per_document=per_document,
        correlation=clustering.correlation,
        num_comparisons=num_comparisons,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cluster:
    size: float
    per_document: float
    correlation: float


def _unrelated(share: float, loss: float) -> float:
    """The share of items answered otherwise where a level that has lost so much answers without any relation."""
    return share * (1 - share + loss) + (1 - share) * (share - loss)


def _share_between(share: float, found: Clustering) -> tuple[float, float, float]:
    """The share, and what it may be by as many items as it was seen of, so that a high one by luck asks for no
    fewer."""
    width = quantile(DISCORDANCE_CONFIDENCE, found.width_degrees or None)
    low, high = wilson_limits(share * found.items, found.items, width)
    return low, share, min(high, max(share, 0.5))


def _seen_at_most(seen: PairedCounts) -> float:
    found = seen.clustering
    width = quantile(DISCORDANCE_CONFIDENCE, found.width_degrees or None)
    return wilson_limits(seen.discordance * found.items, found.items, width)[1]


def independent_items(
    discordance: float, loss: float, power: float, num_comparisons: int, degrees: int | None
) -> float:
    """So many independent items find a loss by the rule of calling differences (Connor 1987, with the rates of
    ``effects``): (a √ψ + b √(ψ − Δ²))² ÷ Δ² for discordance ψ and loss Δ, a and b the normal quantiles of error and
    power (a: Student's t where documents have several items)."""
    called = quantile(1 - FIXED.call / num_comparisons, degrees)
    found = quantile(2 * power - 1)
    return ((called * sqrt(discordance) + found * sqrt(max(0.0, discordance - loss * loss))) / loss) ** 2


def _clustered(discordance: float, loss: float, power: float, num_comparisons: int, cluster: _Cluster) -> int:
    """The smallest number of items that is enough with the design effect and the quantile that it itself leads to."""
    if cluster.size <= 1:
        return ceil(independent_items(discordance, loss, power, num_comparisons, None))
    low, high = 2 * cluster.per_document, float(MOST_ITEMS)
    while high - low > 1:
        items = (low + high) / 2
        documents = items / cluster.per_document
        rare = documents * (1 - (1 - discordance) ** cluster.per_document)
        effect = 1 + (cluster.size - 1) * max(cluster.correlation, assumed_correlation(rare))
        spare = 1 + EFFECT_SPARE
        degrees = max(1, int(documents) - 1)
        if items < independent_items(discordance, loss, power, num_comparisons, degrees) * effect * spare:
            low = items
        else:
            high = items
    return ceil(high)
