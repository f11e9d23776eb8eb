"""The likelihood of known texts behind a document, position by position, as the engine computes it.

One document is prefilled once; every token scored behind it is one more pass over the kept prefix. Prompts go without a
chat template, with the engine's own BOS once, so a base model can be asked as well.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvscope.engine.base import Engine, ScoredToken, ScoreRequest, TokenScores
from kvscope.errors import (
    EngineDied,
    EngineReplyError,
    InputTruncated,
    KvscopeError,
    OutOfMemory,
    ProbeLost,
    UsageError,
)
from kvscope.experiment.design import Trial
from kvscope.experiment.quality_asked import FIDELITY as FIDELITY
from kvscope.experiment.time_left import SCORES
from kvscope.quality.task import Document, Question, prompt_text
from kvscope.quality.tasks import task_named
from kvscope.record.rows import AnswerRow, Json, ScoredTokenRow

# Likeliest tokens kept at each position. The divergence seen through them and one rest bucket is a lower bound of the
# whole one; docs/reference/quality.md says how tight it was measured to be.
NUM_TOP = 100
# In so many documents of a trial one item is computed in passes of another shape, to see what that does alone.
FLOOR_DOCUMENTS = 6
# Facts of an AnswerRow that is measured for the floor alone: the same text in passes of another shape.
FLOOR = "floor"
BATCH_SHAPE = "batch_shape"
# Errors that say the engine is gone: they end the trial. Any other one is of its question, or of its item.
FATAL = (EngineDied, OutOfMemory, ProbeLost)
# After so many failures in a row nothing more is asked, or scored.
MOST_FAILED = 3
# A record keeps token ids as signed 32-bit numbers.
_LIMIT_ID = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Rows of one document. ``scored_tokens`` name their answer by its ``index``. ``failed_at_end``: so many items
    failed one after another, the last of these being the last."""

    answers: tuple[AnswerRow, ...] = ()
    scored_tokens: tuple[ScoredTokenRow, ...] = ()
    failed_at_end: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePasses:
    """What of a scored task one trial does: the ``scores`` of every item, and the ``floor`` behind them."""

    scores: bool
    floor: bool


EVERY_PASS = ScorePasses(scores=True, floor=True)


def score_passes(*, repeat: int, is_baseline: bool) -> ScorePasses:
    """Likelihoods do not scatter as times do: every level is scored in its first repeat alone, and the baseline once
    more in its second, which shows whether that is so. The floor is the baseline's, measured once."""
    return ScorePasses(scores=repeat == 0 or (is_baseline and repeat == 1), floor=is_baseline and repeat == 0)


def timed_as(trial: Trial) -> Mapping[str, Json]:
    """What a trial's time is known by: its levels, and whether it scores texts too, which takes many times as long."""
    asked = trial.condition.quality
    if asked is None or not asked.task or task_named(asked.task).family != FIDELITY or trial.role == "warmup":
        return trial.levels
    is_scored = score_passes(repeat=trial.repeat, is_baseline=trial.is_baseline).scores
    return {**trial.levels, SCORES: True} if is_scored else trial.levels


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredText:
    """Token ids of a prompt and of what is scored behind it. ``starts_early``: how many tokens of the prompt the
    tokenizer joined with the beginning of the continuation, so that they are scored with it (0: none)."""

    prompt: tuple[int, ...]
    continuation: tuple[int, ...]
    starts_early: int = 0


def split_text(engine: Engine, prompt: str, continuation: str) -> ScoredText:
    """The tokens of both texts together, cut where the prompt's own end. Where the tokenizer makes one token of the
    prompt's end and the continuation's beginning, the cut is before it. Raises UsageError where nothing is left to be
    scored, or the prompt is empty."""
    alone = engine.tokenize(prompt, with_special=True)
    whole = engine.tokenize(prompt + continuation, with_special=True)
    common = 0
    while common < min(len(alone), len(whole)) and alone[common] == whole[common]:
        common += 1
    if common == 0 or common == len(whole):
        raise UsageError(
            "There is no text to score behind this prompt.", hint="Give a prompt and a continuation, both not empty."
        )
    return ScoredText(prompt=whole[:common], continuation=whole[common:], starts_early=len(alone) - common)


