"""Where do layers and the KV cache live, and what does it change?

A level says what goes to an accelerator: ``none``, ``weights`` (layers, with the KV cache kept in host memory),
``all``, or a number of layers. On a machine without one the design runs to its end all the same and says, from where
the engine's own log puts its buffers, that nothing was moved.
"""

from collections.abc import Mapping
from dataclasses import replace

from kvscope.errors import BadDesign, UnknownName
from kvscope.experiment.design import Condition, DesignKind, Level
from kvscope.experiment.designs import holds
from kvscope.scenario import SettingValue

# More layers than any model has: llama.cpp takes it for all of them and the output.
ALL_LAYERS = 999
_PLACES: Mapping[str, Mapping[str, SettingValue]] = {
    "none": {"n_gpu_layers": 0, "no_kv_offload": True},
    "weights": {"n_gpu_layers": ALL_LAYERS, "no_kv_offload": True},
    "all": {"n_gpu_layers": ALL_LAYERS, "no_kv_offload": False},
}


def _llama_cpp(level: Level) -> Mapping[str, SettingValue]:
    """Raises UnknownName for what is neither a place nor a number of layers."""
    if isinstance(level, int) and not isinstance(level, bool) and level >= 0:
        return {"n_gpu_layers": level, "no_kv_offload": False}
    if str(level) not in _PLACES:
        raise UnknownName("place of layers and cache", str(level), (*_PLACES, "a number of layers"))
    return _PLACES[str(level)]


def _ollama(level: Level) -> Mapping[str, SettingValue]:
    words = {"none": 0, "all": ALL_LAYERS}
    if isinstance(level, int) and not isinstance(level, bool) and level >= 0:
        return {"num_gpu": level}
    if str(level) not in words:
        raise UnknownName("place of layers", str(level), (*words, "a number of layers"))
    return {"num_gpu": words[str(level)]}


def _transformers(level: Level) -> Mapping[str, SettingValue]:
    words = {"all": "dynamic", "weights": "offloaded"}
    if str(level) not in words:
        raise UnknownName("place of the cache", str(level), tuple(words))
    return {"cache_implementation": words[str(level)], "device": "cuda:0"}


KIND = DesignKind(
    name="offload",
    version=1,
    question="Where do the layers and the KV cache live, and what does moving them change?",
    factor="offload",
    says="Where the engine's own log puts weights, KV cache and compute buffer at each level, and what that does to "
    "host memory, TTFT and the time per token; on a machine without an accelerator, that nothing was moved.",
    holds=(holds.CONTEXT_LIMIT, holds.SAME_REQUEST, holds.FRESH_PROCESS, holds.ALL_ELSE),
    confounders=(
        "A build without support for the accelerator leaves these settings aside without an error.",
        "Pages of a mapped model file stay in host memory after its layers were copied to a device, until the system "
        "drops them.",
        "The first use of a device compiles or loads its kernels: the warm-up request is there for that.",
    ),
    default_levels=("none", "weights", "all"),
    default_condition=Condition(settings={}, prompt_tokens=512, output_tokens=64),
    sets=_llama_cpp,
)


def kind_for(engine: str, *, is_attached: bool) -> DesignKind:
    """The question as it can be asked of ``engine``. Raises BadDesign where it cannot be set."""
    match engine:
        case "llama.cpp":
            return KIND
        case "ollama":
            return replace(KIND, sets=_ollama, default_levels=("none", "all"))
        case _ if is_attached:
            return KIND
        case "transformers":
            return replace(KIND, sets=_transformers, default_levels=("all", "weights"))
        case "vllm":
            return replace(KIND, factor="kv_offloading_size", sets=None, default_levels=(0, 4))
    raise BadDesign(
        f"kvscope cannot tell {engine} where to keep layers or cache.",
        hint="Use --engine llama.cpp, ollama, transformers or vllm; or start the server each way yourself and measure "
        "input_length.",
    )
