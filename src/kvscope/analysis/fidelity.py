"""How far a setting moves a model's probabilities from those of the reference (the same model with an f16 cache, say):
the Kullback-Leibler divergence KL(reference ‖ setting) in nats, at every scored position of the same texts.

A record keeps the likeliest tokens of a position, the text's own token, and thereby how much is left for all others
together. The divergence between two distributions seen so is at most that between the whole ones (log-sum inequality):
what is stated is a lower bound. How tight it is: docs/reference/quality.md.

Only the same tokens in the same passes compare. Another tokenizer, another engine build, another batch shape give other
numbers by themselves; such items are left out and counted, and where nothing is left the loss is unknown, never 0.
Perplexity is shown beside it and decides nothing: it can improve while the distribution moves away.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, fsum, log
from statistics import fmean

from kvscope.record.rows import AnswerRow, Json, ScoredTokenRow, TrialResult

FIDELITY = "fidelity"
FLOOR = "floor"
# A rest below this is not told apart from nothing: an engine's float32 sums over a vocabulary are off by 2e-4.
LEAST_REST = 5e-4

# Why an item is not compared.
NO_REFERENCE = "no_reference"
OTHER_PATTERN = "other_pattern"
OTHER_TOKENS = "other_tokens"
OTHER_BUILD = "other_engine_build"
OTHER_ITEMS = "other_items"
NOT_SCORED = "not_scored"


def divergence(reference: ScoredTokenRow, setting: ScoredTokenRow) -> float:
    """KL(reference ‖ setting) in nats at one position, over the tokens that both state and one bucket for all others:
    a lower bound of the whole one, never below 0.

    Each term is p log(p ÷ q) − p + q, which is the same in sum and never negative by itself, so that probabilities that
    do not quite sum to 1 do no harm."""
    before, after = _stated(reference), _stated(setting)
    pairs = [(exp(logprob), exp(after[token])) for token, logprob in before.items() if token in after]
    rest_before = max(LEAST_REST, 1 - fsum(p for p, _ in pairs))
    rest_after = max(LEAST_REST, 1 - fsum(q for _, q in pairs))
    return fsum(_term(p, q) for p, q in [*pairs, (rest_before, rest_after)])


def _stated(row: ScoredTokenRow) -> dict[int, float]:
    return {**dict(zip(row.top_tokens, row.top_logprobs, strict=True)), row.token: row.logprob}


def _term(p: float, q: float) -> float:
    if p <= 0:
        return max(0.0, q)
    return max(0.0, p * log(p / max(q, 1e-300)) - p + q)


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionLoss:
    """One position of one item. ``is_flip``: another token is the likeliest. ``logprob_change``: of the text's own
    token, setting − reference."""

    item: str
    document: str
    position: int
    divergence: float
    is_flip: bool
    reference_logprob: float
    logprob: float

    @property
    def logprob_change(self) -> float:
        return self.logprob - self.reference_logprob


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentLoss:
    """All positions of one document: the cluster that intervals are made over. ``divergence`` is their mean."""

    document: str
    num_positions: int
    num_flips: int
    divergence: float
    logprob_change: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Positions of one attempt against those of the reference. ``left_out``: how many items were not compared, and
    why; where ``positions`` is empty, nothing is known. ``lost``: items that the reference scored and that are not
    compared, because they failed here, were not reached, or came in other passes. They may be those that lost most."""

    positions: tuple[PositionLoss, ...]
    left_out: Mapping[str, int]
    lost: tuple[str, ...] = ()

    @property
    def documents(self) -> tuple[DocumentLoss, ...]:
        """By document, in the order in which they were scored."""
        return tuple(_document(name, rows) for name, rows in _grouped(self.positions, "document").items())

    @property
    def num_items(self) -> int:
        """How many were compared."""
        return len({(each.document, each.item) for each in self.positions})

    @property
    def num_flips(self) -> int:
        return sum(each.is_flip for each in self.positions)

    def on_items_of(self, other: "Comparison") -> "Comparison":
        """The positions of items that the other has as well."""
        both = {(each.document, each.item) for each in other.positions}
        kept = tuple(each for each in self.positions if (each.document, each.item) in both)
        return replace(self, positions=kept)

    @property
    def worst(self) -> PositionLoss | None:
        """The position with the largest divergence."""
        return max(self.positions, key=lambda each: each.divergence, default=None)

    @property
    def perplexities(self) -> tuple[float, float] | None:
        """e to the mean negative log-probability of the texts' tokens: of the reference, of the setting."""
        if not self.positions:
            return None
        return (
            exp(-fmean(each.reference_logprob for each in self.positions)),
            exp(-fmean(each.logprob for each in self.positions)),
        )


def compare_scores(result: TrialResult, reference: TrialResult | None) -> Comparison:
    """Every position that ``result`` and ``reference`` both scored in the same passes. Rows of the floor are in
    neither."""
    rows = [row for row in result.answers if row.task == FIDELITY and FLOOR not in row.facts]
    if reference is None:
        return Comparison(positions=(), left_out={NO_REFERENCE: len(rows)} if rows else {})
    before, mine = _by_item(reference), _tokens(result)
    if _build(result) != _build(reference):
        lost = tuple(item for _, item in before)
        return Comparison(positions=(), left_out={OTHER_BUILD: len(rows)} if rows else {}, lost=lost)
    positions: list[PositionLoss] = []
    left_out: Counter[str] = Counter()
    compared = set()
    for row in rows:
        why, found = _item_positions(row, mine.get(row.index, ()), before.get(_same(row)))
        positions += found
        if why is None:
            compared.add(_same(row))
        else:
            left_out[why] += 1
    lost = tuple(item for document, item in before if (document, item) not in compared)
    return Comparison(positions=tuple(positions), left_out=dict(left_out), lost=lost)


