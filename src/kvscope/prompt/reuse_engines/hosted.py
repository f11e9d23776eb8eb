"""Hosted interfaces: what their providers state of their prefix caches.

All of it can change without notice, and a cache can be empty by the time of the second request: every number is the
most that can be reused.
"""

from kvscope.prompt.reuse_engines.base import Reusable, ReuseQuestion

_OPENAI = "OpenAI's guide to prompt caching: prompts of 1,024 tokens or more, in steps of 128 (models before GPT-5.6)"
_OPENAI_LEAST, _OPENAI_STEP = 1024, 128
_ANTHROPIC = "Anthropic's guide to prompt caching: cache_control breakpoints; at least 1,024 to 4,096 tokens, by model"
_DEEPSEEK = "DeepSeek's guide to context caching: units that end with a request's input, and with its output"


def openai_api(question: ReuseQuestion) -> Reusable:
    """Steps of 128 tokens of a common beginning that has 1,024 or more."""
    usable = min(question.common_prefix_tokens, question.held_tokens)
    steps = usable // _OPENAI_STEP
    tokens = steps * _OPENAI_STEP if usable >= _OPENAI_LEAST else 0
    because = (
        f"{usable:,} tokens are common: {steps:,} whole steps of {_OPENAI_STEP}"
        if tokens
        else f"{usable:,} tokens are common, fewer than the {_OPENAI_LEAST:,} from which prompts are cached"
    )
    return Reusable(
        tokens=tokens,
        status="estimated",
        because=because,
        source=_OPENAI,
        granularity_tokens=_OPENAI_STEP,
        minimum_prefix_tokens=_OPENAI_LEAST,
    )


def anthropic_api(question: ReuseQuestion) -> Reusable:
    """Nothing below the least; above it, the request's own breakpoints decide."""
    least = 1024
    usable = min(question.common_prefix_tokens, question.held_tokens)
    if usable < least:
        because = f"{usable:,} tokens are common, fewer than the {least:,} that any model caches"
        return Reusable(tokens=0, status="estimated", because=because, source=_ANTHROPIC, minimum_prefix_tokens=least)
    because = "what is cached ends where the request sets a cache_control breakpoint, which is not followed here"
    return Reusable(tokens=None, status="unknown", because=because, source=_ANTHROPIC, minimum_prefix_tokens=least)


def deepseek_api(question: ReuseQuestion) -> Reusable:
    """The first request to its end, or its prompt, where the second begins with the whole of it."""
    if question.common_prefix_tokens >= question.held_tokens:
        because = "the second prompt begins with the whole first prompt and its answer"
        return Reusable(tokens=question.held_tokens, status="estimated", because=because, source=_DEEPSEEK)
    first = question.first_prompt_tokens
    if first is not None and question.common_prefix_tokens >= first:
        because = "the second prompt begins with the whole first prompt"
        return Reusable(tokens=first, status="estimated", because=because, source=_DEEPSEEK)
    because = "a part of a request is kept only at intervals, or once several have begun with it, which is not stated"
    return Reusable(tokens=None, status="unknown", because=because, source=_DEEPSEEK)
