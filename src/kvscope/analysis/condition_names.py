"""A condition by its name: ``kv_dtype=q8_0``, ``input_length=2k``, of a grid ``n_ctx=1024,kv_dtype=f16``."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvscope.analysis.levels import level_key
from kvscope.errors import UsageError
from kvscope.record.rows import DesignRow, Json
from kvscope.units import parse_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """``levels``: by the design's id, the levels that the name stands for there (of a grid perhaps several cells).
    ``factors``: what it names, as it was written."""

    levels: Mapping[str, tuple[Json, ...]]
    factors: tuple[str, ...]


def named_levels(what: str, designs: Sequence[DesignRow]) -> Named:
    """What ``what`` stands for in these designs. Raises UsageError where that is nothing."""
    name, _, wanted = what.partition("=")
    asked = _asked(what)
    own = [design for design in designs if name in (design.name, design.factor)]
    of_name = own or [design for design in designs if set(asked) <= _factors(design)]
    if not of_name:
        known = sorted({each for d in designs for each in (d.name, d.factor, *_factors(d))})
        raise UsageError(
            f"No design in this record is called {name!r} or varies it.", hint=f"It has: {', '.join(known)}."
        )
    found = {design.design_id: _matching(design, name, wanted, asked) for design in of_name}
    found = {design_id: levels for design_id, levels in found.items() if levels}
    if not found:
        levels = sorted({written(level) for design in of_name for level in design.levels})
        raise UsageError(f"{name} has no level {wanted!r}.", hint=f"It was measured at: {'; '.join(levels)}.")
    return Named(levels=found, factors=(name,) if own else tuple(asked))


def written(level: Json) -> str:
    """A level as it is written on a command line."""
    if isinstance(level, Mapping):
        return ",".join(f"{name}={written(value)}" for name, value in level.items())
    return level if isinstance(level, str) else level_key(level)


def _asked(what: str) -> dict[str, str]:
    """Factor → level of ``n_ctx=1024,kv_dtype=f16``; a comma may be part of a level too."""
    asked: dict[str, str] = {}
    for part in what.split(","):
        name, mark, wanted = part.partition("=")
        if mark:
            asked[name] = wanted
        elif asked:
            asked[list(asked)[-1]] += f",{part}"
    return asked


def _factors(design: DesignRow) -> set[str]:
    """The factors of a grid; of another design none: its levels are no mappings."""
    return {name for level in design.levels if isinstance(level, Mapping) for name in level}


def _matching(design: DesignRow, name: str, wanted: str, asked: Mapping[str, str]) -> tuple[Json, ...]:
    if name in (design.name, design.factor):
        return tuple(level for level in design.levels if _is(level, wanted))
    return tuple(
        level
        for level in design.levels
        if isinstance(level, Mapping) and all(_is(level[each], text) for each, text in asked.items())
    )


def _is(level: Json, text: str) -> bool:
    """Whether a level is what somebody wrote: ``2k`` is 2048, and the order of a cell's factors does not matter."""
    if text in (written(level), level_key(level)):
        return True
    if isinstance(level, Mapping):
        return _is_cell(level, text)
    if isinstance(level, bool):
        return text.lower() == level_key(level)
    return isinstance(level, int | float) and _number(text) == level


def _is_cell(level: Mapping[str, Json], text: str) -> bool:
    try:
        return level_key(json.loads(text)) == level_key(level)
    except ValueError:
        asked = _asked(text)
        return asked.keys() == level.keys() and all(_is(level[name], each) for name, each in asked.items())


def _number(text: str) -> float | None:
    """The number that a text stands for; None where it is none."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return parse_tokens(text)
    except UsageError:
        return None
