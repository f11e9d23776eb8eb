"""Token counts as servers state them, each in its own words.

| words | the whole prompt | of it reused |
|---|---|---|
| OpenAI, vLLM, SGLang, llama.cpp: `usage` | prompt_tokens | prompt_tokens_details.cached_tokens |
| OpenAI's Responses: `usage` | input_tokens | input_tokens_details.cached_tokens |
| DeepSeek: `usage` | prompt_tokens, or hit + miss | prompt_cache_hit_tokens |
| Anthropic: `usage` | input + cache_read + cache_creation | cache_read_input_tokens |
| llama.cpp: `timings` | prompt_n + cache_n | cache_n |
| Ollama's own interface | prompt_eval_count, see below | not stated |

Read from the projects' own documents and sources as of 2025 and 2026. What differs by version: llama.cpp states
``cache_n`` since 2025, and before that ``prompt_n`` alone, which is what was newly read and no whole prompt. vLLM and
SGLang state cached tokens only where that was turned on. Ollama leaves ``prompt_eval_count`` out where all of the
prompt was cached, and before it added the cached tokens stated the new ones alone; its answer does not say which.

Thinking is ``completion_tokens_details.reasoning_tokens`` (Responses: ``output_tokens_details``). OpenAI's are part of
the completion's tokens. Some servers (xAI's) state them beside these, which only ``total_tokens`` shows: the output is
then the sum of both.

A count that is absent or null is None, never 0. A whole number may be written as 11.0. One of more than 63
bits is an error that keeps it in its message, and no measurement. Some servers state fewer prompt tokens than cached
ones (they leave the cached out): both are kept as stated, and how many were computed is then not known.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvscope.errors import EngineReplyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one answer. ``prompt_tokens`` is the whole prompt, what was reused of it (``cached_tokens``) included;
    ``output_tokens`` the whole output, what was thought (``reasoning_tokens``) included. ``stated_by`` says which of
    the server's numbers the prompt is. ``may_leave_out_cached``: the server does not say whether cached tokens are in
    it."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    stated_by: str | None = None
    may_leave_out_cached: bool = False

    @property
    def total_tokens(self) -> int | None:
        """Prompt and output; None where one of them is not known."""
        if self.prompt_tokens is None or self.output_tokens is None:
            return None
        return self.prompt_tokens + self.output_tokens

    @property
    def processed_tokens(self) -> int | None:
        """Tokens of the prompt that were computed anew; None where that is not known, as where more is said to be
        cached than the prompt has."""
        if self.prompt_tokens is None or self.cached_tokens is None or self.cached_tokens > self.prompt_tokens:
            return None
        return self.prompt_tokens - self.cached_tokens


def read_usage(answer: Mapping[str, Any]) -> Usage:
    """The counts in an answer, or in the last event of a streamed one. What the ``usage`` leaves out is taken from
    llama.cpp's ``timings`` beside it. Raises EngineReplyError for a count that is no whole number of 0 or more or has
    more than 63 bits."""
    usage, timings = _mapping(answer, "usage"), _mapping(answer, "timings")
    found = read_anthropic_usage(usage) if _says_anthropic(usage) else read_openai_usage(usage)
    if not timings and found.prompt_tokens is not None:  # nothing beside it to be asked
        _check(found)
        return found
    timed = read_llama_timings(timings)
    if found.prompt_tokens is None and timed.prompt_tokens is None:
        ollama = read_ollama_counts(answer)
        timed = timed if ollama == Usage() else ollama
    whole = timed if found.prompt_tokens is None else found
    together = Usage(
        prompt_tokens=whole.prompt_tokens,
        cached_tokens=timed.cached_tokens if found.cached_tokens is None else found.cached_tokens,
        output_tokens=timed.output_tokens if found.output_tokens is None else found.output_tokens,
        reasoning_tokens=found.reasoning_tokens,
        stated_by=whole.stated_by,
        may_leave_out_cached=whole.may_leave_out_cached,
    )
    _check(together)
    return together


def read_openai_usage(usage: Mapping[str, Any]) -> Usage:
    """``usage`` in OpenAI's words, of Chat Completions or of Responses, and with DeepSeek's counts of its cache."""
    kind = "input" if "input_tokens" in usage and "prompt_tokens" not in usage else "prompt"
    prompt = _count(usage, f"{kind}_tokens")
    cached = _count(_mapping(usage, f"{kind}_tokens_details"), "cached_tokens")
    hit, miss = _count(usage, "prompt_cache_hit_tokens"), _count(usage, "prompt_cache_miss_tokens")
    stated_by = f"usage.{kind}_tokens"
    if prompt is None and hit is not None and miss is not None:
        prompt, stated_by = hit + miss, "usage: prompt_cache_hit_tokens + prompt_cache_miss_tokens"
    name = "completion_tokens" if kind == "prompt" else "output_tokens"
    output, thought = _count(usage, name), _count(_mapping(usage, f"{name}_details"), "reasoning_tokens")
    total = _count(usage, "total_tokens")
    if thought and None not in (prompt, output, total) and (prompt or 0) + (output or 0) + thought == total:
        output = (output or 0) + thought
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=hit if cached is None else cached,
        output_tokens=output,
        reasoning_tokens=thought,
        stated_by=None if prompt is None else stated_by,
    )


def read_anthropic_usage(usage: Mapping[str, Any]) -> Usage:
    """``usage`` in Anthropic's words: input_tokens are those after the last cached one, so the prompt is a sum. Where
    one part of it is stated and another is not, the sum is not known."""
    parts = [_count(usage, name) for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")]
    known = [part for part in parts if part is not None]
    prompt = sum(known) if len(known) == len(parts) else None
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=parts[1],
        output_tokens=_count(usage, "output_tokens"),
        stated_by=None
        if prompt is None
        else "usage: input_tokens + cache_read_input_tokens + cache_creation_input_tokens",
    )


def read_llama_timings(timings: Mapping[str, Any]) -> Usage:
    """llama.cpp's ``timings``. ``prompt_n`` is what was newly read; without ``cache_n`` the whole is not known."""
    new, cached = _count(timings, "prompt_n"), _count(timings, "cache_n")
    prompt = None if new is None or cached is None else new + cached
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=_count(timings, "predicted_n"),
        stated_by=None if prompt is None else "timings: prompt_n + cache_n",
    )


