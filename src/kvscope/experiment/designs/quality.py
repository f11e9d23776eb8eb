"""Does it still answer? One task after another, at one length or several (``--input-tokens 256,1k --grid``).

The question is of the model with these settings; which setting loses what, the other designs say with ``--quality``.
"""

from kvscope.experiment.design import Condition, DesignKind
from kvscope.experiment.designs import holds
from kvscope.experiment.quality_asked import TASK_FACTOR, QualityAsked

# The abilities, and the likelihood of a fact, which base models have too. Fidelity needs a setting to be held against.
_TASKS = ("needle", "keys", "variables", "copy", "count", "reworded", "tool_call", "copy_gain")
SAME_DOCUMENTS = (
    "Documents of the same number of tokens, made from the seed: the same in every repeat, and for every setting or "
    "build that is asked the same."
)
KIND = DesignKind(
    name="quality",
    version=1,
    question="What does the model still answer right, and where can that not be told?",
    factor=TASK_FACTOR,
    says="For every task, and with --grid for every length, the share of right answers with its interval, beside the "
    "share right by guessing: in documents without the fact. Where nothing can be told, because all or none of the "
    "answers are right, it says so, and how many questions would tell.",
    holds=(
        SAME_DOCUMENTS,
        holds.CONTEXT_LIMIT,
        holds.FRESH_OR_RUNNING,
        holds.ALL_ELSE,
    ),
    confounders=(
        "Documents and questions are made of templates: shares compare settings and lengths, not models with people.",
        "A task is asked in one wording; a model that knows another one better is not asked in it.",
        "Answers are the likeliest ones (temperature 0), one of each question: a second repeat asks the same again.",
    ),
    default_levels=_TASKS,
    default_condition=Condition(settings={}, prompt_tokens=1024, output_tokens=8, quality=QualityAsked(task="")),
    default_repeats=1,
)
