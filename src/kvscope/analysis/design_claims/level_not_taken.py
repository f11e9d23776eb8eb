"""Levels that the engine did not take, by what it says that it uses: what was measured there is something else."""

from collections.abc import Mapping, Sequence

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims.changed import named
from kvscope.analysis.finding import Finding
from kvscope.analysis.levels import at_level
from kvscope.record.rows import DesignRow, Json

# Values that leave the choice to the engine.
_ITS_CHOICE = ("auto", -1)
# Settings that an engine may round up: no less than was asked for is what was asked for.
_ROUNDED_UP = ("n_ctx",)


def not_taken(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """For each level of any design, and each setting that its factors vary, what the engine used instead."""
    found = []
    for level in design.levels:
        measured = [a for a in at_level(attempts, level) if a.is_measured]
        for name in _varied_settings(design):
            used = {str(x): x for a in measured if (x := _used_instead(design, a, name)) is not None}
            if used:
                value = used[max(used)]
                is_own = name == design.factor
                values = {**named(design, level), "used": value if is_own else f"{name} = {value}"}
                keys = tuple(a.key for a in measured)
                found.append(Finding(slug="level_not_taken", values=values, evidence=keys))
    return tuple(found)


def _varied_settings(design: DesignRow) -> list[str]:
    """Names of what the factors set; of requests' own factors no engine says anything."""
    return list(dict.fromkeys(each for name, sets in _factors(design) for each in (sets or [name])))


def _factors(design: DesignRow) -> list[tuple[str, list[str]]]:
    """Each factor with the settings that its levels stand for."""
    stated = design.definition.get("factors")
    if not isinstance(stated, list | tuple) or not stated:  # a record from before definitions were kept
        return [(name, []) for name in design.factor.split(" × ")]
    return [(str(name), [each for one in sets for settings in one for each in settings]) for name, _, *sets in stated]


def _used_instead(design: DesignRow, attempt: Attempt, name: str) -> object | None:
    effective: Mapping[str, object] = attempt.result.effective
    asked, used = _asked(design, attempt, name), effective.get(name)
    if asked is None or used is None or asked in _ITS_CHOICE or used == asked:
        return None
    if name in _ROUNDED_UP and isinstance(used, int) and isinstance(asked, int) and used >= asked:
        return None
    most = effective.get("most_gpu_layers")
    if name == "n_gpu_layers" and isinstance(asked, int) and isinstance(most, int) and used == most <= asked:
        return None
    return used


def _asked(design: DesignRow, attempt: Attempt, name: str) -> Json:
    """What the trial was to be loaded with."""
    level = attempt.trial.level
    if name in attempt.trial.settings:
        return attempt.trial.settings[name]
    if isinstance(level, Mapping):
        return level.get(name)
    return level if name == design.factor else None
