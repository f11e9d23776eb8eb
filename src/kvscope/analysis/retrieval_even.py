"""From how many questions on the whole document is cheaper than passages, from the rows of a design: measured, and as
it could be said before."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isinf
from statistics import fmean

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.break_even import (
    Costs,
    Read,
    ReadingLaw,
    break_even,
    equal_size,
    equal_tokens,
    measured_break_even,
    reading_law,
)
from kvscope.analysis.fit import Estimate
from kvscope.analysis.levels import at_level
from kvscope.record.metrics import computed_prompt_tokens, request_metrics, tokens_by_request
from kvscope.record.rows import MEASURED_OUTCOMES, RequestRow

WHOLE = "whole"
PASSAGES = "passages="
# What each question of a trial cost, in order; None where it failed, or that is not known.
Cost = Callable[[Attempt], Sequence[float | None]]
# Numbers of questions for which the size is told up to which the whole document is cheaper.
QUESTIONS = (1, 10, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Even:
    """The break-even between the whole document and ``level``, as numbers of questions. ``on_time``: measured.
    ``predicted_on_time``: by a law of reading, made of requests of before (``law_from``: earlier_designs or
    first_trial). ``on_tokens``, ``predicted_on_tokens``: tokens that were computed, as the engine states them, and as
    they were counted and predicted before they were sent. ``never``: which of these three are None because there is no
    break-even, passages being cheaper for any number of questions; one that is None otherwise is not known. ``sizes``:
    number of questions → the size up to which the whole document is cheaper, on time; ``token_sizes``: the same on
    tokens. ``largest_tokens``: no document is longer, by the model's window."""

    level: str
    on_time: Estimate
    predicted_on_time: float | None
    law_from: str | None
    on_tokens: float | None
    predicted_on_tokens: float | None
    sizes: dict[int, float | None]
    token_sizes: dict[int, float]
    costs: Costs | None
    never: tuple[str, ...] = ()
    largest_tokens: int | None = None


def _asked(attempt: Attempt) -> list[RequestRow | None]:
    """Each question's request in order; None for one that failed."""
    requests = [request for request in attempt.result.requests if request.role == "measured"]
    return [request if request.is_answered else None for request in requests]


def first_tokens(attempt: Attempt) -> list[float | None]:
    """Seconds until the first token of each question's answer, in order."""
    tokens = tokens_by_request(attempt.result)
    return [
        None if request is None else request_metrics(request, tokens.get(request.index, ())).ttft_s
        for request in _asked(attempt)
    ]


def even_of(attempts: Sequence[Attempt], level: str, earlier: Sequence[Attempt]) -> Even | None:
    """Of the whole document and one way of passages. None where one of the two was not measured, or a trial had one
    question only. ``earlier``: attempts of which a law of reading may be made."""
    whole, passages = (_by_block(at_level(attempts, each)) for each in (WHOLE, level))
    blocks = sorted(whole.keys() & passages.keys())
    pairs = [costs for block in blocks if (costs := _costs(whole[block], passages[block], first_tokens)) is not None]
    if not pairs:
        return None
    first, passage = whole[blocks[0]], passages[blocks[0]]
    counted, stated = _costs(first, passage, _expected_tokens), _costs(first, passage, stated_tokens)
    law, law_from = _law(attempts, earlier)
    all_measured = [a for each in (WHOLE, level) for a in at_level(attempts, each) if a.is_measured]
    own_law = reading_law([read for attempt in all_measured for read in _reads(attempt)])
    tokens = stated or counted
    numbers = {
        "predicted_on_time": None if law is None or counted is None else _by_law(law, counted),
        "on_tokens": None if stated is None else break_even(stated),
        "predicted_on_tokens": None if counted is None else break_even(counted),
    }
    never = tuple(name for name, value in numbers.items() if value is not None and isinf(value))
    known = {name: None if name in never else value for name, value in numbers.items()}
    return Even(
        level=level,
        on_time=measured_break_even(pairs),
        predicted_on_time=known["predicted_on_time"],
        law_from=law_from,
        on_tokens=known["on_tokens"],
        predicted_on_tokens=known["predicted_on_tokens"],
        sizes={} if own_law is None or tokens is None else {n: _size(own_law, n, tokens) for n in QUESTIONS},
        token_sizes={}
        if tokens is None
        else {n: equal_tokens(n, warm_tokens=tokens.warm, each_tokens=tokens.each) for n in QUESTIONS},
        costs=Costs(
            cold=fmean(c.cold for c in pairs), warm=fmean(c.warm for c in pairs), each=fmean(c.each for c in pairs)
        ),
        never=never,
        largest_tokens=_window(all_measured),
    )


