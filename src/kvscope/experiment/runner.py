"""The resumable loop: plan, skip what is done, predict, run, record, go on.

Kill it at any moment and call it again: finished trials are kept and not repeated, the one in flight is recorded as
interrupted and tried anew. Where a trial runs is an executor's business.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, TypedDict

from kvscope.engine.registry import EngineChoice
from kvscope.errors import DeviceBusy, UsageError
from kvscope.experiment.design import Design, Trial
from kvscope.experiment.device_lock import Busy
from kvscope.experiment.ending import ending_of
from kvscope.experiment.executor import Executor, LocalExecutor, TrialJob, with_warnings
from kvscope.experiment.identity import design_row as design_row
from kvscope.experiment.identity import start_run as start_run
from kvscope.experiment.identity import utc_now
from kvscope.experiment.interrupts import interrupts_held
from kvscope.experiment.kept_text import kept_of
from kvscope.experiment.quality_reference import References
from kvscope.experiment.refusal import Reason
from kvscope.experiment.retrieval_counts import with_counts
from kvscope.experiment.run_options import RunOptions as RunOptions
from kvscope.experiment.subject import Subject
from kvscope.experiment.time_left import TimeLeft
from kvscope.experiment.trial_scores import timed_as
from kvscope.model.spec import ModelSpec
from kvscope.predict.memory import Prediction
from kvscope.record.rows import MEASURED_OUTCOMES, DesignRow, PredictionRow, RunRow, TrialResult, TrialRow, WarningRow
from kvscope.record.store import Recorder

# Why a design ended before all the blocks that it might have had: nothing is left to do.
NARROW_ENOUGH = "narrow enough"
TIME_LIMIT = "time limit"
# It was over while one waited for a device.
WAITED = "time limit, while another kvscope measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Told once before the first trial that is run, and after each; and when a trial has to wait for somebody else
    (``waiting_for``), or tiny models are run before it (``is_calibrating``). ``left_s`` is None until a trial has been
    timed; ``is_at_most``: repeating may end earlier."""

    design: str
    done: int
    total: int
    kept: int
    result: TrialResult | None
    next_trial: Trial | None
    left_s: float | None
    is_at_most: bool = False
    waiting_for: Busy | None = None
    is_calibrating: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignSummary:
    """What became of a design in this sitting. ``kept``: trials that were finished before; ``kept_failed`` of them had
    failed. ``warmups``: how many of ``measured`` were warm-ups; ``refused``: how many of ``failed`` were not run, as
    they were predicted not to work."""

    design_id: str
    name: str
    total: int
    kept: int
    kept_failed: int
    measured: int
    failed: int
    not_run: int
    stopped_by: str | None
    warmups: int = 0
    refused: int = 0


def exit_code(summaries: Sequence[DesignSummary]) -> int:
    """Of a command that ran them: 1 where a trial failed, that of DeviceBusy where nothing of a design was run as
    somebody else measured, and else 0."""
    if any(summary.failed + summary.kept_failed for summary in summaries):
        return 1
    begun = {summary.design_id for summary in summaries if summary.measured}
    waited = {summary.design_id for summary in summaries if summary.stopped_by == WAITED}
    return DeviceBusy.exit_code if waited - begun else 0


Listener = Callable[[Progress], None]


class _State(TypedDict):
    design: str
    done: int
    total: int
    kept: int
    is_at_most: bool


def run_design(
    recorder: Recorder,
    run: RunRow,
    design: Design,
    model: ModelSpec | None,
    choice: EngineChoice,
    *,
    options: RunOptions | None = None,
    listener: Listener | None = None,
    now: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
    executor: Executor | None = None,
) -> DesignSummary:
    """Run what is left of a design and record every trial. ``model`` None: whatever a running server has; nothing is
    predicted then. ``executor``: who runs the trials; None: this process.

    Ctrl-C is recorded as the outcome of the trial it hits, then raised again. Before anything is recorded it raises
    EngineNotFound, MissingDependency, and UsageError where the engine would refuse the baseline's settings. Raises
    RecordError if a result cannot be kept, and DeviceBusy where a device was not to be had.
    """
    subject = Subject.of(model, choice)
    design = with_counts(design, subject)
    subject.predict(design.condition(design.points()[0]))
    row = design_row(design, subject, run)
    recorder.add_design(row)
    executor = executor or LocalExecutor(subject, (now, sleep), lambda: loop.tell_calibrating())
    loop = _Loop(recorder, run, design, row, subject, options or RunOptions(), listener, now, executor)
    return loop.run()


