"""Where in a prompt a place is: which part, which message or tool, and which character of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kvscope.errors import ChatTemplateError
from kvscope.prompt.chat_template import ChatTemplate
from kvscope.prompt.chat_template_cost import TemplatePiece, template_cost
from kvscope.prompt.conversation import RETRIEVED, Conversation
from kvscope.prompt.conversation_file import LoadedRequest

TEMPLATE = "template"
_TOOL_KINDS = ("tool", "tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """``part``: system, history, user, retrieved, tools or template, as ``kvscope count`` names them. ``message`` and
    ``tool``: indexes in the request, None where it is in none. ``character``: code points from the beginning of that
    message's or tool's text, or of the piece of the template's text."""

    part: str
    message: int | None
    tool: int | None
    character: int

    def to_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return {"part": self.part, "message": self.message, "tool": self.tool, "character": self.character}


def pieces_of(template: ChatTemplate, request: LoadedRequest, now: datetime) -> tuple[TemplatePiece, ...]:
    """The pieces of the request's text at ``now``; empty where they cannot be told apart."""
    try:
        cost = template_cost(
            template,
            request.conversation,
            add_generation_prompt=request.add_generation_prompt,
            clock=lambda: now,
            **request.extra,
        )
    except ChatTemplateError:
        return ()
    return cost.pieces


def place_in(pieces: tuple[TemplatePiece, ...], request: LoadedRequest, text: str, position: int) -> Place:
    """The place of the character at ``position`` of ``text``, which ``pieces`` cover."""
    piece = next((piece for piece in pieces if piece.start <= position < piece.end), None)
    if piece is None:
        return Place(part=TEMPLATE, message=None, tool=None, character=position)
    part = part_of(piece, request.conversation)
    character = position - piece.start + _trimmed(piece, request.conversation, text)
    return Place(part=part, message=piece.message, tool=piece.tool, character=character)


def _trimmed(piece: TemplatePiece, conversation: Conversation, text: str) -> int:
    """Characters of the content before what the template writes of it."""
    if piece.kind != "content" or piece.message is None:
        return 0
    return max(0, conversation.messages[piece.message].content.find(text[piece.start : piece.end]))


def part_of(piece: TemplatePiece, conversation: Conversation) -> str:
    """The part of a request that a piece of its text belongs to."""
    if piece.kind in _TOOL_KINDS:
        return "tools"
    if piece.message is None or piece.kind not in ("content", "reasoning", "tool_calls"):
        return TEMPLATE
    message = conversation.messages[piece.message]
    if message.origin == RETRIEVED:
        return "retrieved"
    if message.role in ("system", "developer"):
        return "system"
    asked = [index for index, each in enumerate(conversation.messages) if each.role == "user"]
    return "user" if asked[-1:] == [piece.message] else "history"


def user_starts(pieces: tuple[TemplatePiece, ...], request: LoadedRequest, starts: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens (``starts``: where in the text each begins) with which a user's message begins in the text."""
    first: Mapping[int, int] = {piece.message: piece.start for piece in reversed(pieces) if piece.message is not None}
    messages = request.conversation.messages
    begins = [first[index] for index in sorted(first) if messages[index].role == "user"]
    return tuple(next(i for i, start in enumerate(starts) if start >= begin) for begin in begins if begin <= starts[-1])
