"""transformers' cache settings: the names of GenerationConfig (cache_implementation, and cache_config's own) and of the
cache classes. transformers 5.24.0. Beside them those that kvscope runs the engine with and that leave the cache as it
is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from kvscope.errors import UnknownName, UsageError
from kvscope.predict.allocation.setting_values import Reader, SettingTable, as_given, truth, whole_number
from kvscope.scenario import SettingValue

Implementation = Literal["dynamic", "dynamic_full", "static", "quantized", "offloaded", "offloaded_static"]
IMPLEMENTATIONS = ("dynamic", "dynamic_full", "static", "quantized", "offloaded", "offloaded_static")
# Backend → the numbers of bits it packs.
BACKENDS: Mapping[str, tuple[int, ...]] = {"quanto": (2, 4), "hqq": (1, 2, 4, 8), "fp8": (8,)}
_WHOLE = ("max_cache_len", "nbits", "q_group_size", "residual_length", "prompt_tokens")
# How the engine is run; none but dtype changes what the cache holds.
_RUN = ("dtype", "device", "attn_implementation")
_READERS: Mapping[str, Reader] = {
    **dict.fromkeys(("cache_implementation", "backend"), lambda name, value: str(value).lower()),
    **dict.fromkeys(_WHOLE, whole_number(1, tokens=True)),
    **dict.fromkeys(_RUN, as_given),
    **dict.fromkeys(("prefill_chunk_tokens", "num_threads"), whole_number(1, tokens=True)),
    "random_weights": truth,
}
SETTING_NAMES = tuple(_READERS)
_TABLE = SettingTable(kind="transformers setting", readers=_READERS, aliases={"cache": "cache_implementation"})
_QUANTISED_ONLY = ("backend", "nbits", "q_group_size", "residual_length", "prompt_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersSettings:
    """``max_cache_len``: of a static cache. ``residual_length``: tokens that a quantised cache keeps unquantised before
    it packs them. ``prompt_tokens``: how long the prefill was, which decides how many those are; None: not said.
    ``dtype``: that the model is loaded in, where a setting says it ("auto": it does not). ``prefill_chunk_tokens``: a
    longer prompt is computed in pieces of this size."""

    implementation: Implementation
    max_cache_len: int | None
    backend: str
    nbits: int
    q_group_size: int
    residual_length: int
    prompt_tokens: int | None
    dtype: str | None
    prefill_chunk_tokens: int | None
    as_asked: Mapping[str, SettingValue]

    @property
    def is_static(self) -> bool:
        return self.implementation in ("static", "offloaded_static")

    @property
    def is_offloaded(self) -> bool:
        return self.implementation in ("offloaded", "offloaded_static")


def canonical_settings(settings: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Settings by one name each, and whole numbers as such ("8k" is 8,192). Raises UnknownName, UsageError."""
    return _TABLE.canonical(settings, lambda name, value: (name.removeprefix("cache_config."), value))


def read_settings(settings: Mapping[str, SettingValue]) -> TransformersSettings:
    """Raises UnknownName and UsageError, the latter also for what the library refuses."""
    asked = canonical_settings(settings)
    implementation = str(asked.get("cache_implementation", "dynamic"))
    if implementation == "quantised":
        implementation = "quantized"
    if implementation not in IMPLEMENTATIONS:
        raise UnknownName("cache_implementation", implementation, IMPLEMENTATIONS)
    is_static = implementation in ("static", "offloaded_static")
    if is_static and "max_cache_len" not in asked:
        raise UsageError("A static cache is as long as max_cache_len says.", hint="Set max_cache_len.")
    unused = [name for name in asked if name in _QUANTISED_ONLY and implementation != "quantized"]
    unused += ["max_cache_len"] if "max_cache_len" in asked and not is_static else []
    if unused:
        raise UsageError(f"{unused[0]} has no meaning for cache_implementation {implementation}.", hint="Leave it out.")
    backend = str(asked.get("backend", "quanto"))
    if backend not in BACKENDS:
        raise UnknownName("quantised cache backend", backend, BACKENDS)
    nbits = cast(int, asked.get("nbits", 8 if backend == "fp8" else 4))
    if nbits not in BACKENDS[backend]:
        choices = ", ".join(map(str, BACKENDS[backend]))
        raise UsageError(
            f"{backend} does not keep a cache in {nbits} bits.", hint=f"It was seen to keep one in {choices} bits."
        )
    return TransformersSettings(
        implementation=cast(Implementation, implementation),
        max_cache_len=cast("int | None", asked.get("max_cache_len")),
        backend=backend,
        nbits=nbits,
        q_group_size=cast(int, asked.get("q_group_size", 64)),
        residual_length=cast(int, asked.get("residual_length", 128)),
        prompt_tokens=cast("int | None", asked.get("prompt_tokens")),
        dtype=None if asked.get("dtype") in (None, "auto") else str(asked["dtype"]),
        prefill_chunk_tokens=cast("int | None", asked.get("prefill_chunk_tokens")),
        as_asked=asked,
    )
