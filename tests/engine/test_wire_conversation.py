"""What a request says of its conversation, in the form of OpenAI's chat interface."""

import pytest

from kvscope.engine.base import ChatRequest
from kvscope.engine.openai_http import chat_payload, wire_conversation
from kvscope.errors import UsageError
from kvscope.prompt.conversation import Image, Message

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "call1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_a_plain_message_has_nothing_but_its_role_and_its_content() -> None:
    body = wire_conversation((Message(role="user", content="hi"),), (), {})
    assert body == {"messages": [{"role": "user", "content": "hi"}]}


def test_a_message_is_sent_whole() -> None:
    messages = (
        Message(role="assistant", content="", reasoning="think", tool_calls=(CALL,)),
        Message(role="tool", content="42", name="f", tool_call_id="call1"),
    )
    assert wire_conversation(messages, (TOOL,), {"enable_thinking": False}) == {
        "messages": [
            {"role": "assistant", "content": "", "reasoning_content": "think", "tool_calls": [CALL]},
            {"role": "tool", "content": "42", "name": "f", "tool_call_id": "call1"},
        ],
        "tools": [TOOL],
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_blocks_are_sent_as_blocks() -> None:
    blocks = ("look", Image(source="https://example.org/a.png"), "closely")
    body = wire_conversation((Message(role="user", content="look\nclosely", blocks=blocks),), (), {})
    assert body["messages"][0]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "text", "text": "closely"},
    ]


def test_where_a_message_came_from_is_nobody_elses_business() -> None:
    body = wire_conversation((Message(role="user", content="found", origin="retrieved"),), (), {})
    assert body == {"messages": [{"role": "user", "content": "found"}]}


def test_a_picture_whose_bytes_were_not_kept_is_not_sent_as_something_else() -> None:
    message = Message(role="user", content="", blocks=(Image(source="data:", width=10, height=10),))
    with pytest.raises(UsageError, match="bytes"):
        wire_conversation((message,), (), {})


def test_a_chat_request_carries_its_tools_and_variables() -> None:
    chat = ChatRequest(
        messages=(Message(role="user", content="hi"),),
        max_output_tokens=1,
        tools=(TOOL,),
        template_variables={"enable_thinking": True},
    )
    payload = chat_payload(chat)
    assert payload["tools"] == [TOOL]
    assert payload["chat_template_kwargs"] == {"enable_thinking": True}
    assert "tools" not in chat_payload(ChatRequest(messages=chat.messages, max_output_tokens=1))
