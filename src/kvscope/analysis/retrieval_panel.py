"""Whole document against retrieval, from the rows of a design that varies what a model is given: each way's answers,
tokens, waits and memory; the break-even between two of them; and the facts that were lost."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from kvscope.analysis.attempts import Attempt, latest_attempts, load_attempts
from kvscope.analysis.fit import Estimate, mean
from kvscope.analysis.levels import at_level
from kvscope.analysis.proportions import clustered_share
from kvscope.analysis.quality_comparison import QualityComparison
from kvscope.analysis.quality_panel import quality_panel
from kvscope.analysis.retrieval_even import PASSAGES, WHOLE, Even, even_of, first_tokens, stated_tokens
from kvscope.record.metrics import request_metrics, tokens_by_request
from kvscope.record.rows import AnswerRow, DesignRow, Json
from kvscope.record.store import Records

FACTOR = "given"
_READ = ("right", "wrong")


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
    ``with_evidence``: in how many prompts the evidence was sent, of ``evidence_known``, of questions that have an
    answer; ``is_maybe_cut``: whether they reached the model whole is not known. ``failures``: how often each reason.
    ``prompt_tokens``: median; ``first_computed``, ``later_computed``: mean tokens that were not reused, of the first
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
    is_maybe_cut: bool = False


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
    design: DesignRow, attempts: Sequence[Attempt], others: Sequence[Attempt] = ()
) -> RetrievalPanel | None:
    """None for a design that varies something else. ``others``: attempts of other designs; of those on the same model,
    engine and machine that began before this one did, a law of reading is made."""
    if design.factor != FACTOR or design.is_grid:
        return None
    begun = min((attempt.trial.started_at for attempt in attempts), default="")
    earlier = [each for each in others if each.trial.started_at < begun and _is_alike(design, each.design)]
    rows = tuple(_way(str(level), at_level(attempts, level)) for level in design.levels)
    passages = [str(level) for level in design.levels if str(level).startswith(PASSAGES)]
    evens = [found for level in passages if (found := even_of(attempts, level, earlier)) is not None]
    comparisons = quality_panel(design, attempts).comparisons
    return RetrievalPanel(design=design, rows=rows, evens=tuple(evens), comparisons=comparisons)


# --- one way ------------------------------------------------------------------------------------------------------


def _way(level: str, attempts: Sequence[Attempt]) -> WayRow:
    measured = [attempt for attempt in attempts if attempt.is_measured]
    failed = [attempt for attempt in latest_attempts(attempts) if attempt.is_failure]
    last = list(measured[-1].result.answers) if measured else []
    with_answer = [row for row in last if row.expected is not None]
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
        with_evidence=sum(row.evidence_in_prompt is True for row in with_answer),
        evidence_known=sum(row.evidence_in_prompt is not None for row in with_answer),
        failures={name: failures.count(name) for name in dict.fromkeys(failures)},
        lost=tuple(_lost(row) for row in last if row.facts.get("failure") is not None),
        prompt_tokens=_median([r.prompt_tokens_server for a in measured for r in a.measured_requests]),
        first_computed=_average([_first_computed(a) for a in measured]),
        later_computed=_average([_average(stated_tokens(a)[1:]) for a in measured]),
        first_s=_mean([_first_s(a) for a in measured]),
        later_s=_mean([_later_s(a) for a in measured]),
        answer_s=_mean([_answer_s(a) for a in measured]),
        peak_bytes=_average([a.metrics.memory_peak_bytes for a in measured]),
        predicted_bytes=totals.get("total_bytes"),
        cache_bytes=totals.get("kv_cache_bytes"),
        why_not=failed[0].trial.error_message if failed and not measured else None,
        is_maybe_cut=any(row.facts.get("prompt_whole") is False for a in measured for row in a.result.answers),
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


def _first_s(attempt: Attempt) -> float | None:
    times = first_tokens(attempt)
    return times[0] if times else None


def _answer_s(attempt: Attempt) -> float | None:
    """To the end of an answer, the mean of all: a median would leave out the first, which reads everything."""
    tokens = tokens_by_request(attempt.result)
    each = [request_metrics(request, tokens.get(request.index, ())) for request in attempt.measured_requests]
    return _average([metrics.completion_s for metrics in each])


def _later_s(attempt: Attempt) -> float | None:
    return _average(first_tokens(attempt)[1:])


def _first_computed(attempt: Attempt) -> float | None:
    return next(iter(stated_tokens(attempt)), None)


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
    return retrieval_panel(design, attempts, recorded_others(records, design))


def recorded_others(records: Records, design: DesignRow) -> tuple[Attempt, ...]:
    """The attempts of a record's other designs that were read at the same speed, whenever it was."""
    runs = {run.run_id: run for run in records.runs()}
    return tuple(
        attempt
        for other in records.designs()
        if other.design_id != design.design_id and _is_alike(design, other)
        for attempt in load_attempts(records, other, runs)
    )


def _is_alike(design: DesignRow, other: DesignRow) -> bool:
    """Whether requests of both were read at the same speed: one model, engine, build and machine, and all settings but
    the context limit."""
    same = ("model_fingerprint", "engine", "engine_version", "engine_build", "machine_id")
    return all(getattr(design, name) == getattr(other, name) for name in same) and _speed(design) == _speed(other)


def _speed(design: DesignRow) -> dict[str, Json]:
    settings = design.held.get("settings") or {}
    return {name: value for name, value in settings.items() if name not in ("n_ctx", "cache_ram_mib", "n_parallel")}
