"""What of llama.cpp's settings and of a model decides what the server reuses."""

import re
from collections.abc import Mapping

from kvscope.errors import UsageError
from kvscope.model.spec import (
    FullAttention,
    HybridCache,
    LatentAttention,
    ModelSpec,
    NoCache,
    RecurrentState,
    SharedCache,
    SlidingWindow,
)
from kvscope.prompt.reuse_engines.base import Status
from kvscope.prompt.reuse_engines.llama_cpp_slots import SlotSettings
from kvscope.prompt.reuse_engines.setting_values import at_least, at_least_one, flag, share, whole
from kvscope.scenario import SettingValue

SOURCE = (
    "llama.cpp: tools/server/server-context.cpp (get_available_slot, pre_decode, create_checkpoint), "
    "src/llama-kv-cache.cpp (find_slot); measured with build b11549"
)
_MEASURED = "11549"
_AUTO_SLOTS = 4
_MOST_SLOTS = 256  # LLAMA_MAX_SEQ
_CELL_MULTIPLE = 256
_FOLLOWED = (FullAttention, SlidingWindow, LatentAttention, RecurrentState, HybridCache, SharedCache, NoCache)
# Where neither the settings nor the model say how much is held; more than any prompt.
_ANY_CONTEXT = 1 << 24


def slot_settings(model: ModelSpec | None, settings: Mapping[str, SettingValue]) -> SlotSettings:
    """The server's settings as it would make them of ``settings`` (llama.cpp's own names). Raises UsageError for a
    value that is none."""
    slots, is_unified = whole(settings, "n_parallel", 1), flag(settings, "kv_unified", False)
    if slots == -1:
        slots, is_unified = _AUTO_SLOTS, True  # the server's "auto"
    if not 1 <= slots <= _MOST_SLOTS:
        raise UsageError(f"n_parallel is {slots}; 1 to {_MOST_SLOTS}, or -1, was expected.")
    trained = model.trained_context_tokens if model is not None else None
    context = at_least(0, settings, "n_ctx", 0) or trained or _ANY_CONTEXT
    cells = _round_up(context)
    if not is_unified:
        cells = _round_up(cells // slots)
    batch = min(at_least_one(settings, "n_batch", 2048), context)
    microbatch = min(at_least_one(settings, "n_ubatch", 512), batch)
    window = window_of(model)
    is_full = flag(settings, "swa_full", False)
    needed = (window or 0) * (slots if is_unified else 1) + microbatch
    return SlotSettings(
        cells=cells,
        n_parallel=slots,
        kv_unified=is_unified,
        n_batch=batch,
        n_ubatch=microbatch,
        cache_prompt=flag(settings, "cache_prompt", True),
        has_prompt_cache=at_least(-1, settings, "cache_ram_mib", 8192) != 0,
        cache_idle_slots=flag(settings, "cache_idle_slots", True),
        slot_prompt_similarity=share(settings, "slot_prompt_similarity", 0.1),
        n_ctx_checkpoints=at_least(0, settings, "n_ctx_checkpoints", 32),
        checkpoint_min_step=at_least(0, settings, "checkpoint_min_step", 8192),
        window_tokens=window,
        window_cells=cells if is_full else min(cells, _round_up(needed)),
        swa_full=is_full,
        is_recurrent=model is not None
        and any(isinstance(each, RecurrentState | HybridCache) for each in _caches(model)),
    )


def window_of(model: ModelSpec | None) -> int | None:
    """The sliding window; None where the model has none."""
    windows = {each.window_tokens for each in _caches(model) if isinstance(each, SlidingWindow)} if model else set()
    return max(windows, default=None)


def _caches(model: ModelSpec) -> list[object]:
    return [layer.cache for layer in model.layers]


def not_followed(model: ModelSpec | None, settings: Mapping[str, SettingValue]) -> str | None:
    """Why nothing is said of this model with these settings; None where something is."""
    if whole(settings, "n_cache_reuse", 0) > 0:
        return "n_cache_reuse moves parts of a prompt to other positions, which is not followed here"
    if flag(settings, "ctx_shift", False):
        return "ctx_shift drops the middle of a conversation while it is answered, which is not followed here"
    caches = _caches(model) if model is not None else []
    others = sorted({type(each).__name__ for each in caches if not isinstance(each, _FOLLOWED)})
    if others:
        return f"the rule for a cache of this kind ({', '.join(others)}) is not known"
    is_recurrent = any(isinstance(each, RecurrentState | HybridCache) for each in caches)
    if is_recurrent and window_of(model) is not None:
        return "the rule for sliding windows and recurrent states in one model is not known"
    return None


def status_of(model: ModelSpec | None, version: str | None) -> tuple[Status, str]:
    """How sure the answer is, and what to add to its reason. ``version`` None: the one that was measured."""
    if model is None:
        return "estimated", "; no model is stated, so that every layer is taken to keep every token"
    if model.source_kind != "gguf":
        return "estimated", "; the model was not read from a GGUF, the file that llama.cpp runs"
    if version is not None and not re.search(rf"(?<![0-9]){_MEASURED}(?![0-9])", version):
        return "estimated", f"; the rule is that of build b{_MEASURED}, the engine is {version}"
    return "exact", ""


def _round_up(tokens: int) -> int:
    return -(-tokens // _CELL_MULTIPLE) * _CELL_MULTIPLE
