"""SGLang: a tree of all prefixes, cut at pages, and never a prompt's last token.

Source: sglang/srt/mem_cache/radix_cache.py (match_prefix) and managers/schedule_batch.py (adjust_max_prefix_ids: the
prompt's tokens less one). Read, not measured.
"""

from kvscope.model.spec import HybridCache, RecurrentState, SlidingWindow
from kvscope.prompt.reuse_engines.base import Reusable, ReuseQuestion
from kvscope.prompt.reuse_engines.setting_values import at_least_one, flag

SOURCE = "SGLang: mem_cache/radix_cache.py (match_prefix), schedule_batch.py; read, not measured"


def reusable(question: ReuseQuestion) -> Reusable:
    """Whole pages of what is common; ``page_size`` is 1 where it is not stated. Raises UsageError for a setting that is
    none."""
    if flag(question.settings, "disable_radix_cache", False):
        return Reusable(tokens=0, status="estimated", because="disable_radix_cache is on", source=SOURCE)
    page = at_least_one(question.settings, "page_size", 1)
    usable = min(question.common_prefix_tokens, question.held_tokens, question.prompt_tokens - 1)
    tokens = max(0, usable) // page * page
    forgetting = (RecurrentState, HybridCache, SlidingWindow)
    layers = question.model.layers if question.model is not None else ()
    if tokens and any(isinstance(layer.cache, forgetting) for layer in layers):
        because = "where SGLang keeps a recurrent state or a window for later is not known here"
        return Reusable(tokens=None, status="unknown", because=because, source=SOURCE, granularity_tokens=page)
    because = f"{usable:,} tokens are usable (never a prompt's last one), in pages of {page:,}"
    return Reusable(
        tokens=tokens,
        status="estimated",
        because=because,
        source=SOURCE,
        granularity_tokens=page,
        minimum_prefix_tokens=page,
    )
