"""What does one more token of context limit cost, before anything is asked?"""

from kvscope.errors import BadDesign
from kvscope.experiment.design import Condition, DesignKind
from kvscope.experiment.designs import holds

# Engines whose context limit has no price of its own when the model is loaded, and why.
_NO_PRICE = {
    "transformers": "transformers reserves nothing for tokens that are not there yet",
    "vllm": "vLLM reserves one pool, whatever its context limit (max_model_len)",
    "sglang": "SGLang reserves one pool, whatever its context limit (context_length)",
}

KIND = DesignKind(
    name="context_limit",
    version=1,
    question="What does one more token of context limit cost when the model is loaded?",
    factor="n_ctx",
    says="The measured bytes per token: the slope of memory after load over the context limit.",
    confounders=(
        "The engine rounds the context limit up; what it really used is recorded with each trial.",
        "Only engines that reserve the KV cache at load show its price here.",
    ),
    holds=(
        "One short prompt and one short answer of the same number of tokens: what they add comes after the load.",
        holds.FRESH_PROCESS,
        holds.ALL_ELSE,
    ),
    default_levels=(512, 2048, 8192),
    default_condition=Condition(settings={}, prompt_tokens=96, output_tokens=8),
)


def kind_for(engine: str, *, is_attached: bool) -> DesignKind:
    """The question as it can be asked of ``engine``. Raises BadDesign for one that has no answer to it."""
    if engine in _NO_PRICE and not is_attached:
        raise BadDesign(
            f"{_NO_PRICE[engine]}, so there is no price of it to measure.",
            hint="Ask what tokens cost instead: kvscope measure input_length, or kvscope predict.",
        )
    return KIND
