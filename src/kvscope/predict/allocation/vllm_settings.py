"""vLLM's settings: every accepted name and spelling, its default, and the combinations the engine refuses.

Names are those of vLLM's engine arguments (``vllm serve --help`` with underscores). Defaults: vLLM 0.32.0 (V1).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvscope.dtypes import Dtype, dtype_named
from kvscope.errors import UnknownName, UsageError
from kvscope.predict.allocation.setting_values import (
    Reader,
    SettingTable,
    as_given,
    finite_number,
    refuse_two_dtypes,
    truth,
    whole_number,
)
from kvscope.scenario import SettingValue
from kvscope.units import GIB, parse_bytes

VERSION = "vLLM 0.32.0 (V1)"
RELEASE = "0.32.0"
AUTO_LENGTH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What the attention kernels of a device fix. ``block_tokens``: a block where none is asked for; ``kernel_tokens``:
    blocks are multiples of this; ``batches``: batches in flight at once (two where scheduling is asynchronous);
    ``batched_tokens``: default of max_num_batched_tokens for offline use, per rank on a CPU. ``state_dtype``: format of
    recurrent state left "auto"; None: the model's own."""

    device: str
    block_tokens: int
    kernel_tokens: int
    batches: int
    batched_tokens: int
    state_dtype: str | None


CPU = Backend(device="cpu", block_tokens=128, kernel_tokens=32, batches=1, batched_tokens=4096, state_dtype="float32")
# A GPU of under 70 GiB, offline; asynchronous scheduling is on by default there.
CUDA = Backend(device="cuda", block_tokens=16, kernel_tokens=16, batches=2, batched_tokens=8192, state_dtype=None)
# No device was named, but the settings are none that a CPU takes: the planner's rules alone.
UNSTATED_GPU = Backend(
    device="cuda",
    block_tokens=16,
    kernel_tokens=16,
    batches=1,
    batched_tokens=8192,
    state_dtype="float32",
)

# Formats of cached keys and values → bytes of one element, before scales. None: the model's own format.
CACHE_DTYPES: Mapping[str, int | None] = {
    "auto": None, "float16": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8_per_token_head": 1,
    "fp8_per_token_head": 1, "int4_per_token_head": 1, "nvfp4": 1, "nvfp4_4over6": 1, "fp8_ds_mla": 1,
    "nvfp4_ds_mla": 1,
}  # fmt: skip
CPU_CACHE_DTYPES = frozenset({"auto", "fp8", "fp8_e4m3", "fp8_e5m2"})
_CACHE_ALIASES = {"half": "float16", "fp16": "float16", "f16": "float16", "bf16": "bfloat16"}
_STATE_DTYPES = ("auto", "float32", "float16", "bfloat16")


def _fraction(name: str, value: SettingValue) -> SettingValue:
    number = finite_number(name, value)
    if not 0 < number <= 1:
        raise UsageError(f"{name} is {value!r}; a fraction above 0 and at most 1 was expected.")
    return number


def _gib(name: str, value: SettingValue) -> SettingValue:
    number = finite_number(name, value)
    if number < 0 or not (number * GIB).is_integer():
        raise UsageError(f"{name} is {value!r}; a number of GiB was expected.")
    return number


def _bytes(name: str, value: SettingValue) -> SettingValue:
    if isinstance(value, str):
        return parse_bytes(value)
    return _whole_bytes(name, value)


def _whole_bytes(name: str, value: SettingValue) -> SettingValue:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{name} is {value!r}; a number of bytes was expected.")
    return value


def _word(kind: str, known: tuple[str, ...], aliases: Mapping[str, str] | None = None) -> Reader:
    def read(name: str, value: SettingValue) -> SettingValue:
        word = str(value).lower().removeprefix("torch.")
        word = (aliases or {}).get(word, word)
        if word not in known:
            raise UnknownName(kind, str(value), known)
        return word

    return read


def _model_dtype(name: str, value: SettingValue) -> SettingValue:
    if str(value).lower() == "auto":
        return "auto"
    found = dtype_named(str(value)).name
    if found not in ("float32", "float16", "bfloat16"):
        raise UnknownName("vLLM model dtype", str(value), ("auto", "bfloat16", "float16", "float32"))
    return found