def most_complete(results: Sequence[TrialResult]) -> TrialResult | None:
    """The attempt in which most items were scored, of several the first: what others are held against. None of none."""
    return max(results, key=lambda each: len(_by_item(each)), default=None)


def compare_floor(reference: TrialResult) -> Comparison:
    """The rows of the reference's floor against its own scores of the same positions: what another batch shape does
    alone."""
    before, mine = _by_item(reference), _tokens(reference)
    positions: list[PositionLoss] = []
    left_out: Counter[str] = Counter()
    for row in reference.answers:
        if row.task != FIDELITY or FLOOR not in row.facts:
            continue
        known = {each.position: each for each in before.get((row.document, str(row.facts.get("of_item"))), ())}
        fresh = mine.get(row.index, ())
        if not fresh or any(each.position not in known for each in fresh):
            left_out[NOT_SCORED] += 1
            continue
        positions += [_position(row, known[each.position], each) for each in fresh]
    return Comparison(positions=tuple(positions), left_out=dict(left_out))


def with_fidelity(result: TrialResult, reference: TrialResult | None) -> TrialResult:
    """``result`` with the score of its fidelity rows: their mean divergence from the reference, in nats, and in their
    facts the worst position, the flips and the change of the text's own tokens. Rows of the reference itself say that
    they are (``is_reference``) and have no score, as rows that cannot be compared have none (``not_compared``: why).
    Rows of the floor are held against the same attempt's own."""
    if not any(row.task == FIDELITY for row in result.answers):
        return result
    floor = _grouped(compare_floor(result).positions, "item")
    compared = compare_scores(result, reference)
    found = _grouped(compared.positions, "item")
    is_reference = reference is not None and _attempt(reference) == _attempt(result)
    why = next(iter(compared.left_out), NOT_SCORED)
    answers = []
    for row in result.answers:
        if row.task != FIDELITY or row.reading != "scored":
            answers.append(row)
        elif FLOOR in row.facts:
            answers.append(_judged(row, floor.get(row.item), {}, why=NOT_SCORED))
        elif is_reference:
            answers.append(replace(row, score=None, facts={**row.facts, "is_reference": True}))
        else:
            held_against = {} if reference is None else {"reference": "/".join(map(str, _attempt(reference)))}
            answers.append(_judged(row, found.get(row.item), held_against, why=why))
    return replace(result, answers=tuple(answers))


def _judged(
    row: AnswerRow, positions: Sequence[PositionLoss] | None, facts: Mapping[str, Json], *, why: str
) -> AnswerRow:
    if not positions:
        return replace(row, score=None, facts={**row.facts, "not_compared": why})
    seen = {
        "worst_divergence": max(each.divergence for each in positions),
        "flips": sum(each.is_flip for each in positions),
        "logprob_change": fmean(each.logprob_change for each in positions),
    }
    return replace(row, score=fmean(each.divergence for each in positions), facts={**row.facts, **facts, **seen})


def _item_positions(
    row: AnswerRow, mine: Sequence[ScoredTokenRow], before: Sequence[ScoredTokenRow] | None
) -> tuple[str | None, list[PositionLoss]]:
    """The positions of one item, or why there are none."""
    if row.reading != "scored" or not mine:
        return NOT_SCORED, []
    if not before:
        return OTHER_ITEMS, []
    if {each.pattern for each in mine} != {each.pattern for each in before}:
        return OTHER_PATTERN, []
    if [(each.position, each.token) for each in mine] != [(each.position, each.token) for each in before]:
        return OTHER_TOKENS, []
    return None, [_position(row, then, now) for then, now in zip(before, mine, strict=True)]


def _position(row: AnswerRow, reference: ScoredTokenRow, setting: ScoredTokenRow) -> PositionLoss:
    return PositionLoss(
        item=row.item,
        document=row.document,
        position=setting.position,
        divergence=divergence(reference, setting),
        is_flip=reference.top_tokens[:1] != setting.top_tokens[:1],
        reference_logprob=reference.logprob,
        logprob=setting.logprob,
    )


def _document(name: str, rows: Sequence[PositionLoss]) -> DocumentLoss:
    return DocumentLoss(
        document=name,
        num_positions=len(rows),
        num_flips=sum(each.is_flip for each in rows),
        divergence=fmean(each.divergence for each in rows),
        logprob_change=fmean(each.logprob_change for each in rows),
    )


def _grouped(positions: Iterable[PositionLoss], name: str) -> dict[str, list[PositionLoss]]:
    found: dict[str, list[PositionLoss]] = {}
    for each in positions:
        found.setdefault(getattr(each, name), []).append(each)
    return found


def _by_item(result: TrialResult) -> dict[tuple[str, str], Sequence[ScoredTokenRow]]:
    tokens = _tokens(result)
    return {
        _same(row): tokens.get(row.index, ())
        for row in result.answers
        if row.task == FIDELITY and row.reading == "scored" and FLOOR not in row.facts
    }


def _same(row: AnswerRow) -> tuple[str, str]:
    return row.document, row.item


def _tokens(result: TrialResult) -> dict[int, list[ScoredTokenRow]]:
    found: dict[int, list[ScoredTokenRow]] = {}
    for each in result.scored_tokens:
        found.setdefault(each.answer_index, []).append(each)
    return found


def _build(result: TrialResult) -> tuple[Json, Json]:
    return result.effective.get("engine_version"), result.effective.get("engine_build")


def _attempt(result: TrialResult) -> tuple[str, int]:
    return result.trial.trial_id, result.trial.attempt
