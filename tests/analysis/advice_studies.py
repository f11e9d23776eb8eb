"""Studies in which what a change of settings does is known, for the tests of advice."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from random import Random
from typing import Any

from study_rows import answered, attempt, design_row, mark, prediction, run_row, trial_row

from kvscope.analysis.advice import advise
from kvscope.analysis.advice_kind import Advised
from kvscope.analysis.attempts import Attempt
from kvscope.analysis.limit import ContextLimit, context_limit
from kvscope.analysis.study import DesignStudy, Study
from kvscope.record.rows import DesignRow
from kvscope.units import MIB

ROOMY, TIGHT = 16 * 1024**3, 160 * MIB
LOADED_KIB = 150 * 1024
Q8 = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
F16 = {"cache_type_k": "f16", "cache_type_v": "f16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What one level sets, and what it truly does: anonymous KiB more than the baseline, times. ``saves_bytes``: by
    its prediction."""

    settings: Mapping[str, Any]
    more_kib: int = 0
    ttft_s: float = 1.0
    tpot_s: float = 0.02
    saves_bytes: int = 0
    rows: Mapping[str, Any] = field(default_factory=dict)


def attempts_of(
    name: str,
    factor: str,
    levels: Mapping[Any, Level],
    *,
    repeats: int = 5,
    noise: float = 0.0,
    available: int = ROOMY,
    random: Random | None = None,
    changes: Sequence[Mapping[str, Any]] | None = None,
    **design_changes: Any,
) -> list[Attempt]:
    """All attempts of one design, the first level its baseline; times wobble by ``noise`` of themselves, memory by a
    few pages."""
    design = design_of(name, factor, tuple(levels), repeats=repeats, **design_changes)
    random = random or Random(0)
    found = []
    for block in range(repeats):
        for level, does in levels.items():
            slow = 1 + random.gauss(0, noise) if noise else 1.0
            trial = trial_row(design, level, block, settings=dict(does.settings))
            anon = LOADED_KIB + does.more_kib + 4 * random.randrange(3)
            rows = {
                "marks": (
                    mark("launched", 8000, machine_available_bytes=available),
                    mark("loaded", anon, machine_available_bytes=available),
                    mark("after_request", anon, machine_available_bytes=available),
                ),
                **answered(1500, ttft_s=max(0.001, does.ttft_s * slow), tpot_s=does.tpot_s),
                **does.rows,
            }
            found.append(attempt(trial, design=design, predicted=predicted(does.saves_bytes, changes), **rows))
    return found


def design_of(name: str, factor: str, levels: tuple[Any, ...], **changes: Any) -> DesignRow:
    return replace(
        design_row(),
        name=name,
        factor=factor,
        levels=levels,
        baseline_level=levels[0],
        design_id=f"design-{name}",
        **changes,
    )


def predicted(saves_bytes: int, changes: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """A prediction with so many bytes of cache fewer, and the changes that were kept with it."""
    found = prediction()
    found["totals"] = {**found["totals"], "cache_bytes": found["totals"]["cache_bytes"] - saves_bytes}
    return found if changes is None else {**found, "changes": list(changes)}


def study_of(attempts: Iterable[Attempt], *, limit: ContextLimit | None = None, engine: str = "llama.cpp") -> Study:
    """The study of these attempts, with nothing in it but what advice reads."""
    listed = list(attempts)
    designs = [
        DesignStudy(design=replace(found[0].design, engine=engine), attempts=tuple(found), levels=())
        for _, group in groupby(listed, key=lambda each: each.design.design_id)
        if (found := list(group))
    ]
    first = designs[0].design
    absent: dict[str, Any] = dict.fromkeys(
        ("main", "context", "inputs", "timeline", "ttft", "tpot", "completion", "tpot_output")
    )
    empty: dict[str, Any] = dict.fromkeys(("by_context", "limits", "releases", "failures", "checks"), ())
    return Study(
        model_name=first.model_name,
        model_source=first.model_source,
        model_fingerprint=first.model_fingerprint,
        engine=engine,
        engine_version="b1",
        engine_build="build",
        machine_id="machine",
        machine={},
        runs=(run_row(),),
        designs=tuple(designs),
        prediction=listed[0].prediction,
        limit=limit,
        **absent,
        **empty,
    )


def trained_limit(attempts: Sequence[Attempt], *, binds: str = "trained") -> ContextLimit:
    """A limit as ``context_limit`` makes it, which binds as the test says."""
    found = context_limit(attempts[0], None)
    assert found is not None
    return replace(found, binds=binds)


def advised(attempts: Sequence[Attempt], *, binds: str = "trained", engine: str = "llama.cpp") -> Advised:
    """What is advised of these attempts where the trained length binds, unless told otherwise."""
    return advise(study_of(attempts, limit=trained_limit(attempts, binds=binds), engine=engine))
