"""One effect as the cells of a table: the same in a terminal and in the page, so that they cannot disagree."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.analysis.effects import Effect
from kvscope.analysis.levels import SHOWN, LevelRow
from kvscope.report.words import name_of, say
from kvscope.units import GIB, MIB, format_number

# From here on times are shown in seconds instead of milliseconds, and memory in GiB instead of MiB.
LARGE_S = 10.0
LARGE_BYTES = 10 * GIB
MOST_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectCells:
    """Texts of one effect. ``verdict`` says whether the difference is called one."""

    what: str
    baseline: str
    difference: str
    interval: str
    share: str
    pairs: str
    verdict: str


def shown_metrics(rows: Sequence[LevelRow]) -> tuple[str, ...]:
    """The metrics of which any level has a pair with the baseline, in the order in which they are shown."""
    return tuple(name for name in SHOWN if any(row.effects[name].num_pairs for row in rows if name in row.effects))


def effect_cells(effect: Effect) -> EffectCells:
    """One effect in the units of its kind: milliseconds, MiB, tokens a second."""
    unit, scale = _unit(effect)
    digits = _digits(effect, scale)
    fine = _fine_digits(effect, scale, digits)

    def write(value: float | None, *, signed: bool = True, digits: int = digits) -> str:
        if value is None:
            return say("none")
        text = format_number(value / scale, digits)
        return f"+{text}" if signed and value > 0 and text.strip("0.,") else text

    low, high = effect.difference.low, effect.difference.high
    return EffectCells(
        what=say(f"effect_unit.{unit}", name=name_of("effect_name", effect.metric)),
        baseline=write(effect.baseline, signed=False),
        difference=write(effect.difference.value),
        interval=say("effects.no_interval")
        if low is None or high is None
        else say("effects.width", low=write(low, digits=fine), high=write(high, digits=fine)),
        share=_share(effect),
        pairs=str(effect.num_pairs),
        verdict=_verdict(effect, write(effect.would_have_been_seen, signed=False, digits=fine)),
    )


def _unit(effect: Effect) -> tuple[str, float]:
    """The unit of a metric, and what its values are divided by to be shown in it. It follows the baseline, so that all
    levels of a design are shown in one."""
    size = abs(effect.baseline or 0.0)
    if "_bytes" in effect.metric:
        return ("gib", GIB) if size >= LARGE_BYTES else ("bytes", MIB)
    if "_per_s" in effect.metric:
        return "per_s", 1.0
    if effect.metric.endswith("_s"):
        return ("whole_s", 1.0) if size >= LARGE_S else ("s", 1e-3)
    return "other", 1.0


def _digits(effect: Effect, scale: float) -> int:
    """Decimals: fewer for large numbers, so that a column stays readable; but what is called a difference is never
    shown as 0.0."""
    size = max(abs(effect.baseline or 0.0), abs(effect.changed or 0.0)) / scale
    digits = 1 if scale == MIB or 100 <= size < 1000 else 0 if size >= 1000 else 2
    difference = abs(effect.difference.value or 0.0) / scale
    while effect.is_seen and digits < MOST_DIGITS and round(difference, digits) == 0:
        digits += 1
    return digits


def _fine_digits(effect: Effect, scale: float, digits: int) -> int:
    """Decimals of an interval: as many as it takes to show that it has a width."""
    sides = (effect.difference.low, effect.difference.high, effect.would_have_been_seen)
    widest = max((abs(side) for side in sides if side is not None), default=0.0) / scale
    while widest > 0 and digits < MOST_DIGITS and round(widest, digits) == 0:
        digits += 1
    return digits


def _share(effect: Effect) -> str:
    value = effect.share.value
    if value is None:
        return say("none")
    text = format_number(value * 100, 0 if abs(value) >= 0.995 else 1)
    return say("effects.share", value=f"+{text}" if value > 0 and text.strip("0.,") else text)


def _verdict(effect: Effect, ruled_out: str) -> str:
    match effect.verdict:
        case "more":
            return say("effects.more")
        case "less":
            return say("effects.less")
        case "no_difference_seen":
            return say("effects.ruled_out", size=ruled_out)
        case _:
            return say("effects.unknown")