def read_ollama_counts(answer: Mapping[str, Any]) -> Usage:
    """The last object of Ollama's /api/chat or /api/generate. ``eval_count`` is what was generated, not a total."""
    prompt = _count(answer, "prompt_eval_count")
    return Usage(
        prompt_tokens=prompt,
        output_tokens=_count(answer, "eval_count"),
        stated_by=None if prompt is None else "prompt_eval_count",
        may_leave_out_cached=prompt is not None,
    )


def _says_anthropic(usage: Mapping[str, Any]) -> bool:
    return any(usage.get(f"cache_{done}_input_tokens") is not None for done in ("read", "creation"))


def _mapping(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise EngineReplyError(f"The server states {name} as {found!r}, not as an object.", hint=_HINT)
    return found


def _check(usage: Usage) -> None:
    if usage.prompt_tokens is not None and usage.prompt_tokens > _MOST_TOKENS:  # it may be a sum
        raise EngineReplyError(
            f"The server states a prompt of {usage.prompt_tokens} tokens ({usage.stated_by}).", hint=_HINT
        )


def _count(counts: Mapping[str, Any], name: str) -> int | None:
    found = counts.get(name)
    if found is None:
        return None
    if isinstance(found, float) and found.is_integer():  # JSON has one kind of number: 11.0 is 11
        found = int(found)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= _MOST_TOKENS:
        raise EngineReplyError(f"The server states {name} as {found!r}, which is no number of tokens.", hint=_HINT)
    return found


# What a record can hold, and far beyond any prompt.
_MOST_TOKENS = 2**63 - 1
_HINT = "Is it a server with an OpenAI-style chat interface? What it sent is kept with the trial."
