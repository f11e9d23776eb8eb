"""SGLang's settings: the accepted names, their defaults, and what is refused. Names are those of its server arguments.
Read in its published source (0.5 series of early 2026), not measured."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvscope.dtypes import Dtype, dtype_named
from kvscope.errors import UnknownName, UsageError
from kvscope.predict.allocation.setting_values import (
    Reader,
    SettingTable,
    finite_number,
    refuse_two_dtypes,
    truth,
    whole_number,
)
from kvscope.scenario import SettingValue

VERSION = "SGLang 0.5 (source of early 2026)"
_CACHE_DTYPES = {
    "auto": None, "bfloat16": "bfloat16", "bf16": "bfloat16", "float16": "float16", "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}  # fmt: skip
LOADED_DTYPES = ("bfloat16", "float16", "float32")
_STATE_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSettings:
    """Settings as asked; None: left to the engine."""

    dtype: Dtype
    cache_dtype: Dtype
    state_dtype: str
    page_size: int
    context_length: int | None
    max_total_tokens: int | None
    max_running_requests: int | None
    max_mamba_cache_size: int | None
    mamba_full_memory_ratio: float
    swa_full_tokens_ratio: float
    disable_hybrid_swa_memory: bool
    disable_radix_cache: bool
    tensor_parallel: int
    pipeline_parallel: int
    as_asked: Mapping[str, SettingValue]

    @property
    def ranks(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel


def _ratio(name: str, value: SettingValue) -> SettingValue:
    number = finite_number(name, value)
    if number <= 0:
        raise UsageError(f"{name} is {value!r}; a number above 0 was expected.")
    return number


def _cache_dtype(name: str, value: SettingValue) -> SettingValue:
    if str(value).lower() not in _CACHE_DTYPES:
        raise UnknownName("SGLang cache dtype", str(value), _CACHE_DTYPES)
    return str(value).lower()


def _state_dtype(name: str, value: SettingValue) -> SettingValue:
    if str(value).lower() not in _STATE_DTYPES:
        raise UnknownName("SGLang state dtype", str(value), _STATE_DTYPES)
    return str(value).lower()


def _model_dtype(name: str, value: SettingValue) -> SettingValue:
    return "auto" if str(value).lower() == "auto" else dtype_named(str(value)).name


_READERS: Mapping[str, Reader] = {
    **dict.fromkeys(
        ("page_size", "context_length", "max_total_tokens", "max_running_requests"), whole_number(1, tokens=True)
    ),
    **dict.fromkeys(
        ("max_mamba_cache_size", "tp_size", "pp_size", "chunked_prefill_size"), whole_number(1, tokens=True)
    ),
    **dict.fromkeys(("mamba_full_memory_ratio", "swa_full_tokens_ratio", "mem_fraction_static"), _ratio),
    **dict.fromkeys(("disable_hybrid_swa_memory", "disable_radix_cache", "disable_cuda_graph"), truth),
    "kv_cache_dtype": _cache_dtype,
    "mamba_ssm_dtype": _state_dtype,
    "dtype": _model_dtype,
}
SETTING_NAMES = tuple(_READERS)
_ALIASES = {"tensor_parallel_size": "tp_size", "tp": "tp_size", "pipeline_parallel_size": "pp_size", "pp": "pp_size"}
_UNSUPPORTED = {
    "enable_dp_attention": "how attention splits over data-parallel ranks is not predicted yet",
    "speculative_algorithm": "the memory of a draft model is not known yet",
    "quantization": "quantised weights are read from the model's own config",
}
_TABLE = SettingTable(kind="SGLang setting", readers=_READERS, aliases=_ALIASES, unsupported=_UNSUPPORTED)


def canonical_settings(settings: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Settings by SGLang's own names. Raises UnknownName for one it does not have; UsageError for a value it would not
    take, a setting given twice, and one whose memory is not known."""
    return _TABLE.canonical(settings)


def read_settings(settings: Mapping[str, SettingValue], model_dtype: str | None, dtype: str | None) -> SglangSettings:
    """Raises as ``canonical_settings``."""
    asked = canonical_settings(settings)
    if dtype is not None:
        refuse_two_dtypes(str(_model_dtype("dtype", dtype)), asked.get("dtype"))
    named = dtype or asked.get("dtype", "auto")
    # "auto" runs a float32 model in float16 and any other in its own format.
    own = model_dtype or "bfloat16"
    element = dtype_named(("float16" if own == "float32" else own) if named == "auto" else str(named))
    if element.name not in LOADED_DTYPES:
        raise UsageError(f"SGLang runs no model in {element.name}.", hint=f"Its dtypes: {', '.join(LOADED_DTYPES)}.")
    cache = _CACHE_DTYPES[str(asked.get("kv_cache_dtype", "auto"))]
    return SglangSettings(
        dtype=element,
        cache_dtype=element if cache is None else dtype_named(cache),
        state_dtype=str(asked.get("mamba_ssm_dtype", "float32")),
        page_size=_integer(asked, "page_size") or 1,
        context_length=_integer(asked, "context_length"),
        max_total_tokens=_integer(asked, "max_total_tokens"),
        max_running_requests=_integer(asked, "max_running_requests"),
        max_mamba_cache_size=_integer(asked, "max_mamba_cache_size"),
        mamba_full_memory_ratio=_real(asked, "mamba_full_memory_ratio", 0.9),
        swa_full_tokens_ratio=_real(asked, "swa_full_tokens_ratio", 0.8),
        disable_hybrid_swa_memory=bool(asked.get("disable_hybrid_swa_memory", False)),
        disable_radix_cache=bool(asked.get("disable_radix_cache", False)),
        tensor_parallel=_integer(asked, "tp_size") or 1,
        pipeline_parallel=_integer(asked, "pp_size") or 1,
        as_asked=asked,
    )


def _integer(asked: Mapping[str, SettingValue], name: str) -> int | None:
    value = asked.get(name)
    assert value is None or isinstance(value, int)
    return value


def _real(asked: Mapping[str, SettingValue], name: str, default: float) -> float:
    value = asked.get(name, default)
    assert isinstance(value, float)
    return value
