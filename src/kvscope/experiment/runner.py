"""The resumable loop: plan, skip what is done, predict, run, record, go on.

Kill it at any moment and call it again: finished trials are kept and not repeated, the one in flight is recorded as
interrupted and tried anew.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise

from kvscope import __version__
from kvscope.analysis.precision import is_precise_enough
from kvscope.engine.base import Engine
from kvscope.engine.registry import EngineChoice
from kvscope.errors import UsageError
from kvscope.experiment.design import Design, Level, Trial, design_hash
from kvscope.experiment.machine import machine_facts, machine_id
from kvscope.experiment.refusal import Reason
from kvscope.experiment.request_counts import Expected
from kvscope.experiment.subject import Subject
from kvscope.experiment.trial import run_trial
from kvscope.model.spec import ModelSpec
from kvscope.predict.memory import Prediction
from kvscope.record.rows import MEASURED_OUTCOMES, DesignRow, PredictionRow, RunRow, TrialResult, TrialRow, WarningRow
from kvscope.record.store import Recorder

# Why a design ended before all the blocks that it might have had: nothing is left to do.
NARROW_ENOUGH = "narrow enough"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Told once before the first trial that is run, and after each. ``left_s`` is None until a trial has been timed."""

    design: str
    done: int
    total: int
    kept: int
    result: TrialResult | None
    next_trial: Trial | None
    left_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignSummary:
    """What became of a design in this sitting. ``kept``: trials that were finished before; ``kept_failed`` of them had
    failed."""

    design_id: str
    name: str
    total: int
    kept: int
    kept_failed: int
    measured: int
    failed: int
    not_run: int
    stopped_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """``max_seconds``: start no trial that would be expected to end later than this. ``max_blocks``: run only the first
    blocks now, each of which holds every level once, and leave the others for a later call. ``retry_failed``: run
    failed trials anew, as another attempt."""

    fail_fast: bool = False
    retry_failed: bool = False
    try_anyway: bool = False
    max_seconds: float | None = None
    max_blocks: int | None = None


Listener = Callable[[Progress], None]


def start_run(recorder: Recorder, command: str) -> RunRow:
    """Record that a sitting begins on this machine."""
    facts = machine_facts()
    run = RunRow(
        run_id=uuid.uuid4().hex[:12],
        started_at=_utc_now(),
        kvscope_version=__version__,
        command=command,
        machine_id=machine_id(facts),
        machine=facts,
    )
    recorder.add_run(run)
    return run


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
) -> DesignSummary:
    """Run what is left of a design and record every trial. ``model`` None: whatever a running server has; nothing is
    predicted then.

    Ctrl-C is recorded as the outcome of the trial it hits, then raised again. Before anything is recorded it raises
    EngineNotFound, MissingDependency, and UsageError where the engine would refuse the baseline's settings. Raises
    RecordError if a result cannot be kept.
    """
    subject = Subject.of(model, choice)
    subject.predict(design.condition(design.points()[0]))
    row = design_row(design, subject, run)
    recorder.add_design(row)
    return _Loop(recorder, run, design, row, subject, options or RunOptions(), listener, now, sleep).run()


