"""What one exact prompt is, in one line: from the dictionary of an ``ExactPrompt``."""

from collections.abc import Mapping
from typing import Any

from kvscope.units import format_count


def render_prompt_line(prompt: Mapping[str, Any], name: str | None = None) -> str:
    """``name`` is the file that it was written to, None where it was printed."""
    own = "BOS" if prompt["raw"] else "the chat template"
    tokens, template = format_count(prompt["prompt_tokens"]), format_count(prompt["template_tokens"])
    parts = [f"{tokens} tokens, {template} of them {own}'s" if prompt["template_tokens"] else f"{tokens} tokens"]
    parts += [_key(prompt), f"seed {prompt['seed']}"]
    return (f"{name}: " if name else "") + "; ".join(parts)


def _key(prompt: Mapping[str, Any]) -> str:
    if prompt["key_sentence"] is None:
        return f"no key sentence ({prompt['no_key_because'].rstrip('.')})"
    before, percent, asked = prompt["key_tokens_before"], prompt["key_percent"], prompt["key_percent_asked"]
    place = "key sentence" if before is None else f"key sentence after {format_count(before)} tokens"
    if percent is None:
        return f"{place}, alone (no room for text around it)"
    return f"{place}, {percent:.1f} % down the text ({asked:g} % asked)"
