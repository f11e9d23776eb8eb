"""A context limit that is longer than anything that was sent: the engine pays for its cells when it loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvscope.analysis.advice_command import change_command
from kvscope.analysis.advice_flags import CONTEXT_SETTINGS, PER_SLOT, flags_of
from kvscope.analysis.advice_kind import Advice, Quality
from kvscope.analysis.fit import Estimate, scaled
from kvscope.analysis.price import CELLS_BLOCK, token_price

if TYPE_CHECKING:
    from kvscope.analysis.attempts import Attempt
    from kvscope.analysis.study import Study

# A limit is called too long from this many times the longest request on: some room is no waste.
_TOO_LONG = 2
_SAME_PRICE = 0.01


def context_advice(study: Study) -> list[Advice]:
    """At most one: of the longest limit that a design held fixed, against the longest request under any limit that was
    held fixed, with as much for every slot as one conversation needed. A design that varies the limit or sends several
    requests at once says nothing of use."""
    name = CONTEXT_SETTINGS.get(study.engine)
    used = [a for d in study.designs for a in d.attempts if d.design.factor != "n_ctx" and _is_use(a)]
    if name is None or not used:
        return []
    longest = max(used, key=_tokens)
    attempt = max(used, key=lambda a: a.context_tokens or 0)
    slots, streams = slots_of(attempt)
    limit, need = attempt.context_tokens or 0, _tokens(longest)
    fewer = -(-need // CELLS_BLOCK) * CELLS_BLOCK * slots
    if not need or limit < _TOO_LONG * fewer:
        return []
    price = token_price(attempt.prediction)
    predicted = None
    if price is not None:
        predicted = float(price.reserved_bytes(limit, streams=streams) - price.reserved_bytes(fewer, streams=streams))
    saved, evidence = _measured(study, attempt, limit - fewer)
    if (predicted or 0) <= 0 and saved is None:
        return []
    each = slots if study.engine in PER_SLOT else 1
    change = {name: fewer // each}
    return [
        Advice(
            slug="context",
            axis="context",
            helps="memory",
            harm=1,
            metric="memory_bytes",
            change=change,
            flags=flags_of(study.engine, change),
            saved=saved,
            predicted=predicted,
            is_estimate=price is not None and price.knee_tokens is not None,
            quality=Quality(slug="not_touched"),
            evidence=(*evidence, longest.key),
            check=change_command(attempt, "context", change, {name: limit // each}),
            values={"need_tokens": need, "limit_tokens": limit, "fewer_tokens": fewer},
        )
    ]


def slots_of(attempt: Attempt) -> tuple[int, int]:
    """Conversations that share the context out among them, as the engine states them, else as predicted; and how many
    caches of their own they have: 1 where they share one."""
    effective, predicted = attempt.result.effective, (attempt.prediction or {}).get("effective") or {}
    stated = effective.get("slots")
    slots = len(stated) if isinstance(stated, list | tuple) else 0
    for found in (effective.get("n_parallel"), effective.get("n_seq_max"), predicted.get("slots")):
        slots = slots or int(found or 0)
    slots = max(1, slots)
    is_shared = str(effective.get("kv_unified", predicted.get("kv_unified"))).lower() in ("true", "1")
    return slots, int(predicted.get("streams") or (1 if is_shared else slots))


def _is_use(attempt: Attempt) -> bool:
    """A measured attempt with one conversation at a time, on an engine that says what it reserved."""
    alone = not any(request.stream for request in attempt.result.requests)
    return attempt.is_measured and alone and attempt.context_tokens is not None


def _tokens(attempt: Attempt) -> int:
    """The most tokens that a request of it held, its answer included; the questions asked for answers' sake too."""
    held = [(r.prompt_tokens_server or 0) + (r.output_tokens or 0) for r in attempt.result.requests if r.is_answered]
    return max(held, default=0)


def _measured(study: Study, attempt: Attempt, fewer: int) -> tuple[Estimate | None, tuple[str, ...]]:
    """By the measured price of a token of context, where a design of the study has it for this kind of cache and it is
    one price."""
    growth = study.context
    if growth is None or not growth.is_straight or not growth.measured.slope.has_interval:
        return None, ()
    here = token_price(attempt.prediction)
    there = growth.predicted.slope.value
    if here is None or here.knee_tokens is not None or there is None:
        return None, ()
    # Beside the cache a mask follows the context: a small part of the same slope.
    if abs(there - here.first_bytes) > 0.1 * here.first_bytes:
        return None, ()
    slope = growth.measured.slope
    if slope.low is None or slope.low <= 0:
        return None, ()
    return scaled(slope, fewer), growth.evidence
