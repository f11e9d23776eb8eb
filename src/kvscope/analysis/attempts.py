"""One attempt of a trial with everything that is known about it: its rows, its metrics, what was predicted for it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kvscope.analysis.calibration_record import of_its_design
from kvscope.errors import SchemaMismatch
from kvscope.record.attempt_rows import ALL_PARTS
from kvscope.record.metrics import TrialMetrics, metrics_of
from kvscope.record.rows import MEASURED_OUTCOMES, DesignRow, Json, RequestRow, RunRow, TrialResult, TrialRow
from kvscope.record.store import Records

_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """``prediction`` is the contract's kvscope.prediction/1, as stored before the attempt ran. ``trial`` and
    ``is_measured`` are of its result; of thousands of attempts they are asked for a million times."""

    design: DesignRow
    run: RunRow
    result: TrialResult
    metrics: TrialMetrics
    prediction: Mapping[str, Json] | None
    trial: TrialRow = field(init=False, repr=False, compare=False)
    is_measured: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """It counts in averages, ``is_measured``, as a measured trial whose outcome is one of a measurement."""
        trial = self.result.trial
        object.__setattr__(self, "trial", trial)
        object.__setattr__(self, "is_measured", trial.role == "measured" and trial.outcome in MEASURED_OUTCOMES)

    @property
    def key(self) -> str:
        """How evidence names it: the trial's id and the attempt."""
        return f"{self.trial.trial_id}/{self.trial.attempt}"

    @property
    def is_failure(self) -> bool:
        """It ended without a measurement; warm-up trials included."""
        return self.trial.outcome is not None and self.trial.outcome not in MEASURED_OUTCOMES

    @property
    def is_unfinished(self) -> bool:
        """It has started and has no result: still running, or killed."""
        return self.trial.outcome is None

    @property
    def measured_requests(self) -> tuple[RequestRow, ...]:
        return tuple(r for r in self.result.requests if r.role == "measured" and r.is_answered)

    @property
    def prompt_tokens(self) -> int | None:
        """Prompt tokens of the last measured request, as the server counted them."""
        counts = [r.prompt_tokens_server for r in self.measured_requests]
        return counts[-1] if counts else None

    @property
    def output_tokens(self) -> int | None:
        counts = [r.output_tokens for r in self.measured_requests]
        return counts[-1] if counts else None

    @property
    def context_tokens(self) -> int | None:
        """Context the engine really holds: as it states it, else as predicted, else as asked."""
        predicted = (self.prediction or {}).get("effective") or {}
        for value in (
            self.result.effective.get("n_ctx"),
            predicted.get("context_tokens"),
            self.trial.settings.get("n_ctx"),
        ):
            if value is not None:
                return int(value)
        return None


def has_engine_rules(prediction: Mapping[str, Json] | None) -> bool:
    """Whether a prediction says what an engine reserves. One for "logical" says what the tokens need on any engine: it
    knows no context limit, and no buffer."""
    engine = ((prediction or {}).get("scenario") or {}).get("engine")
    return engine is not None and engine != "logical"


# All but the reads of the socket, what they tell is in the tokens' times, and other programs' memory: that is shown of
# one attempt (``with_others``).
_PARTS = ALL_PARTS - {"reads", "occupants"}


def load_attempts(records: Records, design: DesignRow, runs: Mapping[str, RunRow]) -> tuple[Attempt, ...]:
    """All attempts of a design, in the order in which they started. ``runs``: the record's sittings by their id. Raises
    SchemaMismatch where the record is damaged."""
    return tuple(load_attempt(records, trial, design, runs) for trial in records.trials(design.design_id))


def load_attempt(records: Records, trial: TrialRow, design: DesignRow, runs: Mapping[str, RunRow]) -> Attempt:
    """One attempt of a design. Raises as ``load_attempts``."""
    run = of_trial(records, trial, "sitting", trial.run_id, runs)
    result = of_its_design(records.result(trial, _PARTS), design)
    return Attempt(
        design=design,
        run=run,
        result=result,
        metrics=metrics_of(result),
        prediction=records.prediction(trial),
    )


def with_others(records: Records, attempt: Attempt) -> Attempt:
    """The attempt with what else used memory on its machine. Raises as ``load_attempts``."""
    read = records.result(attempt.trial, {"occupants"})
    return replace(attempt, result=replace(attempt.result, occupants=read.occupants))


def of_trial(records: Records, trial: TrialRow, what: str, key: str, known: Mapping[str, _Row]) -> _Row:
    """The sitting or the design that a trial is of. Raises SchemaMismatch where it is gone from the record."""
    if key not in known:
        raise SchemaMismatch(
            f"{records.path} is damaged: the {what} {key} of trial {trial.trial_id} is not in it.",
            hint="Use a copy of the file that was made before.",
        )
    return known[key]


def latest_attempts(attempts: Iterable[Attempt]) -> tuple[Attempt, ...]:
    """The last attempt of each trial: what became of the trial. Earlier ones were cut short or failed, and repeated."""
    last: dict[tuple[str, str], Attempt] = {}
    for attempt in attempts:
        key = (attempt.trial.design_id, attempt.trial.trial_id)
        known = last.get(key)
        if known is None or known.trial.attempt <= attempt.trial.attempt:
            last[key] = attempt
    return tuple(last.values())
