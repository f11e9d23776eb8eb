"""vLLM: whole blocks of a prefix, wherever they were computed, and never a prompt's last token.

Source: vllm/v1/core/kv_cache_manager.py (get_computed_blocks: at most the prompt's tokens less one),
single_type_kv_cache_manager.py (find_longest_cache_hit) and sched/scheduler.py (_mamba_block_aligned_split). Read, not
measured.
"""

import re

from kvscope.model.spec import HybridCache, RecurrentState
from kvscope.prompt.reuse_engines.base import Reusable, ReuseQuestion
from kvscope.prompt.reuse_engines.setting_values import at_least_one, flag

SOURCE = "vLLM: vllm/v1/core/kv_cache_manager.py (get_computed_blocks), sched/scheduler.py; read, not measured"
_DEFAULT_BLOCK = 16
# Prefix caching is on unless it is turned off since V1 is the engine.
_FIRST_ALWAYS_ON = (0, 8)


def reusable(question: ReuseQuestion) -> Reusable:
    """Whole blocks of what is common. ``block_size``: the engine's effective one, which it raises for a model with
    recurrent states; ``kvscope predict`` says what it makes of it. Raises UsageError for a setting that is none."""
    settings = question.settings
    has_states = question.model is not None and any(
        isinstance(layer.cache, RecurrentState | HybridCache) for layer in question.model.layers
    )
    if not flag(settings, "enable_prefix_caching", True):
        return Reusable(tokens=0, status="estimated", because="enable_prefix_caching is off", source=SOURCE)
    if "enable_prefix_caching" not in settings and _is_before(question.engine_version, _FIRST_ALWAYS_ON):
        because = f"vLLM {question.engine_version} caches prefixes only where enable_prefix_caching is on"
        return Reusable(tokens=None, status="unknown", because=because, source=SOURCE)
    if has_states and "block_size" not in settings:
        because = "the block size that vLLM makes for this model's recurrent states is not stated (block_size)"
        return Reusable(tokens=None, status="unknown", because=because, source=SOURCE)
    block = at_least_one(settings, "block_size", _DEFAULT_BLOCK)
    usable = min(question.common_prefix_tokens, question.held_tokens, question.prompt_tokens - 1)
    blocks = usable // block
    if blocks == 0:
        because = f"{usable:,} tokens are usable, less than one block of {block:,}: nothing can be reused by design"
    else:
        because = f"{blocks:,} whole blocks of {block:,} tokens lie in the {usable:,} that are usable"
    if has_states and blocks:
        return _with_states(question, block, usable)
    return _answer(blocks * block, because, block)


def _with_states(question: ReuseQuestion, block: int, usable: int) -> Reusable:
    """The state is kept at the last whole block of a prompt, not at those before it."""
    if question.first_prompt_tokens is None:
        because = "a state is kept at the last whole block of the first prompt, whose length is not stated"
        return Reusable(tokens=None, status="unknown", because=because, source=SOURCE, granularity_tokens=block)
    kept = max(0, question.first_prompt_tokens - 1) // block * block
    if kept and usable >= kept:
        return _answer(
            kept, f"the recurrent state was kept at token {kept:,}, the first prompt's last whole block", block
        )
    if kept <= at_least_one(question.settings, "max_num_batched_tokens", 2048):
        return _answer(0, f"the recurrent state was kept at token {kept:,} only, which is not common to both", block)
    because = f"the recurrent state was kept at token {kept:,}, and perhaps where a chunk of the prompt ended before it"
    return Reusable(tokens=None, status="unknown", because=because, source=SOURCE, granularity_tokens=block)


def _answer(tokens: int, because: str, block: int) -> Reusable:
    return Reusable(
        tokens=tokens,
        status="estimated",
        because=because,
        source=SOURCE,
        granularity_tokens=block,
        minimum_prefix_tokens=block,
    )


def _is_before(version: str | None, first: tuple[int, int]) -> bool:
    found = re.search(r"(\d+)\.(\d+)", version or "")
    return found is not None and (int(found[1]), int(found[2])) < first
