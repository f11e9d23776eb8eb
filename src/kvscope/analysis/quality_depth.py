"""Whether it matters where a fact stands: prompts cut in silence, and a middle that is passed over.

A server may cut a prompt and say nothing, or state the count of what it was sent. Then the facts near one end are never
found while others are. Said only by evidence: the split of the items by their place that tells right from wrong best
must be one that chance alone gives in less than ``FALSE_ALARMS`` of studies, over all splits, both ends and all cells
(Fisher's exact test, times the number of splits), and the facts on the far side must be found no oftener than guessing
would, by their interval.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import comb, log
from typing import Literal

from kvscope.analysis.fit import Estimate
from kvscope.analysis.proportions import clustered_share, wilson_limits
from kvscope.analysis.quality_items import Item, by_document

Third = Literal["head", "middle", "tail"]
THIRDS: tuple[Third, ...] = ("head", "middle", "tail")
FALSE_ALARMS = 0.01
# Fewer items in the part that is never found say nothing.
LEAST_LOST = 4
# Where a cut is: splits that are at most e^3 (20) times less likely than the best one.
LIKELY = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthSign:
    """What the places of found facts say. ``slug``: *head_never_arrives* (only the prompt's end seems to reach the
    model), *tail_never_arrives* (only its beginning), *middle_ignored*, or *middle_weaker* (found less often there, but
    oftener than by guessing). ``lost``, ``found``: shares right on either side. ``tokens_low``, ``tokens_high``: how
    many tokens seem to arrive, of ``of_tokens``; None of a middle. ``error``: how likely chance alone gives so much."""

    slug: str
    lost: Estimate
    found: Estimate
    error: float
    tokens_low: float | None = None
    tokens_high: float | None = None
    of_tokens: int | None = None


def third_of(item: Item) -> Third | None:
    """Which third of its document the fact stands in."""
    depth = item.depth_percent
    return None if depth is None else THIRDS[min(2, int(depth * 3 / 100))]


def thirds(items: Sequence[Item]) -> dict[Third, Estimate]:
    """The share right by third of the document, where facts stand in it."""
    found: dict[Third, Estimate] = {}
    for name in THIRDS:
        here = [item for item in items if third_of(item) == name]
        if here:
            found[name] = clustered_share(by_document(here))
    return found


def depth_sign(items: Sequence[Item], *, guess: float, num_cells: int = 1) -> DepthSign | None:
    """What is to be said of the places, or None. ``items``: of one cell, twins left out. ``guess``: the share right for
    who guesses. ``num_cells``: how many cells of the study are looked at, which share the false alarms."""
    allowed = FALSE_ALARMS / max(1, num_cells)
    cuts = [
        _cut(items, "head_never_arrives", lambda item: item.from_end, guess),
        _cut(items, "tail_never_arrives", lambda item: item.from_begin, guess),
    ]
    seen = [cut for cut in cuts if cut is not None and cut.error <= allowed]
    if seen:
        return min(seen, key=lambda cut: cut.error)
    middle = _middle(items, guess)
    return middle if middle is not None and middle.error <= allowed else None


def _cut(items: Sequence[Item], slug: str, distance: Callable[[Item], float | None], guess: float) -> DepthSign | None:
    """The best split by distance from the end that arrives; the far side is what does not."""
    placed = sorted(((place, item) for item in items if (place := distance(item)) is not None), key=lambda p: -p[0])
    right = [item.right >= 0.5 for _, item in placed]
    split = _best_split(right)
    if split is None:
        return None
    num, lost = len(right), sum(right[:split])
    far, near = [item for _, item in placed[:split]], [item for _, item in placed[split:]]
    lost_share, found_share = clustered_share(by_document(far)), clustered_share(by_document(near))
    if not _is_none_against_some(lost, split, sum(right) - lost, num - split, guess):
        return None
    low, high = _arriving([place for place, _ in placed], right, split, guess)
    return DepthSign(
        slug=slug,
        lost=lost_share,
        found=found_share,
        error=min(1.0, 2 * num * fewer_by_chance(lost, split, sum(right), num)),
        tokens_low=low,
        tokens_high=high,
        of_tokens=max((item.document_tokens or 0 for item in items), default=None),
    )


def _best_split(right: Sequence[bool]) -> int | None:
    """Where two shares, one before and one behind, make these answers likeliest; None where there are too few, or
    nothing is found less often before."""
    total, num, before = sum(right), len(right), 0
    best: tuple[float, int] | None = None
    for split in range(1, num - LEAST_LOST + 1):
        before += right[split - 1]
        if split < LEAST_LOST or before * (num - split) >= (total - before) * split:
            continue
        likely = _log_likelihood(before, split) + _log_likelihood(total - before, num - split)
        if best is None or likely > best[0]:
            best = (likely, split)
    return None if best is None else best[1]


def _log_likelihood(right: int, num: int) -> float:
    wrong = num - right
    return (right * log(right / num) if right else 0.0) + (wrong * log(wrong / num) if wrong else 0.0)


def _arriving(places: Sequence[float], right: Sequence[bool], best: int, guess: float) -> tuple[float, float]:
    """Between which distances what arrives ends: all splits whose likelihood is within ``LIKELY`` of the best one's,
    if facts beyond are guessed and facts within found as often as they are. Places fall: the first is the farthest."""
    near = right[best:]
    found = min(0.98, max(sum(near) / len(near), guess + 0.02))
    beyond = min(0.9, max(guess, 0.02))
    gain = [log((found if is_right else 1 - found) / (beyond if is_right else 1 - beyond)) for is_right in right]
    # Of each split, what the items within add: from all arriving (split 0) to none.
    sums = list(accumulate(reversed(gain), initial=0.0))[::-1]
    likely = [split for split, value in enumerate(sums) if value >= max(sums) - LIKELY]
    first, last = likely[0], likely[-1]
    return places[min(last, len(places) - 1)], places[max(0, first - 1)]


def _middle(items: Sequence[Item], guess: float) -> DepthSign | None:
    parts = {name: [item for item in items if third_of(item) == name] for name in THIRDS}
    others = [*parts["head"], *parts["tail"]]
    if min(map(len, parts.values())) < LEAST_LOST:
        return None
    right = {name: sum(item.right >= 0.5 for item in here) for name, here in parts.items()}
    total, num = sum(right.values()), sum(map(len, parts.values()))
    sides = right["head"] + right["tail"]
    # One error for the middle against each end: weaker than one end alone is a slope, not a middle.
    error = max(
        fewer_by_chance(
            right["middle"], len(parts["middle"]), right["middle"] + right[end], len(parts["middle"]) + len(parts[end])
        )
        for end in ("head", "tail")
    )
    error = max(error, fewer_by_chance(right["middle"], len(parts["middle"]), total, num))
    none = _is_none_against_some(right["middle"], len(parts["middle"]), sides, len(others), guess)
    return DepthSign(
        slug="middle_ignored" if none else "middle_weaker",
        lost=clustered_share(by_document(parts["middle"])),
        found=clustered_share(by_document(others)),
        error=error,
    )


def fewer_by_chance(right: int, num: int, all_right: int, all_num: int) -> float:
    """How likely at most ``right`` of ``num`` items are right if ``all_right`` of ``all_num`` fall anywhere alike
    (Fisher's exact test, one-sided)."""
    ways = sum(
        comb(num, each) * comb(all_num - num, all_right - each)
        for each in range(max(0, all_right - (all_num - num)), right + 1)
    )
    return ways / comb(all_num, all_right)


def _is_none_against_some(lost_right: int, lost: int, found_right: int, found: int, guess: float) -> bool:
    """Whether the lost side is found at most half as often as the other, guesses taken off, by both intervals; and
    itself no oftener than guesses would be."""
    lost_low, lost_high = wilson_limits(lost_right, lost, 1.96)
    found_low, _ = wilson_limits(found_right, found, 1.96)
    return lost_low <= guess + 0.02 and lost_high - guess < (found_low - guess) / 2
