"""The most that one sequence may hold on a running llama.cpp server: read back from it, not taken from what was asked.

Slots divide the context unless they share it, the server rounds it, and a slot is capped at the model's trained context
even where more cells were reserved.
"""

import json
from collections.abc import Sequence
from typing import Any

from kvscope.engine.base import ContextLimit
from kvscope.engine.openai_http import get_text
from kvscope.errors import EngineError


async def ask_context_limit(url: str, logged_slots: Sequence[int]) -> ContextLimit | None:
    """The limit as the server at ``url`` states it, else as its log does; None where neither says."""
    return context_limit(await _said(f"{url}/slots"), await _said(f"{url}/props"), logged_slots)


async def _said(url: str) -> Any:
    """The JSON at ``url``; None where the server does not answer there (an endpoint may be turned off)."""
    try:
        return json.loads(await get_text(url))
    except (EngineError, ValueError, RecursionError):
        return None


def context_limit(slots: Any, props: Any, logged_slots: Sequence[int]) -> ContextLimit | None:
    """The limit from what /slots and /props answered (None: nothing), and from the slots that the log names. Of slots
    that differ, the smallest: a request goes to whichever is free."""
    stated = (
        [slot.get("n_ctx") if isinstance(slot, dict) else None for slot in slots] if isinstance(slots, list) else []
    )
    found = [(stated, "GET /slots: n_ctx"), ([_default_n_ctx(props)], _PROPS), (list(logged_slots), _LOG)]
    for values, source in found:
        if values and all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in values):
            return ContextLimit(tokens=min(values), source=source)
    return None


_PROPS = "GET /props: default_generation_settings.n_ctx"
_LOG = "the engine's log: new slot, n_ctx"


def _default_n_ctx(props: Any) -> Any:
    settings = props.get("default_generation_settings") if isinstance(props, dict) else None
    return settings.get("n_ctx") if isinstance(settings, dict) else None


def read_slots(text: str | None) -> dict[int, int | None] | None:
    """Tokens that each slot holds now, kept prompts included, by its number, from what /slots answered. A slot that
    never worked holds none; of one that did, older builds do not say it (None). None where no slots are listed."""
    try:
        slots = {slot["id"]: slot for slot in json.loads(text or "")}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    held = {number: slot.get("n_prompt_tokens", None if "id_task" in slot else 0) for number, slot in slots.items()}
    is_read = all(isinstance(number, int) for number in held)
    return {number: value if isinstance(value, int) else None for number, value in held.items()} if is_read else None
