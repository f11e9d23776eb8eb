"""Does an index find what the questions need: counts only; their intervals are made where they are shown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvscope.quality.retrieval.evidence import Evidence, Place
from kvscope.quality.retrieval.index import Hit, Index
from kvscope.quality.retrieval.passages import Passage
from kvscope.quality.retrieval.questions import AskedQuestion


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
    """Whether every evidence stands wholly in these passages, of which neighbours count as one text. True of no
    evidence at all."""
    stretches = _stretches(passages)
    return all(any(_is_inside(place, stretches) for place in each.places) for each in evidence)


def measure_recall(
    index: Index,
    questions: Sequence[AskedQuestion],
    evidence: Mapping[str, tuple[Evidence, ...]],
    ks: Sequence[int] = (1, 3, 5),
) -> Recall:
    """Searches for each question, the largest of ``ks`` passages deep. Raises what the index raises."""
    each = tuple(_one(index.search(asked.text, max(ks)), asked.id, evidence.get(asked.id, ())) for asked in questions)
    known = [one for one in each if one.is_known]
    ranks = [one.evidence_rank for one in known]
    return Recall(
        known=len(known),
        by_evidence={k: sum(rank is not None and rank <= k for rank in ranks) for k in ks},
        by_document={k: sum(one.document_rank is not None and one.document_rank <= k for one in known) for k in ks},
        mean_reciprocal_rank=sum(1 / rank for rank in ranks if rank) / len(known) if known else None,
        without_hits=tuple(one.id for one in each if not one.hits),
        unknown=tuple(one.id for one in each if not one.is_known),
        each=each,
    )


def _one(hits: Sequence[Hit], name: str, evidence: Sequence[Evidence]) -> QuestionRecall:
    is_known = bool(evidence) and all(each.places for each in evidence)
    found = [hit.passage for hit in hits]
    homes = {place.document for each in evidence for place in each.places}
    ranks = range(1, len(found) + 1) if is_known else ()
    return QuestionRecall(
        id=name,
        is_known=is_known,
        evidence_rank=next((rank for rank in ranks if holds(found[:rank], evidence)), None),
        document_rank=next((rank for rank in ranks if found[rank - 1].document in homes), None),
        hits=len(found),
    )


def _stretches(passages: Iterable[Passage]) -> dict[str, list[tuple[int, int]]]:
    """By document, the stretches of its text that the passages are, neighbours joined."""
    joined: dict[str, list[tuple[int, int]]] = {}
    for passage in sorted(passages, key=lambda each: (each.document, each.start)):
        found = joined.setdefault(passage.document, [])
        if found and passage.start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], passage.end))
        else:
            found.append((passage.start, passage.end))
    return joined


def _is_inside(place: Place, stretches: Mapping[str, Sequence[tuple[int, int]]]) -> bool:
    return any(start <= place.start and place.end <= end for start, end in stretches.get(place.document, ()))
