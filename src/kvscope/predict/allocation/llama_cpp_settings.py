"""llama.cpp's settings: every accepted name and spelling, its default, and the combinations the engine refuses.

Names are those of llama.cpp's ``common_params`` (and xllamacpp's CommonParams); llama-server's flags map to them.
Defaults and refusals: xllamacpp 2026.10.11549 (llama.cpp b11549).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from kvscope.dtypes import Dtype, dtype_named
from kvscope.errors import UnknownName, UsageError
from kvscope.predict.allocation.setting_values import Reader, SettingTable, finite_number, truth, whole_number
from kvscope.scenario import SettingValue

VERSION = "xllamacpp 2026.10.11549 (llama.cpp b11549), CPU"
MAX_SEQUENCES = 256
AUTO_SLOTS = 4
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

_Kind = TypeVar("_Kind")


def _choice(known: Mapping[str, str]) -> Reader:
    """One of the engine's words, which are the values of ``known``."""

    def read(name: str, value: SettingValue) -> SettingValue:
        # Spelled out, because None is the absence of a value and no word for "none".
        chosen = None if value is None else known.get(str(value).lower())
        if chosen is None:
            words = sorted({word for word in known if not word.lstrip("-").isdigit()})
            raise UsageError(f"{name} is {value!r}; one of {', '.join(words)} was expected.")
        return chosen

    return read


def _cache_type(name: str, value: SettingValue) -> SettingValue:
    accepted = {dtype_named(word).name: word for word in CACHE_TYPES}
    try:
        word = accepted.get(dtype_named(str(value)).name)
    except UnknownName:
        word = None
    if word is None:
        raise UnknownName("llama.cpp cache type", str(value), CACHE_TYPES)
    return word


_ON_OFF_AUTO = {
    "on": "on", "1": "on", "true": "on", "enabled": "on",
    "off": "off", "0": "off", "false": "off", "disabled": "off",
    "auto": "auto", "-1": "auto",
}  # fmt: skip
# llama.cpp's enum llama_load_mode, its words as llama_load_mode_name gives them.
_LOAD_MODES = {
    "auto": "auto", "-1": "auto", "none": "none", "0": "none", "mmap": "mmap", "1": "mmap", "mlock": "mlock",
    "2": "mlock", "mmap+mlock": "mmap+mlock", "mmap_mlock": "mmap+mlock", "3": "mmap+mlock",
    "dio": "dio", "direct_io": "dio", "direct-io": "dio", "4": "dio",
}  # fmt: skip
# Which of them map the file: mlock pins the same bytes, direct I/O reads them like "none".
_MAPPED = frozenset({"auto", "mmap", "mmap+mlock"})

