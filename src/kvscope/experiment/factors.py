"""What a design varies: a factor and its levels, and which of them cannot be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvscope.errors import BadDesign
from kvscope.scenario import SettingValue

Level = int | float | str | bool
# What one level of a factor sets, where a level stands for several settings at once ("q8_0": both cache types).
LevelSettings = Mapping[Level, Mapping[str, SettingValue]]
# What belongs to the requests. Everything else that can vary is a setting that an engine is loaded with.
REQUEST_FACTORS = (
    *("prompt_tokens", "output_tokens", "turns", "concurrency", "rate_per_s", "prefix"),
    *("quality_task", "given"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """What a design varies, and the values it takes. ``sets``: see ``LevelSettings``; empty where the factor is itself
    a setting, or the requests' own."""

    name: str
    levels: tuple[Level, ...]
    sets: LevelSettings = field(default_factory=dict)

    @property
    def is_load_time(self) -> bool:
        """Whether an engine has to be loaded anew for another level."""
        return self.name not in REQUEST_FACTORS

    @property
    def settings(self) -> frozenset[str]:
        """The engine settings that differ between its levels."""
        if not self.is_load_time:
            return frozenset()
        return frozenset(name for each in self.sets.values() for name in each) or frozenset({self.name})


def check_factor(factor: Factor) -> None:
    """Raises BadDesign where it has no level, or one twice."""
    if not factor.levels:
        raise BadDesign(f"{factor.name} has no levels.", hint="Give at least one, for example --levels 512,2048.")
    if len(set(map(str, factor.levels))) != len(factor.levels):
        raise BadDesign(f"{factor.name} has a level twice: {', '.join(map(str, factor.levels))}.", hint="Remove one.")


def check_apart(factors: Sequence[Factor]) -> None:
    """Raises BadDesign where two factors set one thing: a cell would then not be what its name says."""
    if len(factors) < 2:
        return
    one, other = factors
    both = sorted(one.settings & other.settings)
    if both:
        raise BadDesign(
            f"{one.name} and {other.name} both set {', '.join(both)}, so that one of them would not hold.",
            hint="Vary one of the two.",
        )
    if {one.name, other.name} == {"concurrency", "rate_per_s"}:
        raise BadDesign(
            "At a fixed rate, how many requests are under way at once is not set: it follows from the rate.",
            hint="Vary one of the two.",
        )


def check_not_held(factor: Factor, held_settings: Mapping[str, SettingValue]) -> None:
    """Raises BadDesign where what the factor varies is held too."""
    varied = {name for settings in factor.sets.values() for name in settings}
    held = sorted(varied & held_settings.keys())
    if held:
        raise BadDesign(
            f"{', '.join(held)} is what {factor.name} varies, and it was given one value too.",
            hint="Leave it out, or give the values with --levels.",
        )
