"""Does an index find what the questions need: counts only; their intervals are made where they are shown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvscope.quality.retrieval.index import Index
from kvscope.quality.retrieval.passages import Passage
from kvscope.quality.retrieval.questions import AskedQuestion, Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRecall:
    """``evidence_rank``: how many passages, from the nearest, are needed until all evidence is in them; None where
    the passages searched do not hold it. ``document_rank``: the first that comes from a document of the evidence.
    ``is_known``: whether the evidence's place is known at all; without it nothing is counted. ``hits``: passages
    found."""

    id: str
    is_known: bool
    evidence_rank: int | None
    document_rank: int | None
    hits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """Of ``known`` questions (those whose evidence has a known place), how many found it. ``by_evidence``,
    ``by_document``: for each k asked for, the questions whose evidence, or document, is among the first k passages.
    ``mean_reciprocal_rank``: of the passage that completes the evidence; 0 where none does; None without questions.
    ``without_hits``: ids of all questions that found no passage at all. ``unknown``: ids without a known place."""

    known: int
    by_evidence: Mapping[int, int]
    by_document: Mapping[int, int]
    mean_reciprocal_rank: float | None
    without_hits: tuple[str, ...]
    unknown: tuple[str, ...]
    each: tuple[QuestionRecall, ...]


def holds(passages: Iterable[Passage], evidence: Sequence[Evidence]) -> bool:
    """Whether every evidence stands wholly in these passages, of which neighbours count as one text."""
    raise NotImplementedError


def measure_recall(
    index: Index,
    questions: Sequence[AskedQuestion],
    evidence: Mapping[str, tuple[Evidence, ...]],
    ks: Sequence[int] = (1, 3, 5),
) -> Recall:
    """Searches for each question, the largest of ``ks`` passages deep."""
    raise NotImplementedError
