"""How far this machine goes: the longest context of one conversation, predicted and not run."""

from dataclasses import dataclass

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.attribute import Attribution
from kvscope.analysis.growth import predicted_bytes_per_token
from kvscope.record.metrics import last_mark


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLimit:
    """``binds``: trained (the length the model was trained for) or memory. ``memory_tokens`` is how many tokens the
    memory free at the start would hold beside everything else that the engine had grown by."""

    tokens: int
    binds: str
    trained_tokens: int | None
    memory_tokens: int | None
    available_bytes: int | None
    fixed_bytes: int | None
    bytes_per_token: int | None


def context_limit(attempt: Attempt, attribution: Attribution | None) -> ContextLimit | None:
    """From the prediction's bytes per token and the memory that was free before the load; None if neither the trained
    context nor the memory is known."""
    model = (attempt.prediction or {}).get("model") or {}
    trained = model.get("trained_context_tokens")
    per_token = predicted_bytes_per_token(attempt)
    start = last_mark(attempt.result, "launched")
    available = None if start is None else start.machine_available_bytes
    fixed = None if attribution is None else attribution.growth_bytes - attribution.term_bytes("kv_cache")
    by_memory = None
    if per_token and available is not None and fixed is not None:
        by_memory = max(0, (available - fixed) // per_token)
    candidates = [(n, name) for n, name in ((trained, "trained"), (by_memory, "memory")) if n is not None]
    if not candidates:
        return None
    tokens, binds = min(candidates)
    return ContextLimit(
        tokens=int(tokens),
        binds=binds,
        trained_tokens=trained,
        memory_tokens=by_memory,
        available_bytes=available,
        fixed_bytes=fixed,
        bytes_per_token=per_token,
    )
