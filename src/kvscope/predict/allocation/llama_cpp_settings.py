"""llama.cpp's settings: every accepted name and spelling, its default, and the combinations the engine refuses.

Names are those of llama.cpp's ``common_params`` (and xllamacpp's CommonParams); llama-server's flags map to them.
Defaults and refusals: xllamacpp 2026.10.11549 (llama.cpp b11549).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvscope.dtypes import Dtype, dtype_named
from kvscope.errors import UnknownName, UsageError
from kvscope.scenario import SettingValue
from kvscope.units import parse_tokens

VERSION = "xllamacpp 2026.10.11549 (llama.cpp b11549), CPU"
MAX_SEQUENCES = 256
AUTO_SLOTS = 4
MAX_CONTEXT = 2**31 - 1
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

# Settings that do not change what is allocated at load. Accepted, and recorded, but not used; so is "sampling.…".
_NO_MEMORY = frozenset({
    "n_threads", "n_threads_batch", "n_threads_http", "warmup", "n_predict", "seed", "cache_prompt", "cont_batching",
    "n_cache_reuse", "slot_prompt_similarity", "ctx_shift", "rope_freq_base", "rope_freq_scale", "verbosity", "port",
    "hostname", "n_ctx_checkpoints", "checkpoint_min_step", "cache_idle_slots", "no_kv_offload",
    "check_tensors", "endpoint_slots", "endpoint_metrics", "endpoint_props", "use_jinja", "temperature",
})  # fmt: skip
_UNSUPPORTED = {
    "n_gpu_layers": "kvscope knows llama.cpp's memory on a CPU only, yet",
    "split_mode": "kvscope knows llama.cpp's memory on a CPU only, yet",
    "lora_adapters": "the memory of adapters is not known yet",
    "mmproj": "the memory of a vision part is not known yet",
    "model_draft": "the memory of a draft model is not known yet",
    "pooling_type": "the memory of pooled embeddings is not known yet",
}
_TOKEN_SETTINGS = ("n_ctx", "n_batch", "n_ubatch")
_COUNT_SETTINGS = ("n_parallel", "cache_ram_mib")
_FLAGS = ("kv_unified", "swa_full", "no_extra_bufts", "embedding", "fit_params")
_OWN = (*_TOKEN_SETTINGS, *_COUNT_SETTINGS, *_FLAGS, "cache_type_k", "cache_type_v", "flash_attn", "load_mode")
_ALIASES = {
    "ctx_size": "n_ctx", "c": "n_ctx",
    "parallel": "n_parallel", "np": "n_parallel",
    "batch_size": "n_batch", "b": "n_batch",
    "ubatch_size": "n_ubatch", "ub": "n_ubatch",
    "kvu": "kv_unified",
    "ctk": "cache_type_k", "ctv": "cache_type_v",
    "fa": "flash_attn", "flash_attn_type": "flash_attn",
    "cache_ram": "cache_ram_mib",
    "embeddings": "embedding",
    "ctx_checkpoints": "n_ctx_checkpoints",
    "threads": "n_threads", "t": "n_threads", "threads_batch": "n_threads_batch",
    "gpu_layers": "n_gpu_layers", "ngl": "n_gpu_layers",
    "no_repack": "no_extra_bufts", "context_shift": "ctx_shift", "cache_reuse": "n_cache_reuse",
    "lora": "lora_adapters", "pooling": "pooling_type",
}  # fmt: skip
_ON_OFF_AUTO = {
    "on": "on", "1": "on", "true": "on", "enabled": "on",
    "off": "off", "0": "off", "false": "off", "disabled": "off",
    "auto": "auto", "-1": "auto",
}  # fmt: skip
_TRUE_FALSE = {"true": True, "1": True, "on": True, "yes": True, "false": False, "0": False, "off": False, "no": False}
# llama.cpp's enum llama_load_mode. mlock pins the same bytes; direct I/O reads them like "none".
_LOAD_MODES = {
    "auto": "mmap", "-1": "mmap", "mmap": "mmap", "1": "mmap", "mmap_mlock": "mmap", "mmap+mlock": "mmap", "3": "mmap",
    "none": "none", "0": "none", "mlock": "none", "2": "none", "direct_io": "none", "dio": "none", "4": "none",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppSettings:
    """Settings as asked, spelled one way. ``n_ctx`` 0: the trained context. ``load_mode``: mmap or none.
    ``flash_attn``: on (auto resolves to on, on a CPU, in every case seen) or off. ``as_asked``: for the record."""

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
    as_asked: Mapping[str, SettingValue]


def canonical_settings(settings: Mapping[str, SettingValue], num_sequences: int) -> LlamaCppSettings:
    """Raises UnknownName for a setting llama.cpp does not have, UsageError for a value it would refuse.

    ``n_parallel`` not given: as many slots as ``num_sequences``.
    """
    asked = _canonical_names(settings)
    slots = _count(asked, "n_parallel", num_sequences)
    if slots == -1:
        slots, is_unified = AUTO_SLOTS, True  # the server's "auto"
    elif 1 <= slots <= MAX_SEQUENCES:
        is_unified = _flag(asked, "kv_unified")
    else:
        raise UsageError(
            f"llama.cpp refuses n_parallel = {slots}: n_seq_max must be <= {MAX_SEQUENCES}.",
            hint=f"Use 1 to {MAX_SEQUENCES}, or -1 for the server's own choice ({AUTO_SLOTS} slots, one shared cache).",
        )
    if num_sequences > slots:
        raise UsageError(
            f"{num_sequences} sequences at once need {num_sequences} slots, but n_parallel is {slots}.",
            hint=f"Set n_parallel to {num_sequences} or more; llama.cpp would make the others wait.",
        )
    flash_attn = _choice(asked, "flash_attn", "auto", _ON_OFF_AUTO)
    parsed = LlamaCppSettings(
        n_ctx=_tokens(asked, "n_ctx", 0, smallest=0),
        n_parallel=slots,
        kv_unified=is_unified,
        n_batch=_tokens(asked, "n_batch", 2048, smallest=1),
        n_ubatch=_tokens(asked, "n_ubatch", 512, smallest=1),
        cache_type_k=_cache_type(asked, "cache_type_k"),
        cache_type_v=_cache_type(asked, "cache_type_v"),
        flash_attn="off" if flash_attn == "off" else "on",
        swa_full=_flag(asked, "swa_full"),
        embedding=_flag(asked, "embedding"),
        load_mode=_choice(asked, "load_mode", "mmap", _LOAD_MODES),
        no_extra_bufts=_flag(asked, "no_extra_bufts"),
        fit_params=_flag(asked, "fit_params"),
        cache_ram_mib=_count(asked, "cache_ram_mib", 8192),
        as_asked=asked,
    )
    _check_together(parsed)
    return parsed


def _canonical_names(settings: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    asked: dict[str, SettingValue] = {}
    for given, value in settings.items():
        key = given.strip().lstrip("-").replace("-", "_").lower()
        name = _ALIASES.get(key, key)
        if key in ("no_mmap", "mmap"):
            is_mapped = _truth(given, value) != (key == "no_mmap")
            name, value = "load_mode", "mmap" if is_mapped else "none"
        if name in _UNSUPPORTED:
            raise UsageError(f"The setting {given} cannot be predicted: {_UNSUPPORTED[name]}.", hint="Leave it out.")
        if name not in _OWN and name not in _NO_MEMORY and not name.startswith("sampling."):
            raise UnknownName("llama.cpp setting", given, [*_OWN, *_NO_MEMORY, *_ALIASES])
        if name in asked and asked[name] != value:
            raise UsageError(f"{name} is given twice, as {asked[name]!r} and {value!r}.", hint="Give it once.")
        asked[name] = value
    return asked


def _check_together(settings: LlamaCppSettings) -> None:
    if settings.n_ctx == 1:
        raise UsageError("llama.cpp aborts with n_ctx = 1.", hint="Use 2 or more; 0 is the trained context.")
    if settings.cache_type_v.is_quantised and settings.flash_attn == "off":
        raise UsageError(
            "llama.cpp refuses this: quantized V cache requires flash_attn to be enabled.",
            hint="Set flash_attn to on or auto, or cache_type_v to f16.",
        )


def _tokens(asked: Mapping[str, SettingValue], name: str, default: int, *, smallest: int) -> int:
    value = asked.get(name)
    if value is None:
        return default
    tokens = parse_tokens(value) if isinstance(value, str) else value
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not smallest <= tokens <= MAX_CONTEXT:
        raise UsageError(f"{name} is {value!r}; a whole number from {smallest} to {MAX_CONTEXT} was expected.")
    return tokens


def _count(asked: Mapping[str, SettingValue], name: str, default: int) -> int:
    value = asked.get(name)
    if value is None:
        return default
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int) or number < -1:
        raise UsageError(f"{name} is {value!r}; a whole number from -1 up was expected.")
    return number


def _flag(asked: Mapping[str, SettingValue], name: str) -> bool:
    value = asked.get(name)
    return False if value is None else _truth(name, value)


def _truth(name: str, value: SettingValue) -> bool:
    truth = _TRUE_FALSE.get(str(value).lower())
    if truth is None:
        raise UsageError(f"{name} is {value!r}; true or false was expected.")
    return truth


def _choice(asked: Mapping[str, SettingValue], name: str, default: str, known: Mapping[str, str]) -> str:
    value = asked.get(name)
    if value is None:
        return default
    chosen = known.get(str(value).lower().replace("-", "_") if value != -1 else "-1")
    if chosen is None:
        words = sorted(word for word in known if word.replace("_", "").isalpha())
        raise UsageError(f"{name} is {value!r}; one of {', '.join(words)} was expected.")
    return chosen


def _cache_type(asked: Mapping[str, SettingValue], name: str) -> Dtype:
    value = asked.get(name)
    if value is None:
        return dtype_named("float16")
    spelled = str(value).lower()
    accepted = {dtype_named(entry).name for entry in CACHE_TYPES}
    try:
        dtype = dtype_named(spelled)
    except UnknownName:
        raise UnknownName("llama.cpp cache type", str(value), CACHE_TYPES) from None
    if dtype.name not in accepted:
        raise UnknownName("llama.cpp cache type", str(value), CACHE_TYPES)
    return dtype
