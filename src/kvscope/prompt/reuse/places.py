"""Where in a prompt a place is: which part, which message or tool, and which character of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kvscope.errors import ChatTemplateError
from kvscope.prompt.chat_template.cost import TemplatePiece, template_cost
from kvscope.prompt.chat_template.marks import Marks, find_contents
from kvscope.prompt.chat_template.template import ChatTemplate
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.counting.request_spans import TEMPLATE, Span, spans_of
from kvscope.prompt.reuse.changes import with_messages
from kvscope.prompt.reuse.render import body_of, rendering_of


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


@dataclass(kw_only=True)
class Places:
    """Finds places in the texts of requests, and remembers how each text is made up."""

    template: ChatTemplate
    _pieces: dict[tuple[int, datetime], tuple[LoadedRequest, tuple[TemplatePiece, ...]]] = field(default_factory=dict)

    def of(self, request: LoadedRequest, text: str, position: int, now: datetime) -> Place:
        """The place of the character at ``position`` of ``text``, which is the request's at ``now``."""
        place = _place(self._contents(request, text, now), request, text, position)
        return place or self._in_pieces(request, text, position, now)

    def _contents(self, request: LoadedRequest, text: str, now: datetime) -> list[TemplatePiece]:
        """Contents alone, which cost one rendering."""
        marks = Marks.not_in(text)
        marked = with_messages(request, marks.put(request.conversation.messages))
        renderings = [rendering_of(body_of(each)) for each in (request, marked)]
        body, with_marks = self.template.render_each(renderings, clock=lambda: now)
        if isinstance(body, ChatTemplateError) or isinstance(with_marks, ChatTemplateError):
            return []
        if not text.startswith(body):
            return []
        located = find_contents(body, with_marks, renderings[0].conversation, marks) or []
        return [TemplatePiece(start=at.start, end=at.end, kind=at.kind, message=at.message) for at in located]

    def _in_pieces(self, request: LoadedRequest, text: str, position: int, now: datetime) -> Place:
        place = _place(self.pieces(request, now), request, text, position)
        return place or Place(part=TEMPLATE, message=None, tool=None, character=position)

    def pieces(self, request: LoadedRequest, now: datetime) -> tuple[TemplatePiece, ...]:
        """The pieces of the request's text at ``now``; empty where they cannot be told apart."""
        key = (id(request), now)
        if key not in self._pieces:
            self._pieces[key] = (request, self._found(request, now))  # kept, so that its id stays its own
        return self._pieces[key][1]

    def _found(self, request: LoadedRequest, now: datetime) -> tuple[TemplatePiece, ...]:
        rendering = rendering_of(request)
        try:
            cost = template_cost(
                self.template,
                rendering.conversation,
                add_generation_prompt=rendering.add_generation_prompt,
                clock=lambda: now,
                extra=rendering.extra,
            )
        except ChatTemplateError:
            return ()
        return cost.pieces


def _place(pieces: Sequence[TemplatePiece], request: LoadedRequest, text: str, position: int) -> Place | None:
    """The place of the character in one of ``pieces``."""
    piece = next((piece for piece in pieces if piece.start <= position < piece.end), None)
    if piece is None:
        return None
    (span,) = spans_of([piece], request.conversation)
    character = position - span.start + _trimmed(span, request, text)
    return Place(part=span.part, message=span.message, tool=span.tool, character=character)


def _trimmed(span: Span, request: LoadedRequest, text: str) -> int:
    """Characters of the content before what the template writes of it."""
    if span.kind != "content" or span.message is None:
        return 0
    return max(0, request.conversation.messages[span.message].content.find(text[span.start : span.end]))
