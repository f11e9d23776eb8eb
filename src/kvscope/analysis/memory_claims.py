"""What of memory is paid when, and what does not change: the KV cache at load, the weights never, a window that is not
full yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kvscope.analysis.attribute import Attribution, attribute
from kvscope.analysis.finding import Finding
from kvscope.analysis.finding_remarks import BY_RULE
from kvscope.analysis.fit import mean
from kvscope.analysis.levels import at_level
from kvscope.analysis.price import WINDOWED

if TYPE_CHECKING:
    from kvscope.analysis.attempts import Attempt
    from kvscope.analysis.study import MemoryView, Study
    from kvscope.record.rows import Json

# By how much of what lies in used memory its size may miss what a cost of context is off by.
_APART_SHARE = 0.1
_KV_CACHE = ("kv_cache", "recurrent_state")


def memory_claims(study: Study) -> tuple[Finding, ...]:
    """Of the attempt whose memory the first screen shows, and of all that were measured."""
    main = study.main
    paid = () if main is None else (*_paid_at_load(main, study), *_window(main))
    return (*paid, *_weights(study))


def _paid_at_load(main: MemoryView, study: Study) -> tuple[Finding, ...]:
    """The KV cache was seen in memory after the load, and requests added nothing to it."""
    loaded, after = main.loaded, main.after
    if loaded is None or after is None or not _is_seen(loaded) or loaded.growth_bytes <= 0:
        return ()
    alike = [a for a in at_level(_attempts_of(main, study), main.attempt.trial.level) if a.is_measured]
    seen = [(_kv_at(a, "loaded"), _kv_at(a, "after_request")) for a in alike]
    known = [(before, now) for before, now in seen if before is not None and now is not None]
    if not known or any(now != before for before, now in known) or any(_swaps(a) for a in alike):
        return ()  # what is swapped out was paid too, and is not seen
    size = mean([before for before, _ in known])
    return (
        Finding(
            slug="kv_paid_at_load",
            values={
                "kv_bytes": size.value,
                "growth_bytes": loaded.growth_bytes,
                "share": (size.value or 0.0) / loaded.growth_bytes,
                "context_tokens": main.attempt.context_tokens,
                "prompt_tokens": main.attempt.prompt_tokens,
            },
            evidence=tuple(a.key for a in alike),
            size=size,
        ),
    )


def _attempts_of(main: MemoryView, study: Study) -> Sequence[Attempt]:
    return next(d.attempts for d in study.designs if d.design.design_id == main.attempt.design.design_id)


def _swaps(attempt: Attempt) -> bool:
    return any(mark.swap_bytes for mark in attempt.result.marks)


def _is_seen(found: Attribution) -> bool:
    resident = found.residents.get("kv_cache")
    return resident is not None and resident.how == "seen" and bool(resident.num_bytes)


def _kv_at(attempt: Attempt, phase: str) -> int | None:
    """Bytes of the cache that were seen; None where they were not."""
    found = attribute(attempt.result, attempt.prediction, phase)
    if found is None or not _is_seen(found):
        return None
    return sum(found.term_bytes(slug) for slug in _KV_CACHE)


def _window(main: MemoryView) -> tuple[Finding, ...]:
    """A model with windows, at a context that is no longer than they are: they save nothing there."""
    prediction: Mapping[str, Json] = main.attempt.prediction or {}
    windowed = [layer for layer in prediction.get("layers") or () if layer["kind"] == WINDOWED]
    knees = [int(knee["tokens"]) for knee in (prediction.get("growth") or {}).get("knees") or ()]
    context = main.attempt.context_tokens
    if not windowed or not knees or context is None or context > min(knees):
        return ()
    return (
        Finding(
            slug="window_saves_nothing",
            values={"context_tokens": context, "window_tokens": min(knees), "layers": len(windowed)},
            evidence=(main.attempt.key,),
            size_from=BY_RULE,
        ),
    )


def _weights(study: Study) -> tuple[Finding, ...]:
    """What the engine prints of its weights, the same in every trial of several levels."""
    printed = {a.key: found for a in study.attempts if a.is_measured and (found := _printed_weights(a))}
    levels = {str((a.design.design_id, a.trial.level)) for a in study.attempts if a.key in printed}
    first = next(iter(printed.values()), ())
    if len(levels) < 2 or any(found != first for found in printed.values()):
        return ()
    return (
        Finding(
            slug="weights_unchanged",
            values={"reported_mib": " + ".join(first), "trials": len(printed), "levels": len(levels)},
            evidence=tuple(printed),
        ),
    )


def _printed_weights(attempt: Attempt) -> tuple[str, ...]:
    return tuple(row.printed_mib for row in attempt.result.reported if row.component == "weights")


def in_used_memory(finding: Finding, views: Sequence[MemoryView]) -> Finding | None:
    """A cost of context that is not the predicted one because a small buffer of the cache lies in memory that the
    engine had used and freed before, so that it added less there: no contradiction, and nothing unclear, where the
    engine's own log agrees with the prediction at both ends, and as much of the cache lies so. None where that does not
    explain it."""
    if not finding.slug.endswith(("_differs", "_unclear")):
        return None
    ends = [_view_at(views, finding.values[name]) for name in ("from_tokens", "to_tokens")]
    measured, predicted = finding.values["measured_bytes"], finding.values["predicted_bytes"]
    if None in ends or not isinstance(measured, float) or not isinstance(predicted, float | int):
        return None
    low, high = (end for end in ends if end is not None)
    span = (high.attempt.context_tokens or 0) - (low.attempt.context_tokens or 0)
    hidden = [_in_heap(low), _in_heap(high)]
    is_stated = all(c.agrees for end in (low, high) for c in end.components_loaded if c.slug == "kv_cache")
    # Buffers of the cache that moved into used memory from one end to the other, to a page in a hundred.
    if not is_stated or abs((measured - predicted) * span - (hidden[0] - hidden[1])) > _APART_SHARE * max(hidden):
        return None
    kind = finding.slug.partition("_")[0]
    return replace(
        finding,
        slug=f"{kind}_in_used_memory",
        is_contradiction=False,
        values={**finding.values, "hidden_bytes": max(hidden)},
        also_possible=("other_buffers_follow_context",),
    )


def _view_at(views: Sequence[MemoryView], context_tokens: object) -> MemoryView | None:
    return next((view for view in views if view.attempt.context_tokens == context_tokens), None)


def _in_heap(view: MemoryView) -> int:
    """Bytes of the cache that are resident by the engine's rule alone, in its heap."""
    resident = None if view.loaded is None else view.loaded.residents.get("kv_cache")
    if resident is None or resident.note is None or resident.note.slug != "by_rule_in_heap":
        return 0
    size = resident.note.values["size_bytes"]
    return size if isinstance(size, int) else 0
