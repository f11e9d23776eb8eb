"""Memory against tokens: what the context limit costs when the model is loaded, and what a longer input adds after."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvscope.analysis.attempts import Attempt, has_engine_rules
from kvscope.analysis.attribute import Attribution, attribute
from kvscope.analysis.fit import Estimate, Line, fit_line, mean_difference, scaled
from kvscope.analysis.levels import at_level, level_key
from kvscope.analysis.price import token_price
from kvscope.record.metrics import held_bytes, last_mark
from kvscope.record.rows import Json

WORKING = ("compute_buffer", "output_buffer", "working_buffers", "work_buffer", "work_in_use")
ADDED_RUNTIME = (
    *("runtime", "vocabulary", "prompt_growth", "heap", "heap_kept", "arenas", "python_arenas"),
    *("stacks", "library_data", "swapped"),
)


# A prediction that leaves its fitted line by more than this share of its largest value is not straight.
STRAIGHT_SHARE = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextStep:
    """From one context limit to the next: bytes for each further token, measured (paired by block) and predicted."""

    from_tokens: int
    to_tokens: int
    measured: Estimate
    predicted: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextGrowth:
    """Anonymous memory that the load added, against the context limit; bytes per token of context."""

    measured: Line
    predicted: Line
    points: tuple[tuple[int, int], ...]
    predicted_points: tuple[tuple[int, int], ...]
    steps: tuple[ContextStep, ...]
    evidence: tuple[str, ...]

    @property
    def is_straight(self) -> bool:
        """Whether one slope tells it all: the prediction is a straight line. It is not where windows fill up."""
        sizes = dict(self.predicted_points)
        if not sizes:
            return True
        off = max(abs(size - (self.predicted.at(x) or 0)) for x, size in sizes.items()) if len(sizes) > 2 else 0
        return off <= STRAIGHT_SHARE * max(sizes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedMemory:
    """What one input length added between the end of the load and the end of the request, in bytes of anonymous
    memory, and of what it is made. ``per_token`` is the naive figure: added ÷ prompt tokens."""

    attempt_key: str
    prompt_tokens: int
    added_bytes: int
    kv_cache_bytes: int
    working_bytes: int
    host_cache_bytes: int
    checkpoint_bytes: int
    runtime_bytes: int
    unexplained_bytes: int
    kv_formula_bytes: int | None

    @property
    def per_token_bytes(self) -> float:
        return self.added_bytes / self.prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class InputGrowth:
    """Memory added by requests of different lengths, and the naive slope through it. ``touched_max_bytes`` is the size
    of the buffers that requests touch for the first time (compute and output), as predicted. ``bytes_per_token``: what
    the KV cache of the longest input needs by prediction, for each of its tokens."""

    naive: Line
    added: tuple[AddedMemory, ...]
    bytes_per_token: float | None
    touched_max_bytes: int | None
    microbatch_tokens: int | None


def loaded_growth_bytes(attempt: Attempt) -> int | None:
    """Anonymous memory (swap included) that the load added; None if either moment was not read."""
    start, loaded = last_mark(attempt.result, "launched"), last_mark(attempt.result, "loaded")
    if loaded is None:
        return None
    return held_bytes(loaded) - (held_bytes(start) if start else 0)


def context_growth(attempts: Sequence[Attempt]) -> ContextGrowth | None:
    """From the measured attempts of a design that varies the context limit; None if there is nothing measured."""
    measured, predicted, evidence = [], [], []
    for attempt in attempts:
        cells, grown = attempt.context_tokens, loaded_growth_bytes(attempt)
        if not attempt.is_measured or cells is None or grown is None:
            continue
        measured.append((cells, grown))
        evidence.append(attempt.key)
        cache = predicted_bytes(attempt, "cache_bytes") if has_engine_rules(attempt.prediction) else None
        if cache is not None:
            predicted.append((cells, cache))
    if not measured:
        return None
    return ContextGrowth(
        measured=fit_line(measured),
        predicted=fit_line(predicted),
        points=tuple(sorted(measured)),
        predicted_points=tuple(sorted(set(predicted))),
        steps=_context_steps(attempts, dict(predicted)),
        evidence=tuple(evidence),
    )


def _context_steps(attempts: Sequence[Attempt], predicted: Mapping[int, int]) -> tuple[ContextStep, ...]:
    by_cells: dict[int, dict[int, int]] = {}
    for attempt in attempts:
        cells, grown = attempt.context_tokens, loaded_growth_bytes(attempt)
        if attempt.is_measured and cells is not None and grown is not None:
            by_cells.setdefault(cells, {})[attempt.trial.block] = grown
    steps = []
    for (low, before), (high, after) in pairwise(sorted(by_cells.items())):
        pairs = [(before[block], after[block]) for block in sorted(before.keys() & after.keys())]
        known = low in predicted and high in predicted
        steps.append(
            ContextStep(
                from_tokens=low,
                to_tokens=high,
                measured=scaled(mean_difference(pairs), 1 / (high - low)),
                predicted=(predicted[high] - predicted[low]) / (high - low) if known else None,
            )
        )
    return tuple(steps)


def predicted_bytes(attempt: Attempt, total: str) -> int | None:
    """A total of the attempt's prediction; None where it has none or does not know it."""
    value = ((attempt.prediction or {}).get("totals") or {}).get(total)
    return None if value is None else int(value)


