"""Where a trial runs: the runner knows what is to be measured, an executor carries it out.

A job holds all that a trial needs and can be written as JSON, so the same study runs in this process, in another one or
on a cluster without a change to its design or its record. ``run_job`` is the far end of such an executor: text in, text
out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from kvscope.analysis.calibration_record import RECORDED_AS
from kvscope.engine.base import Engine
from kvscope.engine.registry import EngineChoice
from kvscope.errors import UsageError
from kvscope.experiment.calibrate import Calibrations, is_switched_off
from kvscope.experiment.design import Condition, Trial
from kvscope.experiment.device_lock import Busy, Device, hold_devices
from kvscope.experiment.devices_used import devices_used
from kvscope.experiment.job_json import from_json, to_json
from kvscope.experiment.request_counts import Expected
from kvscope.experiment.subject import Subject
from kvscope.experiment.trial import run_trial
from kvscope.model.load import load_model
from kvscope.record.rows import Json, TrialResult, TrialRow, WarningRow

Clock = tuple[Callable[[], float], Callable[[float], None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialJob:
    """One attempt at one trial. ``row``: as it is recorded when it begins. ``definition``: what the design asks, for
    whoever keeps the job; nothing is run from it. ``model_source``: what ``load_model`` takes, None for whatever a
    running server has; ``model_fingerprint`` tells whether it is the same model there. ``expected_*``, ``try_anyway``:
    see ``Expected``."""

    row: TrialRow
    trial: Trial
    definition: Mapping[str, Json]
    seed: int
    choice: EngineChoice
    model_source: str | None
    model_fingerprint: str
    expected_limit_tokens: int | None = None
    expected_bytes: int | None = None
    expected_mapped_bytes: int = 0
    try_anyway: bool = False

    def to_json(self) -> str:
        """The job as text."""
        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> "TrialJob":
        """Raises UsageError where the text is no job of this release."""
        return from_json(cls, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a trial has for itself while it runs. ``not_had``: tells, whenever it is asked, what of it is not so."""

    not_had: Callable[[], Sequence[str]] = tuple

    def warnings(self) -> list[WarningRow]:
        """Of a trial that has ended, while its devices are still held."""
        return [
            WarningRow(
                slug="device-not-locked",
                message=f"Another kvscope may have measured at the same time: {reason}",
                hint="Run one at a time, or name a folder for the locks with KVSCOPE_LOCKS.",
            )
            for reason in self.not_had()
        ]


class Executor(Protocol):
    """Carries out trials. ``hold``: have for one trial alone whatever it is measured on, from before it is recorded as
    begun until it has ended; ``on_wait`` is called each time it turns out who has it. Raises DeviceBusy after
    ``max_wait_s``. ``run`` gives a result whatever happens to the trial."""

    def hold(
        self, condition: Condition, *, on_wait: Callable[[Busy], None], max_wait_s: float | None
    ) -> AbstractContextManager[Held]: ...

    def run(self, job: TrialJob) -> TrialResult: ...


class LocalExecutor:
    """Runs trials in this process. ``clock``: its seconds, and a way to let them pass. ``tell`` is called before tiny
    models are run. Raises UsageError where KVSCOPE_CALIBRATION is a word that nobody knows."""

    def __init__(self, subject: Subject, clock: Clock, tell: Callable[[], None] = lambda: None) -> None:
        is_switched_off()  # a word that nobody knows is said before the first trial
        self._tell = tell
        self._subject = subject
        self._clock = clock
        self._calibrations = Calibrations(subject)

    @contextmanager
    def hold(
        self, condition: Condition, *, on_wait: Callable[[Busy], None], max_wait_s: float | None
    ) -> Iterator[Held]:
        """See ``Executor.hold``: the devices of this machine that the engine will use. Tiny models are run here, before
        the trial begins: their time is none of its."""
        devices: tuple[Device, ...] = devices_used(self._subject.choice, condition.settings)
        with hold_devices(devices, on_wait=on_wait, max_wait_s=max_wait_s) as not_had:
            self._calibrations.of(condition.settings, self._tell)
            yield Held(not_had=not_had)

    def run(self, job: TrialJob) -> TrialResult:
        """See ``run_trial``, which never raises."""
        expected = Expected(
            counter=self._subject.counter,
            limit_tokens=job.expected_limit_tokens,
            predicted_bytes=job.expected_bytes,
            mapped_bytes=job.expected_mapped_bytes,
            try_anyway=job.try_anyway,
            predict_reuse=self._subject.predict_reuse,
        )
        now, sleep = self._clock
        calibration = self._calibrations.of(job.trial.condition.settings, self._tell)
        result = run_trial(
            lambda: self._engine(job), job.trial, job.row, seed=job.seed, expected=expected, now=now, sleep=sleep
        )
        return _with_calibration(result, calibration)

    def _engine(self, job: TrialJob) -> Engine:
        return self._subject.create(job.trial.condition.settings)


def _with_calibration(result: TrialResult, calibration: Mapping[str, Json]) -> TrialResult:
    """The result with what its engine's own memory is held against."""
    client = {**result.trial.client, RECORDED_AS: calibration}
    return replace(result, trial=replace(result.trial, client=client))


def run_job(text: str, clock: Clock) -> str:
    """Run the job that is written in ``text`` on this machine, and give its result as text. Raises UsageError for a
    text that is no job, and where the model is another one here; ModelError where it is not here."""
    job = TrialJob.from_json(text)
    model = None if job.model_source is None else load_model(job.model_source)
    subject = Subject.of(model, job.choice)
    if subject.fingerprint != job.model_fingerprint:
        raise UsageError(
            f"{job.model_source or 'the running server'} is another model here than where the study was planned.",
            hint="Copy the model's files again, or plan the study with those that are here.",
        )
    executor = LocalExecutor(subject, clock)
    with executor.hold(job.trial.condition, on_wait=lambda busy: None, max_wait_s=None) as held:
        result = with_warnings(executor.run(job), held.warnings())
    return to_json(result)


def result_from_json(text: str) -> TrialResult:
    """What ``run_job`` gave. Raises UsageError where the text is something else."""
    return from_json(TrialResult, text)


def with_warnings(result: TrialResult, warnings: Sequence[WarningRow]) -> TrialResult:
    """The result with these beside its own."""
    return replace(result, warnings=(*result.warnings, *warnings)) if warnings else result
