"""What does the next turn cost as the conversation grows?"""

from kvscope.experiment.design import Condition, DesignKind
from kvscope.experiment.designs import holds

KIND = DesignKind(
    name="turns",
    version=1,
    question="What does the next turn cost as the conversation grows?",
    factor="turns",
    says="How long the last of so many turns waits for its first token, and how many tokens of its prompt were "
    "computed anew, with the engine's reuse of earlier turns allowed or not.",
    confounders=(
        "The history holds the model's real answers, so its length is known only when it has been played.",
        "A prompt that is reused is not computed: compare with a run under --no-reuse-prefix.",
        "Answers are made to run to their limit, so that every conversation grows alike.",
    ),
    holds=(
        "User messages of the same number of tokens, and the same output limit in every turn.",
        "Whether the engine may reuse earlier turns: it may, unless --no-reuse-prefix.",
        holds.CONTEXT_LIMIT,
        holds.FRESH_OR_RUNNING,
        holds.ALL_ELSE,
    ),
    default_levels=(1, 2, 4, 8),
    default_condition=Condition(
        settings={}, prompt_tokens=96, output_tokens=32, reuse_prefix=True, is_conversation=True
    ),
)
