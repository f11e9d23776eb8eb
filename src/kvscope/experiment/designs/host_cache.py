"""What does each further conversation leave in llama.cpp's host prompt cache?

``release`` asks what comes back; this asks what each prompt adds, holds it against the KV bytes of its tokens, and
shows where the limit stops it.
"""

from kvscope.errors import BadDesign
from kvscope.experiment.design import Condition, DesignKind
from kvscope.experiment.designs import holds

# A copy is made when the next prompt arrives: so many conversations make one copy fewer.
CONVERSATIONS = 6
HAS_HOST_CACHE = ("llama.cpp", "fake")

KIND = DesignKind(
    name="host_cache",
    version=1,
    question="What does each further conversation add to the host prompt cache, and where does it stop?",
    factor="cache_ram_mib",
    says="The memory that each further conversation adds, against the KV bytes of its tokens; and, where a limit is "
    "reached, that it holds.",
    holds=(
        "Six conversations one after another in one process, all of one length and each with a text of its own; the "
        "engine may reuse and keep what it likes of them.",
        holds.CONTEXT_LIMIT,
        "A fresh engine process for every trial, with one short warm-up request before it is measured.",
        holds.ALL_ELSE,
    ),
    confounders=(
        "A copy is made when the next prompt arrives: the first conversation adds buffers that are used for the first "
        "time, the last one is not among the copies.",
        "The warm-up request is kept too: a copy of a few tokens.",
        "With sliding windows or recurrent states a copy holds checkpoints too: it is larger than its tokens' cache.",
    ),
    default_levels=(8192, 24, 0),
    default_condition=Condition(
        settings={}, prompt_tokens=512, output_tokens=16, requests=CONVERSATIONS, reuse_prefix=True
    ),
)


def kind_for(engine: str, *, is_attached: bool) -> DesignKind:
    """The question as it can be asked of ``engine``. Raises BadDesign where it keeps no copies of prompts."""
    if engine in HAS_HOST_CACHE or is_attached:
        return KIND
    raise BadDesign(
        f"{engine} has no host prompt cache that can be set: cache_ram_mib is llama.cpp's.",
        hint="Ask what stays in memory after each conversation instead: kvscope measure release.",
    )