def design_row(design: Design, subject: Subject, run: RunRow) -> DesignRow:
    """The design as it is recorded; its identity covers everything that makes rows comparable."""
    choice = subject.choice
    held = {name: value for name, value in design.held.to_dict().items() if name != design.factor.name}
    asked = {**design.definition(), "model": subject.fingerprint, "engine": choice.name}
    facts = {
        **asked,
        "engine_version": subject.version,
        "engine_build": subject.build,
        "engine_command": choice.command,
        "machine_id": run.machine_id,
        # A server's address does not make its rows another thing; what it was started with does.
        **subject.served_facts,
    }
    return DesignRow(
        design_id=design_hash(facts),
        name=design.kind.name,
        version=design.kind.version,
        question=design.kind.question,
        factor=" × ".join(factor.name for factor in design.factors),
        levels=design.factor.levels if not design.is_grid else tuple(dict(point) for point in design.points()),
        baseline_level=design.baseline_level if not design.is_grid else dict(design.points()[0]),
        held=held,
        confounders=design.kind.confounders,
        is_grid=design.is_grid,
        repeats=design.repeats,
        seed=design.seed,
        model_name=subject.model_name,
        model_source=subject.model_source,
        model_fingerprint=subject.fingerprint,
        engine=choice.name,
        engine_version=subject.version,
        engine_build=subject.build,
        settings={**subject.stated_settings, **design.held.settings},
        machine_id=run.machine_id,
        created_at=_utc_now(),
        study_id=design_hash(asked),
        holds=design.kind.holds,
        definition=design.definition(),
    )


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


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
    sleep: Callable[[float], None]

    def run(self) -> DesignSummary:
        trials = [
            trial
            for trial in self.design.trials(self.design_row.study_id)
            if self.options.max_blocks is None or trial.block < self.options.max_blocks
        ]
        last = {row.trial_id: row for row in self.recorder.trials(self.design_row.design_id)}
        left = [trial for trial in trials if not self._is_finished(trial, last.get(trial.trial_id))]
        kept = len(trials) - len(left)
        started_s = self.now()
        may_stop_at = _block_openings(self.design, trials)
        counts = {"measured": 0, "failed": 0}
        stopped_by = None
        ran = 0
        for number, trial in enumerate(left):
            if self._is_too_late(started_s, number):
                stopped_by = "time limit"
                break
            if trial.trial_id in may_stop_at and self._is_precise_enough():
                stopped_by = NARROW_ENOUGH
                break
            if number == 0:
                self._tell(0, len(left), kept, None, trial, None)
            earlier = last.get(trial.trial_id)
            result = self._attempt(trial, earlier.attempt + 1 if earlier is not None else 1)
            ran = number + 1
            outcome = result.trial.outcome
            counts["measured" if outcome in MEASURED_OUTCOMES else "failed"] += 1
            upcoming = left[ran] if ran < len(left) else None
            left_s = (self.now() - started_s) / ran * (len(left) - ran)
            self._tell(ran, len(left), kept, result, upcoming, left_s)
            if outcome == "interrupted":
                raise KeyboardInterrupt
            if self.options.fail_fast and outcome not in MEASURED_OUTCOMES:
                stopped_by = "first failure"
                break
        return DesignSummary(
            design_id=self.design_row.design_id,
            name=self.design_row.name,
            total=len(trials),
            kept=kept,
            kept_failed=sum(
                last[trial.trial_id].outcome not in MEASURED_OUTCOMES for trial in trials if trial not in left
            ),
            not_run=len(left) - ran,
            stopped_by=stopped_by,
            **counts,
        )

    def _is_too_late(self, started_s: float, done: int) -> bool:
        """Whether the next trial would be expected to end after the time limit, judging by those before it."""
        if self.options.max_seconds is None:
            return False
        elapsed = self.now() - started_s
        expected = elapsed / done if done else 0.0
        return elapsed + expected > self.options.max_seconds

    def _is_precise_enough(self) -> bool:
        until = self.design.until
        return until is not None and is_precise_enough(
            self.recorder, self.design_row, metric=until.metric, share=until.share
        )

    def _is_finished(self, trial: Trial, last: TrialRow | None) -> bool:
        """Whether a trial need not be run: it was, or it was refused and still would be."""
        if last is None or last.outcome == "interrupted":
            return False
        if last.outcome in MEASURED_OUTCOMES:
            return True
        if last.outcome != "refused":
            return not self.options.retry_failed
        return not self.options.try_anyway and self._predict(trial)[1] is not None

    def _attempt(self, trial: Trial, attempt: int) -> TrialResult:
        row = self._trial_row(trial, attempt)
        prediction, reason = self._predict(trial)
        kept = None
        if prediction is not None:
            kept = PredictionRow(created_at=_utc_now(), prediction=prediction.to_dict())
        self.recorder.start_trial(row, kept)
        if reason is not None and not self.options.try_anyway:
            outcome, slug, message, hint = reason
            result = TrialResult(
                trial=replace(
                    row, outcome=outcome, duration_s=0.0, error_slug=slug, error_message=message, error_hint=hint
                )
            )
        else:
            result = run_trial(
                lambda: self._engine(trial),
                trial,
                row,
                seed=self.design.seed,
                expected=self._expected(prediction),
                now=self.now,
                sleep=self.sleep,
            )
        doubts = (WarningRow(slug=slug, message=message, hint=hint) for slug, message, hint in self.subject.warnings)
        result = replace(result, warnings=(*result.warnings, *doubts))
        each = self.subject.cache_bytes_per_token(trial.condition) if prediction is None else None
        if each is not None:
            client = {**result.trial.client, "cache_bytes_per_token": each}
            result = replace(result, trial=replace(result.trial, client=client))
        self.recorder.finish_trial(result)
        return result

    def _engine(self, trial: Trial) -> Engine:
        return self.subject.create(trial.condition.settings)

    def _expected(self, prediction: Prediction | None) -> Expected:
        """What is known of a trial before it runs."""
        return Expected(
            counter=self.subject.counter,
            limit_tokens=None if prediction is None else prediction.limit_tokens,
            predicted_bytes=None if prediction is None else prediction.to_dict()["totals"]["total_bytes"],
            mapped_bytes=0 if prediction is None else _unlocked_file_bytes(prediction),
            try_anyway=self.options.try_anyway,
            predict_reuse=self.subject.predict_reuse,
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
            started_at=_utc_now(),
            settings=dict(trial.condition.settings),
            # Of a conversation only the turns' own sizes are asked for; its prompts grow with the answers.
            prompt_tokens_asked=None if trial.condition.is_conversation else trial.condition.prompt_tokens,
        )

    def _tell(
        self,
        done: int,
        total: int,
        kept: int,
        result: TrialResult | None,
        next_trial: Trial | None,
        left_s: float | None,
    ) -> None:
        if self.listener is not None:
            self.listener(
                Progress(
                    design=self.design.kind.name,
                    done=done,
                    total=total,
                    kept=kept,
                    result=result,
                    next_trial=next_trial,
                    left_s=left_s,
                )
            )


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


def check_design(
    design: Design, model: ModelSpec | None, choice: EngineChoice
) -> list[tuple[Mapping[str, Level], str]]:
    """What would not run as planned: (levels, why) of each point. Raises UsageError where the baseline's settings would
    be refused."""
    subject = Subject.of(model, choice)
    subject.predict(design.condition(design.points()[0]))
    found = []
    for point in design.points():
        condition = design.condition(point)
        try:
            reason = subject.refusal(condition, subject.predict(condition))
        except UsageError as error:
            found.append((point, error.message))
        else:
            if reason is not None:
                found.append((point, reason[2]))
    return found