def score_document(
    engine: Engine, document: Document, twin: Document | None = None, *, first_index: int = 0, failed_before: int = 0
) -> Scored:
    """Every question of a document that has a continuation, then the same of its twin. ``first_index``: the index of
    the first AnswerRow. ``score`` of a row is the mean log-probability of the continuation's tokens; of the fidelity
    task it stays None, because it needs the same items at the reference (``analysis.fidelity``). An item of which the
    engine states nothing, for whatever reason, is a row with the reading ``failed``; after MOST_FAILED of them in a row
    (``failed_before`` of them in documents before) the others are not scored. Raises FATAL errors."""
    rows = _Rows(engine, first_index, failed_before)
    for text in (document,) if twin is None else (document, twin):
        for question in text.questions:
            if question.continuation is not None and rows.failed_in_a_row < MOST_FAILED:
                rows.add(text, question)
    return rows.scored()


def score_floor(engine: Engine, documents: Sequence[Document], *, first_index: int = 0) -> Scored:
    """One item in each of the first FLOOR_DOCUMENTS documents, another kind of item in each, all its positions but the
    first behind a prefix that was computed in one pass. To be called when all documents have been scored, because it
    changes what the engine keeps."""
    rows = _Rows(engine, first_index)
    for number, document in enumerate(documents[:FLOOR_DOCUMENTS]):
        questions = [each for each in document.questions if len((each.continuation or "").split()) > 1]
        if questions and rows.failed_in_a_row < MOST_FAILED:
            rows.add_floor(document, questions[number % len(questions)])
    return rows.scored()


class _Rows:
    def __init__(self, engine: Engine, first_index: int, failed_before: int = 0) -> None:
        self.engine = engine
        self.next_index = first_index
        self.failed_in_a_row = failed_before
        self.answers: list[AnswerRow] = []
        self.tokens: list[ScoredTokenRow] = []

    def scored(self) -> Scored:
        answers, tokens = tuple(self.answers), tuple(self.tokens)
        return Scored(answers=answers, scored_tokens=tokens, failed_at_end=self.failed_in_a_row)

    def add(self, document: Document, question: Question) -> None:
        """One item, all its positions."""
        row = _row(document, question, self.next_index)
        try:
            text = self._text(document, question)
            scores = self._score(document, text, 0, len(text.continuation))
        except FATAL:
            raise
        except KvscopeError as error:
            self._keep(_failed(row, error))
            return
        self._keep(_scored(row, text, scores), scores)

    def add_floor(self, document: Document, question: Question) -> None:
        """The last position with its whole prefix computed in one pass; then, from there backwards, each position on
        what that pass has left, so that the keys and values before it are those of one pass and not of single tokens.
        The first position is left out: what stands before it was computed together in the first place."""
        row = _row(document, question, self.next_index)
        row = replace(row, item=f"{row.item}/{BATCH_SHAPE}", facts={FLOOR: BATCH_SHAPE, "of_item": row.item})
        try:
            text = self._text(document, question)
            last = len(text.continuation) - 1
            found = [self._score(document, text, last, last + 1, is_fresh=True)]
            for position in range(last - 1, 0, -1):
                found.insert(0, self._score(document, text, position, position + 1))
        except FATAL:
            raise
        except KvscopeError as error:
            self._keep(_failed(row, error))
            return
        tokens = tuple(token for each in found for token in each.tokens)
        scores = TokenScores(tokens=tokens, pattern=f"keys and values of one pass: {found[-1].pattern}")
        self._keep(_scored(row, text, scores), scores, first_position=last + 1 - len(tokens))

    def _text(self, document: Document, question: Question) -> ScoredText:
        return split_text(self.engine, prompt_text(document, question, "cue"), question.continuation or "")

    def _score(
        self, document: Document, text: ScoredText, first: int, end: int, *, is_fresh: bool = False
    ) -> TokenScores:
        """Positions ``first`` to ``end`` of the continuation."""
        request = ScoreRequest(
            prompt=(*text.prompt, *text.continuation[:first]),
            continuation=text.continuation[first:end],
            num_top=NUM_TOP if document.task == FIDELITY else 1,
            is_fresh=is_fresh,
        )
        return _checked(request, self.engine.score(request))

    def _keep(self, row: AnswerRow, scores: TokenScores | None = None, *, first_position: int = 0) -> None:
        self.answers.append(row)
        self.next_index += 1
        self.failed_in_a_row = self.failed_in_a_row + 1 if scores is None else 0
        if scores is None:
            return
        self.tokens += [
            ScoredTokenRow(
                answer_index=row.index,
                position=position,
                token=token.token,
                logprob=token.logprob,
                pattern=scores.pattern,
                top_tokens=token.top_tokens,
                top_logprobs=token.top_logprobs,
            )
            for position, token in enumerate(scores.tokens, start=first_position)
        ]


