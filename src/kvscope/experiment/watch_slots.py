"""What llama-server's answer to /slots says. A value that cannot be a count is none: what is sent is another's."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

# Larger counts than any server has are no counts.
MOST_COUNTED = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsSeen:
    """``statistics``: by the names of ``engine.statistics``: slots at work, and the tokens that all hold together (a
    prompt that is still being read counts whole). ``unfinished_tokens``: of answers that are not finished, which
    llama.cpp adds to its counters only then. ``count``: how many slots answered."""

    count: int = 0
    statistics: Mapping[str, float] = field(default_factory=dict)
    unfinished_tokens: float = 0.0


def read_slots_answer(slots: Any) -> SlotsSeen:
    """The JSON of /slots; nothing is seen in what is none."""
    known = [slot for slot in slots if isinstance(slot, dict)] if isinstance(slots, list) else []
    if not known:
        return SlotsSeen()
    at_work = [slot for slot in known if slot.get("is_processing") is True]
    found = {"requests_running": float(len(at_work))}
    held = [slot.get("n_prompt_tokens", 0) for slot in known]  # absent of a slot that was never used
    if all(is_count(each) for each in held):
        found["kv_cache_used_tokens"] = float(sum(held))
    return SlotsSeen(
        count=len(known), statistics=found, unfinished_tokens=float(sum(_decoded(slot) for slot in at_work))
    )


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value of a server's JSON can be a number of tokens or bytes."""
    return type(value) is int and 0 <= value <= MOST_COUNTED


def _decoded(slot: Mapping[str, Any]) -> int:
    """Output tokens of the request in a slot; newer servers give a list with one entry for each answer."""
    stated = slot.get("next_token")
    entries = stated if isinstance(stated, list) else [stated]
    counts = [entry.get("n_decoded") for entry in entries if isinstance(entry, dict)]
    return sum(count for count in counts if is_count(count))
