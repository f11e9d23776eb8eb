"""Is it better to give a model the whole document, or what a search finds in it?"""

from kvscope.experiment.design import Condition, DesignKind
from kvscope.experiment.designs import holds
from kvscope.experiment.retrieval_asked import GIVEN

# Enough for a short answer in a sentence.
OUTPUT_TOKENS = 24

KIND = DesignKind(
    name="retrieval",
    version=3,
    question="What does it cost and what does it lose to give a model passages found by a search instead of the whole "
    "document?",
    factor=GIVEN,
    says="Each way's right answers with an interval, whether the evidence was in the prompt, tokens read and reused, "
    "the wait for the first question and for later ones, and memory; from how many questions on the whole document is "
    "cheaper, predicted and measured; and each lost fact with the reason: not retrieved, retrieved and not used, "
    "buried among others, or cut.",
    holds=(
        "The same questions, in the same order, one after another in one engine process for every trial.",
        "The whole: all documents together, each below its title. Passages: in the order of the documents, each behind "
        "its title and the headings above it.",
        "What is the same for all questions stands first and the question last, unless a level says otherwise.",
        "One request at a time; the engine may reuse what it kept (its own default).",
        "The most tokens of an answer; it may end before.",
        "The context limit is what each way needs, as part of its price, unless n_ctx is set or a server has its own.",
        "llama.cpp's host cache of old prompts is off (cache_ram_mib 0), unless it is set: passages would fill it.",
        holds.FRESH_OR_RUNNING,
        holds.ALL_ELSE,
    ),
    confounders=(
        "Passages bring the nearest rivals of a fact together: answers can fall though the evidence is there.",
        "A fact that a model knows without the document is right with nothing given; that level shows guessing.",
        "A weak model answers some facts right only by where they stand: a few questions say little, see the interval.",
        "After many other prompts a server may have dropped the document: later questions then read it again.",
    ),
    default_levels=("whole", "passages=3", "evidence", "nothing"),
    default_condition=Condition(settings={}, prompt_tokens=1, output_tokens=OUTPUT_TOKENS, reuse_prefix=True),
    default_repeats=3,
)
