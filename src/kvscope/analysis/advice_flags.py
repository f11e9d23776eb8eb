"""Settings as a person gives them to the engine itself: flags of llama-server, vLLM and SGLang, Ollama's variables and
options, arguments of transformers. And what else advice knows of an engine by its name.

llama-server's are spelled as its --help has them (b11549), the others as their documentation names them.
"""

import re
from collections.abc import Mapping

from kvscope.record.rows import Json

# What kvscope takes an engine for where none is named.
LLAMA_CPP = "llama.cpp"
# Engines that reserve their context when they load, and what they call it.
CONTEXT_SETTINGS: Mapping[str, str] = {LLAMA_CPP: "n_ctx", "fake": "n_ctx", "ollama": "num_ctx"}
# Engines whose context limit is what each slot gets; of the others all slots share it out.
PER_SLOT = ("ollama",)
# Engines whose microbatch kvscope can set, and those that keep copies of earlier prompts.
HAS_MICROBATCH = (LLAMA_CPP, "ollama", "transformers", "vllm")
HAS_HOST_CACHE = (LLAMA_CPP, "fake")
# Engines with a pool take what they are given, whatever a token costs: more tokens fit, and no byte less is taken.
POOLED = ("vllm", "sglang")
# What a setting of llama.cpp is where nobody gives it.
LLAMA_DEFAULTS: Mapping[str, Json] = {
    "cache_type_k": "f16",
    "cache_type_v": "f16",
    "n_ubatch": 512,
    "flash_attn": "on",
    "swa_full": False,
    "kv_unified": False,
    "no_extra_bufts": False,
}
_LLAMA: Mapping[str, str] = {
    "n_ctx": "--ctx-size",
    "n_parallel": "--parallel",
    "n_batch": "--batch-size",
    "n_ubatch": "--ubatch-size",
    "n_threads": "--threads",
    "n_threads_batch": "--threads-batch",
    "n_gpu_layers": "--gpu-layers",
    "cache_type_k": "--cache-type-k",
    "cache_type_v": "--cache-type-v",
    "cache_ram_mib": "--cache-ram",
    "n_ctx_checkpoints": "--ctx-checkpoints",
    "n_cache_reuse": "--cache-reuse",
    "flash_attn": "--flash-attn",
    "load_mode": "--load-mode",
}
# (flag when true, flag when false); None: what the program does where neither is given.
_LLAMA_SWITCHES: Mapping[str, tuple[str | None, str | None]] = {
    "kv_unified": ("--kv-unified", "--no-kv-unified"),
    "swa_full": ("--swa-full", None),
    "no_extra_bufts": ("--no-repack", "--repack"),
    "no_kv_offload": ("--no-kv-offload", "--kv-offload"),
    "cache_prompt": ("--cache-prompt", "--no-cache-prompt"),
}
# Ollama's environment; its other names are options of a request or PARAMETER lines of a Modelfile.
_OLLAMA_VARIABLES: Mapping[str, str] = {
    "kv_cache_type": "OLLAMA_KV_CACHE_TYPE",
    "flash_attention": "OLLAMA_FLASH_ATTENTION",
    "num_parallel": "OLLAMA_NUM_PARALLEL",
}
# SGLang's arguments that are called otherwise than their settings here.
_SGLANG = {"tensor_parallel": "--tp-size", "pipeline_parallel": "--pp-size"}
_WORD = re.compile(r"[A-Za-z0-9_.:/+-]{1,64}")


def flags_of(engine: str, change: Mapping[str, Json]) -> str:
    """The change as it is given to ``engine``, as one text. A flag that has to be left out stands as "(no FLAG)"."""
    return " ".join(_flag(engine, name, value) for name, value in change.items())


def _flag(engine: str, name: str, value: Json) -> str:
    match engine:
        case "llama.cpp":
            return _llama(name, value)
        case "ollama":
            if name == "kv_cache_type":  # without flash attention it is not heeded (docs/faq.mdx)
                return f"OLLAMA_FLASH_ATTENTION=1 {_OLLAMA_VARIABLES[name]}={_text(value)}"
            if name in _OLLAMA_VARIABLES:
                return f"{_OLLAMA_VARIABLES[name]}={_text(value)}"
            return f"PARAMETER {name} {_text(value)}"
        case "vllm" | "sglang":
            flag = (
                _SGLANG.get(name, "--" + name.replace("_", "-"))
                if engine == "sglang"
                else "--" + name.replace("_", "-")
            )
            if isinstance(value, bool):
                return flag if value else f"(no {flag})"
            return f"{flag} {_text(value)}"
        case "transformers":
            return (
                f"{name}={value!r}" if isinstance(value, str) and _WORD.fullmatch(value) else f"{name}={_text(value)}"
            )
    return setting_text(name, value)


def _llama(name: str, value: Json) -> str:
    if name in _LLAMA:
        return f"{_LLAMA[name]} {_text(value)}"
    on, off = _LLAMA_SWITCHES.get(name, (None, None))
    if on is None or not isinstance(value, bool):
        return setting_text(name, value)
    flag = on if value else off
    return flag if flag is not None else f"(no {on})"


def setting_text(name: str, value: Json) -> str:
    """As ``kvscope measure --set`` takes it."""
    return f"{name}={_text(value)}"


def _text(value: Json) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
