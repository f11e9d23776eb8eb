"""What to change first here: from what the designs of a record measured, and from what was predicted beside them.

Two rules. A change is advised only where something stands for it: rows of the record, or a prediction that is named as
one. And nothing is paid for what is not short: where memory fits easily, no time and no answers are given up for it
(``advice_pressure``). A change whose measurement contradicts what it promised is named, and not advised.

Memory is called saved by the interval that holds for all levels of its design; time only by one that holds for all
comparisons of the study together, because here the best of many is picked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kvscope.analysis.advice_command import design_command, repeat_command
from kvscope.analysis.advice_context import context_advice
from kvscope.analysis.advice_flags import HAS_MICROBATCH, flags_of
from kvscope.analysis.advice_host_cache import host_cache_advice
from kvscope.analysis.advice_kind import Advice, Advised, Helps, Withheld
from kvscope.analysis.advice_measured import MEMORY, TIMES, Measured, measured_changes, surely_less
from kvscope.analysis.advice_predicted import predicted_advice, priced_changes
from kvscope.analysis.advice_pressure import Pressure, pressure_now, pressure_of
from kvscope.analysis.advice_reuse import reuse_advice
from kvscope.analysis.advice_room import room_advice
from kvscope.analysis.effects import Effect
from kvscope.analysis.fit import Estimate
from kvscope.analysis.levels import level_key

if TYPE_CHECKING:
    from kvscope.analysis.study import Study

# What saves less than this share of the whole is not worth a change.
WORTH_SHARE = 0.01
# Of a wait, less than this share.
WORTH_TIME = 0.02
# A difference of a time that is this large is named even where it is not sure.
NAMED_TIME = 0.05
_LOST = ("lost_answers", "moved")
_GRAVER_FIRST = (*_LOST, "saved_nothing", "slower", "mixed", "memory_free", "too_small", "not_sure")
# Designs whose levels are asked about because they should save memory.
_MEMORY_DESIGNS = frozenset({"kv_dtype", "host_cache"})


def advise(study: Study) -> Advised:
    """What helps most first: what lets it run at all, then memory before waiting where memory is short or ends the
    length, else waiting first."""
    pressure = pressure_now(study)
    changes = measured_changes(study)
    memory, not_memory = _of_memory(study, changes, pressure)
    waiting, not_waiting = _of_waiting(study, changes)
    others = [*(() if pressure.is_free else context_advice(study)), *host_cache_advice(study, pressure)]
    # Where a change lost answers, a milder one of its kind may still be worth a try.
    taken = {each.axis for each in memory} | {each.axis for each in not_memory if each.reason not in _LOST}
    memory += predicted_advice(study, pressure, taken, [each.change for each in changes])
    memory = sorted([*memory, *others], key=lambda each: -each.size)
    waiting = sorted([*waiting, *reuse_advice(study)], key=lambda each: -each.size)
    first, second = (waiting, memory) if pressure.is_free or pressure.slug == "unknown" else (memory, waiting)
    advice = _one_of_each_axis((*room_advice(study), *first, *second))
    advised = {level_key(each.change) for each in advice}
    withheld = [each for each in (*not_memory, *not_waiting) if level_key(each.change) not in advised]
    look = () if any(_has_times(each) for each in changes) else _where_to_look(study)
    return Advised(
        pressure=pressure_of(study),
        advice=advice,
        withheld=_worth_naming(withheld),
        look=look,
        priced=priced_changes(study),
    )


def _has_times(each: Measured) -> bool:
    return any(each.effects[name].num_pairs for name in TIMES)


def _where_to_look(study: Study) -> tuple[tuple[str, ...], ...]:
    """The designs that tell what shortens the wait on this engine: a setting of it, and reuse of what was sent before;
    () where there is none."""
    measured = [a for a in study.attempts if a.is_measured]
    if study.engine not in HAS_MICROBATCH or not measured:
        return ()
    asked = {each.design.name for each in study.designs if each.num_measured}
    names = [name for name in ("microbatch", "prefix_reuse") if name not in asked]
    return tuple(words for name in names if (words := design_command(name, measured[-1])))


def _one_of_each_axis(found: Sequence[Advice]) -> tuple[Advice, ...]:
    """Changes that exclude each other are not advised beside each other: the first is what helps most."""
    by_axis: dict[str, Advice] = {}
    for each in found:
        by_axis.setdefault(each.axis, each)
    return tuple(by_axis.values())


def _worth_naming(found: Iterable[Withheld]) -> tuple[Withheld, ...]:
    """A change that is held back for both is named once, for the graver reason."""
    by_change: dict[str, Withheld] = {}
    for each in sorted(found, key=lambda withheld: _GRAVER_FIRST.index(withheld.reason)):
        by_change.setdefault(level_key(each.change), each)
    return tuple(by_change.values())


def _of_memory(study: Study, changes: Sequence[Measured], pressure: Pressure) -> tuple[list[Advice], list[Withheld]]:
    given, held = [], []
    for each in changes:
        effect = each.effects.get(MEMORY)
        if effect is None or not effect.num_pairs:
            continue
        reason = _against_memory(each, effect, pressure)
        if reason is None and _is_more_elsewhere(each, changes, MEMORY):
            reason = "mixed"
        if reason:
            held.append(_withheld(study, each, reason, "memory", effect))
        elif reason is not None:
            continue
        elif effect.verdict == "less":
            given.append(_advice(study, each, "memory", effect))
        elif effect.verdict == "unknown" and (each.predicted_bytes or 0) > WORTH_SHARE * (effect.baseline or 0):
            # One repeat: the rows are named, and the size stays a prediction.
            given.append(replace(_advice(study, each, "memory", effect), saved=None, predicted=each.predicted_bytes))
    return _best_of_each_axis(given), held


def _against_memory(each: Measured, effect: Effect, pressure: Pressure) -> str | None:
    """Why a change is not advised for memory; "" where there is nothing to say of it, None where it may be."""
    value = effect.difference.value or 0.0
    promised = (each.predicted_bytes or 0) > 0 or each.design.name in _MEMORY_DESIGNS
    if _is_contradicted(each, effect):
        return "saved_nothing" if promised else ""
    if effect.verdict not in ("less", "unknown"):
        return ""
    if -value < WORTH_SHARE * (effect.baseline or 0.0):
        return "too_small" if promised and effect.verdict == "less" else ""
    if each.quality.slug == "loss":
        return "lost_answers"
    if each.quality.slug == "moved" and each.axis.harm > 1:
        return "moved"
    if each.quality.slug != "no_loss" and each.axis.harm > 1:
        return ""  # its kind is known to cost answers, and nothing says that it does not here
    return _against_paying(each, pressure)


def _is_contradicted(each: Measured, effect: Effect) -> bool:
    """Whether what was measured leaves no room for the saving that was promised."""
    value, low = effect.difference.value, effect.difference.low
    if effect.verdict == "more" or effect.is_same or value is None or (value >= 0 and effect.verdict == "unknown"):
        return True
    if effect.verdict != "no_difference_seen" or low is None:
        return False
    return each.predicted_bytes is not None and -each.predicted_bytes < low


def _against_paying(each: Measured, pressure: Pressure) -> str | None:
    """Where memory is no trouble, only what costs nothing is advised for it."""
    if not pressure.is_free or each.axis.harm == 0:
        return None
    is_slower = any(cost.verdict == "more" for cost in each.costs if cost.metric in TIMES)
    return None if each.quality.slug == "no_loss" and not is_slower else "memory_free"


def _of_waiting(study: Study, changes: Sequence[Measured]) -> tuple[list[Advice], list[Withheld]]:
    num = sum(1 for each in changes for name in TIMES if each.effects[name].num_pairs)
    given, held = [], []
    for each in changes:
        known = [each.effects[name] for name in TIMES if each.effects[name].verdict == "less"]
        sure = [e for e in known if surely_less(e, num) and -(e.relative.value or 0.0) >= WORTH_TIME]
        if sure:
            reason = _against_waiting(each)
            if reason is None and _is_more_elsewhere(each, changes, sure[0].metric):
                reason = "mixed"
            if reason is None:
                given.append(_advice(study, each, "waiting", sure[0]))
            else:
                held.append(_withheld(study, each, reason, "waiting", sure[0]))
        elif known and -(known[0].relative.value or 0.0) >= NAMED_TIME:
            held.append(_withheld(study, each, "not_sure", "waiting", known[0]))
    return _best_of_each_axis(given), held


def _against_waiting(each: Measured) -> str | None:
    if each.quality.slug == "loss":
        return "lost_answers"
    if each.axis.harm > 1 and each.quality.slug != "no_loss":
        return "moved"
    return "slower" if any(each.effects[name].verdict == "more" for name in TIMES) else None


def _is_more_elsewhere(each: Measured, changes: Sequence[Measured], metric: str) -> bool:
    """Whether the same change costs more of the same in another cell or design."""
    same = [other for other in changes if other is not each and other.change == each.change]
    return any(metric in other.effects and other.effects[metric].verdict == "more" for other in same)


def _best_of_each_axis(given: Sequence[Advice]) -> list[Advice]:
    """Of changes that exclude each other the one that harms least, then the one that saves most."""
    best: dict[str, Advice] = {}
    for each in sorted(given, key=lambda a: (a.harm, a.quality.slug not in ("no_loss", "gain"), -a.size)):
        best.setdefault(each.axis, each)
    return list(best.values())


def _advice(study: Study, each: Measured, helps: Helps, effect: Effect) -> Advice:
    return Advice(
        slug=each.axis.slug,
        axis=each.axis.name,
        helps=helps,
        harm=each.axis.harm,
        metric=effect.metric,
        change=each.change,
        flags=flags_of(study.engine, each.change),
        saved=_negative(effect.difference),
        costs=tuple(cost for cost in each.costs if cost.metric != effect.metric),
        quality=each.quality,
        evidence=each.evidence,
        design_id=each.design.design_id,
        check=_repeat(each),
        limited=each.limited,
        predicted=each.predicted_bytes if helps == "memory" else None,
    )


def _withheld(study: Study, each: Measured, reason: str, helps: Helps, effect: Effect) -> Withheld:
    return Withheld(
        reason=reason,
        axis=each.axis.name,
        helps=helps,
        metric=effect.metric,
        change=each.change,
        flags=flags_of(study.engine, each.change),
        difference=effect.difference,
        predicted=each.predicted_bytes if helps == "memory" else None,
        costs=tuple(cost for cost in each.costs if cost.metric != effect.metric),
        quality=each.quality,
        evidence=each.evidence,
        design_id=each.design.design_id,
        check=_repeat(each),
    )


def _repeat(each: Measured) -> tuple[str, ...]:
    """Its design again; a change that may touch the answers with them."""
    touches = each.axis.name in ("cache_type", "weights_dtype")
    task = each.quality_task or ("fidelity" if touches else None)
    return repeat_command(each.design, each.first, (each.base, each.level), quality=task)


def _negative(difference: Estimate) -> Estimate:
    """changed − baseline as what is saved: its limits change places."""
    value, low, high = difference.value, difference.low, difference.high
    return replace(
        difference,
        value=None if value is None else -value,
        low=None if high is None else -high,
        high=None if low is None else -low,
    )
