"""Rows of scored texts, on an engine of a few lines whose tokens and probabilities are known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kvscope.engine.base import ScoredToken, ScoreRequest, TokenScores
from kvscope.errors import (
    EngineDied,
    EngineReplyError,
    EngineTimeout,
    OutOfMemory,
    PromptDoesNotFit,
    ServerError,
    UsageError,
)
from kvscope.experiment.trial_scores import FLOOR, FLOOR_DOCUMENTS, NUM_TOP, score_document, score_floor, split_text
from kvscope.quality.task import Document, DocumentRequest
from kvscope.quality.tasks import task_named

BOS = 1


@dataclass
class PairsEngine:
    """Two characters are one token wherever both are letters, so words split differently by what follows. The
    log-probability of a token is − its place in the text ÷ 100. ``limit``: the most tokens; ``lost``: so many tokens of
    every prompt do not arrive; ``dies_at``: the request at which it is gone."""

    limit: int = 10_000
    lost: int = 0
    dies_at: int | None = None
    requests: list[ScoreRequest] = field(default_factory=list)

    def tokenize(self, text: str, *, with_special: bool) -> tuple[int, ...]:
        tokens: list[int] = [BOS] if with_special else []
        place = 0
        while place < len(text):
            width = 2 if text[place : place + 2].isalpha() and len(text) > place + 1 else 1
            tokens.append(sum(ord(letter) * 70_000**power for power, letter in enumerate(text[place : place + width])))
            place += width
        return tuple(tokens)

    def score(self, request: ScoreRequest) -> TokenScores:
        self.requests.append(request)
        if self.dies_at == len(self.requests):
            raise EngineDied("The engine is gone.", hint="Start it again.")
        if len(request.prompt) + len(request.continuation) > self.limit:
            raise PromptDoesNotFit(
                prompt_tokens=len(request.prompt), output_tokens=1, limit_tokens=self.limit, limit_from="the test"
            )
        start = len(request.prompt)
        tokens = [
            ScoredToken(token=token, logprob=-(start + place) / 100, top_tokens=(token,), top_logprobs=(-0.1,))
            for place, token in enumerate(request.continuation)
        ]
        return TokenScores(
            tokens=tuple(tokens),
            pattern="fresh" if request.is_fresh else "kept",
            prompt_tokens=start - self.lost,
        )


def documents(task: str, number: int = 1) -> list[tuple[Document, Document | None]]:
    def build(each: int) -> tuple[Document, Document | None]:
        return task_named(task).build(
            DocumentRequest(seed=1, number=each, language="en", prompt_tokens=1200, count=len, form="cue")
        )

    return [build(each) for each in range(number)]


def spelt(tokens: Sequence[int]) -> str:
    return "".join(chr(t) if t < 70_000 else chr(t % 70_000) + chr(t // 70_000) for t in tokens if t != BOS)


def test_a_text_is_cut_where_the_prompt_ends_and_begins_once() -> None:
    text = split_text(PairsEngine(), "ab is", " 48")  # type: ignore[arg-type]
    assert text.prompt.count(BOS) == 1
    assert (spelt(text.prompt), spelt(text.continuation), text.starts_early) == ("ab is", " 48", 0)


def test_a_token_across_the_cut_is_scored_with_the_continuation() -> None:
    text = split_text(PairsEngine(), "abc", "def")  # type: ignore[arg-type]
    # Alone "abc" is ab·c; together ab·cd·ef: the c is part of a token that only the continuation completes.
    assert (spelt(text.prompt), spelt(text.continuation), text.starts_early) == ("ab", "cdef", 1)


@pytest.mark.parametrize(("prompt", "continuation"), [("ab", ""), ("ab ", "")])
def test_nothing_to_score_is_refused(prompt: str, continuation: str) -> None:
    with pytest.raises(UsageError, match="no text to score"):
        split_text(PairsEngine(), prompt, continuation)  # type: ignore[arg-type]


def test_every_item_of_document_and_twin_is_a_row_with_its_positions() -> None:
    engine = PairsEngine()
    ((document, twin),) = documents("copy_gain")
    scored = score_document(engine, document, twin, first_index=7)  # type: ignore[arg-type]
    assert [row.index for row in scored.answers] == list(range(7, 7 + 2 * len(document.questions)))
    assert [row.is_twin for row in scored.answers] == [False] * len(document.questions) + [True] * len(
        document.questions
    )
    for row in scored.answers:
        mine = [each for each in scored.scored_tokens if each.answer_index == row.index]
        assert [each.position for each in mine] == list(range(len(mine)))
        assert row.reading == "scored"
        assert row.score == pytest.approx(sum(each.logprob for each in mine) / len(mine))
        assert row.evidence_in_prompt is not row.is_twin
        assert spelt([each.token for each in mine]) == row.expected
    assert {request.num_top for request in engine.requests} == {1}


def test_fidelity_keeps_the_likeliest_tokens_and_has_no_score_of_its_own() -> None:
    engine = PairsEngine()
    ((document, twin),) = documents("fidelity")
    scored = score_document(engine, document, twin)  # type: ignore[arg-type]
    assert all(row.score is None and row.facts["mean_logprob"] < 0 for row in scored.answers)
    assert {request.num_top for request in engine.requests} == {NUM_TOP}
    assert not any(request.is_fresh for request in engine.requests)


def test_the_floor_is_an_item_of_each_document_behind_keys_and_values_of_one_pass() -> None:
    engine = PairsEngine()
    own = [document for document, _ in documents("fidelity", FLOOR_DOCUMENTS + 1)]
    kept = [score_document(engine, document) for document in own]  # type: ignore[arg-type]
    engine.requests.clear()
    floor = score_floor(engine, own, first_index=50)  # type: ignore[arg-type]
    assert [row.index for row in floor.answers] == list(range(50, 50 + FLOOR_DOCUMENTS))
    kinds = [str(row.facts["of_item"]).rsplit("/", 1)[1] for row in floor.answers]
    assert kinds == ["copy-head", "copy-middle", "copy-tail", "new", "copy-head", "copy-middle"]
    for row, scored in zip(floor.answers, kept, strict=False):
        assert row.facts[FLOOR] == "batch_shape"
        (item,) = [each for each in scored.answers if each.item == row.facts["of_item"]]
        same = [each for each in scored.scored_tokens if each.answer_index == item.index]
        mine = [each for each in floor.scored_tokens if each.answer_index == row.index]
        # Every position but the first, of the same text: this engine says the same of it in any pass.
        assert [(e.position, e.token, e.logprob) for e in mine] == [(e.position, e.token, e.logprob) for e in same[1:]]
        assert {each.pattern for each in mine}.isdisjoint(each.pattern for each in same)
    # One pass over the whole text first, then backwards on what it has left.
    lengths = [len(request.prompt) for request in engine.requests[: len(kept[0].scored_tokens)]]
    fresh = [request.is_fresh for request in engine.requests]
    assert fresh.count(True) == FLOOR_DOCUMENTS
    assert fresh[0]
    assert lengths[1] == lengths[0] - 1


def test_an_item_that_does_not_fit_is_a_row_and_the_others_go_on() -> None:
    ((document, _),) = documents("fidelity")
    engine = PairsEngine()
    score_document(engine, document)  # type: ignore[arg-type]
    sizes = sorted(len(request.prompt) + len(request.continuation) for request in engine.requests)
    scored = score_document(PairsEngine(limit=sizes[-1] - 1), document)  # type: ignore[arg-type]
    failed = [row for row in scored.answers if row.reading == "failed"]
    assert len(scored.answers) == len(document.questions)
    assert 1 <= len(failed) < len(document.questions)
    for row in failed:
        assert row.score is None
        assert row.facts["error_slug"] == "prompt-does-not-fit"
        assert not any(each.answer_index == row.index for each in scored.scored_tokens)


def test_a_prompt_that_did_not_arrive_whole_has_no_score() -> None:
    ((document, twin),) = documents("copy_gain")
    scored = score_document(PairsEngine(lost=3), document, twin)  # type: ignore[arg-type]
    assert {(row.reading, row.score) for row in scored.answers} == {("truncated_input", None)}


def test_an_engine_that_is_gone_ends_it() -> None:
    ((document, _),) = documents("fidelity")
    with pytest.raises(EngineDied):
        score_document(PairsEngine(dies_at=2), document)  # type: ignore[arg-type]


@dataclass
class FaultyEngine(PairsEngine):
    """``faults``: request number → what it ends in; or the log-probability and the top ids that it states."""

    faults: Mapping[int, Exception | tuple[Any, ...]] = field(default_factory=dict)

    def score(self, request: ScoreRequest) -> TokenScores:
        scores = PairsEngine.score(self, request)
        fault = self.faults.get(len(self.requests))
        if isinstance(fault, Exception):
            raise fault
        if fault is None:
            return scores
        token = replace(scores.tokens[0], top_tokens=fault, top_logprobs=(-0.1,) * len(fault))
        return replace(scores, tokens=(token, *scores.tokens[1:]))


@pytest.mark.parametrize(
    "fault",
    [
        EngineReplyError("A probability of 0.", hint="Leave it out."),
        EngineTimeout("Too slow.", hint="Wait."),
        ServerError("500", hint="Ask again."),
        UsageError("No such token.", hint="Use another."),
        ("7",), (None,), ([1],), (2**40,), (-1,), (9.0,), (True,),
    ],
)  # fmt: skip
def test_what_one_item_ends_in_costs_that_item_alone(fault: Any) -> None:
    ((document, _),) = documents("fidelity")
    scored = score_document(FaultyEngine(faults={3: fault}), document)  # type: ignore[arg-type]
    assert [row.reading for row in scored.answers] == ["scored", "scored", "failed", *["scored"] * 5]
    assert {each.answer_index for each in scored.scored_tokens} == {0, 1, 3, 4, 5, 6, 7}
    assert scored.failed_at_end == 0


def test_after_three_failures_in_a_row_the_rest_is_not_scored() -> None:
    fault = EngineTimeout("Too slow.", hint="Wait.")
    ((document, _),) = documents("fidelity")
    engine = FaultyEngine(faults=dict.fromkeys(range(2, 99), fault))
    scored = score_document(engine, document)  # type: ignore[arg-type]
    assert [row.reading for row in scored.answers] == ["scored", "failed", "failed", "failed"]
    assert len(engine.requests) == 4
    others = score_document(engine, document, failed_before=scored.failed_at_end)  # type: ignore[arg-type]
    assert others.answers == ()
    one_before = FaultyEngine(faults={2: fault, 3: fault})
    again = score_document(one_before, document, failed_before=2)  # type: ignore[arg-type]
    assert len(again.answers) == len(document.questions)


@pytest.mark.parametrize("dies", [EngineDied, OutOfMemory])
def test_an_engine_without_memory_ends_it(dies: type[EngineDied]) -> None:
    ((document, _),) = documents("fidelity")
    with pytest.raises(dies):
        score_document(FaultyEngine(faults={2: dies("Gone.", hint="Start it.")}), document)  # type: ignore[arg-type]