@dataclass(slots=True)
class _Loop:
    recorder: Recorder
    run_row: RunRow
    design: Design
    design_row: DesignRow
    subject: Subject
    options: RunOptions
    listener: Listener | None
    now: Callable[[], float]
    executor: Executor
    started_s: float = 0.0
    kept: int = 0
    planned: list[Trial] = field(default_factory=list)
    left: list[Trial] = field(default_factory=list)
    last: dict[str, TrialRow] = field(default_factory=dict)
    time_left: TimeLeft = field(default_factory=TimeLeft)
    references: References = field(init=False)

    def __post_init__(self) -> None:
        self.references = References(self.recorder, self.design, self.design_row.design_id)

    def run(self) -> DesignSummary:
        self._plan()
        self.started_s = self.now()
        may_stop_at = _block_openings(self.design, self.planned)
        outcomes: list[str | None] = []
        stopped_by = None
        for number, trial in enumerate(self.left):
            stopped_by = self._why_stop(trial, may_stop_at, outcomes)
            if stopped_by is not None:
                break
            if number == 0:
                self._tell(Progress(**self._state(0), result=None, next_trial=trial, left_s=self._left_s(0)))
            result = self._attempt(trial, number)
            if result is None:
                stopped_by = WAITED
                break
            outcomes.append(result.trial.outcome)
            self._tell_after(number + 1, result)
            if result.trial.outcome == "interrupted":
                raise KeyboardInterrupt
        return self._summary(outcomes, stopped_by or self._why_stop(None, may_stop_at, outcomes))

    def _plan(self) -> None:
        """What is to be run, and what of it is finished already."""
        self.planned = [
            trial
            for trial in self.design.trials(self.design_row.study_id)
            if self.options.max_blocks is None or trial.block < self.options.max_blocks
        ]
        self.last = {row.trial_id: row for row in self.recorder.trials(self.design_row.design_id)}
        self.left = [trial for trial in self.planned if not self._is_finished(trial)]
        self.kept = len(self.planned) - len(self.left)
        planned = {trial.trial_id: trial for trial in self.planned}
        for row in self.last.values():
            trial = planned.get(row.trial_id)
            self.time_left.note(row.levels if trial is None else timed_as(trial), row.duration_s, row.outcome)

    def _is_finished(self, trial: Trial) -> bool:
        """Whether a trial need not be run: it was, or it was refused and still would be."""
        last = self.last.get(trial.trial_id)
        return self.options.is_finished(last, lambda: self._predict(trial)[1] is not None)

    # --- when it is over ------------------------------------------------------------------------------------------

    def _why_stop(self, trial: Trial | None, may_stop_at: set[str], outcomes: Sequence[str | None]) -> str | None:
        """Why ``trial`` is not to be begun; None: begin it. Without one, why it all ended, where it did early."""
        if self.options.fail_fast and outcomes and outcomes[-1] not in MEASURED_OUTCOMES:
            return "first failure"
        if trial is None:
            return None
        if self._is_too_late(trial):
            return TIME_LIMIT
        return NARROW_ENOUGH if trial.trial_id in may_stop_at and self._is_precise_enough() else None

    def _is_too_late(self, trial: Trial) -> bool:
        """Whether the trial would be expected to end after the time limit, judging by those of its level."""
        room_s = self._room_s()
        return room_s is not None and (self.time_left.of(timed_as(trial)) or 0.0) > room_s

    def _room_s(self) -> float | None:
        """Seconds until the time limit; None where there is none."""
        limit = self.options.max_seconds
        return None if limit is None else limit - (self.now() - self.started_s)

    def _is_precise_enough(self) -> bool:
        until = self.design.until
        if until is None:
            return False
        from kvscope.analysis.precision import is_precise_enough  # statistics that most studies need not wait for

        return is_precise_enough(self.recorder, self.design_row, metric=until.metric, share=until.share)

    def _summary(self, outcomes: Sequence[str | None], stopped_by: str | None) -> DesignSummary:
        left = {trial.trial_id for trial in self.left}
        kept = [self.last[trial.trial_id].outcome for trial in self.planned if trial.trial_id not in left]
        measured = [t.role for t, how in zip(self.left, outcomes, strict=False) if how in MEASURED_OUTCOMES]
        return DesignSummary(
            design_id=self.design_row.design_id,
            name=self.design_row.name,
            total=len(self.planned),
            kept=self.kept,
            kept_failed=sum(outcome not in MEASURED_OUTCOMES for outcome in kept),
            measured=len(measured),
            failed=len(outcomes) - len(measured),
            not_run=len(self.left) - len(outcomes),
            stopped_by=stopped_by,
            warmups=measured.count("warmup"),
            refused=outcomes.count("refused"),
        )

    # --- one attempt ----------------------------------------------------------------------------------------------

    def _attempt(self, trial: Trial, done: int) -> TrialResult | None:
        """One trial, from waiting for its device to its row; None where the time was over before it was free."""
        room_s, most_s = self._room_s(), self.options.max_wait_s
        waits_s = min((each for each in (room_s, most_s) if each is not None), default=None)
        hold = self.executor.hold(trial.condition, on_wait=partial(self._tell_waiting, done), max_wait_s=waits_s)
        try:
            held = hold.__enter__()
        except DeviceBusy:
            if room_s is not None and waits_s == room_s:
                return None
            raise
        try:
            result = self.references.scored(trial, with_warnings(self._measured(trial), held.warnings()))
            keep, command = self.options.keep_text, self.subject.choice.command
            result = kept_of(result, trial.condition, keep_text=keep, command=command)
        except BaseException:
            hold.__exit__(None, None, None)
            raise
        with interrupts_held():
            hold.__exit__(None, None, None)
            self.recorder.finish_trial(result)
        self.time_left.note(timed_as(trial), result.trial.duration_s, result.trial.outcome)
        return result

    def _measured(self, trial: Trial) -> TrialResult:
        """Record that the trial begins, and run it unless it is refused."""
        earlier = self.last.get(trial.trial_id)
        row = self._trial_row(trial, 1 if earlier is None else earlier.attempt + 1)
        prediction, reason = self._predict(trial)
        changes = self.subject.changes(trial.condition, prediction)
        with interrupts_held():
            self.recorder.start_trial(row, _prediction_row(prediction, changes))
        if reason is not None and not self.options.try_anyway:
            result = _refused(row, reason)
        else:
            result = self._executed(self._job(trial, row, prediction))
        doubts = (WarningRow(slug=slug, message=message, hint=hint) for slug, message, hint in self.subject.warnings)
        result = with_warnings(result, tuple(doubts))
        each = self.subject.cache_bytes_per_token(trial.condition) if prediction is None else None
        if each is None:
            return result
        client = {**result.trial.client, "cache_bytes_per_token": each}
        return replace(result, trial=replace(result.trial, client=client))

    def _executed(self, job: TrialJob) -> TrialResult:
        """What became of the job. An executor that fails, or is left by one Ctrl-C too many, is an outcome as well."""
        try:
            return self.executor.run(job)
        except (Exception, KeyboardInterrupt) as error:
            ending = ending_of(error, None)
            row = replace(job.row, outcome=ending.outcome, error_slug=ending.slug, error_message=ending.message)
            return TrialResult(trial=replace(row, error_hint=ending.hint, traceback=ending.traceback))

    def _job(self, trial: Trial, row: TrialRow, prediction: Prediction | None) -> TrialJob:
        return TrialJob(
            row=row,
            trial=trial,
            definition=self.design_row.definition,
            seed=self.design.seed,
            choice=self.subject.choice,
            model_source=None if self.subject.model is None else self.subject.model.source,
            model_fingerprint=self.subject.fingerprint,
            expected_limit_tokens=None if prediction is None else prediction.limit_tokens,
            expected_bytes=None if prediction is None else prediction.to_dict()["totals"]["total_bytes"],
            expected_mapped_bytes=0 if prediction is None else _unlocked_file_bytes(prediction),
            try_anyway=self.options.try_anyway,
        )

    def _predict(self, trial: Trial) -> tuple[Prediction | None, Reason | None]:
        """The trial's prediction, and why it should not be run, each where there is one."""
        try:
            prediction = self.subject.predict(trial.condition)
        except UsageError as error:
            return None, ("invalid_settings", "invalid-settings", f"{error.message} Not run.", error.hint)
        return prediction, self.subject.refusal(trial.condition, prediction)

    def _trial_row(self, trial: Trial, attempt: int) -> TrialRow:
        return TrialRow(
            trial_id=trial.trial_id,
            attempt=attempt,
            design_id=self.design_row.design_id,
            run_id=self.run_row.run_id,
            role=trial.role,
            levels=dict(trial.levels),
            level=trial.level if not self.design.is_grid else dict(trial.levels),
            repeat=trial.repeat,
            block=trial.block,
            position=trial.position,
            started_at=utc_now(),
            settings=dict(trial.condition.settings),
            prompt_tokens_asked=trial.condition.asked_prompt_tokens,
        )

    # --- what is told ---------------------------------------------------------------------------------------------

    def _state(self, done: int) -> _State:
        return {
            "design": self.design.kind.name,
            "done": done,
            "total": len(self.left),
            "kept": self.kept,
            "is_at_most": self.design.until is not None,
        }

    def _left_s(self, done: int) -> float | None:
        return self.time_left.of_all(timed_as(trial) for trial in self.left[done:])

    def _tell_after(self, done: int, result: TrialResult) -> None:
        upcoming = self.left[done] if done < len(self.left) else None
        self._tell(Progress(**self._state(done), result=result, next_trial=upcoming, left_s=self._left_s(done)))

    def tell_calibrating(self) -> None:
        """Tiny models are run now, before a trial."""
        self._tell(Progress(**self._state(0), result=None, next_trial=None, left_s=None, is_calibrating=True))

    def _tell_waiting(self, done: int, busy: Busy) -> None:
        self._tell(
            Progress(**self._state(done), result=None, next_trial=self.left[done], left_s=None, waiting_for=busy)
        )

    def _tell(self, progress: Progress) -> None:
        if self.listener is not None:
            self.listener(progress)


