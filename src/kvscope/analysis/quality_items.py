"""The items of a quality task at one level, from the rows of all its repeats.

Repeats ask the same items again, and greedy answers repeat: they make no new items. Of one item's answers the mean is
taken; where they disagree the item is *unsteady*, and counted as such. What was not read as an answer (a cut prompt, an
answer that ran into its limit) is in no share, and counted too.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvscope.record.rows import AnswerRow

RIGHT, WRONG = "right", "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One question on one document at one level. ``right``: the share of its answers that were right, over ``num_read``
    that could be read. ``evidence_in_prompt``: whether the text that holds the answer was in what was sent; None: not
    known. ``document_tokens``: of its whole prompt."""

    task: str
    language: str
    item: str
    document: str
    is_twin: bool
    right: float
    num_read: int
    chance: float
    depth_percent: float | None
    document_tokens: int | None
    expected: str | None
    evidence_in_prompt: bool | None

    @property
    def is_steady(self) -> bool:
        """Whether its answers were all right or all wrong."""
        return self.right in (0.0, 1.0)

    @property
    def same(self) -> tuple[object, ...]:
        """Equal at two levels only if the same was asked of the same document (whose name tells its length)."""
        return (self.item, self.document, self.is_twin, self.expected)

    @property
    def from_end(self) -> float | None:
        """About how many tokens stand between the fact and the end of the prompt."""
        if self.depth_percent is None or self.document_tokens is None:
            return None
        return (1 - self.depth_percent / 100) * self.document_tokens

    @property
    def from_begin(self) -> float | None:
        """About how many tokens stand before the fact."""
        if self.depth_percent is None or self.document_tokens is None:
            return None
        return self.depth_percent / 100 * self.document_tokens


def items_of(rows: Iterable[AnswerRow]) -> tuple[Item, ...]:
    """One for each item that was read at least once, in the order of the rows."""
    found: dict[tuple[object, ...], list[AnswerRow]] = {}
    for row in rows:
        if row.reading in (RIGHT, WRONG):
            key = (row.task, row.language, row.item, row.document, row.is_twin, row.expected)
            found.setdefault(key, []).append(row)
    return tuple(_item(each) for each in found.values())


def _item(rows: Sequence[AnswerRow]) -> Item:
    first = rows[0]
    known = [row.evidence_in_prompt for row in rows if row.evidence_in_prompt is not None]
    return Item(
        task=first.task,
        language=first.language,
        item=first.item,
        document=first.document,
        is_twin=first.is_twin,
        right=sum(row.reading == RIGHT for row in rows) / len(rows),
        num_read=len(rows),
        chance=first.chance or 0.0,
        depth_percent=first.depth_percent,
        document_tokens=first.document_tokens,
        expected=first.expected,
        evidence_in_prompt=all(known) if known else None,
    )


def read_alike(levels: Sequence[Sequence[AnswerRow]]) -> list[tuple[AnswerRow, ...]] | None:
    """The rows of one task at several levels as they were read strictly, where a judge read some of them and not all,
    or several judges did. None where all have one reader. Twins are never judged."""
    readers = {
        row.facts.get("judge")
        for rows in levels
        for row in rows
        if not row.is_twin and (row.reading in (RIGHT, WRONG) or "judge" in row.facts)
    }
    if len(readers) < 2:
        return None
    return [tuple(_strictly(row) for row in rows) for rows in levels]


def _strictly(row: AnswerRow) -> AnswerRow:
    score = row.facts.get("strict_score")
    if "judge" not in row.facts or score is None:
        return row
    return replace(row, reading=RIGHT if score >= 1 else WRONG, score=float(score))


def by_document(items: Iterable[Item]) -> tuple[tuple[float, ...], ...]:
    """How right each item is, grouped by document."""
    return tuple(tuple(item.right for item in each) for each in grouped(items).values())


def grouped(items: Iterable[Item]) -> Mapping[str, Sequence[Item]]:
    """Items by document."""
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(f"{item.language}/{item.document}", []).append(item)
    return found


def readings(rows: Iterable[AnswerRow]) -> Mapping[str, int]:
    """How many rows were read as what, repeats counted each."""
    return dict(Counter(row.reading for row in rows))
