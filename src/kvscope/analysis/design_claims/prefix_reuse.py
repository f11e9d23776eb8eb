"""What of a prompt was reused, beside what was predicted; what that saved; what one changed character cost; and what
was gone after a while."""

import re
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims.changed import block_pairs, changed_rows, count_span, evidence, named, time_findings
from kvscope.analysis.finding import Finding
from kvscope.analysis.fit import mean
from kvscope.analysis.levels import at_level, level_key
from kvscope.record.rows import DesignRow, Json, RequestRow

_CHANGED = re.compile(r"changed_(start|middle|end)")
_AFTER = re.compile(r"after_(\d+)([smh])")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def claims(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """The prediction, then each level's tokens, then each level's wait, then what a reused token saves."""
    levels = [level for level in design.levels if level_key(level) != level_key(design.baseline_level)]
    tokens = [finding for level in levels for finding in _tokens(design, attempts, level)]
    rows = changed_rows(design, attempts, ("ttft_s",))
    saved = [finding for row, _ in rows if row.effects["ttft_s"].verdict == "less"
             for finding in _saved(design, attempts, row.level)]  # fmt: skip
    return (*_predicted(attempts), *tokens, *time_findings(design, attempts, ("ttft_s",)), *saved)


def _last(attempt: Attempt) -> RequestRow | None:
    return attempt.measured_requests[-1] if attempt.measured_requests else None


def _predicted(attempts: Sequence[Attempt]) -> list[Finding]:
    """How many requests reused what was said before they were sent, those before the measured ones included."""
    asked = [
        (attempt, request)
        for attempt in attempts
        if attempt.is_measured
        for request in attempt.result.requests
        if request.role in ("before", "measured") and request.is_answered
    ]
    known = [(a, r) for a, r in asked if r.cached_tokens is not None and r.cached_tokens_predicted is not None]
    wrong = [(a, r) for a, r in known if r.cached_tokens != r.cached_tokens_predicted]
    counts: dict[str, object] = {
        "equal": len(known) - len(wrong),
        "differing": len(wrong),
        "unknown": len(asked) - len(known),
        "total": len(asked),
    }
    if not asked:
        return []
    if not known:
        stated = sum(r.cached_tokens is not None for _, r in asked)
        slug = "prefix_not_predicted" if stated else "prefix_not_stated"
        return [Finding(slug=slug, values=counts, evidence=_keys(asked), how_to_check="cached_column")]
    if not wrong:
        return [Finding(slug="prefix_as_predicted", values=counts, evidence=_keys(known), how_to_check="cached_column")]
    return [_wrong(wrong, counts)]


def _wrong(wrong: Sequence[tuple[Attempt, RequestRow]], counts: Mapping[str, object]) -> Finding:
    first, request = wrong[0]
    return Finding(
        slug="prefix_not_as_predicted",
        is_contradiction=True,
        values={
            **counts,
            "level": first.trial.level,
            "cached_tokens": request.cached_tokens,
            "predicted_tokens": request.cached_tokens_predicted,
        },
        evidence=_keys(wrong),
        also_possible=("other_engine_build", "others_requests"),
        how_to_check="cached_column",
    )


def _keys(asked: Sequence[tuple[Attempt, RequestRow]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(attempt.key for attempt, _ in asked))


def _tokens(design: DesignRow, attempts: Sequence[Attempt], level: Json) -> list[Finding]:
    """What of the prompt came from the cache, and what was computed again."""
    cached, prompt = _median(attempts, level, _cached), _median(attempts, level, _prompt)
    if cached is None or prompt is None:
        return []
    changed, after = _CHANGED.fullmatch(str(level)), _AFTER.fullmatch(str(level))
    values: dict[str, object] = {
        **named(design, level),
        "cached_tokens": cached,
        "prompt_tokens": prompt,
        "recomputed_tokens": prompt - cached,
        "cached_span": count_span(attempts, level, _cached),
        "prompt_span": count_span(attempts, level, _prompt),
        "recomputed_span": count_span(attempts, level, _recomputed),
        "baseline_cached_tokens": _median(attempts, design.baseline_level, _cached),
    }
    slug = "prefix_reused"
    if changed is not None:
        slug, values["place"] = f"prefix_changed_{changed[1]}", changed[1]
    elif after is not None:
        at_once = _median(attempts, "warm", _cached)
        slug = "prefix_after" if at_once is None else "prefix_held" if cached >= at_once else "prefix_gone"
        values |= {"wait_s": int(after[1]) * _SECONDS[after[2]], "at_once_tokens": at_once}
        values["gone_tokens"] = None if at_once is None else max(0.0, at_once - cached)
    return [Finding(slug=slug, values=values, evidence=evidence(design, attempts, level), how_to_check="cached_column")]


def _saved(design: DesignRow, attempts: Sequence[Attempt], level: Json) -> list[Finding]:
    """How much sooner the first token came for each token more that was reused than in the baseline, at a level where
    that it came sooner is told: by the interval that holds for all levels together, as of every difference."""
    times = block_pairs(design, attempts, level, lambda attempt: attempt.metrics.ttft_s)
    tokens = block_pairs(design, attempts, level, _cached)
    if len(times) != len(tokens):
        return []
    each = [
        (base_s - now_s) / (now - base)
        for (base_s, now_s), (base, now) in zip(times, tokens, strict=True)
        if now > base
    ]
    if not each or len(each) != len(times):
        return []
    size = mean(each)
    if size.low is None or size.low <= 0:  # so many tokens more in some repeats than in others that nothing is told
        return []
    return [
        Finding(
            slug="prefix_saved",
            values={
                **named(design, level),
                "saved_s": mean([base - now for base, now in times]).value,
                "tokens": median(now - base for base, now in tokens),
                "per_token_s": size.value,
            },
            evidence=evidence(design, attempts, level),
            size=size,
            also_possible=("busy_machine",),
            how_to_check="until_narrow",
        )
    ]


def _cached(attempt: Attempt) -> float | None:
    request = _last(attempt)
    return None if request is None or request.cached_tokens is None else float(request.cached_tokens)


def _prompt(attempt: Attempt) -> float | None:
    request = _last(attempt)
    return None if request is None or request.prompt_tokens_server is None else float(request.prompt_tokens_server)


def _recomputed(attempt: Attempt) -> float | None:
    cached, prompt = _cached(attempt), _prompt(attempt)
    return None if cached is None or prompt is None else prompt - cached


def _median(attempts: Sequence[Attempt], level: Json, get: Callable[[Attempt], float | None]) -> float | None:
    values = [value for a in at_level(attempts, level) if a.is_measured and (value := get(a)) is not None]
    return median(values) if values else None
