"""Can these numbers be trusted? Each check names what it looked at and the limit it used."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from types import MappingProxyType

from kvscope.analysis.attempts import Attempt, latest_attempts
from kvscope.analysis.attribution import Attribution
from kvscope.analysis.drift import DRIFT_SHARE, MEMORY, TIME, TREND_SHARE, baseline_drifts
from kvscope.analysis.failures import group_failures
from kvscope.analysis.fit import FEW_REPEATS
from kvscope.analysis.identity import RowIdentity
from kvscope.analysis.levels import at_level, level_key
from kvscope.analysis.precision import stated_precision
from kvscope.analysis.unexplained import PAIR_SHARE, worst_pair, worst_row
from kvscope.record.metrics import last_mark
from kvscope.record.pieces import COALESCED_SHARE
from kvscope.record.rows import QUALITY, TRUNCATED_SLUG, DesignRow
from kvscope.record.sampled import late_by_moment
from kvscope.units import MIB

SPREAD_SHARE = 0.10
LATE_SAMPLE_S = 0.02
LATE_SHARE = 0.05
OTHERS_BYTES = 512 * MIB
# Doubts that a trial records about its own sampling.
SAMPLING_WARNINGS = ("late-samples", "samples-stopped")
# Of these there is a check, which says more.
CHECKED_WARNINGS = ("late-samples", "swap-active", "client-limited")
# Designs whose question is about memory after each conversation, not about an average over repeats.
SINGLE_DESIGNS = ("release",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """``passed`` is None where there was nothing to look at. ``values`` fill the sentence of the slug."""

    slug: str
    passed: bool | None
    values: Mapping[str, object] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()


def run_checks(
    designs: Sequence[tuple[DesignRow, Sequence[Attempt]]],
    attributions: Mapping[str, Attribution],
    identities: Sequence[RowIdentity] = (),
    numbers: Mapping[str, int] = MappingProxyType({}),
) -> tuple[Check, ...]:
    """All checks over the attempts of one study. ``attributions``: attempt → its identity after the load.
    ``identities``: of its rows at every moment. ``numbers``: attempt → its row."""
    attempts = [a for _, members in designs for a in members]
    measured = [a for a in attempts if a.is_measured]
    checks = [
        _failures(attempts),
        _repeats(designs),
        _unexplained(attributions, identities, numbers),
        _unexplained_between(identities, numbers),
        _token_counts(measured),
        _own_counts(attempts),
        _cut_prompts(attempts),
        _cached_tokens(measured),
        _spread(designs),
        _drift(designs, TIME, told="drift", unclear="drift_unclear"),
        _drift(designs, MEMORY, told="memory_drift", unclear="memory_drift_unclear"),
        _precision(designs),
        _late_samples(attempts),
        _client_limits(attempts),
        _coalesced(measured),
        _swap(attempts),
        _others(attempts),
        _unfinished(attempts),
        _not_run(designs),
        _grids(designs),
        *_warnings(attempts),
    ]
    return tuple(check for check in checks if check is not None)


def _failures(attempts: Sequence[Attempt]) -> Check | None:
    trials = latest_attempts(attempts)
    failed = [a.key for a in trials if a.is_failure]
    if not trials:
        return None
    values: dict[str, object] = {"failed": len(failed), "total": len(trials)}
    if failed:
        first = group_failures(trials)[0]  # the most frequent: what to do follows it
        values |= {"outcome": first.outcome, "hint": first.hint}
    return Check(slug="failures", passed=not failed, values=values, evidence=tuple(failed))


def _repeats(designs: Sequence[tuple[DesignRow, Sequence[Attempt]]]) -> Check | None:
    """The level measured least often. One at which every trial failed wants no repeats: its failure is its doubt.
    ``command``: what goes on with a run that was interrupted before all that was planned."""
    counts = [
        sum(a.is_measured for a in at)
        for design, attempts in designs
        if design.name not in SINGLE_DESIGNS
        for level in design.levels
        if (at := at_level(attempts, level)) and not all(a.is_failure for a in at)
    ]
    if not counts:
        return None
    values = {"fewest": min(counts), "limit": FEW_REPEATS, "command": _goes_on(designs)}
    return Check(slug="repeats", passed=min(counts) >= FEW_REPEATS, values=values)


def _goes_on(designs: Sequence[tuple[DesignRow, Sequence[Attempt]]]) -> str | None:
    """The command of the last design of which planned trials are missing: given again it goes on. None where all were
    run, or the design repeats until it is sure."""
    for design, attempts in reversed(designs):
        ended = {a.trial.trial_id for a in attempts if a.trial.role == "measured" and not a.is_unfinished}
        if attempts and not design.definition.get("until") and len(ended) < design.repeats * len(design.levels):
            return attempts[-1].run.command
    return None


def _unexplained(loaded: Mapping[str, Attribution], rows: Sequence[RowIdentity], numbers: Mapping[str, int]) -> Check:
    """The row and the moment with the largest share without a name, by the limit of its kind."""
    worst = worst_row(rows, loaded)
    if worst is None:
        return Check(slug="unexplained", passed=None)
    values = {
        "share": worst.share,
        "limit_share": worst.limit_share,
        "count": len({*loaded, *(row.key for row in rows)}),
        "row": numbers.get(worst.key),
        "phase": worst.attribution.phase,
        "is_calibrated": worst.is_calibrated,
    }
    return Check(slug="unexplained", passed=not worst.is_too_much, values=values, evidence=(worst.key,))


def _unexplained_between(rows: Sequence[RowIdentity], numbers: Mapping[str, int]) -> Check | None:
    """The two calibrated rows whose rests differ most."""
    pair = worst_pair(rows)
    if pair is None or pair.unexplained_share is None:
        return None
    values = {"share": pair.unexplained_share, "limit_share": PAIR_SHARE, "unexplained_bytes": pair.unexplained_bytes,
              "first_row": numbers.get(pair.first), "second_row": numbers.get(pair.second)}  # fmt: skip
    passed = pair.unexplained_share <= PAIR_SHARE
    return Check(slug="unexplained_between", passed=passed, values=values, evidence=(pair.first, pair.second))


def _token_counts(measured: Sequence[Attempt]) -> Check | None:
    requests = [(a, r) for a in measured for r in a.measured_requests if r.prompt_tokens_asked is not None]
    if not requests:
        return None
    known = [(a, r) for a, r in requests if r.prompt_tokens_server is not None]
    wrong = tuple(a.key for a, r in known if r.prompt_tokens_server != r.prompt_tokens_asked)
    return Check(
        slug="token_counts",
        passed=not wrong if known else None,
        values={"wrong": len(wrong), "total": len(known), "unknown": len(requests) - len(known)},
        evidence=wrong,
    )


def _own_counts(attempts: Sequence[Attempt]) -> Check | None:
    """Our count of every prompt that was read whole, warm-ups included, against the server's."""
    counted = [
        (a, r)
        for a in attempts
        for r in a.result.requests
        if r.role != QUALITY and r.error_slug is None and r.prompt_tokens_ours is not None
    ]
    if not counted:
        return None
    differences = [
        (a.key, r.prompt_tokens_server - r.prompt_tokens_ours)
        for a, r in counted
        if r.prompt_tokens_server is not None and r.prompt_tokens_ours is not None
    ]
    wrong = [(key, difference) for key, difference in differences if difference]
    return Check(
        slug="own_counts",
        passed=not wrong if differences else None,
        values={
            "wrong": len(wrong),
            "total": len(differences),
            "unknown": len(counted) - len(differences),
            "by_files": sum(r.prompt_tokens_ours_from == "files" for _, r in counted),
            "fewest": min((difference for _, difference in wrong), default=0),
            "most": max((difference for _, difference in wrong), default=0),
        },
        evidence=tuple(dict.fromkeys(key for key, _ in wrong)),
    )


