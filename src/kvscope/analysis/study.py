"""One study: everything that one record says about one model on one engine build on one machine, computed once and
used by the page and by the terminal alike. Rows of different machines, models or engine builds are never merged."""

import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from kvscope.analysis.advice import advise
from kvscope.analysis.advice_kind import Advice, Withheld
from kvscope.analysis.advice_pressure import NOT_KNOWN, Pressure
from kvscope.analysis.answer_designs import is_of_answers
from kvscope.analysis.asked_prediction import AskedPrediction
from kvscope.analysis.attempts import Attempt, latest_attempts, load_attempts, with_others
from kvscope.analysis.attribute import Attribution, attribute
from kvscope.analysis.checks import Check, run_checks
from kvscope.analysis.compare import Component, compare_components
from kvscope.analysis.failures import FailureGroup, group_failures
from kvscope.analysis.findings import Finding, find
from kvscope.analysis.growth import ContextGrowth, InputGrowth, context_growth, input_growth, representative
from kvscope.analysis.identity import RowIdentity, row_identities
from kvscope.analysis.latency import (
    OutputLimit,
    TimeLaw,
    completion_law,
    output_limits,
    tpot_by_output,
    tpot_law,
    ttft_law,
)
from kvscope.analysis.levels import LevelRow, at_level, level_rows
from kvscope.analysis.limit import ContextLimit, context_limit
from kvscope.analysis.release import Release, judge_release
from kvscope.analysis.release_verdict import CANNOT_TELL
from kvscope.record.metrics import last_mark
from kvscope.record.rows import DesignRow, Json, RunRow
from kvscope.record.store import Records


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignStudy:
    """One design with its attempts, and the table of its levels."""

    design: DesignRow
    attempts: tuple[Attempt, ...]
    levels: tuple[LevelRow, ...]

    @property
    def num_measured(self) -> int:
        return sum(a.is_measured for a in self.attempts)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryView:
    """Memory of one attempt: its identity after the load and after its requests, and the components at both."""

    attempt: Attempt
    loaded: Attribution | None
    after: Attribution | None
    components_loaded: tuple[Component, ...]
    components_after: tuple[Component, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """``main`` is the attempt whose memory the first screen shows; ``by_context`` has one per context limit measured;
    ``timeline`` the attempt whose samples are drawn; ``until_failure``, where nothing was measured, the memory of the
    last attempt that had loaded its model before it failed. ``row_numbers``: attempt → its place among the record's
    rows, which stays when more are recorded. A part for which there are no measurements is None or empty."""

    model_name: str
    model_source: str
    model_fingerprint: str
    engine: str
    engine_version: str
    engine_build: str
    machine_id: str
    machine: Mapping[str, Json]
    runs: tuple[RunRow, ...]
    designs: tuple[DesignStudy, ...]
    prediction: Mapping[str, Json] | None
    main: MemoryView | None
    by_context: tuple[MemoryView, ...]
    context: ContextGrowth | None
    inputs: InputGrowth | None
    timeline: Attempt | None
    ttft: TimeLaw | None
    tpot: TimeLaw | None
    completion: TimeLaw | None
    tpot_output: TimeLaw | None
    limits: tuple[OutputLimit, ...]
    releases: tuple[Release, ...]
    limit: ContextLimit | None
    failures: tuple[FailureGroup, ...]
    checks: tuple[Check, ...]
    findings: tuple[Finding, ...] = field(default=())
    identities: tuple[RowIdentity, ...] = ()
    pressure: Pressure = field(default=NOT_KNOWN)
    advice: tuple[Advice, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    look: tuple[tuple[str, ...], ...] = ()
    priced: tuple[Advice, ...] = ()
    record_name: str = ""
    until_failure: MemoryView | None = None
    row_numbers: Mapping[str, int] = field(default_factory=dict)
    asked: AskedPrediction | None = None

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return tuple(a for d in self.designs for a in d.attempts)

    @property
    def trials(self) -> tuple[Attempt, ...]:
        """The last attempt of each trial."""
        return latest_attempts(self.attempts)

    @property
    def num_repeated(self) -> int:
        """Attempts that were followed by another one of the same trial."""
        return len(self.attempts) - len(self.trials)

    @property
    def num_failed(self) -> int:
        return sum(len(group.attempts) for group in self.failures)

    @property
    def is_measured(self) -> bool:
        return any(a.is_measured for a in self.attempts)

    @property
    def has_answers(self) -> bool:
        """Whether questions were put to the model, or texts scored, and something came of it."""
        return any(a.is_measured and a.result.answers for a in self.attempts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """All studies of a record, in the order in which they were begun."""

    studies: tuple[Study, ...]


def analyse(records: Records) -> Analysis:
    """Everything a record says, from its rows alone."""
    groups: dict[tuple[str, ...], list[DesignRow]] = {}
    for design in records.designs():
        key = (
            design.machine_id,
            design.model_fingerprint,
            design.engine,
            design.engine_version,
            design.engine_build,
        )
        groups.setdefault(key, []).append(design)
    runs = {run.run_id: run for run in records.runs()}
    with _without_collections():
        return Analysis(studies=tuple(_study(records, designs, runs) for designs in groups.values()))


@contextmanager
def _without_collections() -> Iterator[None]:
    """Rows hold no cycles, and of thousands of trials there are millions: looking for cycles among them takes Python a
    quarter of the whole time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _study(records: Records, rows: Sequence[DesignRow], all_runs: Mapping[str, RunRow]) -> Study:
    designs = tuple(_design_study(row, load_attempts(records, row, all_runs)) for row in rows)
    attempts = [a for d in designs for a in d.attempts]
    used = {a.trial.run_id for a in attempts}
    runs = tuple(run for run in all_runs.values() if run.run_id in used)
    first = rows[0]
    by_n_ctx, main = _latest(designs, _varies("n_ctx")), _main_attempt(designs)
    main_view = None if main is None else _view(with_others(records, main))
    identities = row_identities(attempts)
    numbers = _row_numbers(records, {row.design_id for row in rows})
    study = Study(
        model_name=first.model_name,
        model_source=first.model_source,
        model_fingerprint=first.model_fingerprint,
        engine=first.engine,
        engine_version=first.engine_version,
        engine_build=first.engine_build,
        machine_id=first.machine_id,
        machine=runs[-1].machine if runs else {},
        runs=runs,
        record_name=records.path.name,
        until_failure=_until_failure(attempts) if main is None else None,
        row_numbers=numbers,
        designs=designs,
        prediction=_prediction(main, attempts),
        main=main_view,
        by_context=tuple(_view(a) for a in _representatives(by_n_ctx)),
        context=None if by_n_ctx is None else context_growth(by_n_ctx.attempts),
        **_of_lengths(designs),
        releases=_releases(designs, main),
        limit=None if main is None else context_limit(main, main_view.loaded if main_view else None),
        failures=group_failures(latest_attempts(attempts)),
        checks=run_checks(
            [(d.design, d.attempts) for d in designs], _loaded(attempts, identities), identities, numbers
        ),
        identities=identities,
    )
    return _advised(replace(study, findings=find(study)))


def _row_numbers(records: Records, design_ids: Collection[str]) -> dict[str, int]:
    """Attempt → its number among all rows of the record, in the order in which ``kvscope export`` has them."""
    rows = records.select("SELECT design_id, trial_id, attempt FROM trials ORDER BY rowid")
    numbered = enumerate(rows, start=1)
    return {f"{row['trial_id']}/{row['attempt']}": n for n, row in numbered if row["design_id"] in design_ids}


def _until_failure(attempts: Sequence[Attempt]) -> MemoryView | None:
    loaded = [a for a in attempts if a.is_failure and last_mark(a.result, "loaded") is not None]
    return _view(loaded[-1]) if loaded else None


def _of_lengths(designs: Sequence[DesignStudy]) -> dict[str, Any]:
    """What the designs of the prompt's and the answer's length say: fields of a Study."""
    by_input = _latest(designs, _varies("prompt_tokens"))
    by_output = _latest(designs, _varies("output_tokens"))
    inputs, outputs = (None if each is None else each.attempts for each in (by_input, by_output))
    return {
        "inputs": None if inputs is None else input_growth(inputs),
        "timeline": _timeline(by_input),
        "ttft": None if inputs is None else ttft_law(inputs),
        "tpot": None if inputs is None else tpot_law(inputs),
        "completion": None if outputs is None else completion_law(outputs),
        "tpot_output": None if outputs is None else tpot_by_output(outputs),
        "limits": () if outputs is None else output_limits(outputs),
    }


def _advised(study: Study) -> Study:
    found = advise(study)
    return replace(
        study,
        pressure=found.pressure,
        advice=found.advice,
        withheld=found.withheld,
        look=found.look,
        priced=found.priced,
    )


def _design_study(design: DesignRow, attempts: tuple[Attempt, ...]) -> DesignStudy:
    return DesignStudy(design=design, attempts=attempts, levels=level_rows(design, attempts))


def _varies(factor: str) -> Callable[[DesignRow], bool]:
    return lambda design: design.factor == factor


def _latest(designs: Sequence[DesignStudy], wanted: Callable[[DesignRow], bool]) -> DesignStudy | None:
    """The last design of a kind that has measurements; different settings of one question are not pooled."""
    found = [d for d in designs if wanted(d.design) and not d.design.is_grid and d.num_measured]
    return found[-1] if found else None


def _representatives(study: DesignStudy | None) -> list[Attempt]:
    if study is None:
        return []
    levels = sorted(study.design.levels, key=lambda level: (not isinstance(level, int), str(level).zfill(12)))
    return [a for level in levels if (a := representative(study.attempts, level)) is not None]


def _main_attempt(designs: Sequence[DesignStudy]) -> Attempt | None:
    """The largest context limit measured, else the longest input, else any measured attempt with memory read."""
    for factor in ("n_ctx", "prompt_tokens"):
        found = _representatives(_latest(designs, _varies(factor)))
        if found:
            return found[-1]
    measured = [a for d in designs for a in d.attempts if a.is_measured]
    return next((a for a in measured if a.result.marks), measured[0] if measured else None)


def _prediction(main: Attempt | None, attempts: Sequence[Attempt]) -> Mapping[str, Json] | None:
    if main is not None and main.prediction is not None:
        return main.prediction
    return next((a.prediction for a in attempts if a.prediction is not None), None)


def _view(attempt: Attempt) -> MemoryView:
    loaded = attribute(attempt.result, attempt.prediction, "loaded")
    after = attribute(attempt.result, attempt.prediction, "after_request")
    return MemoryView(
        attempt=attempt,
        loaded=loaded,
        after=after,
        components_loaded=compare_components(attempt.result, attempt.prediction, loaded),
        components_after=compare_components(attempt.result, attempt.prediction, after),
    )


def _timeline(study: DesignStudy | None) -> Attempt | None:
    with_samples = [a for a in _representatives(study) if a.result.samples]
    return with_samples[-1] if with_samples else None


def _releases(designs: Sequence[DesignStudy], main: Attempt | None) -> tuple[Release, ...]:
    """One verdict per level of the latest release check; without one, what the main attempt can tell."""
    study = _latest(designs, lambda d: d.name == "release")
    if study is not None:
        return _judged(study.attempts, study.design.levels)
    found = None if main is None else judge_release(main)
    if found is None or main is None or (found.verdict == CANNOT_TELL and is_of_answers(main.design)):
        return ()  # nobody asked whether memory comes back, and a level "cannot tell" would read as its answers
    return (found,)


def _judged(attempts: Sequence[Attempt], levels: Sequence[Json]) -> tuple[Release, ...]:
    """Of each level the attempt in the middle, or, where none was measured, the last one: how its process ended."""
    found = []
    for level in levels:
        failed = [a for a in at_level(attempts, level) if a.is_failure]
        chosen = representative(attempts, level) or (failed[-1] if failed else None)
        found.append(None if chosen is None else judge_release(chosen))
    return tuple(release for release in found if release is not None)


def releases_of(records: Records, design_id: str) -> tuple[Release, ...]:
    """The verdicts of one release check, one for each level."""
    design = next(row for row in records.designs() if row.design_id == design_id)
    attempts = load_attempts(records, design, {run.run_id: run for run in records.runs()})
    return _judged(latest_attempts(attempts), design.levels)


def _loaded(attempts: Sequence[Attempt], identities: Sequence[RowIdentity]) -> dict[str, Attribution]:
    found = {row.key: row.loaded.attribution for row in identities if row.loaded is not None}
    for attempt in attempts:
        if attempt.is_measured and attempt.key not in found:
            made = attribute(attempt.result, attempt.prediction, "loaded")
            found |= {} if made is None else {attempt.key: made}
    return found
