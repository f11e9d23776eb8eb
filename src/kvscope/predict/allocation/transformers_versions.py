"""Releases of transformers other than the one measured (5.24.0): what of its rules is known to be otherwise.

Release 4 kept latent attention decompressed: every head's keys and values, not the latent. Nothing else of other
releases was measured, so whatever is said for one is an estimate.
"""

import re
from dataclasses import dataclass, replace
from typing import assert_never

from kvscope.errors import UnsupportedArchitecture, UsageError
from kvscope.model.spec import (
    CacheKind,
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    FullAttention,
    HiddenStateMemory,
    HybridCache,
    IndexedAttention,
    LatentAttention,
    LayerSpec,
    NoCache,
    RecurrentState,
    SharedCache,
    SlidingWindow,
)
from kvscope.predict.prediction import Unknown

MEASURED = (5, 24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """``major`` and ``minor`` of the release asked about."""

    major: int
    minor: int | None

    @property
    def is_measured(self) -> bool:
        return (self.major, self.minor) == MEASURED

    @property
    def unknown(self) -> tuple[Unknown, ...]:
        """What is not known of this release; nothing where it is the one measured."""
        if self.is_measured:
            return ()
        name = f"{self.major}.x" if self.minor is None else f"{self.major}.{self.minor}"
        why = f"transformers {name} was not measured: the rules are those of 5.24.0"
        if self.major < MEASURED[0]:
            why += ", with every head's keys and values in place of a latent, as release 4 is remembered to keep them"
        return (Unknown(what="kv_cache", why=why),)


def read_release(version: str | None) -> Release:
    """The release that a text such as "4.57", "5.24.0" or "transformers 5.24.0" names; None: the one measured. Raises
    UsageError for a text without a number, and for releases that nothing is known of."""
    if version is None:
        return Release(major=MEASURED[0], minor=MEASURED[1])
    found = re.fullmatch(r"(?:transformers[ =]*)?v?(\d+)(?:\.(\d+))?(?:[.+].*)?", version.strip())
    if found is None:
        raise UsageError(f"{version!r} is no release of transformers.", hint="Give one such as 5.24.0.")
    release = Release(major=int(found[1]), minor=None if found[2] is None else int(found[2]))
    if release.major not in (4, 5):
        raise UsageError(
            f"kvscope knows nothing of the cache of transformers {release.major}.", hint="Releases 4 and 5 are known."
        )
    return release


def caches_of(layer: LayerSpec, release: Release) -> tuple[CacheKind, ...]:
    """What this release keeps for a layer, one entry for each of the library's caches. Raises UnsupportedArchitecture
    for kinds that release 4 had no class for."""
    own = layer.cache if layer.transformers_cache is None else layer.transformers_cache
    caches = own if isinstance(own, tuple) else (own,)
    if release.major >= MEASURED[0]:
        return caches
    return tuple(_as_release_4(cache, layer.index) for cache in caches)


def _as_release_4(cache: CacheKind, layer_index: int) -> CacheKind:
    match cache:
        case LatentAttention():
            return _expanded(cache, layer_index)
        case HybridCache():
            if isinstance(cache.attention, LatentAttention):
                return replace(cache, attention=_expanded(cache.attention, layer_index))
            return cache
        case IndexedAttention() | CompressedAttention():
            raise UnsupportedArchitecture(
                f"Layer {layer_index} keeps index keys or compressed entries, which transformers 4 has no cache for.",
                hint="Ask about release 5.",
            )
        case (
            FullAttention()
            | SlidingWindow()
            | ChunkedAttention()
            | RecurrentState()
            | CrossAttention()
            | HiddenStateMemory()
            | SharedCache()
            | NoCache()
        ):
            return cache
        case _:
            assert_never(cache)


def _expanded(cache: LatentAttention, layer_index: int) -> FullAttention | SlidingWindow:
    heads = cache.expanded
    if heads is None:
        raise UnsupportedArchitecture(
            f"Layer {layer_index} is latent attention, and the model's files do not say the sizes of its heads, which "
            "transformers 4 keeps.",
            hint="Ask about release 5, which keeps the latent.",
        )
    if cache.window_tokens is None:
        return heads
    return SlidingWindow(
        num_kv_heads=heads.num_kv_heads,
        key_dim=heads.key_dim,
        value_dim=heads.value_dim,
        window_tokens=cache.window_tokens,
    )
