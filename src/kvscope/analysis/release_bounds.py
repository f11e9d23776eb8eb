"""Who keeps memory after a conversation, and up to where: the limits that engines state or were given."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvscope.analysis.attribute import Attribution
from kvscope.analysis.prompt_copies import stated_checkpoints
from kvscope.analysis.release_curve import DEVICE, FEWEST_CONVERSATIONS, STILL_BYTES, Conversation, Curve
from kvscope.record.rows import Json, TrialResult
from kvscope.units import MIB

# Who a bound is of.
HOST_CACHE = "host_cache"
CHECKPOINTS = "checkpoints"
PROMPT_COPIES = "prompt_copies"
ALLOCATOR = "allocator"
FRAMEWORK = "framework_floor"
UNEXPLAINED = "unexplained"
KEEP_ALIVE = "keep_alive"
PLATEAU = "plateau"

_LIMIT = re.compile(r"limits?:\s*([\d.]+)\s*MiB(?:,\s*(\d+)\s*tokens)?")
_COPY = re.compile(r"(\d+) tokens, checkpoints: +\d+, +([\d.]+) MiB")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What somebody keeps. ``limit_bytes`` is the most that it may be, None where none is known; ``until_s``: seconds
    after the last answer until it is given back, infinite where that has to be asked for; ``until``: the moment, as the
    server states it."""

    holder: str
    held_bytes: int | None = None
    limit_bytes: int | None = None
    until_s: float | None = None
    until: str | None = None

    @property
    def to_go_bytes(self) -> int | None:
        """How much more it may still become."""
        if self.limit_bytes is None or self.held_bytes is None:
            return None
        return max(0, self.limit_bytes - self.held_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLimit:
    """Of the host prompt cache. ``num_bytes`` is None where none is known, or there is none (``is_unlimited``)."""

    num_bytes: int | None = None
    is_unlimited: bool = False


def host_cache_limit(result: TrialResult) -> CacheLimit:
    """From the engine's own line ("limits: 8192.000 MiB, 512 tokens": of a cache without a limit in bytes, the first
    is 0 and that in tokens counts), else as it states or was given ``cache_ram_mib``, where a negative number means no
    limit."""
    stated = [r.line for r in result.reported if r.component == HOST_CACHE and _LIMIT.search(r.line)]
    if stated:
        return _stated_limit(stated)
    for where in (result.effective, result.trial.settings, result.trial.levels):
        value = where.get("cache_ram_mib")
        if isinstance(value, int | float) and not isinstance(value, bool):
            return CacheLimit(is_unlimited=True) if value < 0 else CacheLimit(num_bytes=round(value * MIB))
    return CacheLimit()


def _stated_limit(lines: Sequence[str]) -> CacheLimit:
    found = _LIMIT.search(lines[-1])
    assert found is not None, "only lines that state a limit are asked"
    limit = round(float(found[1]) * MIB)
    if limit:
        return CacheLimit(num_bytes=limit)
    if not int(found[2] or 0):
        return CacheLimit(is_unlimited=True)
    copies = [(int(tokens), float(mib)) for line in lines for tokens, mib in _COPY.findall(line)]
    tokens = sum(number for number, _ in copies)
    if not tokens:
        return CacheLimit()
    return CacheLimit(num_bytes=round(int(found[2]) * sum(mib for _, mib in copies) / tokens * MIB))


def checkpoint_bound(result: TrialResult, conversation: Conversation) -> Bound | None:
    """The context checkpoints, where the engine states how many it keeps for each slot."""
    held = stated_checkpoints(result, conversation.request_index)
    most = result.effective.get("n_ctx_checkpoints", result.trial.settings.get("n_ctx_checkpoints"))
    if not held or not isinstance(most, int) or isinstance(most, bool) or most < 0:
        return None
    slots = result.effective.get("slots")
    num_slots = len(slots) if isinstance(slots, list | tuple) and slots else 1
    largest = max(buffer.num_bytes for buffer in held)
    total = sum(buffer.num_bytes for buffer in held)
    return Bound(holder=CHECKPOINTS, held_bytes=total, limit_bytes=max(total, most * num_slots * largest))


def keep_alive_bound(result: TrialResult, curve: Curve) -> Bound | None:
    """How long the server keeps its model without a request; None where it does not say."""
    until = result.effective.get("keep_alive_until")
    if isinstance(until, str):
        return Bound(holder=KEEP_ALIVE, held_bytes=curve.added_bytes, until=until)
    for where in (result.effective, result.trial.settings):
        if "keep_alive" in where:
            until_s = _seconds(where["keep_alive"])
            if until_s is not None:
                return Bound(holder=KEEP_ALIVE, held_bytes=curve.added_bytes, until_s=until_s)
    return None


def _seconds(value: Json) -> float | None:
    """A duration as Ollama takes it: a number of seconds, or a text such as "5m" or "1h30m"; below 0 for ever."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float("inf") if value < 0 else float(value)
    text = str(value).strip()
    if re.fullmatch(r"-?\d+(?:\.\d+)?", text):
        return _seconds(float(text))
    sign, text = text.startswith("-"), text.removeprefix("-")
    if not re.fullmatch(rf"(?:{_DURATION.pattern})+", text):
        return None
    return float("inf") if sign else sum(float(n) * _SECONDS[unit] for n, unit in _DURATION.findall(text))


def kept_bounds(result: TrialResult, curve: Curve, left: Attribution | None) -> tuple[Bound, ...]:
    """What stays after the engine's own release, by whom: torch's allocator by its own counters; else heap and arenas
    (an allocator's, kept for reuse), what else has a name, which is the libraries', and what has none."""
    kept = curve.kept_bytes
    if kept is None:
        return ()
    counters = _statistics(result, "unloaded")
    allocated, reserved = counters.get("allocated_bytes"), counters.get("reserved_bytes")
    if curve.place == DEVICE and allocated is not None and reserved is not None:
        return _without_empty(
            Bound(holder=FRAMEWORK, held_bytes=round(allocated)),
            Bound(holder=ALLOCATOR, held_bytes=round(reserved - allocated)),
        )
    if curve.place == DEVICE or left is None or not left.maps_read:
        return (Bound(holder=PLATEAU, held_bytes=kept),)
    # Where the allocator says what it keeps, that; else all that is in its heaps.
    states_it = any(term.slug == "heap_kept" for term in left.terms)
    allocator = sum(left.term_bytes(slug) for slug in (("heap_kept",) if states_it else ("heap", "arenas")))
    unexplained = max(0, left.unexplained_anon_bytes)
    return _without_empty(
        Bound(holder=ALLOCATOR, held_bytes=allocator),
        Bound(holder=FRAMEWORK, held_bytes=kept - allocator - unexplained),
        Bound(holder=UNEXPLAINED, held_bytes=unexplained),
    ) or (Bound(holder=PLATEAU, held_bytes=kept),)


def _without_empty(*bounds: Bound) -> tuple[Bound, ...]:
    """The largest first."""
    filled = [bound for bound in bounds if bound.held_bytes is not None and bound.held_bytes > 0]
    return tuple(sorted(filled, key=lambda bound: bound.held_bytes or 0, reverse=True))


def _statistics(result: TrialResult, phase: str) -> Mapping[str, float]:
    return {row.name: row.value for row in result.statistics if row.phase == phase}


def rest_without_copies(conversations: Sequence[Conversation]) -> list[int] | None:
    """Memory after each conversation less what the log says the host prompt cache holds; None where it says nothing."""
    rest = [c.held_bytes - c.host_cache_bytes for c in conversations if c.host_cache_bytes is not None]
    return rest if rest and len(rest) == len(conversations) else None


def rest_without_kept(conversations: Sequence[Conversation]) -> list[int] | None:
    """The same less the context checkpoints too; None where the log states none of them."""
    if not any(c.checkpoint_bytes for c in conversations):
        return None
    return [c.held_bytes - (c.host_cache_bytes or 0) - c.checkpoint_bytes for c in conversations]


def dearer_share(conversations: Sequence[Conversation]) -> float | None:
    """By what share memory grew by more than the host prompt cache does by the log, the first conversation left out:
    0 where that is no more than noise, None where the log does not state it to grow with each."""
    stated = [c.host_cache_bytes for c in conversations[1:] if c.host_cache_bytes is not None]
    if len(stated) < len(conversations) - 1 or len(stated) < FEWEST_CONVERSATIONS:
        return None
    if min(after - before for before, after in pairwise(stated)) <= 0:
        return None
    grown = conversations[-1].held_bytes - conversations[1].held_bytes
    stated_growth = stated[-1] - stated[0]
    return 0.0 if grown - stated_growth <= STILL_BYTES else grown / stated_growth - 1