def _window(attempts: Sequence[Attempt]) -> int | None:
    """The tokens that the model was trained for, by its files."""
    models = [((attempt.prediction or {}).get("model") or {}) for attempt in attempts]
    return next((int(found) for each in models if (found := each.get("trained_context_tokens")) is not None), None)


def _by_block(attempts: Sequence[Attempt]) -> dict[int, Attempt]:
    return {attempt.trial.block: attempt for attempt in attempts if attempt.is_measured}


def stated_tokens(attempt: Attempt) -> list[float | None]:
    """Tokens that were computed of each question, as the engine states them."""
    return [None if request is None else computed_prompt_tokens(request) for request in _asked(attempt)]


def _expected_tokens(attempt: Attempt) -> list[float | None]:
    """As they were counted, and their reuse predicted, before each was sent."""
    return [_expected(request) for request in _asked(attempt)]


def _expected(request: RequestRow | None) -> int | None:
    if request is None or request.prompt_tokens_ours is None or request.cached_tokens_predicted is None:
        return None
    return request.prompt_tokens_ours - request.cached_tokens_predicted


def _costs(whole: Attempt, passages: Attempt, each: Cost) -> Costs | None:
    """Of the questions that were answered. None where what the first on the whole document cost is not known, or no
    later one, or none on passages; or not of all that were answered."""
    of_whole, of_passages = _of_answered(whole, each), _of_answered(passages, each)
    if len(of_whole) < 2 or _asked(whole)[0] is None or not of_passages or None in (*of_whole, *of_passages):
        return None
    cold, *warm = [value for value in of_whole if value is not None]
    return Costs(cold=cold, warm=fmean(warm), each=fmean(value for value in of_passages if value is not None))


def _of_answered(attempt: Attempt, each: Cost) -> list[float | None]:
    return [value for request, value in zip(_asked(attempt), each(attempt), strict=True) if request is not None]


def _by_law(law: ReadingLaw, tokens: Costs) -> float:
    costs = law.costs(whole_tokens=round(tokens.cold), warm_tokens=round(tokens.warm), each_tokens=round(tokens.each))
    return break_even(costs)


def _size(law: ReadingLaw, questions: int, tokens: Costs) -> float | None:
    return equal_size(law, questions, warm_tokens=round(tokens.warm), each_tokens=round(tokens.each))


def _law(attempts: Sequence[Attempt], earlier: Sequence[Attempt]) -> tuple[ReadingLaw | None, str | None]:
    """A law of reading that was there before passages were measured: of earlier designs, else of a warm-up trial that
    gave the whole document, which is no part of what it is held against."""
    found = reading_law([read for attempt in earlier if attempt.is_measured for read in _reads(attempt)])
    if found is not None and found.fixed_s >= 0 and _tells(earlier):
        return found, "earlier_designs"
    begun = min((a.trial.started_at for a in attempts if str(a.trial.level).startswith(PASSAGES)), default="")
    first = next((a for a in attempts if _warmed(a) and a.trial.started_at < begun), None)
    found = None if first is None else reading_law(_reads(first))
    return (None, None) if found is None else (found, "first_trial")


def _warmed(attempt: Attempt) -> bool:
    trial = attempt.trial
    return trial.level == WHOLE and trial.role == "warmup" and trial.outcome in MEASURED_OUTCOMES


def _tells(attempts: Sequence[Attempt]) -> bool:
    """Whether prompts of several lengths were read, so that a law can be told from chance."""
    return len({a.prompt_tokens for a in attempts if a.is_measured and a.prompt_tokens is not None}) > 1


def _reads(attempt: Attempt) -> list[Read]:
    """Every request of a trial, warm-ups too, whose tokens and time are known."""
    tokens, found = tokens_by_request(attempt.result), []
    for request in attempt.result.requests:
        computed = computed_prompt_tokens(request)
        seconds = request_metrics(request, tokens.get(request.index, ())).ttft_s if request.is_answered else None
        if computed and seconds and request.stream is None:
            found.append(Read(start=request.cached_tokens or 0, tokens=computed, seconds=seconds))
    return found
