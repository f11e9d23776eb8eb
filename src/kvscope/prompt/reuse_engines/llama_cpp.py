"""llama.cpp's server: the longest common prefix with what one of its slots holds, less what its cache forgot."""

from kvscope.prompt.reuse_engines.base import Reusable, ReuseQuestion

SOURCE = "llama.cpp, tools/server/server-context.cpp: get_available_slot, pre_decode; measured with b11549"


def reusable(question: ReuseQuestion) -> Reusable:
    """The second prompt's tokens that are not computed again."""
    if question.settings.get("cache_prompt") is False:
        return Reusable(tokens=0, status="exact", because="cache_prompt is off", source=SOURCE)
    common = min(question.common_prefix_tokens, question.held_tokens)
    if common == question.prompt_tokens and common > 0:
        because = "the whole prompt is held, and the last token is computed for its answer: one less"
        return Reusable(tokens=common - 1, status="estimated", because=because, source=SOURCE)
    because = f"the first {common} tokens are the same as what the slot holds"
    return Reusable(tokens=common, status="estimated", because=because, source=SOURCE)
