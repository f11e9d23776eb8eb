"""Several machines' records in one. Nothing is pooled: a design belongs to one machine, engine build and model, and so
do its rows; the same question asked on two machines stays two designs (of one study)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from kvscope.errors import RecordConflict
from kvscope.record.reader import Records
from kvscope.record.recorder import Recorder
from kvscope.record.rows import DesignRow, PredictionRow, RunRow, TrialResult, TrialRow

# So much of two values that differ is shown.
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Attempts that one source ``added``; those that were ``known`` already; those that are still ``unfinished`` in the
    source, and left out until they have ended."""

    added: int
    known: int
    unfinished: int


def merge(out: Recorder, sources: Iterable[Records]) -> tuple[Merged, ...]:
    """Add the rows of ``sources``, which are only read, to ``out``: all of them, or none. Doing it again adds nothing.
    Returns what each source gave.

    Raises RecordConflict where two files say different things of the same sitting, design or attempt.
    """
    with out.transaction():
        return tuple(_add(out, source) for source in sources)


def _add(out: Recorder, source: Records) -> Merged:
    runs = {run.run_id: run for run in out.runs()}
    for run in source.runs():
        _add_run(out, source, run, runs)
    designs = {design.design_id: design for design in out.designs()}
    for design in source.designs():
        _add_design(out, source, design, designs)
    added = known = unfinished = 0
    for trial in source.each_trial():
        if trial.outcome is None:
            unfinished += 1
        elif _add_attempt(out, source, trial):
            added += 1
        else:
            known += 1
    return Merged(added=added, known=known, unfinished=unfinished)


def _add_run(out: Recorder, source: Records, run: RunRow, known: Mapping[str, RunRow]) -> None:
    if run.run_id in known:
        _check_same(f"sitting {run.run_id}", out, source, known[run.run_id], run)
    else:
        out.add_run(run)


def _add_design(out: Recorder, source: Records, design: DesignRow, known: Mapping[str, DesignRow]) -> None:
    if design.design_id in known:
        # Each file says when it first held the design.
        same_time = replace(design, created_at=known[design.design_id].created_at)
        _check_same(f"design {design.design_id}", out, source, known[design.design_id], same_time)
    else:
        out.add_design(design)


def _add_attempt(out: Recorder, source: Records, trial: TrialRow) -> bool:
    """Add an attempt; returns whether it was not there yet."""
    result, prediction = source.result(trial), source.prediction_row(trial)
    found = out.find(trial)
    if found is not None:
        which = f"attempt {trial.attempt} of trial {trial.trial_id} ({trial.level})"
        _check_same(which, out, source, found, result)
        _check_same(f"the prediction for {which}", out, source, out.prediction_row(trial), prediction)
        return False
    out.start_trial(trial, prediction)
    out.finish_trial(result)
    return True


def _check_same(
    what: str,
    out: Records,
    source: Records,
    ours: RunRow | DesignRow | TrialResult | PredictionRow | None,
    theirs: RunRow | DesignRow | TrialResult | PredictionRow | None,
) -> None:
    if ours == theirs:
        return
    told = "; ".join(f"{name}: {_short(a)} and {_short(b)}" for name, a, b in differences(ours, theirs)[:3])
    raise RecordConflict(
        f"{source.path} and {out.path} say different things of {what}: {told}. Nothing was merged.",
        hint="Two sittings of the same question on one machine are the same trials: keep them in files of their own, "
        "or ask the second with another --seed.",
    )


def differences(ours: Any, theirs: Any) -> list[tuple[str, object, object]]:
    """The fields in which two rows differ, with both values; those of a trial by their own names."""
    if ours is None or theirs is None:
        return [("it", ours, theirs)]
    found: list[tuple[str, object, object]] = []
    for field in fields(ours):
        a, b = getattr(ours, field.name), getattr(theirs, field.name)
        if isinstance(a, TrialRow):
            found += differences(a, b)
        elif a != b:
            found.append((field.name, a, b))
    return found


def _short(value: object) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} rows"
    text = "none" if value is None else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
