"""Does memory come back, and what grows from one conversation to the next?

Where the engine keeps copies of old prompts in host memory (llama.cpp, and the fake engine that behaves like it), how
much it may keep is what varies. Of another engine that is not known, so one length of prompt is asked about, or
several.
"""

from dataclasses import replace

from kvscope.experiment.design import Condition, DesignKind
from kvscope.experiment.designs import holds

# Rounds with different texts: the first touches buffers, the others are five points of a line. Then the last text
# again.
ROUNDS = 6
SAME_AGAIN_ROUNDS = 3
# Engines that have the setting that varies.
HAS_HOST_CACHE = ("llama.cpp", "fake")

KIND = DesignKind(
    name="release",
    version=2,
    question="What stays in memory after each conversation, after the engine's own release, and after its exit?",
    factor="cache_ram_mib",
    says="Whether memory is released, retained and bounded, or growing; and what llama.cpp's host prompt cache, which "
    "keeps copies of old prompts (8 GiB by default), has to do with it.",
    confounders=(
        "An allocator may keep freed memory for reuse; that alone is not a leak.",
        "A copy of a prompt is made when the next one arrives, so the last conversation is not among the copies.",
    ),
    holds=(
        "Six conversations one after another in one process, each with a text of its own, then the last text three "
        "more times; the engine may reuse and keep what it likes of them.",
        holds.CONTEXT_LIMIT,
        holds.FRESH_OR_RUNNING,
        holds.ALL_ELSE,
    ),
    default_levels=(8192, 0),
    default_condition=Condition(
        settings={},
        prompt_tokens=512,
        output_tokens=16,
        requests=ROUNDS,
        reuse_prefix=True,
        same_again=SAME_AGAIN_ROUNDS,
    ),
    # Each trial repeats in itself: its conversations after the first are the points of one line, with an interval.
    default_repeats=1,
)


def kind_for(engine: str, *, is_attached: bool) -> DesignKind:
    """The question as it can be asked of ``engine``. A server that runs already (``is_attached``) keeps its
    settings."""
    if engine in HAS_HOST_CACHE and not is_attached:
        return KIND
    return replace(
        KIND,
        factor="prompt_tokens",
        says="Whether memory is released, retained and bounded, or growing, and by how much for each conversation.",
        default_levels=(512,),
    )