def _cut_prompts(attempts: Sequence[Attempt]) -> Check | None:
    """Prompts that the server cut without saying so; the one of which it read the least is shown."""
    answered = [
        (a, r)
        for a in attempts
        for r in a.result.requests
        if r.is_answered and r.prompt_tokens_ours and r.prompt_tokens_server is not None
    ]
    if not answered:
        return None
    cut = [(a, r) for a, r in answered if r.error_slug == TRUNCATED_SLUG]
    _, worst = min(
        cut or answered, key=lambda pair: (pair[1].prompt_tokens_server or 0) / (pair[1].prompt_tokens_ours or 1)
    )
    values = {
        "cut": len(cut),
        "total": len(answered),
        "ours": worst.prompt_tokens_ours,
        "server": worst.prompt_tokens_server,
    }
    keys = tuple(dict.fromkeys(a.key for a, _ in cut))
    if len({r.prompt_tokens_server for _, r in cut}) == 1 and len({r.prompt_tokens_ours for _, r in cut}) > 1:
        return Check(slug="stuck_count", passed=False, values=values, evidence=keys)
    return Check(slug="cut_prompts", passed=not cut, values=values, evidence=keys)


def _cached_tokens(measured: Sequence[Attempt]) -> Check | None:
    fresh = [a for a in measured if not a.design.held.get("reuse_prefix")]
    known = [(a, r.cached_tokens) for a in fresh for r in a.measured_requests if r.cached_tokens is not None]
    if not known:
        return None
    reused = tuple(a.key for a, count in known if count > 0)
    return Check(
        slug="cached_tokens", passed=not reused, values={"reused": len(reused), "total": len(known)}, evidence=reused
    )


