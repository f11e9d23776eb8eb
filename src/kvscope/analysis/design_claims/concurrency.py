"""What several requests at once did: memory in a pool that is fixed, the wait of each, tokens per second of one and of
all together, and what of a shared beginning was reused."""

from collections.abc import Callable, Sequence
from statistics import fmean

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims.changed import changed_rows, evidence, memory_findings, named, time_findings
from kvscope.analysis.effects import Effect
from kvscope.analysis.finding import Finding
from kvscope.analysis.levels import at_level
from kvscope.record.metrics import held_bytes, last_mark
from kvscope.record.rows import DesignRow, Json

FACTOR = "concurrency"
_MEMORY = "memory_after_bytes"
_ALL = "output_tokens_per_s_all"
# Memory is called flat where no more than this share of what caches of their own would take can have been added.
FLAT_SHARE = 0.10


def claims(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """One user against many first; then the wait, memory, the slots, and the shared beginning."""
    return (
        *_rates(design, attempts),
        *time_findings(design, attempts),
        *_memory_findings(design, attempts),
        *_over_slots(design, attempts),
        *_shared(design, attempts),
    )


def _rates(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    rows = changed_rows(design, attempts, (_ALL,))
    is_closed = design.factor == FACTOR
    base = at_level(attempts, design.baseline_level)
    found = []
    for row, keys in rows:
        here = at_level(attempts, row.level)
        slug = "load_rates" if is_closed else "load_rates_open"
        memory = _mean(here, lambda a: a.metrics.memory_after_bytes)
        found.append(
            Finding(
                slug="load_capacity" if is_closed and row.level == _highest(design) else slug,
                values={
                    **named(design, row.level),
                    "at_once": row.level,
                    "each_per_s": _mean(here, lambda a: a.metrics.decode_tokens_per_s),
                    "all_per_s": _mean(here, _of_load(_ALL)),
                    "baseline_each_per_s": _mean(base, lambda a: a.metrics.decode_tokens_per_s),
                    "baseline_all_per_s": _mean(base, _of_load(_ALL)),
                    "ttft_p50_s": _mean(here, _of_load("ttft_p50_s")),
                    "ttft_max_s": _largest(here, _of_load("ttft_max_s")),
                    "baseline_ttft_p50_s": _mean(base, _of_load("ttft_p50_s")),
                    "queue_wait_s": _mean(here, _of_load("queue_wait_s")),
                    "share_bytes": None if memory is None or not is_closed else memory / row.level,
                },
                evidence=keys,
                size=row.effects[_ALL].difference,
                also_possible=("client_on_same_machine",),
                how_to_check="requests_of_load",
            )
        )
    return tuple(found)


def _highest(design: DesignRow) -> Json:
    return max(design.levels)


def _memory_findings(design: DesignRow, attempts: Sequence[Attempt]) -> tuple[Finding, ...]:
    """For each level whether memory is flat: held against what as many more caches as requests would take."""
    found: list[Finding] = []
    for row, keys in changed_rows(design, attempts, (_MEMORY,)):
        effect = row.effects[_MEMORY]
        own_bytes = _own_caches_bytes(design, at_level(attempts, row.level), row.level)
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


def _own_caches_bytes(design: DesignRow, here: Sequence[Attempt], level: Json) -> float | None:
    """What caches of their own would take for the requests that a level has more under way than the baseline: by
    prediction, a slot's part of the pool for each. None where that is not known, or a rate is varied."""
    slots, _ = _pool(here)
    predicted = [a.prediction["totals"]["kv_cache_bytes"] for a in here if a.prediction is not None]
    if design.factor != FACTOR or not slots or not predicted or not predicted[0]:
        return None
    return float(predicted[0] / slots * (level - design.baseline_level))


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


def _largest(attempts: Sequence[Attempt], get: Callable[[Attempt], float | None]) -> float | None:
    return max(_values(attempts, get), default=None)
