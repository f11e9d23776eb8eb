"""How llama.cpp's server hands a conversation to a chat template, where that differs from transformers.

Held against the running server (b11549): it writes messages and tools anew, with its own keys in its own order; what a
template can take (a content in blocks, a system message, a call's arguments as an object) it finds out by trying, and
turns messages into that; and it continues a last message of the assistant instead of closing it.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from kvscope.errors import ChatTemplateError
from kvscope.prompt.chat_template.render import WRITTEN_NUMBER
from kvscope.prompt.conversation import Conversation, Image, Message

# What llama.cpp writes in place of a picture until it is given to the model.
MEDIA_MARKER = "<__media__>"
_PROBE = "kvscope0probe"
# Templates of models that think: the server opens and closes the thinking of a message that it continues, in words
# that it reads out of the template or knows for this family. They are not known here.
_THINKS = re.compile(
    r"think|reason|thought|<\|channel\|>|<\|role_sep\|>|>>>all|to=self|tool_(list_start|call_begin)|list of tools: \[",
    re.IGNORECASE,
)
# LFM2.5's look at a content before they look into it, so that the server does not see that they take blocks.
_HIDES_BLOCKS = "List of tools: ["
# Templates that are told whether to think; others may ask and are told no.
_CAN_THINK = re.compile(r"reasoning_content|think\|?>|\[THINK\]")
_CALL_ID = "call00001"

Answers = Sequence[str | ChatTemplateError]
Trial = Callable[[Sequence[Mapping[str, Any]]], Answers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a template takes; the names are those of the server's ``chat_template_caps``, without supports_."""

    string_content: bool = True
    typed_content: bool = False
    system_role: bool = True
    object_arguments: bool = False


def stated_capabilities(props: Mapping[str, Any]) -> Capabilities | None:
    """What a server says of its template in /props; None where its release says too little."""
    stated = props.get("chat_template_caps")
    found: dict[str, bool] = {}
    for name in Capabilities.__slots__:
        value = stated.get(f"supports_{name}") if isinstance(stated, dict) else None
        if not isinstance(value, bool):
            return None
        found[name] = value
    return Capabilities(**found)


def find_capabilities(render: Trial) -> Capabilities:
    """What a template takes, by rendering small conversations with it: ``render`` gives the texts of several sets of
    variables."""
    user = {"role": "user", "content": _PROBE}
    typed = {"role": "user", "content": [{"type": "text", "text": _PROBE}]}
    system, typed_system = ({**message, "role": "system"} for message in (user, typed))
    function = {"name": "f", "arguments": {"a": _PROBE}}
    calls = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": _CALL_ID, "type": "function", "function": function}],
    }
    answer = {"role": "tool", "content": "r", "tool_call_id": _CALL_ID}
    asked = {"role": "user", "content": "q"}
    said = {"role": "assistant", "content": "s"}
    tool = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
    tools = [{"name": "tool", "type": "function", "function": tool}]
    trials: list[dict[str, Any]] = [
        {"messages": [user]},
        {"messages": [typed]},
        {"messages": [system, asked]},
        {"messages": [asked, calls, answer, said, asked], "tools": tools},
        {"messages": [{"role": "user", "content": []}]},
        {"messages": [typed_system, typed]},
    ]
    texts = render([{"add_generation_prompt": True, **trial} for trial in trials])
    string, blocks, with_system, with_call, empty, typed_with_system = (
        None if isinstance(text, ChatTemplateError) else text for text in texts
    )
    # A template that knows nothing of blocks writes them out as they are, keys and all.
    takes_blocks = blocks is not None and _PROBE in blocks and not re.search(rf"text\W{{1,6}}{_PROBE}", blocks)
    takes_text = string is not None and (_PROBE in string or not takes_blocks)
    if takes_text:
        system_text = with_system
        # Of a template that takes both, the server learns about blocks with an empty list.
        takes_blocks = takes_blocks and empty is not None
    else:
        system_text = typed_with_system
    return Capabilities(
        string_content=takes_text,
        typed_content=takes_blocks,
        system_role=system_text is not None and _PROBE in system_text,
        object_arguments=with_call is not None and _PROBE in with_call,
    )


