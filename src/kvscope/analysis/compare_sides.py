"""What the two sides of a comparison are: rows of a record, named as a person names them.

A name is a record file; a sitting (``last``, ``previous``, or the begin of its id); one condition of a design
(``kv_dtype=q8_0``, ``input_length=512``; of a grid ``n_ctx=1024,kv_dtype=f16``, or all cells of ``n_ctx=1024``); a
design by the begin of its id; or one of these inside another file (``old.db#last``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from kvscope.analysis.attempts import Attempt, load_attempt
from kvscope.analysis.condition_names import Named, named_levels
from kvscope.analysis.levels import level_key
from kvscope.errors import RecordNotFound, UsageError
from kvscope.record.rows import MEASURED_OUTCOMES, DesignRow, Json, RunRow, TrialRow
from kvscope.record.store import Records, open_records

LAST, PREVIOUS = "last", "previous"
_Row = TypeVar("_Row")
# Shorter beginnings of an id name too much.
_SHORTEST_ID = 4
_HINT = (
    "Name a record file, last or previous (sittings), the begin of a sitting's or a design's id, a condition like "
    "kv_dtype=q8_0, or one of these in another file: old.db#last. kvscope export lists the ids."
)
_RUN_IT = "Run it first: kvscope measure."
_INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side: its name, and by design the attempts that count for it (the last of each trial, warm-ups left out,
    failures not). ``levels`` is set where a condition was named: by design, the levels that it names there; of several
    designs that have it all are here, in the order in which they began. ``factors``: what the condition names.
    ``doubt``: what to know of its file before it is believed."""

    name: str
    attempts: Mapping[str, tuple[Attempt, ...]]
    designs: Mapping[str, DesignRow]
    levels: Mapping[str, tuple[Json, ...]] = field(default_factory=dict)
    factors: tuple[str, ...] = ()
    doubt: str | None = None

    _tried: dict[str, frozenset[str]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_condition(self) -> bool:
        return bool(self.levels)

    def levels_tried(self, design: DesignRow) -> frozenset[str]:
        """Keys of the levels of which it has attempts."""
        found = self._tried.get(design.design_id)
        if found is None:
            found = frozenset(level_key(attempt.trial.level) for attempt in self.attempts[design.design_id])
            self._tried[design.design_id] = found
        return found

    def at(self, design: DesignRow, level: Json) -> list[Attempt]:
        """Its attempts at one level of a design."""
        key = level_key(level)
        return [attempt for attempt in self.attempts[design.design_id] if level_key(attempt.trial.level) == key]

    def is_measured(self, design: DesignRow) -> bool:
        return any(attempt.is_measured for attempt in self.attempts[design.design_id])

    def runs(self, design: DesignRow) -> tuple[RunRow, ...]:
        """The sittings in which its attempts of this design were made."""
        return tuple({attempt.run.run_id: attempt.run for attempt in self.attempts[design.design_id]}.values())


def read_side(name: str, records: str | Path) -> Side:
    """The rows that ``name`` stands for; ``records`` is the file that it is looked up in. Raises UsageError where it
    stands for nothing or for several things, RecordError for the file."""
    if Path(name).is_file():
        return _inside("", name, shown=name)
    path, mark, inside = name.rpartition("#")
    if not (inside if mark else name).strip():
        raise UsageError(f"{name!r} does not say what shall be compared.", hint=_HINT)
    if not mark:
        return _looked_up(name, records)
    if not Path(path).is_file() and "=" not in path:
        raise _no_file(path)
    return _inside(inside, path, shown=name) if Path(path).is_file() else _looked_up(name, records)


def _looked_up(name: str, records: str | Path) -> Side:
    """A name that is no file, in the record."""
    if "=" not in name and (Path(name).suffix or len(Path(name).parts) > 1):
        raise _no_file(name)
    if not Path(records).is_file():
        raise RecordNotFound(
            f"{name!r} is no file, and there is no record file {records} in which it could be looked up.",
            hint="Name the record with --records FILE, or make one: kvscope measure.",
        )
    return _inside(name, records, shown=name)


def _no_file(path: str) -> RecordNotFound:
    return RecordNotFound(f"There is no record file {path}.", hint=_HINT)


def _inside(what: str, path: str | Path, *, shown: str) -> Side:
    with open_records(path, snapshot=True) as found:
        designs, runs = found.designs(), found.runs()
        if not what:
            return _side(found, shown, designs, runs, lambda trial: True)
        if "=" in what:
            return _condition(found, what, shown, designs, runs)
        run = _sitting(what, found, runs)
        if run is not None:
            query = "SELECT DISTINCT design_id FROM trials WHERE run_id = ?"
            ids = {row["design_id"] for row in found.select(query, (run.run_id,))}
            tried = [design for design in designs if design.design_id in ids]
            return _side(found, shown, tried, runs, lambda trial: trial.run_id == run.run_id)
        chosen = _by_id(what, designs)
        if chosen is None:
            raise UsageError(f"{what!r} names nothing in {path}.", hint=_HINT)
        return _side(found, shown, [chosen], runs, lambda trial: True)


def _side(
    records: Records,
    name: str,
    designs: Sequence[DesignRow],
    runs: Sequence[RunRow],
    counts: Callable[[TrialRow], bool],
    named: Named | None = None,
) -> Side:
    by_id = {run.run_id: run for run in runs}
    kept: dict[str, tuple[Attempt, ...]] = {}
    for design in designs:
        trials = _counting(records.trials(design.design_id), counts)
        if trials:
            kept[design.design_id] = tuple(load_attempt(records, trial, design, by_id) for trial in trials)
    if not kept:
        raise UsageError(f"{name} has no trial that was measured.", hint=_RUN_IT)
    levels = {} if named is None else {one: found for one, found in named.levels.items() if one in kept}
    return Side(
        name=name,
        attempts=kept,
        designs={design.design_id: design for design in designs if design.design_id in kept},
        levels=levels,
        factors=() if named is None else named.factors,
        doubt=records.doubt,
    )


def _counting(trials: Sequence[TrialRow], counts: Callable[[TrialRow], bool]) -> tuple[TrialRow, ...]:
    """The last attempt of each trial among those that count. One that was interrupted and tried again later, in another
    sitting, is no result of anything: that one has it."""
    newest: dict[str, int] = {}
    for trial in trials:
        newest[trial.trial_id] = max(trial.attempt, newest.get(trial.trial_id, 0))
    last: dict[str, TrialRow] = {}
    for trial in trials:
        is_taken_up = trial.outcome == _INTERRUPTED and trial.attempt < newest[trial.trial_id]
        if trial.role == "measured" and counts(trial) and not is_taken_up:
            known = last.get(trial.trial_id)
            last[trial.trial_id] = trial if known is None or known.attempt <= trial.attempt else known
    return tuple(last.values())


def _sitting(what: str, records: Records, runs: Sequence[RunRow]) -> RunRow | None:
    """A sitting by its place or the begin of its id; of places, only those in which something was run count."""
    if what in (LAST, PREVIOUS):
        found = records.select("SELECT DISTINCT run_id FROM trials WHERE role = 'measured'")
        used = {row["run_id"] for row in found}
        measured = [run for run in runs if run.run_id in used]
        place = -1 if what == LAST else -2
        if len(measured) < -place:
            raise UsageError(f"The record has {len(measured)} sittings, so none is {what!r}.", hint=_HINT)
        return measured[place]
    return _one([run for run in runs if _begins(run.run_id, what)], what)


def _by_id(what: str, designs: Sequence[DesignRow]) -> DesignRow | None:
    return _one([design for design in designs if _begins(design.design_id, what)], what)


def _begins(identity: str, what: str) -> bool:
    return identity == what or (len(what) >= _SHORTEST_ID and identity.startswith(what))


def _one(found: Sequence[_Row], what: str) -> _Row | None:
    if len(found) > 1:
        raise UsageError(f"{what!r} is the begin of {len(found)} ids.", hint="Write more of it.")
    return found[0] if found else None


def _condition(records: Records, what: str, shown: str, designs: Sequence[DesignRow], runs: Sequence[RunRow]) -> Side:
    """``FACTOR=LEVEL`` or ``DESIGN=LEVEL``: every design that has it and measured it; where none did, every one that
    tried it."""
    named = named_levels(what, designs)
    keys = {design_id: {level_key(level) for level in levels} for design_id, levels in named.levels.items()}
    having = [design for design in designs if design.design_id in keys]

    def is_named(trial: TrialRow) -> bool:
        return level_key(trial.level) in keys[trial.design_id]

    def is_measured(design: DesignRow) -> bool:
        trials = _counting(records.trials(design.design_id), is_named)
        return any(trial.outcome in MEASURED_OUTCOMES for trial in trials)

    measured = [design for design in having if is_measured(design)]
    return _side(records, shown, measured or having, runs, is_named, named)
