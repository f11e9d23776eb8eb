"""What a server of OpenAI's interface does not take, by its own words, and what is told of it."""

import json
import re
from collections.abc import Mapping
from types import MappingProxyType

from kvscope.engine.served_facts import ServedFacts
from kvscope.engine.server_errors import read_words
from kvscope.errors import ContextOverflow, EngineError, EngineModelError, EngineReplyError

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


# How servers say that they do not know a field: OpenAI's and Azure's, pydantic's, Groq's, JSON Schema's, serde's.
_REFUSES = re.compile(
    r"unrecognized|unsupported|not support|unknown|unexpected|not permitted|not allowed|additional propert|extra field",
    re.IGNORECASE,
)
_NAMES = re.compile(rf"(?<![A-Za-z_])(?:{'|'.join(OTHER_WORDS)})(?![A-Za-z_])")


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
    """The field that a server says it does not take: as OpenAI's interface names it ("param" of the error), or in the
    words of its message, as in FastAPI's "body.seed: Extra inputs are not permitted"."""
    body = error.evidence.get("body", "")
    if error.evidence.get("http_status") not in (400, 422) or isinstance(error, ContextOverflow):
        return None
    try:
        refused = json.loads(body)["error"]["param"]
    except (ValueError, TypeError, KeyError, RecursionError):
        refused = None
    if refused in OTHER_WORDS:
        return str(refused)
    said = read_words(body.encode(errors="replace")).message
    if _REFUSES.search(said) is None:
        return None
    named = _NAMES.search(said)
    return None if named is None else named.group()


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
