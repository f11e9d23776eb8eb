"""How transformers hands a conversation to a chat template: as it was given, and open at its end where asked."""

from typing import Any

from kvscope.errors import ChatTemplateError
from kvscope.prompt.conversation import Conversation, Message

# Written after the text that is to be continued, and looked for in what the template makes of it. It ends with a blank,
# by which a template that trims is known.
_HERE = "kvscope0continue0here "


def variables(conversation: Conversation, *, is_continued: bool, text: str) -> dict[str, Any]:
    """``messages`` and ``tools`` for the template ``text``. Raises ChatTemplateError where the last message has nothing
    to continue."""
    messages = [template_message(message) for message in conversation.messages]
    if is_continued:
        if "content" not in text:
            raise _cannot_continue("its template does not use contents")
        _mark_end(messages[-1])
    return {"messages": messages, "tools": list(conversation.tools) if conversation.tools else None}


def template_message(message: Message) -> dict[str, Any]:
    """``message`` as templates know it: what it does not have is left out, and its reasoning has both names in use."""
    found: dict[str, Any] = {} if message.reasoning is None else {"thinking": message.reasoning}
    found |= {"role": message.role, "content": _content(message)}
    if message.name is not None:
        found["name"] = message.name
    if message.tool_calls:
        found["tool_calls"] = list(message.tool_calls)
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    if message.reasoning is not None:
        found["reasoning_content"] = message.reasoning
    return found


def _content(message: Message) -> str | list[dict[str, str]]:
    if not message.blocks:
        return message.content
    return [
        {"type": "text", "text": block} if isinstance(block, str) else {"type": "image"} for block in message.blocks
    ]


def _mark_end(message: dict[str, Any]) -> None:
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + _HERE
        return
    texts = [block for block in content if "text" in block]
    if not texts:
        raise _cannot_continue("it holds no text")
    texts[-1]["text"] += _HERE


def cut(rendered: str, conversation: Conversation) -> str:
    """``rendered`` up to the end of the last message's content. Raises ChatTemplateError where the template left it
    out."""
    last = conversation.messages[-1]
    texts = [block for block in last.blocks if isinstance(block, str)] if last.blocks else [last.content]
    place = rendered.rfind(_HERE.strip())
    if place < 0 or texts[-1].strip() not in rendered:
        raise _cannot_continue("the template leaves it out or changes it")
    if rendered.startswith(_HERE, place):
        return rendered[:place]
    return rendered[:place].rstrip()


def _cannot_continue(why: str) -> ChatTemplateError:
    return ChatTemplateError(
        f"The last message cannot be continued: {why}.", kind="refused", hint="Render it as a whole message instead."
    )
