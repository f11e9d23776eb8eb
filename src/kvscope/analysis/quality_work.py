"""Which levels are different ways to do the same work, and which are other work: only the first are a choice, and a
level is held against one that does its own work."""

from collections.abc import Mapping, Sequence

from kvscope.analysis.levels import level_key
from kvscope.record.rows import DesignRow, Json

# Factors that say what is asked, and not how it is done.
_WORK_FACTORS = frozenset(
    ("prompt_tokens", "output_tokens", "turns", "concurrency", "rate_per_s", "prefix", "quality_task")
)
# Designs whose levels are different work.
_WORK_DESIGNS = frozenset(
    ("input_length", "output_length", "turns", "concurrency", "prefix_reuse", "quality", "release")
)


def work_of(design: DesignRow, level: Json) -> str:
    """Equal of two levels only where they do the same work."""
    if design.name in _WORK_DESIGNS:
        return level_key(level)
    return level_key(_work(level))


def is_choice(design: DesignRow, levels: Sequence[Json]) -> bool:
    """Whether any two levels do the same work, so that one could beat the other."""
    return len({work_of(design, level) for level in levels}) < len(levels)


def baseline_of(level: Json, baseline_level: Json, levels: Sequence[Json]) -> Json:
    """What a level is held against: of a grid the level that does the same work with the baseline's settings, where
    there is one among ``levels``; else the baseline."""
    if not isinstance(level, Mapping) or not isinstance(baseline_level, Mapping):
        return baseline_level
    same_work = {**baseline_level, **_work(level)}
    keys = {level_key(each) for each in levels}
    is_other = level_key(same_work) not in (level_key(level), level_key(baseline_level))
    return same_work if is_other and level_key(same_work) in keys else baseline_level


def _work(level: Json) -> dict[str, Json]:
    if not isinstance(level, Mapping):
        return {}
    return {name: value for name, value in level.items() if name in _WORK_FACTORS}
