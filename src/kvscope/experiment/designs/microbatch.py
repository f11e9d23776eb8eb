"""How many tokens are computed at once: what a larger microbatch costs in memory, and saves in time."""

from dataclasses import replace

from kvscope.errors import BadDesign
from kvscope.experiment.design import Condition, DesignKind
from kvscope.experiment.designs import holds

_N_BATCH = "n_batch, the tokens submitted at once, at 2,048: no level may be larger."


def _check_levels(condition: Condition) -> None:
    """Raises BadDesign for a microbatch that is larger than n_batch: llama.cpp takes no more of it."""
    most, asked = condition.settings.get("n_batch"), condition.settings.get("n_ubatch")
    if isinstance(most, int) and isinstance(asked, int) and asked > most:
        raise BadDesign(
            f"A microbatch of {asked:,} tokens is larger than n_batch ({most:,}): llama.cpp would use {most:,}.",
            hint=f"Raise it (--set n_batch={asked}), or use smaller levels.",
        )


KIND = DesignKind(
    name="microbatch",
    version=1,
    question="What does computing more prompt tokens at once cost in memory, and what does it save in time?",
    factor="n_ubatch",
    says="How the compute buffer changes with the microbatch, by prediction, by the engine's log and as measured; and "
    "the difference in TTFT.",
    holds=(
        _N_BATCH,
        holds.CONTEXT_LIMIT,
        holds.SAME_REQUEST,
        holds.FRESH_PROCESS,
        holds.ALL_ELSE,
    ),
    confounders=(
        "A prompt shorter than the microbatch never fills it: its buffer is reserved and not touched.",
        "llama.cpp takes no microbatch larger than n_batch; what it really uses is recorded with each trial.",
        "The time per token later is one token at a time, whatever the microbatch.",
    ),
    default_levels=(512, 128, 1024),
    default_condition=Condition(settings={"n_batch": 2048}, prompt_tokens=1024, output_tokens=16),
    check_levels=_check_levels,
    holds_while={_N_BATCH: {"n_batch": 2048}},
)


def kind_for(engine: str, *, is_attached: bool) -> DesignKind:
    """The question as it can be asked of ``engine``. Raises BadDesign where it cannot be set."""
    alone = replace(KIND, default_condition=replace(KIND.default_condition, settings={}), holds=KIND.holds[1:])
    match engine:
        case "ollama":
            return replace(alone, factor="num_batch")
        case _ if is_attached:
            return KIND
        case "llama.cpp":
            return KIND
        case "fake":
            return alone
        case "transformers":
            return replace(alone, factor="prefill_chunk_tokens")
        case "vllm":
            return replace(alone, factor="max_num_batched_tokens", default_levels=(2048, 512, 8192))
    raise BadDesign(
        f"kvscope has no setting for how many tokens {engine} computes at once.",
        hint="Use --engine llama.cpp, ollama, transformers or vllm.",
    )
