"""How far this machine goes: the longest context of one conversation, predicted and not run."""

from dataclasses import dataclass

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.attribute import Attribution
from kvscope.analysis.price import TokenPrice, token_price
from kvscope.record.metrics import last_mark


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLimit:
    """``binds``: trained (the length the model was trained for, and memory holds more), memory, or trained_only (what
    memory holds is not known). ``memory_tokens`` is how many tokens the memory free at the start would hold beside
    everything else that the engine had grown by; None where that is not known, or where memory sets no end because
    every layer has a window."""

    tokens: int
    binds: str
    trained_tokens: int | None
    memory_tokens: int | None
    available_bytes: int | None
    fixed_bytes: int | None
    price: TokenPrice | None


def context_limit(attempt: Attempt, attribution: Attribution | None) -> ContextLimit | None:
    """From the prediction's price of a token, up to and beyond full windows, and the memory that was free before the
    load; None if neither the trained context nor the memory is known."""
    model = (attempt.prediction or {}).get("model") or {}
    trained = model.get("trained_context_tokens")
    price = token_price(attempt.prediction)
    start = last_mark(attempt.result, "launched")
    available = None if start is None else start.machine_available_bytes
    fixed = None if attribution is None else attribution.growth_bytes - attribution.term_bytes("kv_cache")
    is_known = price is not None and available is not None and fixed is not None
    by_memory = None
    if price is not None and available is not None and fixed is not None:
        # Each slot with a cache of its own reserves as much as the one that is asked about.
        streams = int(((attempt.prediction or {}).get("effective") or {}).get("streams") or 1)
        by_memory = price.tokens_in((available - fixed) // streams)
    candidates = [(n, name) for n, name in ((trained, "trained"), (by_memory, "memory")) if n is not None]
    if not candidates:
        return None
    tokens, binds = min(candidates)
    if not is_known:
        binds = "trained_only"
    return ContextLimit(
        tokens=int(tokens),
        binds=binds,
        trained_tokens=trained,
        memory_tokens=by_memory,
        available_bytes=available,
        fixed_bytes=fixed,
        price=price,
    )
