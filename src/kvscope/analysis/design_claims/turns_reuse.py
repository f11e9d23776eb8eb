"""At which turns, or from which on, a conversation's history is computed again although the engine was allowed to
reuse it, what the wait for the first token grew by, and why, where the rows can tell."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.finding import Finding
from kvscope.analysis.fit import mean
from kvscope.analysis.levels import METRICS
from kvscope.analysis.price import WINDOWED
from kvscope.analysis.turns import Turn, turn_tables
from kvscope.record.pieces import REASONING_TOKENS
from kvscope.record.rows import DesignRow, RequestRow
from kvscope.record.turns import turns_of

# A turn whose prompt holds the one before it should reuse all of that. What is computed again is called lost from this
# share of it on: a template may close an answer otherwise than the engine did, at the cost of a few tokens.
LOST_SHARE = 0.25
# It takes so many turns of which every one lost it to say "from this turn on".
_FEWEST = 2
# By cause, what else could make an engine compute a history again.
_ALSO_POSSIBLE = {
    "reasoning_dropped": ("others_requests",),
    "window": ("history_edited", "others_requests"),
    "recurrent": ("history_edited", "others_requests"),
    "lost": ("history_edited", "others_requests"),
}


def reuse_findings(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """At most one: nothing where reuse was not allowed, is not stated, or was had."""
    if not design.held.get("reuse_prefix"):
        return ()
    found = []
    for table in turn_tables(attempts):
        lost = [place for place in range(1, len(table.turns)) if _lost(table.turns, place)]
        if lost:
            found.append(_finding(table.turns, lost, [a for a in attempts if a.is_measured]))
    return tuple(found[:1])


def _is_from_then_on(turns: Sequence[Turn], lost: Sequence[int]) -> bool:
    """Whether every turn from the first that lost it on did, and more than one."""
    return len(lost) >= _FEWEST and list(lost) == list(range(lost[0], len(turns)))


def _lost(turns: Sequence[Turn], place: int) -> bool:
    before, here = turns[place - 1].prompt_tokens, turns[place]
    if before is None or here.cached_tokens is None or not before:
        return False
    return here.cached_tokens < (1 - LOST_SHARE) * before


def _finding(turns: Sequence[Turn], lost: Sequence[int], measured: Sequence[Attempt]) -> Finding:
    place = lost[-1]
    last, before = turns[place], turns[place - 1]
    cause = _cause(measured)
    waits = [value for a in measured if (value := METRICS["ttft_s"](a)) is not None and _num_turns(a) == last.turn]
    return Finding(
        slug=f"turns_reuse_{cause}" if _is_from_then_on(turns, lost) else f"turns_reuse_at_{cause}",
        values={
            "turn": turns[lost[0]].turn,
            "turns": tuple(turns[each].turn for each in lost),
            "last_turn": last.turn,
            "cached_tokens": last.cached_tokens,
            "held_tokens": before.prompt_tokens,
            "prompt_tokens": last.prompt_tokens,
            "first_s": turns[0].ttft_s,
            "last_s": last.ttft_s,
            "reasoning_tokens": _reasoning(measured),
        },
        evidence=tuple(a.key for a in measured),
        size=mean(waits, floor=0.0) if waits else None,
        also_possible=_ALSO_POSSIBLE[cause],
    )


def _num_turns(attempt: Attempt) -> int:
    return max(turns_of(attempt.result).values(), default=0)


def _cause(measured: Sequence[Attempt]) -> str:
    """Why, by the first sign in the rows: answers held thoughts and the next prompt was too short to hold them; the
    model has windows, or a state that cannot be cut back; else not told."""
    if _reasoning(measured) and any(_drops_thoughts(attempt) for attempt in measured):
        return "reasoning_dropped"
    kinds = {str(layer["kind"]) for a in measured for layer in (a.prediction or {}).get("layers") or ()}
    if WINDOWED in kinds:
        return "window"
    if any(((a.prediction or {}).get("totals") or {}).get("recurrent_state_bytes") for a in measured):
        return "recurrent"
    return "lost"


def _requests(attempt: Attempt) -> list[RequestRow]:
    turns = turns_of(attempt.result)
    return sorted((r for r in attempt.result.requests if r.index in turns), key=lambda r: turns[r.index])


def _reasoning(measured: Sequence[Attempt]) -> int:
    """Tokens of thought in the answers of a conversation, the middle one of all."""
    counts = [sum(_thought(a, r) for r in _requests(a)) for a in measured]
    return round(median(counts)) if counts else 0


def _thought(attempt: Attempt, request: RequestRow) -> int:
    stated = request.engine_timings.get(REASONING_TOKENS)
    if isinstance(stated, int | float):
        return round(stated)
    return sum(t.request_index == request.index and t.kind == "reasoning" for t in attempt.result.tokens)


def _drops_thoughts(attempt: Attempt) -> bool:
    """Whether a later prompt is too short to hold the one before it and its whole answer."""
    rows = _requests(attempt)
    for earlier, later in pairwise(rows):
        sizes = (earlier.prompt_tokens_server, earlier.output_tokens, later.prompt_tokens_server)
        if None not in sizes and _thought(attempt, earlier):
            before, answer, now = (size or 0 for size in sizes)
            if now < before + answer:
                return True
    return False
