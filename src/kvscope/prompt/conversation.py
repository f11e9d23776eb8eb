"""A conversation as it is sent: messages in order, before any chat template."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RETRIEVED = "retrieved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A picture in a message's content. ``width`` and ``height`` are its pixels as sent, None where they are not
    known; ``source`` says where it is from (an address, or "data:" for one that was sent along)."""

    source: str
    width: int | None = None
    height: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. ``role`` is system, user, assistant or tool, as the engine's chat template knows it.

    ``tool_calls`` are what an assistant asked for, each as OpenAI's interface writes it ({"id", "type", "function":
    {"name", "arguments"}}); ``tool_call_id`` says which of them a tool's answer belongs to. ``reasoning`` is the
    thinking that came before an assistant's answer. A content of null, as assistants that only call tools have, is
    the empty string here. ``blocks`` are the pieces of a content that was sent as a list, in order, and empty where it
    was sent as one text; ``content`` is then their texts, joined by newlines. ``origin`` is "retrieved" for a message
    whose whole content was looked up by the app, None where nothing is said.
    """

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None
    blocks: tuple[str | Image, ...] = ()
    origin: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages in the order in which they are sent. Sizes count their contents only, not the chat template.

    ``tools`` are the functions on offer, each as OpenAI's interface writes it ({"type": "function", "function":
    {...}})."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()

    @property
    def characters(self) -> int:
        """Unicode code points of all contents."""
        return sum(len(message.content) for message in self.messages)

    @property
    def bytes(self) -> int:
        """Bytes of all contents in UTF-8."""
        return sum(len(message.content.encode()) for message in self.messages)
