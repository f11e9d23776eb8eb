"""Where a task may be judged at all, and what is said of a level against the baseline: from intervals only."""

from dataclasses import dataclass
from typing import Literal

from kvscope.analysis.fit import Estimate
from kvscope.analysis.items_needed import LOSS

Gate = Literal["measured", "floor", "ceiling", "guessing", "too_few", "unread", "maybe_cut"]
Verdict = Literal["loss", "gain", "no_loss_beyond", "cannot_tell"]
# Fewer documents say nothing of other documents.
LEAST_DOCUMENTS = 2
# Where so many more items than are guessed may be right, by the interval, it is not known that they are guessed.
MOST_ABOVE_GUESSES = 0.5


def gate_of(
    share: Estimate,
    *,
    chance: float,
    above_twin: Estimate | None,
    num_documents: int,
    num_unread: int = 0,
    is_maybe_cut: bool = False,
) -> Gate:
    """Whether the baseline can do a task so that losing it would show.

    ``share``: its share right. ``above_twin``: that less the share on documents without the facts. ``num_unread``:
    answers that were asked for and not read. ``is_maybe_cut``: facts in one part of the documents are never found.

    *measured*: the interval lies above chance and above the twin's share, and below 100 %. *floor*: not above chance.
    *guessing*: right at times, and no oftener than who guesses: as often as by chance, or as on documents without the
    fact. *ceiling*: no wrong answer was seen. *too_few*: no interval, or one that holds both guessing and much more.
    *unread*: nothing could be read. *maybe_cut*: what is wrong may be of prompts that were cut."""
    low, high = share.low, share.high
    if is_maybe_cut:
        return "maybe_cut"
    if share.value is None and num_unread:
        return "unread"
    if low is None or high is None or num_documents < LEAST_DOCUMENTS:
        return "too_few"
    if low <= chance:
        if high >= 1:
            return "too_few"
        return _guessing(share, chance) if low > 0 and chance <= high else "floor"
    if above_twin is not None and not (above_twin.low is not None and above_twin.low > 0):
        return _guessing(above_twin, 0.0)
    return "ceiling" if high >= 1 else "measured"


def _guessing(found: Estimate, guess: float) -> Gate:
    """Of what is not surely above ``guess``: guessing where few items more can be right, and too few where many can."""
    is_told = found.high is not None and found.high - guess < MOST_ABOVE_GUESSES
    return "guessing" if is_told else "too_few"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """``verdict``: *loss* or *gain* where the interval that holds for all comparisons of the study leaves out zero;
    *no_loss_beyond* where the 95 % interval reaches no further than ``LOSS`` below zero: no loss larger than ``bound``;
    else *cannot_tell* with its ``reason``: the gate, or too_few, or unread (answers that could not be read may hide a
    loss, however many items there are), or no_baseline. ``bound``: the largest loss that the interval leaves open,
    counting items that only this level left unread as lost; None where there is no interval."""

    verdict: Verdict
    reason: str | None
    bound: float | None


def judge(gate: Gate, difference: Estimate, together: Estimate, *, unread_share: float = 0.0) -> Judged:
    """``difference``: level − baseline at 95 % by itself; ``together``: the wider interval of all comparisons.
    ``unread_share``: the share of the items that was read at the baseline and not here.

    From a ceiling only a loss is told: that it fell is seen without room above it, but "no loss" would say little of a
    task that is too easy."""
    low = difference.low
    bound = None if low is None else max(0.0, -low) + unread_share
    falls = together.high is not None and together.high < 0
    if gate == "ceiling" and falls:
        return Judged(verdict="loss", reason=None, bound=bound)
    if gate != "measured":
        return Judged(verdict="cannot_tell", reason=gate, bound=bound)
    if low is None or bound is None:
        return Judged(verdict="cannot_tell", reason="unread" if unread_share > LOSS else "too_few", bound=None)
    if falls:
        return Judged(verdict="loss", reason=None, bound=bound)
    if together.low is not None and together.low > 0:
        return Judged(verdict="gain", reason=None, bound=bound)
    if bound <= LOSS:
        return Judged(verdict="no_loss_beyond", reason=None, bound=bound)
    is_hidden = unread_share > LOSS or bound - unread_share <= LOSS
    return Judged(verdict="cannot_tell", reason="unread" if is_hidden else "too_few", bound=bound)
