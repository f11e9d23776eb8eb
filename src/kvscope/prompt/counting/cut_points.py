"""Where a text can be cut so that its parts, tokenized each alone, give the ids of the whole.

A *certain* cut is safe by the rules of the tokenizer (``cut_rules.py`` gives the reason of each). An uncertain one lies
inside of a stretch that the tokenizer merges as one piece, and is safe where ``is_stable`` says so. The reason: merging
takes the best pair of neighbours first, the leftmost of equal ones, and looks at nothing else. As long as no merge
crosses a point, the two sides merge as they do alone. Let s be an end of the left side that begins where one of its
final tokens begins, and p a beginning of the right side that ends where one of its tokens ends. Within s and within p,
the same pairs are merged in the same order in "s p" alone as in the whole; so the first merge across the point, if
there is one, is made in "s p" too. If "s p" alone becomes the tokens of s and those of p, there is none.

Nothing is cut for a tokenizer whose rules are not known here.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvscope.prompt.tokenizers.base import Tokenizer

_LOOK_BACK = 4096  # characters in which a certain cut is looked for first
_TRIED = 64  # characters on each side in which the tokens next to a cut are looked for


@dataclass(frozen=True, slots=True)
class Cut:
    """``position``: in the text that was asked about. ``dropped``: characters behind it that the right part is
    tokenized without, because the tokenizer puts them before a text itself."""

    position: int
    dropped: int = 0
    is_certain: bool = True


class Cuts(Protocol):
    """Where texts of one tokenizer can be cut."""

    def certain(self, text: str, low: int, high: int) -> Iterator[Cut]:
        """Certain cuts from ``low`` to ``high``, in order; the ends of ``text`` are none."""
        ...

    def inside(self, text: str, high: int) -> Iterator[Cut]:
        """Cuts up to ``high`` inside of one piece, the most promising first. ``text`` begins where one was cut before,
        or where the whole does."""
        ...

    def between(self, left: str, right: str) -> Cut | None:
        """The certain cut where ``left`` meets ``right``, its position counted in ``right``: above 0 where a token of
        ``left`` takes line breaks of ``right`` with it. None where there is none."""
        ...

    def one_piece(self, left: str, right: str) -> tuple[str, str]:
        """The end of ``left`` and the beginning of ``right`` that surely lie in one piece, around an uncertain cut."""
        ...


def last_cut(cuts: Cuts, text: str, high: int) -> Cut | None:
    """The last certain cut up to ``high``; where there is none, one inside of a piece."""
    for low in (max(1, high - _LOOK_BACK), 1):
        if found := deque(cuts.certain(text, low, high), maxlen=1):
            return found[0]
    return next(cuts.inside(text, high), None)


def is_stable(
    cuts: Cuts, tokenizer: Tokenizer, left: str, left_ids: Sequence[int], right: str, right_ids: Sequence[int]
) -> bool:
    """Whether an uncertain cut between ``left`` and ``right``, whose ids these are, is safe. See above."""
    end, beginning = cuts.one_piece(left[-_TRIED:], right[:_TRIED])
    # Ids stand for their own characters: an end whose ids are the last ones begins where a token does.
    ends = ((end[-length:], True) for length in range(1, len(end) + 1))
    beginnings = ((beginning[:length], False) for length in range(1, len(beginning) + 1))
    before, after = (_whole_tokens(tokenizer, parts, ids) for parts, ids in ((ends, left_ids), (beginnings, right_ids)))
    if before is None or after is None:
        return False
    return tokenizer.encode(before[0] + after[0]) == [*before[1], *after[1]]


def _whole_tokens(
    tokenizer: Tokenizer, parts: Iterator[tuple[str, bool]], ids: Sequence[int]
) -> tuple[str, list[int]] | None:
    """The first of ``parts`` that is whole tokens of ``ids``: the last ones, or the first ones."""
    for part, at_end in parts:
        found = tokenizer.encode(part)
        if found and found == list(ids[-len(found) :] if at_end else ids[: len(found)]):
            return part, found
    return None
