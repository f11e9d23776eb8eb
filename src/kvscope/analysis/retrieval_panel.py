"""Whole document against retrieval, from the rows of a design that varies what a model is given: each way's answers,
tokens, waits and memory; the break-even between two of them; and the facts that were lost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from kvscope.analysis.attempts import Attempt, latest_attempts, load_attempts
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
from kvscope.analysis.fit import Estimate, mean
from kvscope.analysis.levels import at_level
from kvscope.analysis.proportions import clustered_share
from kvscope.analysis.quality_comparison import QualityComparison
from kvscope.analysis.quality_panel import quality_panel
from kvscope.record.metrics import computed_prompt_tokens, request_metrics, tokens_by_request
from kvscope.record.rows import AnswerRow, DesignRow, Json, RequestRow
from kvscope.record.store import Records

FACTOR = "given"
WHOLE = "whole"
_READ = ("right", "wrong")
# What each measured request of a trial cost, in order.
Cost = Callable[[Attempt], Sequence[float | None]]
# Numbers of questions for which the size is told up to which the whole document is cheaper.
QUESTIONS = (1, 10, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A question that was not answered right. ``failure``: why, by ``experiment.retrieval_failures``."""

    item: str
    question: str
    expected: str | None
    answer: str | None
    failure: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WayRow:
    """One way to give documents. ``share``: right answers of those that could be read, each question counted once, with
    an interval that minds which of them are of one document. ``num_scored``: those questions, of ``num_questions``.
    ``with_evidence``: in how many prompts the evidence was, of ``evidence_known``. ``failures``: how often each reason.
    ``prompt_tokens``: median; ``first_computed``, ``later_computed``: tokens that were not reused, of the first
    question and of the later ones. Times: to the first token, of the first question and of later ones; to the end of
    the answer, of all. ``peak_bytes``, ``predicted_bytes``: all that the engine held; by prediction, ``cache_bytes`` of
    it for keys and values. ``why_not``: why nothing was measured, where it was not."""

    level: str
    num_trials: int
    num_failed: int
    share: Estimate
    num_right: float
    num_scored: int
    num_questions: int
    with_evidence: int
    evidence_known: int
    failures: dict[str, int]
    lost: tuple[Lost, ...]
    prompt_tokens: float | None
    first_computed: float | None
    later_computed: float | None
    first_s: Estimate
    later_s: Estimate
    answer_s: Estimate
    peak_bytes: float | None
    predicted_bytes: int | None
    cache_bytes: int | None
    why_not: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Even:
    """The break-even between the whole document and ``level``, as numbers of questions. ``on_time``: measured.
    ``predicted_on_time``: by a law of reading, made of requests of before (``law_from``: earlier_designs or
    first_trial); None where nothing was known. ``on_tokens``, ``predicted_on_tokens``: tokens that were computed, as
    the engine states them, and as they were counted and predicted before they were sent. ``sizes``: number of
    questions → the size up to which the whole document is cheaper, on time; ``token_sizes``: the same on tokens."""

    level: str
    on_time: Estimate
    predicted_on_time: float | None
    law_from: str | None
    on_tokens: float | None
    predicted_on_tokens: float | None
    sizes: dict[int, float | None]
    token_sizes: dict[int, float]
    costs: Costs | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalPanel:
    """``design``: whose rows these are. ``rows``: the baseline first. ``evens``: of each way of passages that was
    measured beside the whole document. ``comparisons``: right answers of each level against the baseline's, on the same
    questions, by language."""

    design: DesignRow
    rows: tuple[WayRow, ...]
    evens: tuple[Even, ...]
    comparisons: tuple[QualityComparison, ...] = ()

    def row(self, level: str) -> WayRow | None:
        """Of one way."""
        return next((row for row in self.rows if row.level == level), None)


def retrieval_panel(
    design: DesignRow, attempts: Sequence[Attempt], earlier: Sequence[Attempt] = ()
) -> RetrievalPanel | None:
    """None for a design that varies something else. ``earlier``: attempts of other designs on the same model, engine
    and machine that were recorded before this one began, of which the law of reading is made."""
    if design.factor != FACTOR or design.is_grid:
        return None
    rows = tuple(_way(str(level), at_level(attempts, level)) for level in design.levels)
    passages = [str(level) for level in design.levels if str(level).startswith("passages=")]
    evens = [found for level in passages if (found := _even(attempts, level, earlier)) is not None]
    comparisons = quality_panel(design, attempts).comparisons
    return RetrievalPanel(design=design, rows=rows, evens=tuple(evens), comparisons=comparisons)


# --- one way ------------------------------------------------------------------------------------------------------