def _checked(request: ScoreRequest, scores: TokenScores) -> TokenScores:
    """Raises EngineReplyError where an engine's scores are not of what was asked, or are no numbers that a record
    keeps, so that a reply costs its own item and never the trial."""
    is_same = tuple(each.token for each in scores.tokens) == request.continuation
    if is_same and all(_is_kept(each) for each in scores.tokens):
        return scores
    raise EngineReplyError(
        "The engine states token ids or log-probabilities that are none.",
        hint="What was scored before stands. Use another build of the engine.",
        evidence={"known_by": "message"},
    )


def _is_kept(token: ScoredToken) -> bool:
    ids = (token.token, *token.top_tokens)
    return (
        all(type(each) is int and 0 <= each < _LIMIT_ID for each in ids)
        and len(token.top_tokens) == len(token.top_logprobs)
        and math.isfinite(token.logprob)
        and not any(math.isnan(each) for each in token.top_logprobs)
    )


def _row(document: Document, question: Question, index: int) -> AnswerRow:
    return AnswerRow(
        index=index,
        task=document.task,
        item=question.item,
        document=document.name,
        language=document.language,
        reading="scored",
        score=None,
        chance=None,
        is_twin=document.is_twin,
        depth_percent=question.depth_percent,
        evidence_in_prompt=all(sentence in document.text for sentence in question.evidence),
        expected=question.continuation,
        facts={},
    )


def _failed(row: AnswerRow, error: KvscopeError) -> AnswerRow:
    is_cut = isinstance(error, InputTruncated)
    return replace(
        row,
        reading="truncated_input" if is_cut else "failed",
        facts={**row.facts, "error_slug": error.slug, "error_message": str(error)},
    )


def _scored(row: AnswerRow, text: ScoredText, scores: TokenScores) -> AnswerRow:
    """The row with what is kept of its positions together."""
    facts: dict[str, Any] = {
        "num_positions": len(scores.tokens),
        "mean_logprob": sum(token.logprob for token in scores.tokens) / len(scores.tokens),
        "pattern": scores.pattern,
        "starts_early_tokens": text.starts_early,
    }
    for name, value in (("prompt_tokens", scores.prompt_tokens), ("cached_tokens", scores.cached_tokens)):
        if value is not None:
            facts[name] = value
    is_cut = scores.prompt_tokens is not None and scores.prompt_tokens < len(text.prompt)
    return replace(
        row,
        reading="truncated_input" if is_cut else row.reading,
        score=None if is_cut or row.task == FIDELITY else facts["mean_logprob"],
        document_tokens=len(text.prompt),
        facts={**row.facts, **facts},
    )
