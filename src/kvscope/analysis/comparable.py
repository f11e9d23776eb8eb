"""What makes rows comparable, and what does not: two designs held against each other, fact by fact.

A difference between rows of two machines, two models or two engine builds is the difference of all that they differ in:
such rows are never pooled or paired. Settings are what a comparison may be about; where several differ, what is seen
can be laid to none of them alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvscope.record.rows import DesignRow, Json, RunRow

MACHINE, MODEL, ENGINE, QUESTION, SETTING, KVSCOPE = "machine", "model", "engine", "question", "setting", "kvscope"
# Kinds of differences across which nothing is compared unless that is what was asked for.
REFUSED = (MACHINE, MODEL, ENGINE)
KINDS = (*REFUSED, QUESTION, SETTING, KVSCOPE)

_ENGINE_FACTS = ("engine", "engine_version", "engine_build")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One fact that is not the same. ``a``, ``b``: its values; None where it is not stated."""

    kind: str
    name: str
    a: Json
    b: Json


def differences(
    a: DesignRow, b: DesignRow, *, run_a: RunRow | None = None, run_b: RunRow | None = None
) -> tuple[Difference, ...]:
    """Everything that differs between two designs, in the order of KINDS; the levels and the place of the model's files
    are not among it. The sittings, where they are given, say in what their machines differ, and kvscope's release."""
    if a.design_id == b.design_id and (run_a is None or run_b is None or run_a.run_id == run_b.run_id):
        return ()
    found = _machines(a, b, run_a, run_b)
    if a.model_fingerprint != b.model_fingerprint:
        named = (
            (a.model_name, b.model_name) if a.model_name != b.model_name else (a.model_fingerprint, b.model_fingerprint)
        )
        found.append(Difference(kind=MODEL, name="model", a=named[0], b=named[1]))
    for name in _ENGINE_FACTS:
        found += _one(ENGINE, name, getattr(a, name), getattr(b, name))
    found += _one(QUESTION, "version", a.version, b.version)
    found += _each(QUESTION, _question(a), _question(b))
    found += _each(SETTING, a.settings, b.settings)
    if run_a is not None and run_b is not None:
        found += _one(KVSCOPE, "kvscope_version", run_a.kvscope_version, run_b.kvscope_version)
    return tuple(found)


def why_not_comparable(
    a: DesignRow, b: DesignRow, *, run_a: RunRow | None = None, run_b: RunRow | None = None
) -> tuple[Difference, ...]:
    """The differences across which nothing is compared: machine, model, engine. Empty: their rows may be compared."""
    return tuple(d for d in differences(a, b, run_a=run_a, run_b=run_b) if d.kind in REFUSED)


def setting_differences(a: Mapping[str, Json], b: Mapping[str, Json]) -> tuple[Difference, ...]:
    """Settings that are not the same in two mappings of them."""
    return tuple(_each(SETTING, a, b))


def _machines(a: DesignRow, b: DesignRow, run_a: RunRow | None, run_b: RunRow | None) -> list[Difference]:
    if a.machine_id == b.machine_id:
        return []
    facts = [] if run_a is None or run_b is None else _each(MACHINE, run_a.machine, run_b.machine)
    return facts or [Difference(kind=MACHINE, name="machine_id", a=a.machine_id, b=b.machine_id)]


def _question(design: DesignRow) -> Mapping[str, Json]:
    """What was held of the requests: the engine's settings are told apart from it."""
    held = {name: value for name, value in design.held.items() if name != "settings"}
    return {**held, "seed": design.seed, "factor": design.factor}


def _each(kind: str, a: Mapping[str, Json], b: Mapping[str, Json]) -> list[Difference]:
    return [d for name in sorted(a.keys() | b.keys()) for d in _one(kind, name, a.get(name), b.get(name))]


def _one(kind: str, name: str, a: Json, b: Json) -> list[Difference]:
    return [] if a == b and isinstance(a, bool) == isinstance(b, bool) else [Difference(kind=kind, name=name, a=a, b=b)]