def _way(level: str, attempts: Sequence[Attempt]) -> WayRow:
    measured = [attempt for attempt in attempts if attempt.is_measured]
    failed = [attempt for attempt in latest_attempts(attempts) if attempt.is_failure]
    last = list(measured[-1].result.answers) if measured else []
    scores = _scores(measured)
    documents: dict[str, list[float]] = {}
    for (document, _), values in scores.items():
        documents.setdefault(document, []).append(fmean(values))
    failures = [str(row.facts["failure"]) for row in last if row.facts.get("failure") is not None]
    predicted = next((a.prediction for a in (*measured, *failed) if a.prediction is not None), {})
    totals = predicted.get("totals") or {}
    return WayRow(
        level=level,
        num_trials=len(measured),
        num_failed=len(failed),
        share=clustered_share(list(documents.values())),
        num_right=sum(fmean(values) for values in scores.values()),
        num_scored=len(scores),
        num_questions=len(last),
        with_evidence=sum(row.evidence_in_prompt is True for row in last),
        evidence_known=sum(row.evidence_in_prompt is not None for row in last),
        failures={name: failures.count(name) for name in dict.fromkeys(failures)},
        lost=tuple(_lost(row) for row in last if row.facts.get("failure") is not None),
        prompt_tokens=_median([r.prompt_tokens_server for a in measured for r in a.measured_requests]),
        first_computed=_median([_computed(a, 0) for a in measured]),
        later_computed=_median([v for a in measured for v in _later_computed(a)]),
        first_s=_mean([_first_s(a) for a in measured]),
        later_s=_mean([_later_s(a) for a in measured]),
        answer_s=_mean([a.metrics.completion_s for a in measured]),
        peak_bytes=_average([a.metrics.memory_peak_bytes for a in measured]),
        predicted_bytes=totals.get("total_bytes"),
        cache_bytes=totals.get("kv_cache_bytes"),
        why_not=failed[0].trial.error_message if failed and not measured else None,
    )


def _scores(measured: Sequence[Attempt]) -> dict[tuple[str, str], list[float]]:
    """(document, item) → the scores of its answers that could be read, over the repeats."""
    scores: dict[tuple[str, str], list[float]] = {}
    for attempt in measured:
        for row in attempt.result.answers:
            if row.reading in _READ and row.score is not None:
                scores.setdefault((row.document, row.item), []).append(row.score)
    return scores


def _lost(row: AnswerRow) -> Lost:
    failure = row.facts.get("failure")
    return Lost(
        item=row.item,
        question=str(row.facts.get("question", row.item)),
        expected=row.expected,
        answer=row.answer,
        failure=None if failure is None else str(failure),
    )


def _ttft(attempt: Attempt) -> list[float | None]:
    """Of each measured request, in order."""
    tokens = tokens_by_request(attempt.result)
    return [request_metrics(request, tokens.get(request.index, ())).ttft_s for request in attempt.measured_requests]


def _first_s(attempt: Attempt) -> float | None:
    times = _ttft(attempt)
    return times[0] if times else None


def _later_s(attempt: Attempt) -> float | None:
    return _average(_ttft(attempt)[1:])


def _computed(attempt: Attempt, number: int) -> int | None:
    requests = attempt.measured_requests
    return computed_prompt_tokens(requests[number]) if number < len(requests) else None


def _later_computed(attempt: Attempt) -> list[int | None]:
    return [computed_prompt_tokens(request) for request in attempt.measured_requests[1:]]


# --- the break-even -------------------------------------------------------------------------------------------------


def _even(attempts: Sequence[Attempt], level: str, earlier: Sequence[Attempt]) -> Even | None:
    """None where one of the two ways was not measured, or a trial had one question only."""
    whole, passages = (_by_block(at_level(attempts, each)) for each in (WHOLE, level))
    blocks = sorted(whole.keys() & passages.keys())
    pairs = [costs for block in blocks if (costs := _costs(whole[block], passages[block], _seconds)) is not None]
    if not pairs:
        return None
    first, passage = whole[blocks[0]], passages[blocks[0]]
    counted, stated = _costs(first, passage, _expected_tokens), _costs(first, passage, _stated_tokens)
    law, law_from = _law(attempts, earlier)
    all_measured = [a for each in (WHOLE, level) for a in at_level(attempts, each) if a.is_measured]
    own_law = reading_law([read for attempt in all_measured for read in _reads(attempt)])
    tokens = stated or counted
    return Even(
        level=level,
        on_time=measured_break_even(pairs),
        predicted_on_time=None if law is None or counted is None else _by_law(law, counted),
        law_from=law_from,
        on_tokens=None if stated is None else break_even(stated),
        predicted_on_tokens=None if counted is None else break_even(counted),
        sizes={} if own_law is None or tokens is None else {n: _size(own_law, n, tokens) for n in QUESTIONS},
        token_sizes={}
        if tokens is None
        else {n: equal_tokens(n, warm_tokens=tokens.warm, each_tokens=tokens.each) for n in QUESTIONS},
        costs=Costs(
            cold=fmean(c.cold for c in pairs), warm=fmean(c.warm for c in pairs), each=fmean(c.each for c in pairs)
        ),
    )


