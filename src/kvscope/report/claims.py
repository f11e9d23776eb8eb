"""Findings as claims: the sentence, its interval, what else could explain it, how to check, and the rows behind it."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.analysis.findings import Finding
from kvscope.analysis.fit import Estimate
from kvscope.analysis.notes import Note
from kvscope.analysis.release_bounds import HOST_CACHE, Bound
from kvscope.analysis.release_claim import CLAIMS
from kvscope.analysis.study import Study
from kvscope.report.blocks import Claim, Link
from kvscope.report.design_sizes import DESIGN_SIZES
from kvscope.report.level_words import level_text as level_text
from kvscope.report.level_words import setting_text
from kvscope.report.quality_words import spoken_quality
from kvscope.report.words import name_of, say, say_note

# How a finding's size is written: its placeholder format in the words, by slug.
_SIZE_WORDS = {
    "slope_agrees": "size.bytes_per_token",
    "slope_differs": "size.bytes_per_token",
    "slope_unclear": "size.bytes_per_token",
    "slope_measured": "size.bytes_per_token",
    "step_agrees": "size.bytes_per_token",
    "step_differs": "size.bytes_per_token",
    "step_unclear": "size.bytes_per_token",
    "step_measured": "size.bytes_per_token",
    **{f"{kind}_in_used_memory": "size.bytes_per_token" for kind in ("slope", "step")},
    "ttft_grows": "size.per_thousand",
    "ttft_grows_once": "size.per_thousand",
    "ttft_unclear": "size.per_thousand",
    "ttft_flat": "size.per_thousand",
    "ttft_falls": "size.per_thousand",
    "tpot_grows": "size.per_thousand",
    "tpot_flat": "size.per_thousand",
    "tpot_falls": "size.per_thousand",
    "tpot_unclear": "size.per_thousand",
    **dict.fromkeys(("unexplained_small", "unexplained_large", "unexplained_no_rules"), "size.mean_signed_bytes"),
    **dict.fromkeys(("first_microbatch", "first_microbatch_once", "kv_paid_at_load"), "size.mean_bytes"),
    "output_time": "size.per_token",
    "output_time_unclear": "size.per_token",
    **dict.fromkeys(CLAIMS, "size.per_conversation"),
    **DESIGN_SIZES,
}
SHOWN_ROWS = 6


def row_anchors(study: Study, prefix: str) -> dict[str, Link]:
    """Attempt → link to its row of the page, in the order of the record's rows. Anchors count rows, so that no recorded
    text gets into an address."""
    numbers = [(study.row_numbers.get(each.key, n), each.key) for n, each in enumerate(study.attempts, start=1)]
    return {key: Link(text=str(n), anchor=f"{prefix}row-{n}") for n, key in sorted(numbers)}


def claim_text(finding: Finding) -> str:
    """The sentence of a finding."""
    size = finding.size
    slug = finding.slug
    if _tells_nothing(finding):
        slug += "_at_all" if _is_noise(finding) else "_yet"
    return say(f"finding.{slug}", **spoken(finding), size=None if size is None else size.value)


def _tells_nothing(finding: Finding) -> bool:
    """Whether what is ruled out is larger than the quantity itself: such numbers help nobody."""
    share = finding.values.get("ruled_out_share")
    return finding.slug in ("time_cannot_tell", "rate_cannot_tell") and isinstance(share, float) and share >= 1


def _is_noise(finding: Finding) -> bool:
    """Whether the differences themselves scatter by more than the quantity. Else it is their small number that makes
    the interval so wide, and a few more tell."""
    noise, needed = finding.values.get("noise_share"), finding.values.get("needed")
    return needed is None or not isinstance(noise, float) or noise >= 1


def spoken(finding: Finding) -> dict[str, object]:
    """The values of a finding, with names and lists as a reader writes them."""
    values: dict[str, object] = dict(finding.values)
    if "component" in values:
        values["component"] = name_of("component", str(values["component"]))
    if "outcome" in values:
        values["outcome"] = name_of("outcome", str(values["outcome"]))
    values |= _of_level(values)
    failures = values.get("failures")
    if isinstance(failures, Mapping):
        values["failures"] = tuple(f"{name_of('failure', name)}: {num}" for name, num in failures.items())
    if "seen_bytes" in values:
        names = ("seen", "rule", "shared", "measured", "calibrated", "counted", "swapped")
        sizes = (values.get(f"{name}_bytes", 0) for name in names)
        values["named"] = named_text(*(size for size in sizes if isinstance(size, int)))
    if "from_start" in values:
        values |= _of_load(values)
    if isinstance(values.get("reason_values"), Mapping):
        values |= _of_release(values)
    return values | spoken_quality(finding)


def _of_level(values: Mapping[str, Any]) -> dict[str, object]:
    """The changed level, and the one it is compared with, as a person writes them; a metric by its name."""
    told: dict[str, object] = {}
    if "factor" in values and "level" in values:
        level = values["level"]
        told["condition"] = (
            setting_text(values["factor"], level) if not isinstance(level, Mapping) else level_text(level)
        )
        base = values.get("baseline_level")
        told["base"] = say("claim.baseline_cell") if isinstance(base, Mapping) else level_text(base)
    for name in ("places", "baseline_places"):
        if name in values:
            told[name] = tuple(_place(str(place)) for place in values[name])
    if "metric" in values:
        metric = str(values["metric"])
        told["metric"] = name_of("moment", metric) if "bytes" in metric else name_of("metric", metric)
    return told


def _place(place: str) -> str:
    """A place such as kv_cache: CPU with the component's name."""
    component, _, where = place.partition(": ")
    return f"{name_of('component', component)}: {where}"


