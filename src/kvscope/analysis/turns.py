"""A conversation turn by turn: what each turn sent, reused, computed and waited, over all repeats of a design."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from kvscope.analysis.attempts import Attempt, latest_attempts
from kvscope.record.metrics import computed_prompt_tokens, request_metrics
from kvscope.record.rows import MEASURED_OUTCOMES, Json, RequestRow, TrialResult
from kvscope.record.turns import FACTOR, request_outcome, turns_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn, as medians over the ``conversations`` in which it was answered. What none of them states is None.
    ``failed``: outcome → in how many conversations it ended so; where it was never answered, ``prompt_tokens`` is our
    own count."""

    turn: int
    conversations: int
    prompt_tokens: float | None
    cached_tokens: float | None
    computed_tokens: float | None
    ttft_s: float | None
    failed: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTable:
    """The turns of conversations that differ in nothing but how many turns they have: a turn does not know how many
    will follow it. ``levels``: what else the design varies, and the level of it here. ``reuse_prefix``: whether the
    engine was allowed to reuse earlier turns; None: the record does not say."""

    reuse_prefix: bool | None
    levels: Mapping[str, Json]
    turns: tuple[Turn, ...]


def turn_tables(attempts: Iterable[Attempt]) -> tuple[TurnTable, ...]:
    """The tables of one design, from the last attempt of each measured trial; none where no conversation was played."""
    groups: dict[str, list[TrialResult]] = {}
    reuse: bool | None = None
    for attempt in latest_attempts(attempts):
        if attempt.trial.role == "measured" and FACTOR in attempt.trial.levels:
            others = {name: level for name, level in attempt.trial.levels.items() if name != FACTOR}
            reuse = attempt.design.held.get("reuse_prefix")
            groups.setdefault(json.dumps(others, sort_keys=True), []).append(attempt.result)
    tables = (
        TurnTable(reuse_prefix=reuse, levels=json.loads(levels), turns=_turns(results))
        for levels, results in groups.items()
    )
    return tuple(table for table in tables if table.turns)


def _turns(results: Iterable[TrialResult]) -> tuple[Turn, ...]:
    by_turn: dict[int, list[tuple[TrialResult, RequestRow]]] = {}
    for result in results:
        requests = {request.index: request for request in result.requests}
        for index, turn in turns_of(result).items():
            by_turn.setdefault(turn, []).append((result, requests[index]))
    return tuple(_turn(turn, by_turn[turn]) for turn in sorted(by_turn))


def _turn(turn: int, asked: Sequence[tuple[TrialResult, RequestRow]]) -> Turn:
    outcomes = [request_outcome(request, result.trial.outcome) for result, request in asked]
    answered = [pair for pair, outcome in zip(asked, outcomes, strict=True) if outcome in MEASURED_OUTCOMES]
    rows = [request for _, request in answered]
    prompts = [row.prompt_tokens_server for row in rows] or [request.prompt_tokens_ours for _, request in asked]
    return Turn(
        turn=turn,
        conversations=len(answered),
        prompt_tokens=_median(prompts),
        cached_tokens=_median([row.cached_tokens for row in rows]),
        computed_tokens=_median([computed_prompt_tokens(row) for row in rows]),
        ttft_s=_median([_ttft_s(result, request) for result, request in answered]),
        failed={name: outcomes.count(name) for name in dict.fromkeys(outcomes) if name not in MEASURED_OUTCOMES},
    )


def _ttft_s(result: TrialResult, request: RequestRow) -> float | None:
    return request_metrics(request, [token for token in result.tokens if token.request_index == request.index]).ttft_s


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