def _by_block(attempts: Sequence[Attempt]) -> dict[int, Attempt]:
    return {attempt.trial.block: attempt for attempt in attempts if attempt.is_measured}


def _seconds(attempt: Attempt) -> list[float | None]:
    return _ttft(attempt)


def _stated_tokens(attempt: Attempt) -> list[float | None]:
    return [computed_prompt_tokens(request) for request in attempt.measured_requests]


def _expected_tokens(attempt: Attempt) -> list[float | None]:
    """As they were counted, and their reuse predicted, before each was sent."""
    return [_expected(request) for request in attempt.measured_requests]


def _expected(request: RequestRow) -> int | None:
    if request.prompt_tokens_ours is None or request.cached_tokens_predicted is None:
        return None
    return request.prompt_tokens_ours - request.cached_tokens_predicted


def _costs(whole: Attempt, passages: Attempt, each: Cost) -> Costs | None:
    """None where not all of it is known, or there was no later question."""
    of_whole, of_passages = each(whole), each(passages)
    if len(of_whole) < 2 or not of_passages or None in of_whole or None in of_passages:
        return None
    known = [value for value in of_whole if value is not None]
    return Costs(cold=known[0], warm=fmean(known[1:]), each=fmean(value for value in of_passages if value is not None))


def _by_law(law: ReadingLaw, tokens: Costs) -> float:
    costs = law.costs(whole_tokens=round(tokens.cold), warm_tokens=round(tokens.warm), each_tokens=round(tokens.each))
    return break_even(costs)


def _size(law: ReadingLaw, questions: int, tokens: Costs) -> float | None:
    return equal_size(law, questions, warm_tokens=round(tokens.warm), each_tokens=round(tokens.each))


def _law(attempts: Sequence[Attempt], earlier: Sequence[Attempt]) -> tuple[ReadingLaw | None, str | None]:
    """A law of reading that was there before passages were measured: of earlier designs, else of the first trial that
    gave the whole document."""
    found = reading_law([read for attempt in earlier if attempt.is_measured for read in _reads(attempt)])
    if found is not None and found.fixed_s >= 0 and _tells(earlier):
        return found, "earlier_designs"
    first = next((a for a in attempts if a.trial.level == WHOLE and a.trial.outcome in ("ok", "stopped_early")), None)
    found = None if first is None else reading_law(_reads(first))
    return (None, None) if found is None else (found, "first_trial")


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


def _mean(values: Sequence[float | None]) -> Estimate:
    return mean([value for value in values if value is not None], floor=0.0)


def _average(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def lost_by(panel: RetrievalPanel, level: str, than: str = WHOLE) -> tuple[Lost, ...]:
    """What ``level`` did not answer right, though ``than`` did."""
    here, there = panel.row(level), panel.row(than)
    if here is None or there is None or not there.num_trials:
        return ()
    missed = {each.item for each in there.lost}
    return tuple(each for each in here.lost if each.item not in missed)


def recorded_panel(records: Records, design_id: str) -> RetrievalPanel | None:
    """Of a design in a record, its law of reading made of what the record held before it began. None where there is no
    such design, or it varies something else."""
    designs = records.designs()
    design = next((row for row in designs if row.design_id == design_id), None)
    if design is None or design.factor != FACTOR:
        return None
    runs = {run.run_id: run for run in records.runs()}
    attempts = load_attempts(records, design, runs)
    begun = min((attempt.trial.started_at for attempt in attempts), default="")
    earlier = [
        attempt
        for other in designs
        if other.design_id != design_id and _is_alike(design, other)
        for attempt in load_attempts(records, other, runs)
        if attempt.trial.started_at < begun
    ]
    return retrieval_panel(design, attempts, earlier)


def _is_alike(design: DesignRow, other: DesignRow) -> bool:
    """Whether requests of both were read at the same speed: one model, engine, build and machine, and all settings but
    the context limit."""
    same = ("model_fingerprint", "engine", "engine_version", "engine_build", "machine_id")
    return all(getattr(design, name) == getattr(other, name) for name in same) and _speed(design) == _speed(other)


def _speed(design: DesignRow) -> dict[str, Json]:
    settings = design.held.get("settings") or {}
    return {name: value for name, value in settings.items() if name not in ("n_ctx", "cache_ram_mib", "n_parallel")}