def representative(attempts: Sequence[Attempt], level: Json) -> Attempt | None:
    """The measured attempt at a level whose memory after load is the median (the lower of two middle ones)."""
    measured = [a for a in at_level(attempts, level) if a.is_measured]
    known = sorted(
        (a for a in measured if a.metrics.memory_loaded_bytes is not None),
        key=lambda a: (a.metrics.memory_loaded_bytes, a.trial.position),
    )
    if known:
        return known[(len(known) - 1) // 2]
    return measured[0] if measured else None


def input_growth(attempts: Sequence[Attempt]) -> InputGrowth | None:
    """From the measured attempts of a design that varies the input length; None if memory was not read."""
    points = []
    for attempt in attempts:
        added = added_bytes(attempt)
        if attempt.is_measured and added is not None and attempt.prompt_tokens:
            points.append((attempt.prompt_tokens, added))
    levels = {level_key(a.trial.level): a.trial.level for a in attempts if a.is_measured}
    chosen = [a for level in levels.values() if (a := representative(attempts, level)) is not None]
    added_rows = [row for a in chosen if (row := _added(a)) is not None]
    if not points or not chosen:
        return None
    effective = (chosen[0].prediction or {}).get("effective") or {}
    buffers = [predicted_bytes(chosen[0], name) for name in ("compute_buffer_bytes", "output_buffer_bytes")]
    known = [size for size in buffers if size is not None]
    return InputGrowth(
        naive=fit_line(points),
        added=tuple(sorted(added_rows, key=lambda row: row.prompt_tokens)),
        bytes_per_token=_formula_per_token(added_rows),
        touched_max_bytes=sum(known) if len(known) == len(buffers) else None,
        microbatch_tokens=effective.get("microbatch_tokens"),
    )


def _formula_per_token(rows: Sequence[AddedMemory]) -> float | None:
    longest = max(rows, key=lambda row: row.prompt_tokens, default=None)
    if longest is None or longest.kv_formula_bytes is None:
        return None
    return longest.kv_formula_bytes / longest.prompt_tokens


def added_bytes(attempt: Attempt) -> int | None:
    """Anonymous memory (swap included) that the requests added to what the load left; None where it was not read."""
    loaded, after = last_mark(attempt.result, "loaded"), last_mark(attempt.result, "after_request")
    return None if loaded is None or after is None else held_bytes(after) - held_bytes(loaded)


def _added(attempt: Attempt) -> AddedMemory | None:
    loaded = attribute(attempt.result, attempt.prediction, "loaded")
    after = attribute(attempt.result, attempt.prediction, "after_request")
    tokens = attempt.prompt_tokens
    if loaded is None or after is None or not (loaded.maps_read and after.maps_read) or not tokens:
        return None
    price = token_price(attempt.prediction)
    return AddedMemory(
        attempt_key=attempt.key,
        prompt_tokens=tokens,
        added_bytes=after.anon_growth_bytes - loaded.anon_growth_bytes,
        kv_cache_bytes=_grown(loaded, after, ("kv_cache", "recurrent_state", "weights")),
        working_bytes=_grown(loaded, after, WORKING),
        host_cache_bytes=_grown(loaded, after, ("host_cache",)),
        checkpoint_bytes=_grown(loaded, after, ("checkpoint",)),
        runtime_bytes=_grown(loaded, after, ADDED_RUNTIME),
        unexplained_bytes=after.unexplained_anon_bytes - loaded.unexplained_anon_bytes,
        kv_formula_bytes=None if price is None else price.bytes_at(tokens),
    )


def _grown(before: Attribution, after: Attribution, slugs: Sequence[str]) -> int:
    return sum(after.term_bytes(slug) - before.term_bytes(slug) for slug in slugs)
