"""Advice in words: the change, what it saves and costs, its risk, how to check; and what is not advised."""

from kvscope.analysis.advice_command import command_text
from kvscope.analysis.advice_kind import Advice, Cost, Quality, Withheld
from kvscope.analysis.advice_measured import MEMORY
from kvscope.analysis.left_out import trials_left
from kvscope.analysis.study import Study
from kvscope.report.words import name_of, say

# Advice that bounds what has not grown yet.
_LIMIT = "host_cache_limit"
# Advice of what is sent has no setting.
_OF_PROMPTS = ("stable_prefix", "history", "history_reasoning")
# Whose short sentence is its own.
_ROOM = ("context_longer", "context_trained", "prompt_shorter")
_OWN_SHORT = {
    **dict.fromkeys(_OF_PROMPTS, "history"),
    **{slug: slug for slug in ("stable_prefix", _LIMIT, *_ROOM)},
}
# Lines that a first screen or a terminal has room for.
SHORT_LINES = 3


def advice_text(advice: Advice) -> str:
    """What to change, as a sentence."""
    return say(f"advice.{advice.slug}", **{**advice.values, "flags": advice.flags})


def advice_remarks(advice: Advice) -> tuple[str, ...]:
    """What it saves, what it costs, what the answers say, its risk, and how to check: a sentence each."""
    times = [cost_text(cost) for cost in advice.costs]
    if not times and advice.helps == "memory":
        times = [say("advice_cost.time_nothing")]
    if advice.limited:
        times.append(say("advice.limited", count=advice.limited, total=len(advice.evidence)))
    return (
        *saving_texts(advice),
        *times,
        quality_text(advice.quality),
        say(f"risk.{advice.slug}"),
        *check_texts(advice),
    )


def saving_texts(advice: Advice) -> list[str]:
    """The size with its interval, or that it is predicted only; of more room, what it costs."""
    saved = advice.saved
    if advice.helps == "running" and advice.predicted is None:
        more = advice.values.get("more_bytes")
        return [] if more is None else [say("advice.memory_more_predicted", value=more)]
    if saved is None:
        reserved = advice.values.get("reserved_bytes")
        return [say(f"advice.{_predicted_slug(advice)}", value=advice.predicted, reserved_bytes=reserved)]
    values = {"value": saved.value, "low": saved.low, "high": saved.high, "num": saved.num}
    if advice.metric != MEMORY:
        return [say("advice.time_measured", metric=name_of("metric", advice.metric), **values)]
    if not saved.has_interval:
        return [say("advice.memory_once", **values)]
    told = [say("advice.memory_slope" if advice.slug == "context" else "advice.memory_measured", **values)]
    if (advice.predicted or 0) > 0:
        told.append(say("advice.also_predicted", value=advice.predicted))
    return told


def _predicted_slug(advice: Advice) -> str:
    if advice.metric != MEMORY:
        return "time_predicted"
    if advice.slug == _LIMIT:
        return "memory_bounded"
    if advice.design_id is not None:
        return "memory_too_few"
    if "reserved_bytes" in advice.values:
        return "memory_at_most"
    return "memory_estimated" if advice.is_estimate else "memory_predicted"


def cost_text(cost: Cost) -> str:
    """What a change did to something else, with its interval."""
    kind = "memory" if cost.metric == MEMORY else "time"
    value, low, high = cost.difference.value, cost.difference.low, cost.difference.high
    less = {f"{name}_less": None if v is None else -v for name, v in (("value", value), ("low", high), ("high", low))}
    return say(
        f"advice_cost.{kind}_{cost.verdict}",
        metric=name_of("metric", cost.metric),
        value=value,
        low=low,
        high=high,
        **less,
    )


def quality_text(quality: Quality) -> str:
    """What the answers say of a change."""
    return say(f"advice_quality.{quality.slug}", value=None if quality.size is None else quality.size.value)


