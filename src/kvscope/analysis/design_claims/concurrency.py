"""What several requests at once did: memory in a pool that is fixed, the wait of each, tokens per second of one and of
all together, and what of a shared beginning was reused."""

from collections.abc import Callable, Sequence
from statistics import fmean

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims.changed import (
    changed_rows,
    evidence,
    memory_findings,
    named,
    rate_findings,
    time_findings,
)
from kvscope.analysis.design_claims.open_loop import not_kept_up
from kvscope.analysis.effects import Effect
from kvscope.analysis.finding import Finding
from kvscope.analysis.fit import mean
from kvscope.analysis.levels import at_level
from kvscope.record.metrics import held_bytes, last_mark
from kvscope.record.rows import DesignRow, Json

FACTOR = "concurrency"
_MEMORY = "memory_after_bytes"
_EACH, _ALL = "decode_tokens_per_s", "output_tokens_per_s_all"
# The time of a later token is what each gets, told as a speed: said twice it could be told once and not the other time.
_TIMES = ("ttft_s", "ttft_max_s")
# Memory is called flat where no more than this share of what caches of their own would take can have been added.
FLAT_SHARE = 0.10


def claims(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """One user against many first: what each gets and what all get; whether the engine kept up; then the wait, memory,
    the slots, and the shared beginning."""
    return (
        *_capacity(design, attempts),
        *not_kept_up(design, attempts),
        *rate_findings(design, attempts, (_EACH, _ALL)),
        *time_findings(design, attempts, _TIMES),
        *_memory_findings(design, attempts),
        *_over_slots(design, attempts),
        *_shared(design, attempts),
    )


def _capacity(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """What one of several requests costs of all memory, at each level at which several are under way; the highest
    begins with what all of these numbers mean."""
    if design.factor != FACTOR:
        return ()
    found = []
    for row, keys in changed_rows(design, attempts, (_MEMORY,)):
        here = at_level(attempts, row.level)
        each = mean([value / row.level for value in _values(here, lambda a: a.metrics.memory_after_bytes)])
        is_highest = row.level == max(design.levels)
        if is_highest or each.value is not None:
            found.append(
                Finding(
                    slug="load_capacity" if is_highest else "load_share",
                    values={**named(design, row.level), "share_bytes": each.value},
                    evidence=keys,
                    size=each,
                    also_possible=("client_on_same_machine",),
                    how_to_check="requests_of_load",
                )
            )
    return tuple(found)


def _memory_findings(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """For each level whether memory is flat: held against what as many more caches as requests would take."""
    found: list[Finding] = []
    for row, keys in changed_rows(design, attempts, (_MEMORY,)):
        effect = row.effects[_MEMORY]
        own_bytes = _own_caches_bytes(design, attempts, row.level)
        if own_bytes is None or not effect.is_known:
            found += [f for f in memory_findings(design, attempts, _MEMORY) if f.values["level"] == row.level]
            continue
        slots, pool_tokens = _pool(at_level(attempts, row.level))
        found.append(
            Finding(
                slug=f"load_memory_{_flatness(effect, own_bytes)}",
                values={
                    **named(design, row.level),
                    "metric": _MEMORY,
                    "difference_bytes": effect.difference.value,
                    "baseline_bytes": effect.baseline,
                    "own_bytes": own_bytes,
                    "grown_bytes": _mean(at_level(attempts, row.level), _grown_bytes),
                    "slots": slots,
                    "pool_tokens": pool_tokens,
                    "pairs": effect.num_pairs,
                },
                evidence=keys,
                size=effect.difference,
                how_to_check="look_at_smaps",
            )
        )
    return tuple(found)


def _flatness(effect: Effect, own_bytes: float) -> str:
    low, high = effect.difference.low, effect.difference.high
    assert low is not None
    assert high is not None
    most = FLAT_SHARE * abs(own_bytes)
    if -most <= low <= high <= most:
        return "flat"
    return "grows" if low > most else "falls" if high < -most else "unclear"


def _grown_bytes(attempt: Attempt) -> float | None:
    """What memory grew by while the load ran: within one process, so that no other one's heap is in it."""
    before = last_mark(attempt.result, "before_request")
    after = last_mark(attempt.result, "after_request")
    return None if before is None or after is None else held_bytes(after) - held_bytes(before)


def _own_caches_bytes(design: DesignRow, attempts: Sequence[Attempt], level: Json) -> float | None:
    """What caches of their own would take for the requests that a level has more under way than the baseline: by
    prediction, a slot's part of the pool for each. None where that is not known, or a rate is varied."""
    here = at_level(attempts, level)
    slots, _ = _pool(here)
    predicted, at_base = _predicted_cache(here), _predicted_cache(at_level(attempts, design.baseline_level))
    if design.factor != FACTOR or not slots or not predicted:
        return None
    # Of an engine that reserves a pool the prediction is of all slots, the same at each level; of others it is of the
    # requests under way.
    is_pool = at_base is None or at_base == predicted
    return float(predicted / (slots if is_pool else min(level, slots)) * (level - design.baseline_level))


def _predicted_cache(attempts: Sequence[Attempt]) -> float | None:
    known = [a.prediction["totals"]["kv_cache_bytes"] for a in attempts if a.is_measured and a.prediction is not None]
    return known[0] if known else None


def _pool(here: Sequence[Attempt]) -> tuple[int, int | None]:
    """Slots, and the tokens that they hold together, as the engine states them; 0 slots where it does not."""
    for attempt in here:
        slots = attempt.result.effective.get("slots")
        if isinstance(slots, Sequence) and slots:
            return len(slots), sum(slots)
    return 0, None


def _over_slots(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    if design.factor != FACTOR:
        return ()
    slots, _ = _pool(attempts)
    over = [level for level in design.levels if slots and level > slots]
    if not over:
        return ()
    keys = tuple(key for level in over for key in evidence(design, attempts, level))
    values = {"slots": slots, "levels": over}
    return (Finding(slug="load_over_slots", values=values, evidence=tuple(dict.fromkeys(keys))),)


def _shared(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """For each level, how many of all prompt tokens were reused over its repeats, where the prompts were made to share
    some."""
    if not design.held.get("shared_prefix_tokens"):
        return ()
    found = []
    for level in design.levels:
        here = [a for a in at_level(attempts, level) if a.is_measured and a.metrics.load is not None]
        cached, prompts = _values(here, _of_load("load_cached_tokens")), _values(here, _of_load("load_prompt_tokens"))
        if not cached or not prompts:
            continue
        shared = _mean(here, lambda a: a.trial.client.get("shared_prefix_tokens"))
        found.append(
            Finding(
                slug="load_shared" if shared is not None else "load_shared_about",
                values={
                    **named(design, level),
                    "cached_tokens": sum(cached),
                    "prompt_tokens": sum(prompts),
                    "share": sum(cached) / sum(prompts),
                    "shared_tokens": shared if shared is not None else design.held["shared_prefix_tokens"],
                    "requests": sum(len(a.measured_requests) for a in here),
                    "found": sum(_num_found(a, design.held["shared_prefix_tokens"]) for a in here),
                },
                evidence=tuple(a.key for a in here),
                how_to_check="cached_column",
            )
        )
    return tuple(found)


def _num_found(attempt: Attempt, shared_tokens: int) -> int:
    """Requests that reused most of what all begin with: engines reuse in whole blocks."""
    return sum((request.cached_tokens or 0) > shared_tokens / 2 for request in attempt.measured_requests)


def _of_load(name: str) -> Callable[[Attempt], float | None]:
    return lambda attempt: None if attempt.metrics.load is None else getattr(attempt.metrics.load, name)


def _values(attempts: Sequence[Attempt], get: Callable[[Attempt], float | None]) -> list[float]:
    return [value for a in attempts if a.is_measured and (value := get(a)) is not None]


def _mean(attempts: Sequence[Attempt], get: Callable[[Attempt], float | None]) -> float | None:
    values = _values(attempts, get)
    return fmean(values) if values else None
