"""What a change of settings is, whichever engine's names it is in: its axis, and what it may do at worst.

Changes of one axis exclude each other. ``harm``: 0 nothing that is known, 1 time or what can be reused, 2 the answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kvscope.record.rows import Json

Harm = Literal[0, 1, 2]

# Engines' names of one thing → its axis. Names: llama.cpp; Ollama; vLLM; SGLang; transformers.
_AXES: Mapping[str, str] = {
    **dict.fromkeys(("cache_type_k", "cache_type_v", "kv_cache_type", "kv_cache_dtype"), "cache_type"),
    **dict.fromkeys(("cache_implementation", "backend", "nbits"), "cache_type"),
    **dict.fromkeys(("n_ctx", "num_ctx", "max_model_len", "context_length", "max_cache_len"), "context"),
    **dict.fromkeys(("n_ubatch", "num_batch", "max_num_batched_tokens", "prefill_chunk_tokens"), "microbatch"),
    "chunked_prefill_size": "microbatch",
    **dict.fromkeys(("swa_full", "disable_hybrid_kv_cache_manager", "disable_hybrid_swa_memory"), "window"),
    **dict.fromkeys(("flash_attn", "flash_attention"), "flash"),
    "cache_ram_mib": "host_cache",
    **dict.fromkeys(("n_parallel", "num_parallel"), "slots"),
    "kv_unified": "unified",
    "no_extra_bufts": "repack",
    **dict.fromkeys(("load_mode", "use_mmap"), "load_mode"),
    "dtype": "weights_dtype",
}
# Formats of a cache that take nothing from its values.
_WHOLE = frozenset({"f16", "bf16", "f32", "float16", "bfloat16", "float32", "auto", "dynamic", "dynamic_full"})
# Formats by which most models lose little (llama.cpp pull request 7412).
_MILD = frozenset({"q8_0", "offloaded"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """``slug`` names the sentence that is said of the change, ``name`` what it is a change of."""

    name: str
    slug: str
    harm: Harm


def axis_of(change: Mapping[str, Json], before: Mapping[str, Json]) -> Axis:
    """The axis of a change from the settings ``before``; "setting" of what kvscope has no words for, or of several
    things at once."""
    names = {_AXES.get(name, "setting") for name in change}
    name = names.pop() if len(names) == 1 else "setting"
    value = next(iter(change.values()), None)
    match name:
        case "cache_type":
            offloaded = str(value).startswith("offloaded")
            return Axis(name=name, slug="cache_offloaded" if offloaded else name, harm=_cache_harm(change))
        case "microbatch":
            old = before.get(next(iter(change)))
            is_smaller = isinstance(old, int) and isinstance(value, int) and value < old
            return Axis(name=name, slug="microbatch_smaller" if is_smaller else "microbatch_larger", harm=1)
        case "window":
            return Axis(name=name, slug="window_whole" if value is True else "window_only", harm=1)
        case "flash":
            is_on = str(value).lower() in ("on", "true", "1", "enabled")
            return Axis(name=name, slug="flash_on" if is_on else "flash_off", harm=0 if is_on else 1)
        case "weights_dtype":
            return Axis(name=name, slug=name, harm=0 if value == "float32" else 2)
        case "repack":
            return Axis(name=name, slug="repack_off" if value is True else "repack_on", harm=1)
        case "setting":
            return Axis(name="setting: " + ", ".join(sorted(change)), slug=name, harm=1)
    return Axis(name=name, slug=name, harm=1)


def _cache_harm(change: Mapping[str, Json]) -> Harm:
    kinds = {str(value) for name, value in change.items() if name not in ("backend", "nbits")}
    if kinds <= _WHOLE:
        return 0
    return 1 if kinds <= _WHOLE | _MILD else 2
