"""Does a longer answer take more time per token, and does it take more memory?"""

from kvscope.experiment.design import Condition, DesignKind
from kvscope.experiment.designs import holds

KIND = DesignKind(
    name="output_length",
    version=1,
    question="What does a longer answer do to completion time, to time per token and to memory?",
    factor="output_tokens",
    says="What each further output token takes, by the tokens really produced, and whether later ones take longer; "
    "limits that were not reached.",
    confounders=(
        "The limit is not the length: both are recorded, and answers that ended early are marked stopped_early.",
        "Later tokens attend to a longer context, so time per token rises with length by itself.",
    ),
    holds=(
        holds.SAME_PROMPT,
        holds.CONTEXT_LIMIT,
        "Answers are made to run to their limit, as far as the engine obeys.",
        holds.FRESH_OR_RUNNING,
        holds.ALL_ELSE,
    ),
    default_levels=(16, 64, 256),
    default_condition=Condition(settings={}, prompt_tokens=128, output_tokens=16),
)
