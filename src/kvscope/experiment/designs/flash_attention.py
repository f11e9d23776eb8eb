"""What does flash attention change: the buffer for scores, the time?"""

from collections.abc import Mapping
from dataclasses import replace

from kvscope.errors import BadDesign, UnknownName
from kvscope.experiment.design import Condition, DesignKind, Level
from kvscope.experiment.designs import holds
from kvscope.predict.allocation.llama_cpp_settings import canonical_settings
from kvscope.scenario import SettingValue

_IMPLEMENTATIONS = ("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention")


def _llama_cpp(level: Level) -> Mapping[str, SettingValue]:
    return canonical_settings({"flash_attn": level})


def _transformers(level: Level) -> Mapping[str, SettingValue]:
    if level not in _IMPLEMENTATIONS:
        raise UnknownName("attn_implementation", str(level), _IMPLEMENTATIONS)
    return {"attn_implementation": level}


_CACHE_F16 = "A KV cache in f16: quantised values cannot do without flash attention."
KIND = DesignKind(
    name="flash_attention",
    version=1,
    question="What does flash attention change in memory and in time?",
    factor="flash_attn",
    says="How much larger the compute buffer is without it, by prediction, by the engine's log and as measured; and "
    "the difference in TTFT and in the time per token.",
    holds=(
        _CACHE_F16,
        holds.CONTEXT_LIMIT,
        holds.SAME_REQUEST,
        holds.FRESH_PROCESS,
        holds.ALL_ELSE,
    ),
    confounders=(
        "auto leaves the choice to the engine; what it chose is recorded, and may be the same as another level.",
        "The compute buffer is reserved at load and in memory only as far as it was used: the measured difference "
        "shows after the requests.",
        "Without flash attention llama.cpp keeps the values transposed, which other kernels read.",
    ),
    default_levels=("on", "off"),
    default_condition=Condition(
        settings={"cache_type_k": "f16", "cache_type_v": "f16"}, prompt_tokens=1024, output_tokens=64
    ),
    sets=_llama_cpp,
    holds_while={_CACHE_F16: {"cache_type_k": "f16", "cache_type_v": "f16"}},
)


def kind_for(engine: str, *, is_attached: bool) -> DesignKind:
    """The question as it can be asked of ``engine``. Raises BadDesign where it cannot be set."""
    match engine:
        case _ if is_attached:
            return KIND
        case "llama.cpp":
            return KIND
        case "transformers":
            return replace(
                KIND,
                factor="attn_implementation",
                sets=_transformers,
                default_levels=("sdpa", "eager"),
                default_condition=replace(KIND.default_condition, settings={}),
                holds=KIND.holds[1:],
            )
        case "ollama":
            raise BadDesign(
                "Flash attention belongs to Ollama's server (OLLAMA_FLASH_ATTENTION), which kvscope does not start.",
                hint="Measure flash_attention on llama.cpp, which Ollama runs.",
            )
    raise BadDesign(
        f"{engine} chooses its attention itself; kvscope has no setting for it.",
        hint="Use --engine llama.cpp or transformers.",
    )
