"""What makes rows comparable, and what does not: two designs held against each other, fact by fact.

A difference between rows of two machines, two models or two engine builds is the difference of all that they differ in:
such rows are never pooled or paired. Settings are what a comparison may be about; where several differ, what is seen
can be laid to none of them alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvscope.record.rows import DesignRow, Json, RunRow

MACHINE, MODEL, ENGINE, SYSTEM, QUESTION, SETTING = "machine", "model", "engine", "system", "question", "setting"
UNNAMED, KVSCOPE = "unnamed", "kvscope"
# Kinds of differences across which nothing is compared unless that is what was asked for.
REFUSED = (MACHINE, MODEL, ENGINE)
# ``system``: what may change on one machine without making it another (kernel, Python, driver, swap). ``unnamed``: the
# designs' identities differ, and nothing that the record holds says in what.
KINDS = (*REFUSED, SYSTEM, QUESTION, SETTING, UNNAMED, KVSCOPE)

_ENGINE_FACTS = ("engine", "engine_version", "engine_build")
# Kept with the definition, and no part of the question.
_STARTED_WITH = ("engine_command", "served_path")
# Of one machine it differs by a few MiB from boot to boot: what counts of it is in the machine's id.
_VAGUE = ("memory_total_bytes",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One fact that is not the same. ``a``, ``b``: its values; None where it is not stated, a list where a side has
    several. ``because``: "level" of a setting that the level makes, which is then no cause of its own."""

    kind: str
    name: str
    a: Json
    b: Json
    because: str | None = None


def differences(
    a: DesignRow, b: DesignRow, *, runs_a: Sequence[RunRow] = (), runs_b: Sequence[RunRow] = ()
) -> tuple[Difference, ...]:
    """Everything that differs between two designs, in the order of KINDS; the levels and the place of the model's files
    are not among it. The sittings in which their rows were made, where they are given, say in what their machines
    differ, and kvscope's release."""
    found = [*_machines(a, b, runs_a, runs_b), *_models(a, b)]
    for name in _ENGINE_FACTS:
        found += _one(ENGINE, name, getattr(a, name), getattr(b, name))
    if a.machine_id == b.machine_id:
        found += _facts(SYSTEM, runs_a, runs_b, leave_out=_VAGUE)
    found += _one(QUESTION, "version", a.version, b.version)
    found += _each(QUESTION, _question(a), _question(b))
    if a.definition and b.definition:
        found += _one(QUESTION, "warmups", a.definition.get("warmups"), b.definition.get("warmups"))
    found += _each(SETTING, a.settings, b.settings)
    for name in _STARTED_WITH:
        found += _one(SETTING, name, a.definition.get(name), b.definition.get(name))
    if a.design_id != b.design_id and not found and not _asks_otherwise(a, b):
        found.append(Difference(kind=UNNAMED, name="design_id", a=a.design_id, b=b.design_id))
    if runs_a and runs_b:
        releases = [_several([run.kvscope_version for run in runs]) for runs in (runs_a, runs_b)]
        found += _one(KVSCOPE, "kvscope_version", *releases)
    return tuple(found)


def refused_kinds(a: DesignRow, b: DesignRow) -> tuple[str, ...]:
    """The kinds of facts, of REFUSED, across which these designs are not compared. Empty: their rows may be."""
    is_same = {
        MACHINE: a.machine_id == b.machine_id,
        MODEL: a.model_fingerprint == b.model_fingerprint,
        ENGINE: all(getattr(a, name) == getattr(b, name) for name in _ENGINE_FACTS),
    }
    return tuple(kind for kind in REFUSED if not is_same[kind])


def setting_differences(a: Mapping[str, Json], b: Mapping[str, Json]) -> tuple[Difference, ...]:
    """Settings that are not the same in two mappings of them."""
    return tuple(_each(SETTING, a, b))


def _machines(a: DesignRow, b: DesignRow, runs_a: Sequence[RunRow], runs_b: Sequence[RunRow]) -> list[Difference]:
    if a.machine_id == b.machine_id:
        return []
    return _facts(MACHINE, runs_a, runs_b) or [
        Difference(kind=MACHINE, name="machine_id", a=a.machine_id, b=b.machine_id)
    ]


def _models(a: DesignRow, b: DesignRow) -> list[Difference]:
    if a.model_fingerprint == b.model_fingerprint:
        return []
    if a.model_name != b.model_name:
        return _one(MODEL, "model", a.model_name, b.model_name)
    return _one(MODEL, "model", a.model_fingerprint, b.model_fingerprint)


def _facts(
    kind: str, runs_a: Sequence[RunRow], runs_b: Sequence[RunRow], *, leave_out: Sequence[str] = ()
) -> list[Difference]:
    """Facts of the machines that are not the same in all sittings of both sides."""
    if not runs_a or not runs_b:
        return []
    names = {name for run in (*runs_a, *runs_b) for name in run.machine} - set(leave_out)
    sides = [{name: _several([_fact(run, name) for run in runs]) for name in names} for runs in (runs_a, runs_b)]
    return _each(kind, *sides)


def _fact(run: RunRow, name: str) -> Json:
    """Nothing of a kind, and a record of before it was looked at, say the same."""
    value = run.machine.get(name)
    return None if value == [] else value


def _several(values: Sequence[Json]) -> Json:
    """The value that all have; where they are several, a list of them."""
    kept = [value for place, value in enumerate(values) if value not in values[:place]]
    return kept[0] if len(kept) == 1 else sorted(kept, key=str)


def _asks_otherwise(a: DesignRow, b: DesignRow) -> bool:
    """Whether the designs differ in what was asked: in their levels, repeats or warm-ups."""
    if not a.definition or not b.definition:  # of before it was kept
        return (a.levels, a.baseline_level, a.repeats) != (b.levels, b.baseline_level, b.repeats)
    asked = [{n: v for n, v in row.definition.items() if n not in _STARTED_WITH} for row in (a, b)]
    return asked[0] != asked[1]


def _question(design: DesignRow) -> Mapping[str, Json]:
    """What was held of the requests: the engine's settings are told apart from it."""
    held = {name: value for name, value in design.held.items() if name != "settings"}
    return {**held, "seed": design.seed, "factor": design.factor}


def _each(kind: str, a: Mapping[str, Json], b: Mapping[str, Json]) -> list[Difference]:
    return [d for name in sorted(a.keys() | b.keys()) for d in _one(kind, name, a.get(name), b.get(name))]


def _one(kind: str, name: str, a: Json, b: Json) -> list[Difference]:
    return [] if a == b and isinstance(a, bool) == isinstance(b, bool) else [Difference(kind=kind, name=name, a=a, b=b)]
