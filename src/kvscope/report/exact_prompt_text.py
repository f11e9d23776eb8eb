"""What one exact prompt is, in one line: from the dictionary of an ``ExactPrompt``."""

from collections.abc import Mapping
from typing import Any

from kvscope.units import format_count


def render_prompt_line(prompt: Mapping[str, Any], name: str | None = None) -> str:
    """``name`` is the file that it was written to, None where it was printed."""
    own = (
        "BOS among them" if prompt["raw"] else f"{format_count(prompt['template_tokens'])} of them the chat template's"
    )
    parts = [
        f"{_tokens(prompt['prompt_tokens'])}, {own}" if prompt["template_tokens"] else _tokens(prompt["prompt_tokens"])
    ]
    parts += [_key(prompt), f"seed {prompt['seed']}"]
    if prompt.get("fits") is False:
        limit = format_count(prompt["context_limit_tokens"])
        parts.append(f"does NOT fit into {limit} tokens: {prompt['context_limit_source']}")
    return (f"{name}: " if name else "") + "; ".join(parts)


def _tokens(count: int) -> str:
    return f"{format_count(count)} token{'' if count == 1 else 's'}"


def _key(prompt: Mapping[str, Any]) -> str:
    if prompt["key_sentence"] is None:
        return f"no key sentence ({prompt['no_key_because'].rstrip('.')})"
    before, percent, asked = prompt["key_tokens_before"], prompt["key_percent"], prompt["key_percent_asked"]
    place = "key sentence" if before is None else f"key sentence after {_tokens(before)}"
    if percent is None:
        return f"{place}, alone (no room for text around it)"
    return f"{place}, {percent:.1f} % down the text ({asked:g} % asked)"
