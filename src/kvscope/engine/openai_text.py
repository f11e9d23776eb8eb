"""Which of OpenAI's two interfaces a request goes to: chat, or, for a text that is sent as it is, completions."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvscope.engine.base import ChatRequest, ScoreRequest
from kvscope.engine.openai_http import prepare_chat, prepare_completion
from kvscope.engine.prepared import Prepared
from kvscope.errors import UsageError


def prepare_request(
    base_url: str,
    chat: ChatRequest,
    *,
    model: str | None = None,
    headers: Mapping[str, str] | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Prepared:
    """As ``prepare_chat``; of a request with ``text``, as ``prepare_completion``. Raises UsageError as
    ``check_text`` does."""
    check_text(chat)
    if chat.text is None:
        return prepare_chat(base_url, chat, model=model, headers=headers, fields=fields)
    return prepare_completion(base_url, chat, chat.text, model=model, headers=headers, fields=fields)


def check_text(chat: ChatRequest) -> None:
    """Raises UsageError for a request with a text and what only a chat template could write into it, an empty text, or
    an empty text to stop at, which engines take differently."""
    if "" in chat.stop:
        raise UsageError("A text to stop at is empty.", hint="Give it at least one character, or leave it out.")
    if chat.text is None:
        return
    beside: list[Sequence[Any] | Mapping[str, Any]] = [chat.messages, chat.tools, chat.template_variables]
    if any(beside):
        raise UsageError(
            "A request with a text has messages, tools or template variables too, and only one of both can be sent.",
            hint="Leave them out: a text is sent as it is, without a chat template.",
        )
    if not chat.text:
        raise UsageError("The text to be sent is empty.", hint="Give it at least one character.")


def check_prompt(request: ScoreRequest) -> None:
    """Raises UsageError for an empty prompt, or nothing behind it."""
    if not request.prompt:
        raise UsageError("Nothing can be scored after an empty prompt.", hint="Begin it with one token at least.")
    if not request.continuation:
        raise UsageError("There is nothing to score behind this prompt.", hint="Give one token at least.")
