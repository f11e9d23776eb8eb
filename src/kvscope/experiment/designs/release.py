"""Does memory come back, and what grows from one conversation to the next?"""

from kvscope.experiment.design import Condition, DesignKind

KIND = DesignKind(
    name="release",
    version=1,
    question="What stays in memory after each conversation, after the engine's own release, and after its exit?",
    factor="cache_ram_mib",
    says="Whether memory is released, retained and bounded, or growing; and what llama.cpp's host prompt cache, which "
    "keeps copies of old prompts (8 GiB by default), has to do with it.",
    confounders=(
        "An allocator may keep freed memory for reuse; that alone is not a leak.",
        "A copy of a prompt is made when the next one arrives, so the last conversation is not among the copies.",
    ),
    default_levels=(8192, 0),
    default_condition=Condition(settings={}, prompt_tokens=512, output_tokens=16, requests=5, reuse_prefix=True),
    default_repeats=1,
)
