"""One effect as the cells of a table: the same in a terminal and in the page, so that they cannot disagree."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.analysis.effects import Effect
from kvscope.analysis.levels import SHOWN, LevelRow
from kvscope.report.words import name_of, say
from kvscope.units import MIB, format_number


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
    unit, scale = _unit(effect.metric)
    digits = _digits(effect, scale)

    def write(value: float | None, *, signed: bool = True) -> str:
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
        else say("effects.width", low=write(low), high=write(high)),
        share=_share(effect),
        pairs=str(effect.num_pairs),
        verdict=_verdict(effect, write(effect.would_have_been_seen, signed=False)),
    )


def _unit(metric: str) -> tuple[str, float]:
    """The kind of a metric, and what its values are divided by to be shown."""
    if "_bytes" in metric:
        return "bytes", MIB
    if "_per_s" in metric:
        return "per_s", 1.0
    return ("s", 1e-3) if metric.endswith("_s") else ("other", 1.0)


def _digits(effect: Effect, scale: float) -> int:
    """Decimals: fewer for large numbers, so that a column stays readable."""
    size = max(abs(effect.baseline or 0.0), abs(effect.changed or 0.0)) / scale
    if "_bytes" in effect.metric:
        return 1
    return 0 if size >= 1000 else 1 if size >= 100 else 2


def _share(effect: Effect) -> str:
    value = effect.relative.value
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