def llama_cpp_variables(
    conversation: Conversation, *, capabilities: Capabilities, text: str, add_generation_prompt: bool, now: datetime
) -> dict[str, Any]:
    """What the server gives to the template ``text``, without special tokens and the request's own variables.

    Raises ChatTemplateError where the server refuses the conversation."""
    _check_family(conversation, text)
    if _HIDES_BLOCKS in text:
        capabilities = replace(capabilities, typed_content=False)
    messages = [_message(message, capabilities) for message in conversation.messages]
    if "<|channel|>" in text:
        for message in messages:
            _for_gpt_oss(message)
    else:
        for message in messages:
            if message["role"] == "developer":
                message["role"] = "system"
    if not capabilities.system_role:
        _merge_system(messages)
    found: dict[str, Any] = {
        "messages": messages,
        "enable_thinking": "enable_thinking" in text and _CAN_THINK.search(text) is not None,
        "datetime": now.strftime("%b %d %Y"),
        "date_string": now.strftime("%d %b %Y"),
    }
    if _is_ministral(text):
        for message in messages:
            _for_ministral(message)
    if conversation.tools:
        found["tools"] = [_tool(tool) for tool in conversation.tools]
    if add_generation_prompt:
        found["add_generation_prompt"] = True
    return found


def continues(conversation: Conversation, asked: bool | None) -> bool:
    """Whether the server goes on with the last message. ``asked`` is continue_final_message; None: not said."""
    if asked is not None:
        return asked
    return bool(conversation.messages) and conversation.messages[-1].role == "assistant"


def check_continuation(conversation: Conversation, text: str, source: str) -> None:
    """Raises ChatTemplateError for a last message that the server refuses to continue, or continues in a way that is
    not known here."""
    last = conversation.messages[-1]
    before = conversation.messages[-2:-1]
    if last.role == "assistant" and before and before[0].role == "assistant":
        raise _refused("it does not continue the second of two messages of the assistant")
    if last.tool_calls:
        raise _refused("it does not continue a message that calls tools")
    if _THINKS.search(text) and not _is_empty(last):
        raise ChatTemplateError(
            f"How llama.cpp continues a message of the assistant is not known for the chat template of {source}: the "
            "server adds thinking marks of its own.",
            kind="refused",
            hint="Count it with the running server, or leave the last message out.",
        )


def _is_empty(last: Message) -> bool:
    return not (last.content or last.reasoning or last.blocks or last.name or last.tool_call_id)


def continued_content(last: Message) -> str:
    """What the server writes of a message that it continues: texts of blocks are joined by a blank line."""
    content = ""
    for text in (block for block in last.blocks or (last.content,) if isinstance(block, str)):
        content += f"\n\n{text}" if content else text
    return content


def continued(without_prompt: str, with_prompt: str, last: Message) -> str:
    """The text of a conversation whose ``last`` message is continued, from the texts of what stands before it, without
    and with the generation prompt."""
    if _is_empty(last):
        return without_prompt  # the server adds nothing at all for an empty message
    shared = next(
        (i for i, (a, b) in enumerate(zip(without_prompt, with_prompt, strict=False)) if a != b),
        min(len(without_prompt), len(with_prompt)),
    )
    return without_prompt + with_prompt[shared:] + continued_content(last)


def _message(message: Message, capabilities: Capabilities) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": _content(message, capabilities)}
    for key, value in (
        ("reasoning_content", message.reasoning),
        ("name", message.name),
        ("tool_call_id", message.tool_call_id),
    ):
        if value:
            found[key] = value
    if message.tool_calls:
        found["tool_calls"] = [_call(call, capabilities) for call in message.tool_calls]
    return found


def _content(message: Message, capabilities: Capabilities) -> str | list[dict[str, str]]:
    texts_only = not any(isinstance(block, Image) for block in message.blocks)
    if message.blocks and texts_only and capabilities.typed_content:
        return [{"type": "text", "text": block} for block in message.blocks if isinstance(block, str)]
    text, after_picture = "", False
    for block in message.blocks:
        if isinstance(block, Image):
            text, after_picture = text + MEDIA_MARKER, True
        else:
            text, after_picture = text + ("\n" if text and not after_picture else "") + block, False
    text = text if message.blocks else message.content
    if capabilities.typed_content and not capabilities.string_content:
        return [{"type": "text", "text": text}]
    return text


def _call(call: Mapping[str, Any], capabilities: Capabilities) -> dict[str, Any]:
    function = call.get("function")
    if call.get("type") != "function" or not isinstance(function, Mapping) or "name" not in function:
        raise _refused("a call of a tool needs the type function, and a function with a name")
    if "arguments" not in function:
        raise _refused("a call of a tool has no arguments")
    if not isinstance(call.get("id", ""), str):
        raise _refused("the id of a call is no text")
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else _json(arguments)
    found: dict[str, Any] = {
        "type": "function",
        "function": {
            "name": function["name"],
            "arguments": _arguments(text) if capabilities.object_arguments else text,
        },
    }
    if call.get("id"):
        found["id"] = call["id"]
    return found


