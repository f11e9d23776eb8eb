"""What one exact prompt is, in one line: from the dictionary of an ``ExactPrompt``."""

from collections.abc import Mapping
from typing import Any

from kvscope.language import shown
from kvscope.report.terminal_text import wrapped
from kvscope.report.words import say


def render_prompt_line(prompt: Mapping[str, Any], name: str | None = None) -> str:
    """``name`` is the file that it was written to, None where it was printed."""
    tokens = _tokens(prompt["prompt_tokens"])
    if prompt["template_tokens"]:
        slug = "exact.with_bos" if prompt["raw"] else "exact.with_template"
        tokens = say(slug, tokens=tokens, count=prompt["template_tokens"])
    slug = "exact.line_file" if name else "exact.line"
    line = say(slug, file=name, tokens=tokens, key=_key(prompt), seed=prompt["seed"])
    if prompt.get("fits") is False:
        limit, source = prompt["context_limit_tokens"], shown(prompt["context_limit_source"])
        line = say("exact.too_long", line=line, limit=limit, source=source)
    return "\n".join(wrapped(line))


def _tokens(count: int) -> str:
    return say("exact.tokens_one" if count == 1 else "exact.tokens", count=count)


def _key(prompt: Mapping[str, Any]) -> str:
    if prompt["key_sentence"] is None:
        return say("exact.no_key", why=shown(prompt["no_key_because"]).rstrip("."))
    before, percent, asked = prompt["key_tokens_before"], prompt["key_percent"], prompt["key_percent_asked"]
    slug = "exact.key" + ("" if before is None else "_after") + ("_alone" if percent is None else "")
    return say(
        slug,
        tokens="" if before is None else _tokens(before),
        percent="" if percent is None else f"{percent:.1f}",
        asked=f"{asked:g}",
    )
