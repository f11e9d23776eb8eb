"""What llama.cpp's server makes of a request's body, where that is not what OpenAI's interface or vLLM make of it.

All of it was seen on the running server (b11549): keys that it passes over, values that it turns down, and what it
gives to the chat template beside the conversation.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvscope.prompt.conversation import Conversation, Message

# Types of blocks that it turns down, and that others take.
_OTHER_BLOCKS = ("input_text", "output_text", "input_image", "image", "media_marker")
_PASSED_OVER = (
    "functions", "function_call", "documents", "system", "chat_template", "prompt", "input", "reasoning",
)  # fmt: skip
# It takes these keys as absent only where they are absent.
_NO_NULL = ("reasoning_content", "name", "tool_call_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppReading:
    """``conversation``, ``extra`` and ``add_generation_prompt`` as llama.cpp's server reads them (see LoadedRequest).
    ``warnings``: what it passes over. ``refused``: why it turns the request down, None where it does not."""

    conversation: Conversation
    extra: Mapping[str, Any]
    add_generation_prompt: bool
    warnings: tuple[str, ...]
    refused: str | None
    not_followed: tuple[str, ...]


def read_as_llama_cpp(
    body: Mapping[str, Any], conversation: Conversation, not_followed: Sequence[str]
) -> LlamaCppReading:
    """``body`` of a request, whose ``conversation`` has been read as OpenAI's interface means it."""
    entries = body["messages"]
    ignored = [key for key in _PASSED_OVER if body.get(key)]
    messages = []
    for index, (entry, message) in enumerate(zip(entries, conversation.messages, strict=True)):
        messages.append(_message(entry, message))
        ignored += [f"messages[{index}].{key}" for key in ("function_call", "reasoning", "thinking") if entry.get(key)]
    warnings = []
    if ignored:
        warnings.append(f"llama.cpp's server passes over {', '.join(ignored)}: not counted.")
    nulls = next(_nulls(entries), None)
    if nulls is not None:
        warnings.append(f"llama.cpp's server refuses this request: {nulls} is null. Counted as if it were not there.")
    kwargs = body.get("chat_template_kwargs") or {}
    asked = body.get("add_generation_prompt")
    return LlamaCppReading(
        conversation=Conversation(
            messages=tuple(messages), tools=conversation.tools if body.get("tools") is not None else ()
        ),
        extra=_variables(kwargs, body.get("reasoning_effort")),
        # In the variables it is overruled by the request, unless that says false.
        add_generation_prompt=asked is not False or bool(kwargs.get("add_generation_prompt")),
        warnings=tuple(warnings),
        refused=next(_refusals(entries, kwargs), None),
        not_followed=tuple(key for key in not_followed if key not in (*_PASSED_OVER, "reasoning_effort")),
    )


def _message(entry: Mapping[str, Any], message: Message) -> Message:
    reasoning = entry.get("reasoning_content")
    return replace(
        message,
        reasoning=reasoning if isinstance(reasoning, str) else None,
        tool_calls=message.tool_calls if entry.get("tool_calls") is not None else (),
    )


def _variables(kwargs: Mapping[str, Any], effort: Any) -> dict[str, Any]:
    found = {name: value for name, value in kwargs.items() if name != "add_generation_prompt"}
    if effort == "none":
        found.pop("reasoning_effort", None)
        found.setdefault("enable_thinking", False)
    elif isinstance(effort, str) and effort:
        found["reasoning_effort"] = effort
    return found


def _refusals(entries: Sequence[Mapping[str, Any]], kwargs: Mapping[str, Any]) -> Iterator[str]:
    for index, entry in enumerate(entries):
        where = f"messages[{index}]"
        if "content" not in entry and entry["role"] != "assistant":
            yield f"{where} has no content"
        if "content" not in entry and "tool_calls" not in entry:
            yield f"{where} has no content and no tool_calls"
        content = entry.get("content")
        for number, block in enumerate(content if isinstance(content, list) else ()):
            if isinstance(block, str):
                yield f"{where}.content[{number}] is no block (an object with a type)"
            elif block.get("type") in _OTHER_BLOCKS:
                yield f"{where}.content[{number}] is of the type {block['type']}"
    if isinstance(kwargs.get("enable_thinking"), str):
        yield "chat_template_kwargs.enable_thinking is a text"


def _nulls(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for index, entry in enumerate(entries):
        for key in _NO_NULL:
            if key in entry and entry[key] is None:
                yield f"messages[{index}].{key}"