_READERS: Mapping[str, Reader] = {
    "device": _word("vLLM device", ("cpu", "cuda"), {"gpu": "cuda"}),
    "dtype": _model_dtype,
    "block_size": whole_number(1),
    "kv_cache_dtype": _word("vLLM cache dtype", tuple(CACHE_DTYPES), _CACHE_ALIASES),
    "max_model_len": whole_number(1, tokens=True, words={"auto": AUTO_LENGTH, "-1": AUTO_LENGTH}),
    "max_num_batched_tokens": whole_number(1, tokens=True),
    "max_num_seqs": whole_number(1),
    "enable_prefix_caching": truth,
    "disable_hybrid_kv_cache_manager": truth,
    "async_scheduling": truth,
    "num_gpu_blocks_override": whole_number(1),
    "tensor_parallel_size": whole_number(1),
    "pipeline_parallel_size": whole_number(1),
    "data_parallel_size": whole_number(1),
    "decode_context_parallel_size": whole_number(1),
    "enable_expert_parallel": truth,
    "mamba_cache_mode": _word("vLLM mamba cache mode", ("align", "none", "all")),
    "mamba_cache_dtype": _word("vLLM mamba cache dtype", _STATE_DTYPES),
    "mamba_ssm_cache_dtype": _word("vLLM mamba cache dtype", _STATE_DTYPES),
    "num_speculative_tokens": whole_number(0),
    "kv_cache_memory_bytes": _bytes,
    "VLLM_CPU_KVCACHE_SPACE": _gib,
    "kv_offloading_size": _gib,
    "gpu_memory_utilization": _fraction,
    # Accepted and recorded; they do not change what the pool or the weights take.
    **dict.fromkeys(
        ("enforce_eager", "enable_chunked_prefill", "trust_remote_code", "skip_tokenizer_init", "enable_sleep_mode"),
        truth,
    ),
    **dict.fromkeys(
        (
            "load_format",
            "seed",
            "served_model_name",
            "prefix_caching_hash_algo",
            "revision",
            "tokenizer",
            "chat_template",
        ),
        as_given,
    ),
}
SETTING_NAMES = tuple(_READERS)
ALIASES: Mapping[str, str] = {
    "cache_dtype": "kv_cache_dtype", "max_seq_len": "max_model_len", "max_seqs": "max_num_seqs",
    "enable_chunked_context": "enable_chunked_prefill", "tp": "tensor_parallel_size", "tensor_parallel":
    "tensor_parallel_size", "pp": "pipeline_parallel_size", "pipeline_parallel": "pipeline_parallel_size",
    "dp": "data_parallel_size", "dcp": "decode_context_parallel_size", "prefix_caching": "enable_prefix_caching",
    "vllm_cpu_kvcache_space": "VLLM_CPU_KVCACHE_SPACE", "vllm_cpu_kvcache_space_gib": "VLLM_CPU_KVCACHE_SPACE",
}  # fmt: skip
_UNSUPPORTED = {
    "quantization": "quantised weights are read from the model's own config",
    "cpu_offload_gb": "the memory of offloaded weights is not known yet",
    "kv_cache_dtype_skip_layers": "the pool of layers with different formats is not known yet",
    "mamba_block_size": "what it makes of the pool is not known yet",
    "enable_lora": "the memory of adapters is not known yet",
    "speculative_config": "the memory of a draft model is not known yet; num_speculative_tokens is",
}
_TABLE = SettingTable(kind="vLLM setting", readers=_READERS, aliases=ALIASES, unsupported=_UNSUPPORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """Settings as asked, spelled one way; None: left to the engine. ``max_model_len`` -1: the longest that fits."""

    backend: Backend
    dtype: Dtype
    block_size: int | None
    cache_dtype: str
    max_model_len: int | None
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    prefix_caching: bool | None
    hybrid_manager: bool
    async_scheduling: bool | None
    num_gpu_blocks_override: int | None
    tensor_parallel: int
    pipeline_parallel: int
    context_parallel: int
    data_parallel: int
    conv_dtype: str
    state_dtype: str
    speculative_tokens: int
    pool_bytes: int | None
    host_pool_bytes: int
    as_asked: Mapping[str, SettingValue]

    @property
    def world_size(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def batches_in_flight(self) -> int:
        """Batches scheduled but not settled at once: windows keep the tokens of all of them (``max_in_flight_tokens``
        = this × max_num_batched_tokens)."""
        is_async = self.backend.batches > 1 if self.async_scheduling is None else self.async_scheduling
        return self.pipeline_parallel + (1 if is_async else 0)


def canonical_settings(settings: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Settings by vLLM's own names: ``cache_dtype`` becomes ``kv_cache_dtype``, "8k" 8192, ``--no-enable-…`` false.

    Raises UnknownName for a setting or value vLLM does not have; UsageError for a value it would not take, a setting
    given twice, and one whose memory is not known.
    """
    return _TABLE.canonical(settings, _switched_off)


def _switched_off(name: str, value: SettingValue) -> tuple[str, SettingValue]:
    """``no_enable_prefix_caching`` is ``enable_prefix_caching`` false."""
    switch = name.removeprefix("no_")
    if switch == name or _READERS.get(switch) is not truth:
        return name, value
    return switch, not truth(name, value)


def read_settings(
    settings: Mapping[str, SettingValue], model_dtype: str | None, dtype: str | None, available_bytes: int | None
) -> VllmSettings:
    """What the engine would make of the settings. ``model_dtype``: what the model's file names; ``dtype``: the
    caller's, over it. Raises as ``canonical_settings``, and UsageError for what vLLM would refuse."""
    asked = canonical_settings(settings)
    backend = _backend(asked)
    cache_dtype = str(asked.get("kv_cache_dtype", "auto"))
    if asked.get("mamba_cache_mode") == "all":
        raise UsageError(
            f"{VERSION} has no mamba_cache_mode 'all'.", hint="Use align (states at block ends) or none; all was older."
        )
    if backend.device == "cpu" and cache_dtype not in CPU_CACHE_DTYPES:
        raise UsageError(
            f"vLLM's CPU backend refuses kv_cache_dtype {cache_dtype}; it takes {', '.join(sorted(CPU_CACHE_DTYPES))}.",
            hint="Say device=cuda for a GPU.",
        )
    if dtype is not None:
        dtype = str(_model_dtype("dtype", dtype))
        refuse_two_dtypes(dtype, asked.get("dtype"))
    element = _element(str(dtype or asked.get("dtype") or "auto"), model_dtype)
    return VllmSettings(
        backend=backend,
        dtype=element,
        block_size=_optional(asked, "block_size"),
        cache_dtype=cache_dtype,
        max_model_len=_optional(asked, "max_model_len"),
        max_num_batched_tokens=_optional(asked, "max_num_batched_tokens"),
        max_num_seqs=_optional(asked, "max_num_seqs"),
        prefix_caching=_flag(asked, "enable_prefix_caching"),
        hybrid_manager=not asked.get("disable_hybrid_kv_cache_manager", False),
        async_scheduling=_flag(asked, "async_scheduling"),
        num_gpu_blocks_override=_optional(asked, "num_gpu_blocks_override"),
        tensor_parallel=_optional(asked, "tensor_parallel_size") or 1,
        pipeline_parallel=_optional(asked, "pipeline_parallel_size") or 1,
        context_parallel=_optional(asked, "decode_context_parallel_size") or 1,
        data_parallel=_optional(asked, "data_parallel_size") or 1,
        conv_dtype=_state_format(asked, "mamba_cache_dtype", element),
        state_dtype=str(asked.get("mamba_ssm_cache_dtype", "auto")),
        speculative_tokens=_optional(asked, "num_speculative_tokens") or 0,
        pool_bytes=_pool_bytes(asked, available_bytes),
        host_pool_bytes=_whole_gib(asked.get("kv_offloading_size", 0)),
        as_asked=asked,
    )


def _backend(asked: Mapping[str, SettingValue]) -> Backend:
    """The device's rules. Not named: a CPU's, which are the measured ones, unless a setting is none a CPU takes."""
    device = asked.get("device")
    if device is None and "VLLM_CPU_KVCACHE_SPACE" in asked:
        device = "cpu"
    if device == "cuda":
        return CUDA
    if device is None:
        block = asked.get("block_size", CPU.kernel_tokens)
        assert isinstance(block, int)
        if block % CPU.kernel_tokens or asked.get("kv_cache_dtype", "auto") not in CPU_CACHE_DTYPES:
            return UNSTATED_GPU
    return CPU


def _element(asked: str, model_dtype: str | None) -> Dtype:
    """The format the model runs in. "auto": the config's, but bfloat16 for float32 (0.32.0 casts it down)."""
    if asked != "auto":
        return dtype_named(asked)
    if model_dtype is None or dtype_named(model_dtype).name not in ("float16", "bfloat16"):
        return dtype_named("bfloat16")
    return dtype_named(model_dtype)


def _state_format(asked: Mapping[str, SettingValue], name: str, element: Dtype) -> str:
    word = str(asked.get(name, "auto"))
    return element.name if word == "auto" else word


def _pool_bytes(asked: Mapping[str, SettingValue], available_bytes: int | None) -> int | None:
    if available_bytes is not None:
        return available_bytes
    stated = asked.get("kv_cache_memory_bytes")
    if isinstance(stated, int):
        return stated
    space = asked.get("VLLM_CPU_KVCACHE_SPACE")
    return None if space is None else _whole_gib(space)


def _whole_gib(value: SettingValue) -> int:
    assert isinstance(value, int | float)
    return int(value * GIB)


def _optional(asked: Mapping[str, SettingValue], name: str) -> int | None:
    value = asked.get(name)
    assert value is None or isinstance(value, int)
    return value


def _flag(asked: Mapping[str, SettingValue], name: str) -> bool | None:
    value = asked.get(name)
    return None if value is None else bool(value)
