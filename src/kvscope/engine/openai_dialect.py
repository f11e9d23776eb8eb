"""What a server of OpenAI's interface does not take, by its own words, and what is told of it."""

import json
from collections.abc import Mapping
from types import MappingProxyType

from kvscope.engine.served_facts import ServedFacts
from kvscope.errors import EngineError, EngineModelError, EngineReplyError

Warned = tuple[str, str, str]

# Fields that some servers refuse (hosted reasoning models), and what they take instead; None: nothing.
OTHER_WORDS: Mapping[str, str | None] = MappingProxyType(
    {
        "max_tokens": "max_completion_tokens",
        "temperature": None,
        "seed": None,
        "stream_options": None,
    }
)


def has_no_chat(error: EngineError) -> bool:
    """Whether a server refused because it has no chat: no such path, or a model without a chat template."""
    status = error.evidence.get("http_status")
    if status in (404, 405, 501):
        return not isinstance(error, EngineModelError)
    return status == 400 and "chat template" in error.message.lower()


def neither(url: str, error: EngineError) -> EngineReplyError:
    """What a server is told apart by that has no completions either."""
    return EngineReplyError(
        f"The server at {url} has neither /v1/chat/completions nor /v1/completions "
        f"({error.evidence.get('http_status')}).",
        hint="Is it a server with OpenAI's interface? Check the address, its path too.",
        evidence=error.evidence,
    )


def refused_field(error: EngineError) -> str | None:
    """The field that a server says it does not take, as OpenAI's interface names it ("param" of the error)."""
    try:
        refused = json.loads(error.evidence.get("body", ""))["error"]["param"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return refused if error.evidence.get("http_status") == 400 and refused in OTHER_WORDS else None


def not_greedy(other_words: Mapping[str, str | None]) -> tuple[Warned, ...]:
    """A warning where the server does not take what makes answers the same each time."""
    left_out = [name for name in other_words if name in ("temperature", "seed")]
    if not left_out:
        return ()
    message = f"The server refuses {' and '.join(left_out)}: its answers differ from one time to the next."
    return (("not-repeatable", message, "Compare times and counts, not the texts of the answers."),)


def first_of_several(facts: ServedFacts, asked: str | None) -> tuple[Warned, ...]:
    """A warning where the server has several models and none was ``asked`` for."""
    if asked is not None or not facts.others:
        return ()
    names = ", ".join(facts.others[:8]) + (" ..." if len(facts.others) > 8 else "")
    message = f"The server has {len(facts.others) + 1} models. The first was measured: {facts.model}. Others: {names}."
    return (("first-of-several-models", message, "Choose one with --served-model."),)
