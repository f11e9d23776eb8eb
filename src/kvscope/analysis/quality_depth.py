"""Whether it matters where a fact stands: prompts cut in silence, and a middle that is passed over.

A server may cut a prompt and say nothing, or state the count of what it was sent. Then the facts near one end, or of a
part between the ends, are never found while others are. Said only by evidence: the split of the items by their place
that tells right from wrong best must be one that chance alone gives in less than ``FALSE_ALARMS`` of studies, over all
splits, both ends and all cells (Fisher's exact test, times the number of splits), and the facts on the far side must be
found no oftener than guessing would, by their interval. Whether such a part was cut off, or the model does not use it,
answers alone do not tell.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import comb, log
from typing import Literal

from kvscope.analysis.fit import Estimate
from kvscope.analysis.proportions import clustered_share
from kvscope.analysis.quality_items import Item, by_document
from kvscope.record.quality_metrics import wilson_limits

Third = Literal["head", "middle", "tail"]
THIRDS: tuple[Third, ...] = ("head", "middle", "tail")
FALSE_ALARMS = 0.01
# Fewer items in the part that is never found say nothing.
LEAST_LOST = 4
# Where a cut is: splits that are at most e^3 (20) times less likely than the best one.
LIKELY = 3.0
# How often facts are found outside of a part is reckoned anew with the part found; it settles at once.
ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthSign:
    """What the places of found facts say. ``slug``: *head_never_arrives* (only the prompt's end seems to reach the
    model), *tail_never_arrives* (only its beginning), *middle_ignored* (a part between them does not), or
    *middle_weaker* (found less often in the middle third, but oftener than by guessing). ``lost``, ``found``: shares
    right on either side, ``lost_wrong`` items wrong on the lost one. ``tokens_low``, ``tokens_high``: how many tokens
    seem to arrive, of ``of_tokens``: of 100 (percent) where documents' tokens are not known; None of a middle, which
    lies between ``from_percent`` and ``to_percent`` of the document. ``error``: how likely chance alone gives so
    much."""

    slug: str
    lost: Estimate
    found: Estimate
    error: float
    lost_wrong: int = 0
    tokens_low: float | None = None
    tokens_high: float | None = None
    of_tokens: int | None = None
    from_percent: float | None = None
    to_percent: float | None = None

    @property
    def is_maybe_cut(self) -> bool:
        """Whether what is wrong there may be of prompts that did not reach the model whole."""
        return self.slug != "middle_weaker"


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
    # Documents of one length: a share of them stands for the tokens that are not known.
    has_tokens = all(item.document_tokens is not None for item in items)
    cuts = [
        _cut(items, "head_never_arrives", lambda item: item.from_end if has_tokens else _share_behind(item), guess),
        _cut(items, "tail_never_arrives", lambda item: item.from_begin if has_tokens else item.depth_percent, guess),
        _gap(items, guess),
    ]
    seen = [cut for cut in cuts if cut is not None and cut.error <= allowed]
    if seen:
        return min(seen, key=lambda cut: cut.error)
    middle = _middle(items, guess)
    return middle if middle is not None and middle.error <= allowed else None


def _share_behind(item: Item) -> float | None:
    return None if item.depth_percent is None else 100 - item.depth_percent


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
        lost_wrong=split - lost,
        tokens_low=low,
        tokens_high=high,
        of_tokens=_whole(items),
    )


def _whole(items: Sequence[Item]) -> int:
    """Tokens of the longest document, or 100 (percent) where those of one are not known."""
    tokens = [item.document_tokens for item in items]
    known = [each for each in tokens if each is not None]
    return max(known) if known and len(known) == len(tokens) else 100


def _gap(items: Sequence[Item], guess: float) -> DepthSign | None:
    """The part between the ends that parts right from wrong best: of a prompt of which head and tail were kept."""
    placed = sorted(((item.depth_percent, item) for item in items if item.depth_percent is not None), key=_place)
    right = [item.right >= 0.5 for _, item in placed]
    span = _best_gap(right, guess)
    if span is None:
        return None
    first, last = span
    num, lost, found = len(right), sum(right[first:last]), sum(right) - sum(right[first:last])
    if not _is_none_against_some(lost, last - first, found, num - (last - first), guess):
        return None
    inside = [item for _, item in placed[first:last]]
    outside = [item for _, item in (*placed[:first], *placed[last:])]
    return DepthSign(
        slug="middle_ignored",
        lost=clustered_share(by_document(inside)),
        found=clustered_share(by_document(outside)),
        error=min(1.0, num * num * fewer_by_chance(lost, last - first, sum(right), num)),
        lost_wrong=last - first - lost,
        from_percent=placed[first][0],
        to_percent=placed[last - 1][0],
    )


def _place(placed: tuple[float, Item]) -> float:
    return placed[0]


def _best_gap(right: Sequence[bool], guess: float) -> tuple[int, int] | None:
    """From which item to before which the answers are likeliest those of who guesses, with facts found elsewhere as
    often as they are outside of it; None where no such part has a fact found on both sides of it."""
    if sum(right) < 2:
        return None
    begin, end = right.index(True) + 1, len(right) - 1 - list(reversed(right)).index(True)
    found, span = sum(right) / len(right), None
    for _ in range(ROUNDS):
        span = _likeliest_span(_gains(right, found, guess), begin, end)
        if span is None or span[1] - span[0] < LEAST_LOST:
            return None
        outside = (*right[: span[0]], *right[span[1] :])
        found = sum(outside) / len(outside)
    return span


def _gains(right: Sequence[bool], found: float, guess: float) -> list[float]:
    """Of each item, how much likelier its answer is where it is guessed than where facts are found."""
    beyond = min(0.9, max(guess, 0.02))
    found = min(0.98, max(found, beyond + 0.02))
    return [log((beyond if is_right else 1 - beyond) / (found if is_right else 1 - found)) for is_right in right]


def _likeliest_span(gains: Sequence[float], begin: int, end: int) -> tuple[int, int] | None:
    """The part of [begin, end) with the largest sum, above zero (Kadane)."""
    best: tuple[float, tuple[int, int]] | None = None
    total, first = 0.0, begin
    for place in range(begin, end):
        if total <= 0:
            total, first = 0.0, place
        total += gains[place]
        if total > 0 and (best is None or total > best[0]):
            best = (total, (first, place + 1))
    return None if best is None else best[1]


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
    gain = [-each for each in _gains(right, sum(near) / len(near), guess)]
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
        lost_wrong=len(parts["middle"]) - right["middle"],
        from_percent=100 / 3,
        to_percent=200 / 3,
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
