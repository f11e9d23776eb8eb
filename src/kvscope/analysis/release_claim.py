"""A verdict on a release as the slug of its sentence and the values in it."""

import math
from collections.abc import Mapping

from kvscope.analysis.release import Release
from kvscope.analysis.release_bounds import CHECKPOINTS, HOST_CACHE, KEEP_ALIVE, PLATEAU, PROMPT_COPIES, Bound
from kvscope.analysis.release_verdict import CANNOT_TELL, COPY_SHARE, GROWING, RELEASED

# The slugs of the sentences, each ``finding.<slug>`` in the words.
CLAIMS = (
    "release_released",
    "release_released_at_exit",
    "release_host_cache",
    "release_host_cache_dearer",
    "release_host_cache_full",
    "release_host_cache_full_running",
    "release_host_cache_over",
    "release_prompt_copies",
    "release_checkpoints",
    "release_keep_alive",
    "release_keep_alive_until",
    "release_keep_alive_for_ever",
    "release_plateau",
    "release_retained_bounded",
    "release_growing",
    "release_growing_again",
    "release_growing_per_token",
    "release_growing_no_limit",
    "release_growing_over_limit",
    "release_growing_copies",
    "release_growing_texts",
    "release_cannot_tell",
)


def claim_slug(release: Release) -> str:
    """One of CLAIMS."""
    if release.verdict == CANNOT_TELL:
        return "release_cannot_tell"
    if release.verdict == RELEASED:
        return "release_released_at_exit" if release.released_at == "exit" else "release_released"
    first = release.bounds[0] if release.bounds else None
    if release.verdict == GROWING:
        return _growing_slug(release, first)
    if first is None:
        return "release_retained_bounded"
    if first.holder == KEEP_ALIVE and first.until is not None:
        return "release_keep_alive_until"
    if first.holder == KEEP_ALIVE:
        is_for_ever = first.until_s is not None and math.isinf(first.until_s)
        return "release_keep_alive_for_ever" if is_for_ever else "release_keep_alive"
    if first.holder == HOST_CACHE:
        return _host_cache_slug(release, first)
    if first.holder == PLATEAU and release.kept_bytes is None:
        return "release_plateau"
    copies = "release_prompt_copies" if _is_compared(release) else "release_host_cache"
    named = {PROMPT_COPIES: copies, CHECKPOINTS: "release_checkpoints"}
    return named.get(first.holder, "release_retained_bounded")


def _host_cache_slug(release: Release, bound: Bound) -> str:
    if release.cause == HOST_CACHE:
        is_dearer = release.copies_share > COPY_SHARE and release.same_text_step is not None
        return "release_host_cache_dearer" if is_dearer else "release_host_cache"
    if bound.limit_bytes is not None and (bound.held_bytes or 0) > bound.limit_bytes:
        return "release_host_cache_over"
    return "release_host_cache_full_running" if release.kept_bytes is None else "release_host_cache_full"


def _growing_slug(release: Release, bound: Bound | None) -> str:
    if release.grows_again:
        return "release_growing_again"
    if release.cause in (HOST_CACHE, PROMPT_COPIES) and bound is not None and bound.limit_bytes is not None:
        return "release_growing_over_limit"
    if release.cause == HOST_CACHE:
        return "release_growing_no_limit"
    each = release.per_token
    if release.cause == PROMPT_COPIES and not _is_compared(release):
        return "release_growing_texts"
    if release.cause == PROMPT_COPIES or (each is not None and each.is_as_predicted):
        return "release_growing_copies"
    return "release_growing_per_token" if _is_compared(release) else "release_growing"


def _is_compared(release: Release) -> bool:
    """Whether growth for each token stands beside what the cache takes for one."""
    return release.per_token is not None and release.per_token.predicted_bytes is not None


def claim_values(release: Release) -> Mapping[str, object]:
    """What the sentences of CLAIMS name. ``bounds``: who keeps how much, as plain values."""
    first = release.bounds[0] if release.bounds else Bound(holder="")
    each = release.per_token
    until_s = first.until_s
    return {
        "factor": release.factor,
        "level": release.level,
        "step_bytes": release.step.value,
        "again_bytes": None if release.same_text_step is None else release.same_text_step.value,
        "dearer_share": release.copies_share,
        "conversations": len(release.conversations),
        "grown_bytes": release.grown_bytes,
        "kept_bytes": release.kept_bytes,
        "added_bytes": release.added_bytes,
        "limit_bytes": first.limit_bytes,
        "held_bytes": first.held_bytes,
        "to_go_bytes": first.to_go_bytes,
        "until_s": None if until_s is None or math.isinf(until_s) else until_s,
        "until": first.until,
        "unloaded_bytes": release.unloaded_bytes,
        "exited_bytes": release.exited_bytes,
        "per_token_bytes": None if each is None else each.growth.value,
        "per_token_predicted_bytes": None if each is None else each.predicted_bytes,
        "tokens": None if each is None else each.tokens_per_conversation,
        "bounds": tuple(
            {"holder": b.holder, "held_bytes": b.held_bytes, "limit_bytes": b.limit_bytes} for b in release.bounds
        ),
        "place": release.judged_place,
        "reason": None if release.reason is None else release.reason.slug,
        "reason_values": {} if release.reason is None else dict(release.reason.values),
    }
