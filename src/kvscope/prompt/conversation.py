"""A conversation as it is sent: messages in order, before any chat template."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. ``role`` is system, user or assistant, as the engine's chat template knows it."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages in the order in which they are sent. Sizes count their contents only, not the chat template."""

    messages: tuple[Message, ...]

    @property
    def characters(self) -> int:
        """Unicode code points of all contents."""
        return sum(len(message.content) for message in self.messages)

    @property
    def bytes(self) -> int:
        """Bytes of all contents in UTF-8."""
        return sum(len(message.content.encode()) for message in self.messages)
