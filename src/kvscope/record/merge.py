"""Several machines' records in one. Nothing is pooled: a design belongs to one machine, engine build and model, and so
do its rows; the same question asked on two machines stays two designs (of one study). Two sittings of one design, each
in a file of its own, are attempts of the same trials: all are kept, and numbered anew (attempt_numbers.py)."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from kvscope.errors import RecordConflict, SchemaMismatch
from kvscope.record.columns import COPY
from kvscope.record.reader import Records
from kvscope.record.recorder import Recorder
from kvscope.record.rows import DesignRow, PredictionRow, RunRow, TrialResult, TrialRow

# So much of two values that differ is shown.
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Attempts that one source ``added``, ``further`` of them of trials that were tried in another file too; those that
    were ``known`` already; those that are still ``unfinished`` in the source, and left out until they have ended."""

    added: int
    further: int
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
    with source.one_state():
        runs = {run.run_id: run for run in out.runs()}
        for run in source.runs():
            _add_run(out, source, run, runs)
        designs = {design.design_id: design for design in out.designs()}
        for design in source.designs():
            _add_design(out, source, design, designs)
        return _add_attempts(out, source)


def _add_attempts(out: Recorder, source: Records) -> Merged:
    owners = ({run.run_id for run in source.runs()}, {design.design_id for design in source.designs()})
    before = {(trial.design_id, trial.trial_id) for trial in out.each_trial()}
    added = further = known = unfinished = 0
    for trial in source.each_trial():
        _check_owners(source, trial, *owners)
        if trial.outcome is None:
            unfinished += 1
        elif _is_there(out, source, trial):
            known += 1
        else:
            out.add_attempt(source.result(trial), source.prediction_row(trial))
            added += 1
            further += (trial.design_id, trial.trial_id) in before
    return Merged(added=added, further=further, known=known, unfinished=unfinished)


def _check_owners(source: Records, trial: TrialRow, run_ids: Collection[str], design_ids: Collection[str]) -> None:
    for what, owner, owners in (("sitting", trial.run_id, run_ids), ("design", trial.design_id, design_ids)):
        if owner not in owners:
            raise SchemaMismatch(
                f"{source.path} is damaged: the {what} {owner} of trial {trial.trial_id} is not in it.", hint=COPY
            )


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


def _is_there(out: Recorder, source: Records, trial: TrialRow) -> bool:
    """Whether an attempt is there already, and the same."""
    number = out.number_of_same(trial)
    if number is None:
        return False
    ours, result = replace(trial, attempt=number), source.result(trial)
    which = f"attempt {trial.attempt} of trial {trial.trial_id} ({trial.level})"
    _check_same(which, out, source, out.find(ours), replace(result, trial=replace(result.trial, attempt=number)))
    _check_same(f"the prediction for {which}", out, source, out.prediction_row(ours), source.prediction_row(trial))
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
        hint="They hold the same sitting, and one was changed since: leave out the one that is not to be believed.",
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
