"""What a design would do, before anything runs: its trials, what each level needs and whether that fits, what would be
refused and why, and how long it will take, by earlier trials of the very same design in the record.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from kvscope.engine.registry import EngineChoice
from kvscope.errors import ProbeError, UsageError
from kvscope.experiment.design import Condition, Design, Level, Trial
from kvscope.experiment.devices_used import devices_used
from kvscope.experiment.identity import design_row, new_run
from kvscope.experiment.plan import context_limit
from kvscope.experiment.quality_asked import FIDELITY
from kvscope.experiment.retrieval_counts import documents_preview, with_counts
from kvscope.experiment.run_options import RunOptions
from kvscope.experiment.subject import Subject
from kvscope.experiment.time_left import TimeLeft
from kvscope.experiment.trial_scores import score_passes
from kvscope.model.spec import ModelSpec
from kvscope.predict.memory import Prediction
from kvscope.probe.cgroup import available_bytes
from kvscope.quality.tasks import task_named
from kvscope.record.held import held_fixed
from kvscope.record.rows import MEASURED_OUTCOMES, Json, TrialRow
from kvscope.record.store import open_records


@dataclass(frozen=True, slots=True, kw_only=True)
class PointPreview:
    """One point of a design. ``needed_bytes``: all that is predicted to be taken, ``needed_here_bytes`` of it in this
    machine's own memory; None: nothing is predicted (``not_predicted_because``). ``fits``: whether it fits as far as is
    known. ``not_run_because``: why it would be refused, or its settings would; None where it would be run. ``trial_s``:
    what one trial took so far, over ``timed_trials``; None where none is in the record. ``quality``: what each measured
    trial then asks for the answers' sake (its task, how many documents, how many of them twins, of how many tokens; of
    a task whose texts are scored ``scored_trials``: in how many trials of this point, the others doing nothing of it;
    and where the context is as large as it is because of that, ``n_ctx`` and the ``n_ctx_without`` that would do
    else)."""

    levels: Mapping[str, Level]
    needed_bytes: int | None
    needed_here_bytes: int | None
    fits: bool | None
    not_run_because: str | None
    not_predicted_because: str | None
    trial_s: float | None
    timed_trials: int
    quality: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPreview:
    """``left``: positions of the trials that would be run or recorded as refused. ``left_s``: seconds that they will
    take; None where a level of them was never timed on this machine with this build. ``is_at_most``: it may end earlier
    (--until). ``available_bytes``: memory of this machine that can be had now. ``devices``: what a trial has for
    itself."""

    design: Design
    trials: tuple[Trial, ...]
    points: tuple[PointPreview, ...]
    left: tuple[int, ...]
    left_s: float | None
    is_at_most: bool
    available_bytes: int | None
    devices: tuple[str, ...]

    def point(self, trial: Trial) -> PointPreview:
        """That of a trial."""
        return next(point for point in self.points if point.levels == trial.levels)

    def _varied(self) -> set[str]:
        """What differs between levels: the factors, and the settings that their levels stand for."""
        factors = self.design.factors
        return {factor.name for factor in factors} | {
            name for factor in factors for settings in factor.sets.values() for name in settings
        }

    def to_dict(self) -> dict[str, object]:
        """For ``--json``."""
        return {
            "design": self.design.kind.name,
            "question": self.design.kind.question,
            "held": held_fixed(self.design.held.to_dict(), self._varied()),
            "documents": documents_preview(self.design),
            "is_grid": self.design.is_grid,
            "trials": [
                {
                    "position": trial.position,
                    "role": trial.role,
                    "levels": dict(trial.levels),
                    "repeat": trial.repeat,
                    "not_run_because": self.point(trial).not_run_because,
                    "is_recorded": trial.position not in self.left,
                }
                for trial in self.trials
            ],
            "points": [{**asdict(point), "levels": dict(point.levels)} for point in self.points],
            "trials_left": len(self.left),
            "left_s": self.left_s,
            "is_at_most": self.is_at_most,
            "available_bytes": self.available_bytes,
            "devices": list(self.devices),
        }


def preview_plan(
    design: Design,
    model: ModelSpec | None,
    choice: EngineChoice,
    *,
    records: str | Path | None = None,
    options: RunOptions | None = None,
) -> PlanPreview:
    """What the design would do with these options, were there no time limit. ``records``: the file that earlier trials
    are looked for in; None, or one that is not there: none. Raises as ``run_design`` before anything is recorded, and
    RecordError for a file that is no record."""
    subject = Subject.of(model, choice)
    design = with_counts(design, subject)
    subject.predict(design.condition(design.points()[0]))
    row = design_row(design, subject, new_run(""))
    options = options or RunOptions()
    trials = design.trials(row.study_id)
    last = _recorded(records, row.design_id)
    points = tuple(_point(subject, design, point, last, options) for point in design.points())

    def is_left(trial: Trial) -> bool:
        if options.max_blocks is not None and trial.block >= options.max_blocks:
            return False
        return not options.is_finished(last.get(trial.trial_id), lambda: _is_refused(points, trial))

    left = [trial for trial in trials if is_left(trial)]
    times = {_key(point.levels): point.trial_s for point in points}
    each_s = [0.0 if _is_refused(points, trial) else times[_key(trial.levels)] for trial in left]
    return PlanPreview(
        design=design,
        trials=trials,
        points=points,
        left=tuple(trial.position for trial in left),
        left_s=None if None in each_s else sum(each for each in each_s if each is not None),
        is_at_most=design.until is not None,
        available_bytes=_available(),
        devices=tuple(device.name for device in devices_used(choice, design.held.settings)),
    )


def _recorded(records: str | Path | None, design_id: str) -> dict[str, TrialRow]:
    if records is None or not Path(records).is_file():
        return {}
    with open_records(records) as found:
        return {row.trial_id: row for row in found.trials(design_id)}


def _point(
    subject: Subject,
    design: Design,
    levels: Mapping[str, Level],
    last: Mapping[str, TrialRow],
    options: RunOptions,
) -> PointPreview:
    condition = design.condition(levels)
    prediction: Prediction | None = None
    refused: str | None = None
    why_not: str | None = None
    try:
        prediction = subject.predict(condition)
        reason = subject.refusal(condition, prediction)
        refused = None if reason is None else reason[2]
        if prediction is None:
            why_not = "no description of the model was given" if subject.model is None else "the server does not say it"
    except UsageError as error:
        refused = error.message
    timed = [row for row in last.values() if dict(row.levels) == dict(levels) and row.outcome in MEASURED_OUTCOMES]
    times = TimeLeft()
    for row in timed:
        times.note(row.levels, row.duration_s, row.outcome)
    return PointPreview(
        levels=levels,
        needed_bytes=None if prediction is None else prediction.to_dict()["totals"]["total_bytes"],
        needed_here_bytes=None if prediction is None else prediction.total_bytes_on("cpu"),
        fits=None if prediction is None and refused is None else refused is None,
        not_run_because=None if options.try_anyway else refused,
        not_predicted_because=why_not,
        trial_s=times.of(levels),
        timed_trials=len(timed),
        quality=_asks(condition, design),
    )


def _asks(condition: Condition, design: Design) -> Mapping[str, Json] | None:
    asked = condition.quality
    if asked is None:
        return None
    is_scored = task_named(asked.task).family == FIDELITY
    return {
        "task": asked.task,
        "documents": asked.num_documents,
        "twins": 0 if asked.task == FIDELITY else asked.num_documents,
        "prompt_tokens": condition.prompt_tokens,
        **({"scored_trials": _num_scored(condition, design)} if is_scored else {}),
        **_larger_context(design),
    }


def _num_scored(condition: Condition, design: Design) -> int:
    return sum(
        score_passes(repeat=trial.repeat, is_baseline=trial.is_baseline).scores
        for trial in design.trials("")
        if trial.role != "warmup" and trial.condition == condition
    )


def _larger_context(design: Design) -> Mapping[str, Json]:
    """The context that holds the questions too, and the one that would do without them, where they differ."""
    held = design.held.settings.get("n_ctx")
    conditions = [design.condition(point) for point in design.points()]
    without = context_limit([each.longest_tokens for each in conditions], conditions)
    needed = context_limit([each.context_tokens for each in conditions], conditions)
    if held != needed or needed == without or any(factor.name == "n_ctx" for factor in design.factors):
        return {}
    return {"n_ctx": needed, "n_ctx_without": without}


def _is_refused(points: tuple[PointPreview, ...], trial: Trial) -> bool:
    return any(point.not_run_because is not None for point in points if point.levels == trial.levels)


def _key(levels: Mapping[str, Level]) -> str:
    return repr(sorted(levels.items()))


def _available() -> int | None:
    try:
        return available_bytes()
    except ProbeError:
        return None
