"""Does a longer input take longer to the first token, and does it take more memory?"""

from kvscope.experiment.design import Condition, DesignKind
from kvscope.experiment.designs import holds

KIND = DesignKind(
    name="input_length",
    version=1,
    question="What does a longer input do to the wait for the first token, and to memory?",
    factor="prompt_tokens",
    says="How TTFT grows with the number of prompt tokens, and its law: a part for each token and one for each pair of "
    "tokens, with intervals; and which memory appears with the first requests.",
    confounders=(
        "The context limit is held fixed, so memory reserved for the KV cache does not follow the input length.",
        "The first full microbatch touches the compute buffer: memory rises once with length, then stays.",
        "Other programs on the machine slow the engine down; the order of trials is random within blocks.",
    ),
    holds=(
        holds.CONTEXT_LIMIT,
        holds.NO_REUSE,
        holds.SAME_OUTPUT,
        holds.FRESH_OR_RUNNING,
        holds.ALL_ELSE,
    ),
    default_levels=(128, 512, 1024, 2048),
    default_condition=Condition(settings={}, prompt_tokens=128, output_tokens=32),
)
