"""What ``kvscope explain`` prints."""

import textwrap
from collections.abc import Mapping
from typing import Any

NOTHING = """\
Nothing here that kvscope knows. It reads messages of llama.cpp, vLLM, SGLang, Ollama, PyTorch and OpenAI-compatible
servers about memory and context length; paste the whole line, as the engine wrote it.
"""


def render_explanation(explanation: Mapping[str, Any]) -> str:
    """The JSON of kvscope.explain/1 as text."""
    matches = explanation["matches"]
    if not matches:
        return NOTHING
    blocks = []
    for match in matches:
        lines = [f"> {_shortened(match['line'])}", f"  {match['kind']}"]
        lines += _wrapped(match["because"], "  = ")
        lines += [line for other in match["also"] for line in _wrapped(f"or {other}", "    ")]
        if not match["certain"]:
            lines += _wrapped(
                "The likeliest reading, not a certain one. Naming the model (--model) helps where the number is a "
                "product of its sizes.",
                "  ? ",
            )
        lines += _wrapped(match["advice"], "  What to do: ")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _wrapped(text: str, lead: str) -> list[str]:
    # Options such as --kv-cache-dtype stay whole: people copy them.
    return textwrap.wrap(text, 110, initial_indent=lead, subsequent_indent=" " * len(lead), break_on_hyphens=False)


def _shortened(line: str) -> str:
    return line if len(line) <= 160 else f"{line[:157]}..."
