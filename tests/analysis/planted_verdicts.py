"""What a study of a scenario says of faults, against those that were planted: told, not tellable, missed or false.

What has to be told is derived, not chosen: from the noise, the number of trials and the thresholds that the checks
state, each test at the chance of a false alarm that it keeps to.

* leak: the release check calls growth of more than half a MiB from one conversation to the next, on a heap whose own
  movement (σ a request) may hide as much as 4 · √2 · σ of a step.
* copies of prompts: the same, of the bytes that one conversation takes in the cache.
* time_drift, memory_drift: the line through n trials of L levels, tested at the check's own chance of a false alarm,
  finds a slope in 999 of 1,000 studies from the noncentral t on; and from where its estimate is above the threshold of
  5 % in as many.
* swap, counts, client, other_kv: whatever is there is counted or printed, so that any of it has to be told.
* late_samples: above the 5 % that the check allows, in 999 of 1,000 studies by the binomial.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from statistics import fmean

from planted_faults import Outcome, Scenario

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.drift import FALSE_ALARMS, METRICS_LOOKED_AT, TREND_SHARE
from kvscope.analysis.levels import level_key
from kvscope.analysis.release_curve import GROWTH_STEP_BYTES
from kvscope.analysis.study import DesignStudy, Study

POWER = 0.999
_COPIES_GROW = ("release_growing_copies", "release_growing_texts", "release_growing_no_limit",
                "release_growing_over_limit")  # fmt: skip
# How copies of prompts that the engine states itself are named beside the faults: they are none.
COPIES = "host_cache"
TOLD, NOT_TELLABLE, TOLD_BELOW, MISSED = "told", "cannot tell", "told below the limit", "missed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``of_faults``: kind → TOLD, NOT_TELLABLE (too small, and not told), TOLD_BELOW or MISSED. ``false``: what was
    told and is not there. ``copies``: the same words of the engine's own stated host prompt cache, None where it keeps
    none."""

    of_faults: Mapping[str, str]
    false: tuple[str, ...]
    copies: str | None


def judge(outcome: Outcome) -> Verdict:
    """The verdict of one scenario."""
    scenario, study = outcome.scenario, outcome.study
    said = told(study)
    words = {}
    for fault in scenario.faults:
        must = is_tellable(fault.kind, outcome)
        is_told = fault.kind in said
        words[fault.kind] = (TOLD if is_told else MISSED) if must else (TOLD_BELOW if is_told else NOT_TELLABLE)
    copies = _copies(scenario, study, said)
    allowed = {fault.kind for fault in scenario.faults} | _also(scenario)
    return Verdict(of_faults=words, false=tuple(sorted(said - allowed)), copies=copies)


def _also(scenario: Scenario) -> set[str]:
    """What else is true of the scenario: a rest without a name where the cache is not the predicted one, copies that
    the engine states, minutes in which the machine is slower."""
    # What the prediction says of the cache is wrong by as much, so that the rest is unexplained by as much.
    also = {"unexplained_large"} if scenario.fault("other_kv") else set()
    also |= {COPIES} if _keeps_copies(scenario) and scenario.fault("silent_cache") is None else set()
    return also | ({"time_drift"} if scenario.law["slow_share"] else set())


def told(study: Study) -> set[str]:
    """The faults that a study claims, by the names of ``planted_faults.FAULTS``; host_cache: copies that the engine
    states; any other contradiction by its slug."""
    doubts = {check.slug for check in study.checks if check.passed is False}
    warned = {str(check.values["warning"]) for check in study.checks if check.slug == "warning"}
    named = {"drift": "time_drift", "memory_drift": "memory_drift", "swap": "swap", "token_counts": "counts",
             "own_counts": "counts", "cut_prompts": "cut", "stuck_count": "cut", "late_samples": "late_samples",
             "cached_tokens": "reuse", "unexplained": "unexplained_large",
             "failures": "failures", "client_limits": "client"}  # fmt: skip
    found = {name for slug, name in named.items() if slug in doubts}
    found |= {"client"} if "client-limited" in warned else set()
    for finding in study.findings:
        if finding.slug.startswith("release_growing"):
            found.add("silent_cache" if finding.slug in _COPIES_GROW else "leak")
        elif finding.slug == "release_prompt_copies":
            found.add("silent_cache")
        elif finding.slug.startswith("release_host_cache"):
            found.add(COPIES)
        elif finding.is_contradiction and finding.slug == "tokens_mismatch":
            found.add("counts")
        elif finding.is_contradiction and (
            finding.slug in ("slope_differs", "step_differs") or finding.values.get("component") == "kv_cache"
        ):
            found.add("other_kv")
        elif finding.is_contradiction:
            found.add(finding.slug)
    return found


