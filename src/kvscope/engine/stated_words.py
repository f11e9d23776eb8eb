"""Words that servers put beside an answer: why it ended, and the names of their own times. Only known ones are kept.

Both are free text of another program's, and both go into the record: a server that repeats the prompt there would put
it into every table and page.
"""

from collections.abc import Mapping
from typing import Any

# What is said of an answer that ended with a word that is not known.
OTHER = "other"
# Of OpenAI, llama.cpp, vLLM, SGLang, Ollama, LM Studio, TGI, Anthropic, Gemini, Mistral and DeepSeek, and of routers
# before them.
END_WORDS = frozenset(
    (
        *("stop", "stop_sequence", "eos", "eos_token", "end_turn", "end", "complete", "completed", "done", "finished"),
        *("length", "max_tokens", "max_length", "max_new_tokens", "max_output_tokens", "model_length", "token_limit"),
        *("context_length_exceeded", "model_context_window_exceeded", "limit", "limited", "timeout", "time_limit"),
        *("tool_calls", "tool_call", "tool_use", "function_call", "pause_turn", "load", "unload"),
        *("content_filter", "safety", "recitation", "refusal", "blocked", "repetition", "sensitive"),
        *("error", "abort", "aborted", "cancel", "cancelled", "canceled", "insufficient_system_resource", "incomplete"),
        *("network_error", "unknown", "none", "null", OTHER),
    )
)
# llama.cpp's and those of servers that speak as it does; a request's own facts that kvscope adds are not of these.
TIMINGS = frozenset(
    (
        *("prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "cache_n"),
        *("predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second"),
        *("draft_n", "draft_n_accepted", "draft_ms", "queue_ms", "load_ms", "total_ms"),
    )
)


def known_end(stated: str | None) -> str | None:
    """Why an answer ended, in the server's word where it is a known one, in any case; ``other`` for anything else; None
    where nothing was stated."""
    if stated is None:
        return None
    return stated if stated.lower() in END_WORDS else OTHER


def known_timings(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The times that have a known name."""
    return {name: value for name, value in stated.items() if name in TIMINGS}