def _prediction_row(prediction: Prediction | None, changes: list[dict[str, Any]]) -> PredictionRow | None:
    if prediction is None:
        return None
    kept = {"changes": changes} if changes else {}
    return PredictionRow(created_at=utc_now(), prediction={**prediction.to_dict(), **kept})


def _refused(row: TrialRow, reason: Reason) -> TrialResult:
    outcome, slug, message, hint = reason
    ended = replace(row, outcome=outcome, duration_s=0.0, error_slug=slug, error_message=message, error_hint=hint)
    return TrialResult(trial=ended)


def _block_openings(design: Design, trials: Sequence[Trial]) -> set[str]:
    """Trials before which repeating may end: as many blocks as were asked for are over, and the last one ended with the
    baseline."""
    opening = {later.trial_id for earlier, later in pairwise(trials) if later.block != earlier.block}
    blocks = {trial.trial_id: trial.block - design.repeats for trial in trials if trial.trial_id in opening}
    return {trial_id for trial_id, extra in blocks.items() if extra >= 0 and extra % 2 == 0}


def _unlocked_file_bytes(prediction: Prediction) -> int:
    """Bytes of what was predicted that are pages of the model's file and are not locked: memory can give them up."""
    settings = prediction.scenario.settings.values
    if settings.get("mlock") or "mlock" in (mode := str(settings.get("load_mode", ""))) or mode in ("2", "3"):
        return 0
    return sum(each.num_bytes for each in prediction.buffers if each.backing == "file" and each.num_bytes is not None)
