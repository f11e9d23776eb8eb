"""What the two sides of a comparison are: rows of a record, named as a person names them.

A name is a record file; a sitting (``last``, ``previous``, or the begin of its id); one condition of a design
(``kv_dtype=q8_0``, ``input_length=512``); a design by the begin of its id; or one of these inside another file
(``old.db#last``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from kvscope.analysis.attempts import Attempt, latest_attempts, load_attempts
from kvscope.analysis.levels import level_key
from kvscope.errors import UsageError
from kvscope.record.rows import DesignRow, Json, RunRow
from kvscope.record.store import Records, open_records

LAST, PREVIOUS = "last", "previous"
_Row = TypeVar("_Row")
# Shorter beginnings of an id name too much.
_SHORTEST_ID = 4
_HINT = (
    "Name a record file, last or previous (sittings), the begin of a sitting's or a design's id, a condition like "
    "kv_dtype=q8_0, or one of these in another file: old.db#last. kvscope export lists the ids."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side: its name, and by design the attempts that count for it (the last of each trial, warm-ups left out,
    failures not). ``level`` is set where one condition was named. ``doubt``: what to know of its file before it is
    believed."""

    name: str
    attempts: Mapping[str, tuple[Attempt, ...]]
    designs: Mapping[str, DesignRow]
    runs: tuple[RunRow, ...]
    level: Json = None
    doubt: str | None = None

    @property
    def is_condition(self) -> bool:
        return self.level is not None


def read_side(name: str, records: str | Path) -> Side:
    """The rows that ``name`` stands for; ``records`` is the file that it is looked up in. Raises UsageError where it
    stands for nothing or for several things, RecordError for the file."""
    path, _, inside = name.rpartition("#")
    if path and Path(path).is_file():
        return _inside(inside, path, shown=name)
    if Path(name).is_file():
        return _inside("", name, shown=name)
    return _inside(name, records, shown=name)


def _inside(what: str, path: str | Path, *, shown: str) -> Side:
    with open_records(path) as found:
        designs, runs = found.designs(), found.runs()
        if not what:
            return _side(found, shown, designs, runs, lambda attempt: True)
        if "=" in what:
            return _condition(found, what, shown, designs, runs)
        run = _sitting(what, found, runs)
        if run is not None:
            ids = {trial.design_id for trial in found.each_trial() if trial.run_id == run.run_id}
            tried = [design for design in designs if design.design_id in ids]
            return _side(found, shown, tried, runs, lambda attempt: attempt.trial.run_id == run.run_id)
        chosen = _by_id(what, designs)
        if chosen is None:
            raise UsageError(f"{what!r} names nothing in {path}.", hint=_HINT)
        return _side(found, shown, [chosen], runs, lambda attempt: True)


def _side(
    records: Records,
    name: str,
    designs: Sequence[DesignRow],
    runs: Sequence[RunRow],
    counts: Callable[[Attempt], bool],
    level: Json = None,
) -> Side:
    by_id = {run.run_id: run for run in runs}
    kept: dict[str, tuple[Attempt, ...]] = {}
    for design in designs:
        attempts = [a for a in load_attempts(records, design, by_id) if a.trial.role == "measured" and counts(a)]
        if attempts:
            kept[design.design_id] = latest_attempts(attempts)
    if not kept:
        raise UsageError(f"{name} has no trial that was measured.", hint="Run it first: kvscope measure.")
    used = {attempt.trial.run_id for attempts in kept.values() for attempt in attempts}
    return Side(
        name=name,
        attempts=kept,
        designs={design.design_id: design for design in designs if design.design_id in kept},
        runs=tuple(run for run in runs if run.run_id in used),
        level=level,
        doubt=records.doubt,
    )


def _sitting(what: str, records: Records, runs: Sequence[RunRow]) -> RunRow | None:
    """A sitting by its place or the begin of its id; of places, only those in which something was run count."""
    if what in (LAST, PREVIOUS):
        used = {trial.run_id for trial in records.each_trial() if trial.role == "measured"}
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
    """``FACTOR=LEVEL`` or ``DESIGN=LEVEL``: of several designs that have it, the one begun last."""
    name, _, wanted = what.partition("=")
    of_name = [d for d in designs if name in (d.name, d.factor)]
    if not of_name:
        known = sorted({each for d in designs for each in (d.name, d.factor)})
        raise UsageError(
            f"No design in this record is called {name!r} or varies it.", hint=f"It has: {', '.join(known)}."
        )
    for design in reversed(of_name):
        for level in design.levels:
            if wanted in (_written(level), level_key(level)):
                return _side(records, shown, [design], runs, partial(_is_at, level_key(level)), level)
    levels = sorted({_written(level) for design in of_name for level in design.levels})
    raise UsageError(f"{name} has no level {wanted!r}.", hint=f"It was measured at: {', '.join(levels)}.")


def _is_at(key: str, attempt: Attempt) -> bool:
    return level_key(attempt.trial.level) == key


def _written(level: Json) -> str:
    """A level as it is written on a command line."""
    return level if isinstance(level, str) else level_key(level)
