"""The values of findings about answers, as a reader writes them: places, reasons, numbers of items."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.analysis.finding import Finding
from kvscope.report.level_words import level_text
from kvscope.report.words import name_of, say

_PREFIXES = ("quality_", "fidelity_", "copy_gain_")
TASK_FACTOR = "quality_task"
# So many texts that are missing are named.
NAMED_TEXTS = 3


def is_of_quality(finding: Finding) -> bool:
    """Whether a finding is of answers or of what a setting does to the model, and not of memory or time."""
    return finding.slug.startswith((*_PREFIXES, "retrieval_"))


def spoken_quality(finding: Finding) -> dict[str, object]:
    """What sentences of quality name beside the finding's own values; nothing for other findings."""
    if not finding.slug.startswith(_PREFIXES):
        return {}
    values = finding.values
    told: dict[str, object] = {}
    if "level" in values:
        told["condition"] = level_text(values["level"])
    if "baseline_level" in values:
        told["base"] = level_text(values["baseline_level"])
    if "task" in values:
        told |= {"what": task_text(str(values["task"]), str(values["language"])), "where": where_text(values)}
    if finding.slug.startswith("fidelity_"):
        return told | _of_fidelity(finding)
    if finding.slug == "quality_not_beaten":
        return told | _of_not_beaten(values)
    if finding.slug.startswith("copy_gain_"):
        return told | {"gain": None if finding.size is None else finding.size.value, "change": _gain_change(values)}
    return told | _of_answers(finding)


def task_text(task: str, language: str) -> str:
    """A task with its language."""
    return say("quality.task", task=task, language=language)


def where_text(values: Mapping[str, Any]) -> str:
    """The task, at which level, in documents of how many tokens."""
    level = values.get("level")
    if isinstance(level, Mapping):
        level = {name: value for name, value in level.items() if name != TASK_FACTOR} or None
    parts = [task_text(str(values["task"]), str(values["language"]))]
    parts += [] if level is None or level == values["task"] else [level_text(level)]
    tokens = values.get("document_tokens")
    parts += [] if tokens is None else [say("quality.tokens", tokens=tokens)]
    return ", ".join(parts)


def _of_answers(finding: Finding) -> dict[str, object]:
    values: Mapping[str, Any] = finding.values
    told: dict[str, object] = {"difference": None if finding.size is None else finding.size.value}
    if "right" in values:
        told["right"] = right_text(values["right"])
        told["without"] = _without(values)
        told["told"] = _share_told(values)
    elif values.get("reason") is not None:
        told["because"] = say(f"quality_because.{values['reason']}")
    if "items_needed" in values:
        told["needed"] = needed_text(values)
    if "losses" in values:
        told["turned"] = _turned(values)
    if isinstance(values.get("readings"), Mapping):
        told["readings"] = readings_text(values["readings"])
    if "tokens_low" in values:
        told |= _place(finding)
    return told


def _place(finding: Finding) -> dict[str, object]:
    """Where facts are never found, and how much of the text seems to arrive."""
    values: Mapping[str, Any] = finding.values
    if values["tokens_low"] is None:
        low, high = values["from_percent"], values["to_percent"]
        return {"place": say("quality.place_between", low=low, high=high), "arrives": ""}
    is_head = finding.slug == "quality_head_never_arrives"
    unit = "percent" if values["document_tokens"] is None else "tokens"
    arrives = say(
        f"quality.arriving_{unit}",
        end=say("quality.end" if is_head else "quality.beginning"),
        low=values["tokens_low"],
        high=values["tokens_high"],
        of=values["of_tokens"],
    )
    return {"place": say("quality.place_head" if is_head else "quality.place_tail"), "arrives": arrives}


def _without(values: Mapping[str, Any]) -> str:
    if values["twin"] is not None:
        refused = say("quality.refused_here", count=values["refused"]) if values["refused"] else ""
        named = {name: values[name] for name in ("twin", "twins", "twin_named", "twin_refused")}
        return say("quality.without", **named) + refused
    return say("quality.by_chance", chance=values["chance"]) if values["chance"] else ""


