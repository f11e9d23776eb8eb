"""What does one more token of context limit cost, before anything is asked?"""

from kvscope.experiment.design import Condition, DesignKind

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
    default_levels=(512, 2048, 8192),
    default_condition=Condition(settings={}, prompt_tokens=96, output_tokens=8),
)