def price_text(change: Advice) -> str:
    """What a single change that was only predicted may cost."""
    risk = say(f"risk.{change.slug}")
    return f"{risk} {say('price.few_bits')}" if change.axis == "cache_type" and change.harm > 1 else risk


def check_texts(advice: Advice) -> tuple[str, ...]:
    """The command that would measure it, or measure it again."""
    if not advice.check:
        return (say("advice.check_reuse"),) if advice.slug in _OF_PROMPTS else ()
    slug = "advice.check_again" if advice.design_id is not None and advice.is_measured else "advice.check"
    return (say(slug, command=command_text(advice.check)),)


def withheld_text(withheld: Withheld) -> str:
    """What was measured and is not advised, and why."""
    difference = withheld.difference
    values = {"value": difference.value, "low": difference.low, "high": difference.high}
    if withheld.metric != MEMORY:
        size = say("withheld.size_time", metric=name_of("metric", withheld.metric), **values)
    else:
        slug = "withheld.size_memory_interval" if difference.has_interval else "withheld.size_memory"
        size = say(slug, **values)
    reason = withheld.reason
    if reason == "saved_nothing" and (withheld.predicted or 0) > 0:
        reason = "saved_nothing_predicted"
    told = say(f"withheld.{reason}", flags=withheld.flags, size=size, predicted=withheld.predicted)
    return " ".join([told, *_against(withheld)])


def _against(withheld: Withheld) -> list[str]:
    """What speaks against it, as sentences of their own."""
    if withheld.reason not in ("memory_free", "lost_answers", "moved", "slower"):
        return []
    paid = [cost_text(cost) for cost in withheld.costs if cost.verdict == "more"]
    quality = withheld.quality
    return [*paid, *([] if quality.slug == "no_loss" else [quality_text(quality)])]


def pressure_text(study: Study) -> str:
    """Whether memory is short, in a sentence or two."""
    pressure = study.pressure
    is_alone = pressure.slug == "growing" and pressure.values["conversations"] is None
    return say(f"pressure.{pressure.slug}_alone" if is_alone else f"pressure.{pressure.slug}", **pressure.values)


def growth_line(study: Study) -> str | None:
    """That memory goes on growing, by how much, and when what is free ends; None where nothing is seen to."""
    growth = study.pressure.growth
    if growth is None:
        return None
    slug = "growing" if growth.conversations is not None else "growing_alone"
    return say(
        f"advice_short.{slug}",
        step_bytes=growth.step_bytes,
        left_bytes=growth.left_bytes,
        conversations=growth.conversations,
    )


def advice_lines(study: Study) -> tuple[str, ...]:
    """For the first screen and a terminal: what grows without a limit, then what to change first, in at most three
    short sentences; or that there is nothing, with what would tell how to wait less. Empty where nothing was measured,
    and nothing ran out either."""
    growing = growth_line(study)
    if growing is not None:
        return (growing, *(_short(advice) for advice in study.advice[: SHORT_LINES - 1]))
    if not study.advice:
        if not study.is_measured:
            return ()
        return _nothing_to_change(study)
    return tuple(_short(advice) for advice in study.advice[:SHORT_LINES])


def _nothing_to_change(study: Study) -> tuple[str, ...]:
    """That nothing is advised, of how much of the plan that is known, and what would tell how to wait less."""
    left, planned = trials_left(study)
    slug = "none_free" if study.pressure.is_free else "none"
    if study.pressure.is_free and left:
        told = say("advice_short.none_free_partly", run=planned - left, planned=planned)
    else:
        told = say(f"advice_short.{slug}")
    return (told, say("advice_short.look", command=command_text(study.look[0]))) if study.look else (told,)


def _short(advice: Advice) -> str:
    basis = "measured" if advice.is_measured else "at_most" if "reserved_bytes" in advice.values else "predicted"
    slug = _OWN_SHORT.get(advice.slug, f"{advice.helps}_{basis}")
    metric = name_of("metric", advice.metric)
    return say(
        f"advice_short.{slug}", **{**advice.values, "flags": advice.flags, "size": advice.size, "metric": metric}
    )