def _spread(designs: Sequence[tuple[DesignRow, Sequence[Attempt]]]) -> Check | None:
    """The widest relative standard deviation of TTFT among repeats of one level."""
    worst: tuple[float, DesignRow, object] | None = None
    for design, attempts in designs:
        for level in {level_key(level): level for level in design.levels}.values():
            times = _ttfts(a for a in at_level(attempts, level) if a.is_measured)
            if len(times) >= 2 and (worst is None or _relative(times) > worst[0]):
                worst = (_relative(times), design, level)
    if worst is None:
        return None
    share, design, level = worst
    values = {"share": share, "limit_share": SPREAD_SHARE, "factor": design.factor, "level": level}
    return Check(slug="spread", passed=share <= SPREAD_SHARE, values=values)


def _ttfts(attempts: Iterable[Attempt]) -> list[float]:
    return [a.metrics.ttft_s for a in attempts if a.metrics.ttft_s is not None]


def _relative(values: Sequence[float]) -> float:
    return stdev(values) / fmean(values)


def _drift(
    designs: Sequence[tuple[DesignRow, Sequence[Attempt]]], metric: str, *, told: str, unclear: str
) -> Check | None:
    """Did the machine, or a server that runs on, change under way? Where the repeats cannot tell that from noise, that
    is the doubt."""
    found = [drift for _, drift in baseline_drifts(designs, metric)]
    if not found:
        return None
    worst = max(found, key=lambda drift: (drift.is_told, drift.is_unclear, abs(drift.share)))
    return Check(
        slug=unclear if worst.is_unclear else told,
        passed=not worst.is_told and not worst.is_unclear,
        values={
            "share": worst.share,
            "limit_share": DRIFT_SHARE,
            "trend_share": worst.trend.value,
            "low_share": worst.trend.low,
            "high_share": worst.trend.high,
            "trend_limit_share": TREND_SHARE,
            "count": worst.trend.num,
        },
        evidence=worst.evidence,
    )


def _precision(designs: Sequence[tuple[DesignRow, Sequence[Attempt]]]) -> Check | None:
    """Of designs that were to be repeated until their interval is narrow: the one that is furthest from it."""
    stated = [(design, p) for design, attempts in designs if (p := stated_precision(design, attempts)) is not None]
    if not stated:
        return None
    design, worst = max(stated, key=lambda pair: (not pair[1].is_enough, pair[1].share or 0.0))
    values = {
        "design": design.name,
        "share": worst.share,
        "asked_share": worst.asked_share,
        "blocks": worst.num_blocks,
        "most": worst.most_blocks,
        "needed": worst.needed_blocks,
    }
    return Check(slug="precision", passed=worst.is_enough if worst.num_blocks else None, values=values)


def _late_samples(attempts: Sequence[Attempt]) -> Check | None:
    """Readings that came late or not at all."""
    counted = [_late(a) for a in attempts]
    late, missed, due = (sum(each) for each in zip(*counted, strict=True)) if counted else (0, 0, 0)
    warned = {a.key: w.slug for a in attempts for w in a.result.warnings if w.slug in SAMPLING_WARNINGS}
    if not due and not warned:
        return None
    share = late / due if due else None
    values = {"late": late, "missed": missed, "total": due, "share": share, "limit_share": LATE_SHARE,
              "worst_share": max((each[0] / each[2] for each in counted if each[2]), default=None),
              "late_s": LATE_SAMPLE_S, "stopped": list(warned.values()).count("samples-stopped")}  # fmt: skip
    return Check(
        slug="late_samples", passed=(share or 0.0) <= LATE_SHARE and not warned, values=values, evidence=tuple(warned)
    )


