"""One cell of the panel: a task in one language at one level, its share right and what may be said of it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from kvscope.analysis.fit import Estimate
from kvscope.analysis.items_needed import ItemsNeeded, items_needed
from kvscope.analysis.proportions import clustered_share, paired_counts, share_clustering, unpaired_difference
from kvscope.analysis.quality_depth import DepthSign, Third, depth_sign, thirds
from kvscope.analysis.quality_gate import Gate, gate_of
from kvscope.analysis.quality_items import RIGHT, WRONG, Item, by_document, grouped, items_of, readings
from kvscope.record.rows import AnswerRow, Json

# Rows with a log-probability in place of an answer are measured elsewhere (``quality_gain``, ``fidelity``).
SCORED = "scored"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityCell:
    """A task in one language at one level.

    ``share``: right ÷ items read, with its 95 % interval by documents. ``chance``: for who guesses. ``twin``: the share
    right on documents without the fact; ``above_twin``: share − twin on the same items. ``useful``: the share right
    with the evidence in the prompt; ``right_without_evidence``: items that were right without, which are guesses.
    ``readings``: rows by what they were read as, each repeat counted, and ``twin_readings`` those of twins; only right
    and wrong ones are in a share.
    ``num_unsteady``: items whose repeats disagree. ``twin_named``: answers on twins that named something else of the
    text, where nothing was told; ``twin_refused``: those that said so. ``refused``: answers that say that a fact is not
    in the text, which is. ``needed``: items for a five-point loss, with
    nothing known of how many items a change turns."""

    task: str
    language: str
    level: Json
    is_baseline: bool
    document_tokens: float | None
    num_items: int
    num_documents: int
    num_repeats: int
    right: float
    share: Estimate
    chance: float
    twin: Estimate | None
    above_twin: Estimate | None
    thirds: Mapping[Third, Estimate]
    readings: Mapping[str, int]
    twin_readings: Mapping[str, int]
    num_unsteady: int
    twin_named: int
    twin_refused: int
    refused: int
    useful: Estimate | None
    right_without_evidence: int
    gate: Gate
    sign: DepthSign | None
    needed: ItemsNeeded | None

    @property
    def guess(self) -> float:
        """The share that guessing reaches: by chance, or as on documents without the fact."""
        return _guess(self.chance, self.twin)

    @property
    def num_twins(self) -> int:
        """Answers on twins that could be read."""
        return sum(self.twin_readings.get(reading, 0) for reading in (RIGHT, WRONG))

    @property
    def num_left_out(self) -> int:
        """Rows that were in no share, those of twins included."""
        return sum(self.left_out.values())

    @property
    def left_out(self) -> Mapping[str, int]:
        """Those rows by what they were read as."""
        both = Counter(self.readings) + Counter(self.twin_readings)
        return {reading: count for reading, count in both.items() if reading not in (RIGHT, WRONG)}


def cell_of(
    rows: Sequence[AnswerRow], level: Json, *, is_baseline: bool = False, repeats: int = 1, num_cells: int = 1
) -> QualityCell:
    """From the rows of one task in one language at one level, of which there is one at least. ``num_cells``: how many
    cells are looked at in the study, which share the false alarms of signs."""
    items = items_of(rows)
    read = [row for row in rows if row.reading in (RIGHT, WRONG)]
    asked = [item for item in items if not item.is_twin]
    twins = [item for item in items if item.is_twin]
    share = clustered_share(by_document(asked))
    chance = _chance(rows)
    twin = clustered_share(by_document(twins)) if twins else None
    above = above_twins(asked, twins) if twins and asked else None
    known = [item for item in asked if item.evidence_in_prompt is not None]
    together = share_clustering(by_document(asked))
    sign = depth_sign(asked, guess=_guess(chance, twin), num_cells=num_cells)
    return QualityCell(
        task=rows[0].task,
        language=rows[0].language,
        level=level,
        is_baseline=is_baseline,
        document_tokens=_median_tokens(asked),
        num_items=len(asked),
        num_documents=together.num_documents,
        num_repeats=repeats,
        right=sum(item.right for item in asked),
        share=share,
        chance=chance,
        twin=twin,
        above_twin=above,
        thirds=thirds(asked),
        readings=readings(row for row in rows if not row.is_twin),
        twin_readings=readings(row for row in rows if row.is_twin),
        num_unsteady=sum(not item.is_steady for item in items),
        twin_named=sum(row.is_twin and bool(row.facts.get("also_named")) for row in read),
        twin_refused=sum(row.is_twin and row.facts.get("refused") is True for row in read),
        refused=sum(not row.is_twin and row.facts.get("refused") is True for row in read),
        useful=_useful(known) if known else None,
        right_without_evidence=sum(item.right >= 0.5 and item.evidence_in_prompt is False for item in known),
        gate=gate_of(
            share,
            chance=chance,
            above_twin=above,
            num_documents=together.num_documents,
            num_unread=sum(not row.is_twin for row in rows) if not asked else 0,
            is_maybe_cut=_is_maybe_cut(rows, sign),
        ),
        sign=sign,
        needed=None if share.value is None else items_needed(share.value, clustering=together),
    )


def above_twins(asked: Sequence[Item], twins: Sequence[Item]) -> Estimate:
    """The share right less the share on documents without the fact, on the same items where they have the same names;
    else of the two shares."""
    without = {(item.item, item.document): item.right for item in twins}
    pairs = [item for item in asked if (item.item, item.document) in without]
    if not pairs:
        return unpaired_difference(by_document(twins), by_document(asked))
    differences = [
        [item.right - without[item.item, item.document] for item in here] for here in grouped(pairs).values()
    ]
    return paired_counts(differences).difference()


def _is_maybe_cut(rows: Sequence[AnswerRow], sign: DepthSign | None) -> bool:
    """Whether prompts may not have reached the model whole. Where counts of what the engine read show that they did, a
    part of which nothing is found is the model's own loss."""
    if any(row.facts.get("prompt_whole") is False for row in rows):
        return True
    is_whole = all(row.facts.get("prompt_whole") is True for row in rows if row.reading in (RIGHT, WRONG))
    return sign is not None and sign.is_maybe_cut and not is_whole


def _chance(rows: Sequence[AnswerRow]) -> float:
    """Of the items that were read; where none was, of those that were asked."""
    asked = [row for row in rows if not row.is_twin]
    read = items_of(asked)
    chances = [item.chance for item in read] or [row.chance or 0.0 for row in asked]
    return fmean(chances) if chances else 0.0


def _guess(chance: float, twin: Estimate | None) -> float:
    return max(chance, (twin.value or 0.0) if twin is not None else 0.0)


def _median_tokens(items: Sequence[Item]) -> float | None:
    tokens = [item.document_tokens for item in items if item.document_tokens is not None]
    return median(tokens) if tokens else None


def _useful(items: Sequence[Item]) -> Estimate:
    documents = [[item.right if item.evidence_in_prompt else 0.0 for item in here] for here in grouped(items).values()]
    return clustered_share(documents)