def is_tellable(kind: str, outcome: Outcome) -> bool:
    """Whether a fault of its size has to be told."""
    scenario, study = outcome.scenario, outcome.study
    fault = scenario.fault(kind)
    assert fault is not None
    if kind == "leak":
        return fault.size > _least_step(scenario)
    if kind == "silent_cache":
        # What leaks is in the same curve.
        return scenario.fault("leak") is None and _copy_bytes(scenario, study) > _least_step(scenario)
    if kind == "time_drift":
        return not scenario.law["slow_share"] and any(_time_is_tellable(outcome, d) for d in study.designs)
    if kind == "memory_drift":
        return any(_memory_is_tellable(scenario, study, d) for d in study.designs)
    if kind == "late_samples":
        return _is_often_late(fault.size, study)
    return True


def _least_step(scenario: Scenario) -> float:
    return GROWTH_STEP_BYTES + 4 * sqrt(2) * float(scenario.law["heap_noise_bytes"])


def _release(scenario: Scenario, study: Study) -> tuple[Attempt, ...]:
    return next(d.attempts for d in study.designs if d.design.name == "release")


def _keeps_copies(scenario: Scenario) -> bool:
    release = next(d for d in scenario.designs if d.kind.name == "release")
    return release.factor.levels != (0,)


def _copy_bytes(scenario: Scenario, study: Study) -> float:
    """What the cache holds for one conversation of the release check."""
    attempt = next(a for a in _release(scenario, study) if a.is_measured)
    per_token = (attempt.prediction or {})["growth"]["bytes_per_token"] * scenario.kv_factor
    request = attempt.measured_requests[-1]  # by our count: the server's may be what is planted
    return float(per_token * ((request.prompt_tokens_ours or 0) + (request.output_tokens or 0)))


def _copies(scenario: Scenario, study: Study, said: set[str]) -> str | None:
    if not _keeps_copies(scenario) or scenario.fault("silent_cache") is not None:
        return None
    if scenario.fault("leak") is not None or _copy_bytes(scenario, study) <= _least_step(scenario):
        return TOLD_BELOW if COPIES in said else NOT_TELLABLE
    return TOLD if COPIES in said else MISSED


def _time_is_tellable(outcome: Outcome, own: DesignStudy) -> bool:
    law, groups = outcome.scenario.law, _places(own)
    share = float(law["noise_share"])
    noise = sqrt(log(1 + share**2)) if law["noise_is_skewed"] else share
    if not groups:
        return False
    per_s = float(law["drift_per_s"])
    begin_s, end_s = outcome.clock_s[own.design.name]
    # From the first trial to the last: one trial less than from its begin to its end.
    rise_s = (end_s - begin_s) * (1 - 1 / len(own.attempts))
    rise = per_s * rise_s / (1 + per_s * (begin_s + end_s) / 2)
    return _is_found(rise, noise, groups, len(outcome.study.designs))


def _memory_is_tellable(scenario: Scenario, study: Study, own: DesignStudy) -> bool:
    groups = _places(own)
    if not groups:
        return False
    held = [a.metrics.memory_after_bytes for members in _by_level(own).values() for a in members]
    middle = fmean(size for size in held if size)
    spread = sqrt(float(scenario.law["noise_bytes"]) ** 2 + float(scenario.law["heap_noise_bytes"]) ** 2)
    fault = scenario.fault("memory_drift")
    assert fault is not None
    return _is_found(fault.size * _span(groups) / middle, spread / middle, groups, len(study.designs))


def _by_level(own: DesignStudy) -> dict[str, list[Attempt]]:
    found: dict[str, list[Attempt]] = {}
    for attempt in own.attempts:
        if attempt.is_measured:
            found.setdefault(level_key(attempt.trial.level), []).append(attempt)
    return found


def _places(own: DesignStudy) -> list[list[int]]:
    return [[a.trial.position for a in members] for members in _by_level(own).values()]


def _span(groups: Sequence[Sequence[int]]) -> int:
    places = [place for group in groups for place in group]
    return max(places) - min(places)


def _is_found(rise: float, noise: float, groups: Sequence[Sequence[int]], num_designs: int) -> bool:
    """Whether a line that rises by such a share over the places, with this noise of each value as a share, is told in
    POWER of all studies."""
    from scipy.stats import nct, norm, t

    degrees = sum(map(len, groups)) - len(groups) - 1
    width = sum((place - fmean(group)) ** 2 for group in groups for place in group)
    if degrees < 1 or not width:
        return False
    error = noise * _span(groups) / sqrt(width)
    if not error:
        return rise > TREND_SHARE
    least = t.isf(FALSE_ALARMS / (len(METRICS_LOOKED_AT) * num_designs) / 2, degrees)
    is_steep = float(nct.sf(least, degrees, rise / error)) >= POWER
    return is_steep and rise - norm.isf(1 - POWER) * error > TREND_SHARE


def _is_often_late(share: float, study: Study) -> bool:
    from scipy.stats import binom

    from kvscope.analysis.checks import LATE_SHARE

    num = len({(a.key, s.at_s) for a in study.attempts for s in a.result.samples})
    return float(binom.cdf(LATE_SHARE * num, num, share)) <= 1 - POWER