# Settings that decide what is allocated at load.
_USED: Mapping[str, Reader] = {
    "n_ctx": whole_number(0, tokens=True),
    "n_batch": whole_number(1, tokens=True),
    "n_ubatch": whole_number(1, tokens=True),
    "n_parallel": whole_number(-1),
    "cache_ram_mib": whole_number(-1),
    "kv_unified_per_slot": whole_number(0, tokens=True),
    "kv_unified": truth,
    "swa_full": truth,
    "no_extra_bufts": truth,
    "embedding": truth,
    "fit_params": truth,
    "cache_type_k": _cache_type,
    "cache_type_v": _cache_type,
    "flash_attn": _choice(_ON_OFF_AUTO),
    "load_mode": _choice(_LOAD_MODES),
}
# Settings that do not change what is allocated at load: accepted, and recorded, but not used.
_NO_MEMORY: Mapping[str, Reader] = {
    **dict.fromkeys(("n_threads", "n_threads_batch", "n_threads_http", "n_predict", "verbosity"), whole_number(-1)),
    **dict.fromkeys(
        ("n_cache_reuse", "n_ctx_checkpoints", "checkpoint_min_step", "n_outputs_max"), whole_number(0, tokens=True)
    ),
    **dict.fromkeys(("slot_prompt_similarity", "rope_freq_base", "rope_freq_scale"), finite_number),
    **dict.fromkeys(("warmup", "cache_prompt", "cont_batching", "ctx_shift", "cache_idle_slots"), truth),
    **dict.fromkeys(("no_kv_offload", "check_tensors", "endpoint_slots", "endpoint_metrics", "endpoint_props"), truth),
    "seed": whole_number(0, 2**32 - 1),
    "sampling.temp": finite_number,
    "sampling.top_k": whole_number(0),
    "sampling.top_p": finite_number,
    "sampling.min_p": finite_number,
}
_READERS: Mapping[str, Reader] = {**_USED, **_NO_MEMORY}
SETTING_NAMES = tuple(_READERS)
_UNSUPPORTED = {
    "n_gpu_layers": "kvscope knows llama.cpp's memory on a CPU only, yet",
    "split_mode": "kvscope knows llama.cpp's memory on a CPU only, yet",
    "lora_adapters": "the memory of adapters is not known yet",
    "mmproj": "the memory of a vision part is not known yet",
    "model_draft": "the memory of a draft model is not known yet",
    "pooling_type": "the memory of pooled embeddings is not known yet",
}
ALIASES: Mapping[str, str] = {
    "ctx_size": "n_ctx", "c": "n_ctx",
    "parallel": "n_parallel", "np": "n_parallel",
    "batch_size": "n_batch", "b": "n_batch",
    "ubatch_size": "n_ubatch", "ub": "n_ubatch",
    "kvu": "kv_unified",
    "ctk": "cache_type_k", "ctv": "cache_type_v",
    "fa": "flash_attn", "flash_attn_type": "flash_attn",
    "lm": "load_mode",
    "cache_ram": "cache_ram_mib",
    "embeddings": "embedding",
    "ctx_checkpoints": "n_ctx_checkpoints",
    "threads": "n_threads", "t": "n_threads", "threads_batch": "n_threads_batch", "threads_http": "n_threads_http",
    "predict": "n_predict",
    "gpu_layers": "n_gpu_layers", "ngl": "n_gpu_layers",
    "no_repack": "no_extra_bufts", "context_shift": "ctx_shift", "cache_reuse": "n_cache_reuse",
    "lora": "lora_adapters", "pooling": "pooling_type",
    "sampling.seed": "seed", "s": "seed",
    "temperature": "sampling.temp", "temp": "sampling.temp",
    "top_k": "sampling.top_k", "top_p": "sampling.top_p", "min_p": "sampling.min_p",
}  # fmt: skip
# Truth values that are a load_mode: flags of older versions, and how Python bindings call them.
_LOAD_WORDS = {
    "mmap": ("mmap", "none"), "use_mmap": ("mmap", "none"), "no_mmap": ("none", "mmap"),
    "mlock": ("mlock", "auto"), "use_mlock": ("mlock", "auto"),
}  # fmt: skip
_TABLE = SettingTable(
    kind="llama.cpp setting",
    readers=_READERS,
    aliases=ALIASES,
    translated=tuple(_LOAD_WORDS),
    unsupported=_UNSUPPORTED,
)
# As xllamacpp's CommonParams has them, but for fit_params: kvscope turns it off, to measure what was asked for.
_DEFAULTS: Mapping[str, SettingValue] = {
    "n_ctx": 0, "n_batch": 2048, "n_ubatch": 512, "cache_ram_mib": 8192, "kv_unified": False, "swa_full": False,
    "kv_unified_per_slot": 0,
    "no_extra_bufts": False, "embedding": False, "fit_params": False, "cache_type_k": "f16", "cache_type_v": "f16",
    "flash_attn": "auto", "load_mode": "auto",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppSettings:
    """Settings as asked, spelled one way. ``n_ctx`` 0: the trained context. ``load_mode``: mmap or none.
    ``flash_attn``: on (auto resolves to on, on a CPU, in every case seen) or off. ``slot_tokens``: kv_unified_per_slot,
    the most one slot may hold whatever its stream has; None: not limited. ``as_asked``: for the record."""

    n_ctx: int
    n_parallel: int
    kv_unified: bool
    n_batch: int
    n_ubatch: int
    cache_type_k: Dtype
    cache_type_v: Dtype
    flash_attn: str
    swa_full: bool
    embedding: bool
    load_mode: str
    no_extra_bufts: bool
    fit_params: bool
    cache_ram_mib: int
    slot_tokens: int | None
    as_asked: Mapping[str, SettingValue]


def canonical_settings(settings: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Settings by llama.cpp's own names and in its own words, as every way of running it takes them: ``ctk`` becomes
    ``cache_type_k``, "8k" 8192, ``no_mmap`` true ``load_mode`` none.

    Raises UnknownName for a setting or value llama.cpp does not have; UsageError for a value it would not take, a
    setting given twice (in two spellings), and one whose memory is not known.
    """
    return _TABLE.canonical(settings, _mapped_or_not)


def _mapped_or_not(name: str, value: SettingValue) -> tuple[str, SettingValue]:
    if name not in _LOAD_WORDS:
        return name, value
    return "load_mode", _LOAD_WORDS[name][0 if truth(name, value) else 1]


def read_settings(settings: Mapping[str, SettingValue], num_sequences: int) -> LlamaCppSettings:
    """What the engine would make of the settings. Raises as ``canonical_settings``, and UsageError for what llama.cpp
    would refuse.

    ``n_parallel`` not given: as many slots as ``num_sequences``.
    """
    asked = canonical_settings(settings)
    values = {**_DEFAULTS, "n_parallel": num_sequences, **asked}
    slots, is_unified = _slots(_typed(values, "n_parallel", int), _typed(values, "kv_unified", bool))
    if num_sequences > slots:
        raise UsageError(
            f"{num_sequences} sequences at once need {num_sequences} slots, but n_parallel is {slots}.",
            hint=f"Set n_parallel to {num_sequences} or more; llama.cpp would make the others wait.",
        )
    parsed = LlamaCppSettings(
        n_ctx=_typed(values, "n_ctx", int),
        n_parallel=slots,
        kv_unified=is_unified,
        n_batch=_typed(values, "n_batch", int),
        n_ubatch=_typed(values, "n_ubatch", int),
        cache_type_k=dtype_named(_typed(values, "cache_type_k", str)),
        cache_type_v=dtype_named(_typed(values, "cache_type_v", str)),
        flash_attn="off" if values["flash_attn"] == "off" else "on",
        swa_full=_typed(values, "swa_full", bool),
        embedding=_typed(values, "embedding", bool),
        load_mode="mmap" if values["load_mode"] in _MAPPED else "none",
        no_extra_bufts=_typed(values, "no_extra_bufts", bool),
        fit_params=_typed(values, "fit_params", bool),
        cache_ram_mib=_typed(values, "cache_ram_mib", int),
        slot_tokens=_typed(values, "kv_unified_per_slot", int) or None,
        as_asked=asked,
    )
    _check_together(parsed)
    return parsed


def _typed(values: Mapping[str, SettingValue], name: str, kind: type[_Kind]) -> _Kind:
    value = values[name]
    assert isinstance(value, kind)  # its reader saw to that
    return value


def _slots(n_parallel: int, kv_unified: bool) -> tuple[int, bool]:
    """Slots, and whether they share one cache."""
    if n_parallel == -1:
        return AUTO_SLOTS, True  # the server's "auto"
    if not 1 <= n_parallel <= MAX_SEQUENCES:
        raise UsageError(
            f"llama.cpp refuses n_parallel = {n_parallel}: n_seq_max must be <= {MAX_SEQUENCES}.",
            hint=f"Use 1 to {MAX_SEQUENCES}, or -1 for the server's own choice ({AUTO_SLOTS} slots, one shared cache).",
        )
    return n_parallel, kv_unified


def _check_together(settings: LlamaCppSettings) -> None:
    if settings.n_ctx == 1:
        raise UsageError("llama.cpp aborts with n_ctx = 1.", hint="Use 2 or more; 0 is the trained context.")
