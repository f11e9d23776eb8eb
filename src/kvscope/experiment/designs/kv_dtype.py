"""What does a KV cache of fewer bits save, and what does it cost?

llama.cpp: keys and values may have types of their own (``q8_0/f16``: keys in q8_0, values in f16). Quantised values
need flash attention, so it is on at every level: otherwise two things would vary at once.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import replace

from kvscope.dtypes import row_bytes
from kvscope.errors import BadDesign, UnknownName
from kvscope.experiment.design import Condition, DesignKind, Level
from kvscope.experiment.designs import holds
from kvscope.predict.allocation.llama_cpp_settings import CACHE_TYPES, canonical_settings
from kvscope.predict.allocation.transformers_settings import BACKENDS
from kvscope.scenario import SettingValue

# SmolLM2's keys and values in f16, for each token: what the fake engine has by default.
_FAKE_F16_BYTES = 23_040
# A backend of transformers' quantised caches → the module that has to be there for it.
_BACKEND_MODULES = {"quanto": "optimum.quanto", "hqq": "hqq"}
_PLAIN = "dynamic"


def _llama_cpp(level: Level) -> Mapping[str, SettingValue]:
    """``q8_0``: both; ``q4_0/f16``: keys, then values. Raises UnknownName."""
    keys, _, values = str(level).partition("/")
    return canonical_settings({"cache_type_k": keys, "cache_type_v": values or keys})


def _fake(level: Level) -> Mapping[str, SettingValue]:
    keys, _, values = str(level).partition("/")
    sizes = [_row_share(word) for word in (keys, values or keys)]
    return {"bytes_per_token": round(_FAKE_F16_BYTES * sum(sizes) / 2)}


def _row_share(word: str) -> float:
    """Bytes of an element by this type, as a share of those in f16."""
    if word not in CACHE_TYPES:
        raise UnknownName("cache type", word, CACHE_TYPES)
    return row_bytes(word, 256) / row_bytes("f16", 256)


def _transformers(level: Level) -> Mapping[str, SettingValue]:
    """``dynamic``: as the model computes; ``quanto-4``: a backend and its bits. Raises UnknownName."""
    backend, _, bits = str(level).partition("-")
    if level == _PLAIN:
        return {"cache_implementation": _PLAIN}
    known = [f"{name}-{each}" for name, widths in BACKENDS.items() for each in widths]
    if f"{backend}-{bits}" not in known:
        raise UnknownName("quantised cache", str(level), (_PLAIN, *known))
    return {"cache_implementation": "quantized", "backend": backend, "nbits": int(bits)}


_FLASH_ON = "Flash attention is on at every level: quantised values cannot do without it."
KIND = DesignKind(
    name="kv_dtype",
    version=1,
    question="What does a KV cache of fewer bits save, and what does it cost in time?",
    factor="kv_dtype",
    says="The bytes that each type saves, by prediction, by the engine's log and as measured, and the difference that "
    "it makes to TTFT and to the time per token. Whether the answers are still right is not judged here.",
    holds=(
        _FLASH_ON,
        holds.CONTEXT_LIMIT,
        holds.SAME_REQUEST,
        holds.FRESH_PROCESS,
        holds.ALL_ELSE,
    ),
    confounders=(
        "A quantised cache is computed by other kernels: its time may differ with the processor, not with the bytes.",
        "The compute buffer can change with the type; the memory after load holds it too.",
        "Other programs on the machine slow the engine down; the order of trials is random within blocks.",
    ),
    default_levels=("f16", "q8_0", "q4_0"),
    default_condition=Condition(settings={"flash_attn": "on"}, prompt_tokens=1024, output_tokens=64),
    sets=_llama_cpp,
    holds_while={_FLASH_ON: {"flash_attn": "on"}},
)


def kind_for(engine: str, *, is_attached: bool) -> DesignKind:
    """The question as it can be asked of ``engine``. Raises BadDesign where its cache has one type only, or none of the
    packages is there that would quantise it."""
    plain = replace(KIND.default_condition, settings={})
    without_flash = KIND.holds[1:]
    match engine:
        case _ if is_attached or engine == "llama.cpp":
            return KIND
        case "fake":
            return replace(KIND, sets=_fake, default_condition=plain, holds=without_flash)
        case "vllm":
            return replace(
                KIND,
                factor="kv_cache_dtype",
                sets=None,
                default_levels=("auto", "fp8"),
                default_condition=plain,
                holds=without_flash,
                says="How many more tokens the pool holds with each type, and the difference in TTFT and in the time "
                "per token. Whether the answers are still right is not judged here.",
            )
        case "transformers":
            return replace(
                KIND,
                sets=_transformers,
                default_levels=(_PLAIN, *_installed_backends()),
                default_condition=plain,
                holds=without_flash,
            )
    raise _not_settable(engine)


def _not_settable(engine: str) -> BadDesign:
    if engine == "ollama":
        return BadDesign(
            "The type of Ollama's cache belongs to its server (OLLAMA_KV_CACHE_TYPE), which kvscope does not start.",
            hint="Measure input_length with the server started each way, or measure kv_dtype on llama.cpp, which "
            "Ollama runs.",
        )
    return BadDesign(
        f"kvscope does not know how to set the type of {engine}'s KV cache.",
        hint="Start the server with each type yourself and measure input_length; or use --engine llama.cpp.",
    )


def _installed_backends() -> tuple[str, ...]:
    found = [name for name, module in _BACKEND_MODULES.items() if _is_there(module)]
    if not found:
        raise BadDesign(
            "transformers quantises its cache with a package of its own, and none is installed here.",
            hint="Install one: pip install optimum-quanto (or hqq). Without it the cache is as the model computes.",
        )
    return tuple(f"{name}-{max(BACKENDS[name])}" for name in found)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # its parent package is not there
        return False
