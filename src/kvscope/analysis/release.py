"""Did the memory come back? A verdict from the growth between conversations and from what stays after the release."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.attribute import Attribution, attribute
from kvscope.analysis.fit import Estimate, mean
from kvscope.analysis.prompt_copies import host_cache_bytes
from kvscope.record.metrics import held_bytes, last_mark
from kvscope.record.rows import Json, TrialResult
from kvscope.units import MIB

# What a conversation may add without it being called growth: heap and thread stacks move by some hundred KiB.
GROWTH_STEP_BYTES = MIB // 2
# Memory counts as back when what stays is below this share of what had been added, or below 1 MiB.
BACK_SHARE = 0.05

_LIMIT = re.compile(r"limits?:\s*([\d.]+)\s*MiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Memory after one of several conversations. ``host_cache_bytes`` is what the engine's log states, or None."""

    request_index: int
    held_bytes: int
    host_cache_bytes: int | None
    active_requests: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """``verdict``: released, retained_bounded, growing, only_at_exit (the engine showed no release of its own; its
    memory came back when its process ended) or undecided. ``step`` is the growth from one conversation to the next, the
    first left out (it touches buffers for the first time). ``cause``: host_cache where the engine's host prompt cache
    explains the growth, none where it does not go on, unknown otherwise. ``left`` tells of what the memory after the
    engine's own release is made."""

    attempt_key: str
    factor: str
    level: Json
    verdict: str
    cause: str
    launched_bytes: int | None
    loaded_bytes: int | None
    conversations: tuple[Conversation, ...]
    step: Estimate
    host_cache_limit_bytes: int | None
    unloaded_bytes: int | None
    exited_bytes: int | None
    left: Attribution | None

    @property
    def last_bytes(self) -> int | None:
        return self.conversations[-1].held_bytes if self.conversations else self.loaded_bytes

    @property
    def added_bytes(self) -> int | None:
        """What the engine had added since its start, after the last conversation."""
        if self.last_bytes is None or self.launched_bytes is None:
            return None
        return self.last_bytes - self.launched_bytes

    @property
    def kept_bytes(self) -> int | None:
        """What stays over the start after the engine's own release."""
        if self.unloaded_bytes is None or self.launched_bytes is None:
            return None
        return self.unloaded_bytes - self.launched_bytes

    @property
    def grown_bytes(self) -> int | None:
        """From the first conversation to the last."""
        if len(self.conversations) < 2:
            return None
        return self.conversations[-1].held_bytes - self.conversations[0].held_bytes


def judge_release(attempt: Attempt) -> Release | None:
    """The verdict of one measured attempt; None if its memory was not read after a request."""
    result = attempt.result
    conversations = _conversations(result)
    if not attempt.is_measured or not conversations:
        return None
    held = [c.held_bytes for c in conversations]
    step = mean([after - before for before, after in itertools.pairwise(held)])
    cause = _cause(conversations)
    moments = {phase: _held(result, phase) for phase in ("launched", "loaded", "unloaded", "exited")}
    limit = _cache_limit(result)
    return Release(
        attempt_key=attempt.key,
        factor=attempt.design.factor,
        level=attempt.trial.level,
        verdict=_verdict(conversations, cause, limit, moments),
        cause=cause,
        launched_bytes=moments["launched"],
        loaded_bytes=moments["loaded"],
        conversations=conversations,
        step=step,
        host_cache_limit_bytes=limit,
        unloaded_bytes=moments["unloaded"],
        exited_bytes=moments["exited"],
        left=attribute(result, attempt.prediction, "unloaded"),
    )


def _conversations(result: TrialResult) -> tuple[Conversation, ...]:
    return tuple(
        Conversation(
            request_index=mark.request_index if mark.request_index is not None else number,
            held_bytes=held_bytes(mark),
            host_cache_bytes=host_cache_bytes(result, mark.request_index),
            active_requests=mark.active_requests,
        )
        for number, mark in enumerate(m for m in result.marks if m.phase == "after_request")
    )


def _held(result: TrialResult, phase: str) -> int | None:
    mark = last_mark(result, phase)
    return None if mark is None else held_bytes(mark)


def _cache_limit(result: TrialResult) -> int | None:
    """The host prompt cache's limit, from the engine's own line ("limits: 8192.000 MiB")."""
    found = [_LIMIT.search(r.line) for r in result.reported if r.component == "host_cache"]
    limits = [round(float(match[1]) * MIB) for match in found if match]
    return limits[-1] if limits else None


def _is_flat(held: Sequence[int]) -> bool:
    """Whether the later half of the steps, two at least where there are two, moves by no more than the noise."""
    count = len(held) - 1
    last = held[-1 - max(min(2, count), (count + 1) // 2) :]
    return max(last) - min(last) <= GROWTH_STEP_BYTES * max(1, len(last) - 1)


def _has_grown(held: Sequence[int]) -> bool:
    """From the first conversation to the last, beyond the noise, and still doing so at the end."""
    return held[-1] - held[0] > GROWTH_STEP_BYTES * max(1, len(held) - 1) and not _is_flat(held)


def _rest(conversations: Sequence[Conversation]) -> list[int] | None:
    """Memory after each conversation less what the log says the host prompt cache holds; None where it says nothing."""
    rest = [c.held_bytes - c.host_cache_bytes for c in conversations if c.host_cache_bytes is not None]
    return rest if len(rest) == len(conversations) else None


def _cause(conversations: Sequence[Conversation]) -> str:
    """host_cache: less what the host prompt cache holds, memory has not grown from conversation to conversation. What
    comes once (a buffer touched, a checkpoint made) is not growth."""
    if not _has_grown([c.held_bytes for c in conversations]):
        return "none"
    rest = _rest(conversations)
    return "unknown" if rest is None or _has_grown(rest) else "host_cache"


def _verdict(
    conversations: Sequence[Conversation], cause: str, limit: int | None, moments: Mapping[str, int | None]
) -> str:
    """Two steps at least carry a claim about several conversations."""
    held = [c.held_bytes for c in conversations]
    if _has_grown(held):
        if cause == "host_cache" and limit is not None:
            return "retained_bounded"
        # A leak adds at most conversations; one step among several, or memory that also came back, must be asked again.
        steps = [after - before for before, after in itertools.pairwise(_rest(conversations) or held)]
        rising = sum(step > GROWTH_STEP_BYTES for step in steps)
        is_steady = len(steps) > 1 and 2 * rising > len(steps) and min(steps) >= -GROWTH_STEP_BYTES
        return "growing" if is_steady else "undecided"
    launched = moments["launched"]
    if launched is None:
        return "undecided"
    back = max(BACK_SHARE * (held[-1] - launched), MIB)
    unloaded, exited = moments["unloaded"], moments["exited"]
    if unloaded is None:
        return "only_at_exit" if exited is not None and exited <= back else "undecided"
    if unloaded - launched <= back:
        return "released"
    return "retained_bounded" if len(held) > 2 and _is_flat(held) else "undecided"