def _share_told(values: Mapping[str, Any]) -> str:
    if values["gate"] == "measured":
        return ""
    if not values["items"]:
        readings = readings_text(values["readings"])
        return say("quality.share_told", because=say("quality.nothing_read", readings=readings), needed="")
    because = say(f"quality_share_because.{values['gate']}")
    needed = "" if values["gate"] == "maybe_cut" else needed_text(values)
    return say("quality.share_told", because=because, needed=needed)


def needed_text(values: Mapping[str, Any]) -> str:
    """How many items a loss of five points needs; empty where there is no such number."""
    if values["items_needed"] is None:
        return ""
    if values["is_discordance_seen"] or values["least_items"] == values["items_needed"]:
        return say("quality.needed", items=values["items_needed"])
    return say("quality.needed_between", least=values["least_items"], items=values["items_needed"])


def _turned(values: Mapping[str, Any]) -> str:
    if values["losses"] is None:
        return say("quality.other_items")
    return say("quality.turned", items=values["items"], losses=values["losses"], gains=values["gains"])


def readings_text(readings: Mapping[str, int]) -> str:
    """How often an answer was read as what."""
    return ", ".join(
        say("quality.of_reading", count=count, reading=name_of("reading", reading))
        for reading, count in readings.items()
    )


def right_text(right: float) -> str:
    """A number of items; of several repeats it may be between two."""
    return f"{right:.0f}" if abs(right - round(right)) < 0.05 else f"{right:.1f}"


def _gain_change(values: Mapping[str, Any]) -> str:
    if values["change"] is None:
        return ""
    return say(
        "quality.gain_change",
        base=level_text(values["baseline_level"]),
        change=values["change"],
        low=values["change_low"],
        high=values["change_high"],
        verdict=name_of("gain_verdict", str(values["change_verdict"])),
    )


def _of_fidelity(finding: Finding) -> dict[str, object]:
    values = finding.values
    if finding.slug == "fidelity_order":
        ratio = None if finding.size is None else finding.size.value
        return {"less": level_text(values["less"]), "more": level_text(values["more"]), "ratio": ratio}
    told: dict[str, object] = {"divergence": None if finding.size is None else finding.size.value}
    told["noise"] = _noise(values.get("noise"))
    base = level_text(values["baseline_level"])
    told["scored"] = "" if told["divergence"] is None else say("quality.scored", base=base, **told)
    if values.get("reason") is not None:
        told["because"] = say(f"fidelity_because.{values['reason']}")
    told["lost"] = _lost_texts(values)
    return told


def _lost_texts(values: Mapping[str, Any]) -> str:
    """Names of the first texts that are missing; nothing where none is, or none was compared, which is said anyhow."""
    lost: Sequence[str] = values.get("lost", ())
    if not lost or not values["texts"]:
        return ""
    more = "" if len(lost) <= NAMED_TEXTS else say("quality.lost_more", count=len(lost) - NAMED_TEXTS)
    named = tuple(lost[:NAMED_TEXTS])
    return say("quality.lost_texts", lost=len(lost), of=len(lost) + values["texts"], items=named, more=more)


def _noise(noise: object) -> str:
    if noise is None:
        return say("quality.noise_unknown")
    return say("quality.noise", noise=noise) if noise else say("quality.noise_as_low")


def _of_not_beaten(values: Mapping[str, Any]) -> dict[str, object]:
    beaten: Sequence[Any] = values["beaten"]
    unknown: Sequence[Any] = values["unknown"]
    by = [
        say("quality.beaten_by", level=level_text(level), others=", ".join(map(level_text, others)))
        for level, others in beaten
    ]
    untold = [
        say("quality.unknown_pair", level=level_text(level), other=level_text(other), measures=_measures(measures))
        for level, other, measures in unknown
    ]
    return {
        "levels": tuple(map(level_text, values["levels"])),
        "beaten": say("quality.beaten", pairs="; ".join(by)) if by else "",
        "unknown": say("quality.unknown", pairs="; ".join(untold)) if untold else "",
    }


def _measures(measures: Sequence[str]) -> str:
    return ", ".join(name_of("quality_measure", name) for name in measures)