def _arguments(text: str) -> Any:
    try:
        parsed = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        json.dumps(parsed, ensure_ascii=False).encode()  # halves of characters have no bytes
        return numbers(parsed)
    except (ValueError, RecursionError) as error:
        raise _refused(f"the arguments of a call are not JSON ({error})") from None


def _finite(written: str) -> float:
    number = float(written)
    if math.isinf(number):
        raise ValueError(f"the number {written[:40]} is too large")
    return number


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def numbers(value: Any) -> Any:
    """``value`` with its numbers as the server writes them: six digits, none after the point of a whole one, and whole
    ones in 64 bits with a sign. Raises ChatTemplateError for one that it cannot read."""
    if isinstance(value, dict):
        return {key: numbers(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [numbers(each) for each in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        value = value - 2**64 if 0 < value < 2**64 else _as_float(value)
    if isinstance(value, float):
        text = f"{value:g}"
        if json.dumps(value) == text:
            return value
        if text.lstrip("-").isdigit() and text != "-0":
            return int(text)
        return {WRITTEN_NUMBER: text}
    return value


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise _refused("a number is too large") from None


def _json(value: Any) -> str:
    """``value`` as the server writes JSON, without blanks."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_json(key)}:{_json(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_json(each) for each in value) + "]"
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        value = _as_float(value)
    if isinstance(value, float) and 1e15 <= abs(value) < 1e16:  # Python writes these without an exponent
        return f"{Decimal(repr(value)).normalize():e}"
    return json.dumps(value, ensure_ascii=False)


def _check_family(conversation: Conversation, text: str) -> None:
    """Raises ChatTemplateError for what the server changes in a way of its own for one family of templates."""
    has_blocks = any(message.blocks for message in conversation.messages)
    has_answers = any(message.role == "tool" for message in conversation.messages)
    for mark, is_there, what in (
        ("'<|tool_call>call:'", has_answers, "answers of tools"),  # Gemma 4
        (
            "You have access to the following functions in JSONSchema format",
            has_blocks,
            "contents in blocks",
        ),  # StepFun
    ):
        if mark in text and is_there:
            raise ChatTemplateError(
                f"llama.cpp changes {what} in a way of its own for this model's family, which is not known here.",
                kind="refused",
                hint="Count this conversation with the running server.",
            )


def _for_gpt_oss(message: dict[str, Any]) -> None:
    if "reasoning_content" in message:
        message["thinking"] = message["reasoning_content"]
        if "tool_calls" in message:
            del message["content"]


def _is_ministral(text: str) -> bool:
    return all(mark in text for mark in ("[SYSTEM_PROMPT]", "[TOOL_CALLS]", "[ARGS]")) and "[CALL_ID]" not in text


def _for_ministral(message: dict[str, Any]) -> None:
    """Its thinking is a block of the content."""
    if message["role"] not in ("system", "assistant"):
        return
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    thinking = message.pop("reasoning_content", None)
    message["content"] = [*([{"type": "thinking", "thinking": thinking}] if thinking else []), *blocks]


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, Mapping) or "name" not in function:
        raise _refused("a tool needs the type function, and a function with a name")
    description, parameters = function.get("description", ""), numbers(function.get("parameters", {}))
    if not isinstance(description, str) or not isinstance(function["name"], str):
        raise _refused("the name and the description of a tool are to be texts")
    if parameters is not None and not isinstance(function.get("parameters", {}), Mapping):
        raise _refused("the parameters of a tool are to be an object")
    return {
        "type": "function",
        "function": {"name": function["name"], "description": description, "parameters": parameters},
    }


def _merge_system(messages: list[dict[str, Any]]) -> None:
    """Put a first system message before the next one's content, as the server does for a template that takes none."""
    if not messages or messages[0]["role"] != "system":
        return
    first = messages.pop(0)
    if messages:
        if not isinstance(first["content"], str) or not isinstance(messages[0]["content"], str):
            raise _refused("its template takes no system message, and the server cannot join contents in blocks")
        messages[0]["content"] = f"{first['content']}\n{messages[0]['content']}"


def _refused(why: str) -> ChatTemplateError:
    return ChatTemplateError(
        f"llama.cpp refuses this conversation: {why}.", kind="refused", hint="Change the conversation."
    )