def _of_load(values: Mapping[str, Any]) -> dict[str, object]:
    """What a load is measured from, and under which context limit, where the engine has one."""
    context = values["context_tokens"]
    if not values["from_start"]:
        loading = say("loading.whole")
    else:
        loading = say("loading.model") if context is None else say("loading.context", context_tokens=context)
    of_what = say("of_what.grew" if values["from_start"] else "of_what.whole")
    phase, number = values.get("phase"), values.get("row")
    if phase in ("after_request", "peak") and number is not None:
        loading, of_what = say(f"loading.{phase}", row=number), say(f"of_what.{phase}", row=number)
    return {
        "loading": loading,
        "of_what": of_what,
        "at_context": "" if context is None else say("at_context", context_tokens=context),
    }


def _of_release(values: Mapping[str, Any]) -> dict[str, object]:
    """Who keeps the memory, and why it cannot be told, as sentences."""
    bounds = [Bound(**bound) for bound in values["bounds"]]
    # The cache that a sentence names itself is not among those who keep the rest.
    bounds = [bound for bound in bounds if bound.holder != HOST_CACHE] or bounds
    reason = None if values["reason"] is None else say_note(Note(slug=values["reason"], values=values["reason_values"]))
    return {"kept_by": bounds_text(bounds), "reason": reason}


def bounds_text(bounds: Sequence[Bound]) -> str:
    """Who keeps how much."""
    parts = [
        say(f"bound.{bound.holder}", held_bytes=bound.held_bytes, limit_bytes=bound.limit_bytes) for bound in bounds
    ]
    return "; ".join(parts) if parts else say("bound.nobody")


def named_text(seen: int, rule: int, shared: int, measured: int, calibrated: int, counted: int, swapped: int) -> str:
    """What has a name, by how it is known, in bytes; what there is none of is left out."""
    sizes = {"seen": seen, "shared": shared, "rule": rule, "calibrated": calibrated, "counted": counted}
    sizes |= {"measured": measured, "swapped": swapped}
    parts = [say(f"named.{how}", size_bytes=size) for how, size in sizes.items() if size]
    return "; ".join(parts) if parts else say("named.nothing")


def size_text(finding: Finding) -> str | None:
    """The interval of a finding, or why there is none; None for a finding without a size."""
    if finding.size is None or finding.slug not in _SIZE_WORDS:
        return None
    return interval_text(finding.size, _SIZE_WORDS[finding.slug])


def interval_text(estimate: Estimate, words: str) -> str:
    """``words`` filled with low and high and the number of points, or the reason why there is no interval."""
    if estimate.has_interval:
        text = say(words, value=estimate.value, low=estimate.low, high=estimate.high, num=estimate.num)
        return text if estimate.reason is None else f"{text} {say_note(estimate.reason)}"
    return say("size.none") if estimate.reason is None else say_note(estimate.reason)


def remarks(finding: Finding) -> list[str]:
    """Its interval, what else could explain it, and how one would tell."""
    told = [text for text in (size_text(finding),) if text]
    told += [say(f"size_from.{finding.size_from}")] if finding.size_from is not None and not told else []
    told += [say(f"also.{slug}") for slug in finding.also_possible]
    if finding.how_to_check is not None:
        told.append(say(f"check_by.{finding.how_to_check}"))
    return told


def claim(finding: Finding, anchors: Mapping[str, Link]) -> Claim:
    """A finding as a claim: sentence, remarks, and links to the rows behind it."""
    told = remarks(finding)
    found = (anchors[key] for key in dict.fromkeys(finding.evidence) if key in anchors)
    links = sorted(found, key=lambda link: int(link.text))
    if len(links) > SHOWN_ROWS:
        told.append(say("evidence.more", shown=SHOWN_ROWS, total=len(links)))
    return Claim(
        text=claim_text(finding),
        remarks=tuple(told),
        evidence=tuple(links[:SHOWN_ROWS]),
        is_contradiction=finding.is_contradiction,
    )


def claims(study: Study, anchors: Mapping[str, Link], *slugs: str) -> tuple[Claim, ...]:
    """Claims of the findings whose slug is, or begins with, one of ``slugs`` (``release_`` means all of them)."""
    wanted = [
        f for f in study.findings if any(f.slug == s or (s.endswith("_") and f.slug.startswith(s)) for s in slugs)
    ]
    return tuple(claim(finding, anchors) for finding in wanted)