def _late(attempt: Attempt) -> tuple[int, int, int]:
    """Readings of a trial that came late or not at all, of those the latter, and how many were due."""
    readings = late_by_moment(attempt.result.samples).values()
    missed = int(attempt.trial.client.get("samples_missed") or 0)
    return sum(late_s > LATE_SAMPLE_S for late_s in readings) + missed, missed, len(readings) + missed


def _client_limits(attempts: Sequence[Attempt]) -> Check | None:
    """Trials in which kvscope's own client did not keep up, where it knows how it was."""
    known = [a for a in attempts if isinstance(a.trial.client.get("client_limited"), bool)]
    limited = tuple(a.key for a in known if a.trial.client["client_limited"] is True)
    if not known:
        return None
    values = {"limited": len(limited), "total": len(known)}
    return Check(slug="client_limits", passed=not limited, values=values, evidence=limited)


def _coalesced(measured: Sequence[Attempt]) -> Check | None:
    shares = {a.key: a.metrics.coalesced_fraction for a in measured if a.metrics.coalesced_fraction is not None}
    if not shares:
        return None
    worst = max(shares, key=lambda key: shares[key])
    values = {"share": shares[worst], "limit_share": COALESCED_SHARE}
    return Check(slug="coalesced", passed=shares[worst] <= COALESCED_SHARE, values=values, evidence=(worst,))


def _swap(attempts: Sequence[Attempt]) -> Check | None:
    marks = [(a, m) for a in attempts for m in a.result.marks]
    if not marks:
        return None
    swapped = tuple(dict.fromkeys(a.key for a, m in marks if m.swap_bytes > 0))
    most = max(m.swap_bytes for _, m in marks)
    return Check(slug="swap", passed=not swapped, values={"most_bytes": most}, evidence=swapped)


def _others(attempts: Sequence[Attempt]) -> Check | None:
    """How far the machine's available memory moved between the starts of trials, when no engine of ours was loaded."""
    starts = [m for a in attempts if (m := last_mark(a.result, "launched")) and m.machine_available_bytes is not None]
    free = [m.machine_available_bytes for m in starts if m.machine_available_bytes is not None]
    if len(free) < 2:
        return None
    moved = max(free) - min(free)
    return Check(
        slug="others", passed=moved <= OTHERS_BYTES, values={"moved_bytes": moved, "limit_bytes": OTHERS_BYTES}
    )


def _unfinished(attempts: Sequence[Attempt]) -> Check | None:
    keys = tuple(a.key for a in attempts if a.is_unfinished)
    return Check(slug="unfinished", passed=False, values={"count": len(keys)}, evidence=keys) if keys else None


def _not_run(designs: Sequence[tuple[DesignRow, Sequence[Attempt]]]) -> Check | None:
    """Levels that were planned and of which no trial was begun. ``trials``: all that were planned and not begun, but
    for designs that end when their interval is narrow."""
    begun = [[len(latest_attempts(at_level(rows, level))) for level in design.levels] for design, rows in designs]
    levels = sum(not count for counts in begun for count in counts)
    left = sum(
        max(0, design.repeats - count)
        for (design, _), counts in zip(designs, begun, strict=True)
        for count in counts
        if count == 0 or not design.definition.get("until")
    )
    return Check(slug="not_run", passed=False, values={"count": levels, "trials": left}) if levels else None


def _grids(designs: Sequence[tuple[DesignRow, Sequence[Attempt]]]) -> Check | None:
    names = tuple(design.factor for design, _ in designs if design.is_grid)
    return Check(slug="grids", passed=False, values={"factors": names}) if names else None


def _warnings(attempts: Sequence[Attempt]) -> list[Check]:
    """Doubts that were recorded with the trials, each once with its count and its first wording; those that a check of
    their own tells are left to it."""
    counted = Counter(w.slug for a in attempts for w in a.result.warnings if w.slug not in CHECKED_WARNINGS)
    checks = []
    for slug, count in sorted(counted.items()):
        with_it = [a for a in attempts if any(w.slug == slug for w in a.result.warnings)]
        first = next(w for w in with_it[0].result.warnings if w.slug == slug)
        values = {"warning": slug, "count": count, "message": first.message, "hint": first.hint}
        checks.append(Check(slug="warning", passed=False, values=values, evidence=tuple(a.key for a in with_it)))
    return checks
