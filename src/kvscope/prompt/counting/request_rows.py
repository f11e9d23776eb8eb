"""The rows of a request's count: stretches of its prompt put together by what they are to a person."""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvscope.prompt.conversation import RETRIEVED, Conversation, Message
from kvscope.prompt.counting.request_spans import (
    HISTORY,
    SYSTEM,
    TEMPLATE,
    TOOLS,
    USER,
    Span,
    last_user_message,
    parts_of_messages,
    turns_of,
)
from kvscope.prompt.message_fields import tool_name
from kvscope.prompt.tokenizers.base import writable

_CONTENT_KINDS = ("content", "named")


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """``characters`` are code points of the prompt's text, ``bytes`` the same in UTF-8."""

    characters: int = 0
    bytes: int = 0
    tokens: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(
            characters=self.characters + other.characters,
            bytes=self.bytes + other.bytes,
            tokens=self.tokens + other.tokens,
        )


NOTHING = Amount()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRow:
    """One line of the count. ``part``: system, history, user, retrieved, tools or template. ``kind``: message, turn,
    tool, tools (what cannot be told apart), text (found word for word), document, image, bos, messages (what the
    template puts around them), around_tools, generation_prompt or other (template text that belongs to no message).

    ``dropped_characters``: how much of what was sent the template left out. ``without_it_saves_tokens``: of a tool, by
    how many tokens the whole prompt is shorter without it; None for other rows, and where the template refuses that.
    """

    part: str
    kind: str
    label: str
    amount: Amount
    message: int | None = None
    turn: int | None = None
    role: str | None = None
    tool: str | None = None
    tool_index: int | None = None
    dropped_characters: int = 0
    without_it_saves_tokens: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The row's fields in JSON."""
        return {
            "kind": self.kind,
            "label": self.label,
            **_amount_fields(self.amount),
            "message": self.message,
            "turn": self.turn,
            "role": self.role,
            "tool": self.tool,
            "dropped_characters": self.dropped_characters,
            "without_it_saves_tokens": self.without_it_saves_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTokens:
    """One message: ``own`` is its text, reasoning and calls; ``template_tokens`` are what the template puts around."""

    index: int
    role: str
    turn: int
    part: str
    own: Amount
    template_tokens: int
    dropped_characters: int

    def to_dict(self) -> dict[str, Any]:
        """Its fields in JSON."""
        return {
            "message": self.index,
            "role": self.role,
            "turn": self.turn,
            "part": self.part,
            **_amount_fields(self.own),
            "template_tokens": self.template_tokens,
            "dropped_characters": self.dropped_characters,
        }


def _amount_fields(amount: Amount) -> dict[str, int]:
    return {"characters": amount.characters, "bytes": amount.bytes, "tokens": amount.tokens}


def turn_label(turn: int, *, is_current: bool) -> str:
    """What a turn is called."""
    if not turn:
        return "before the first question"
    return f"turn {turn}, so far" if is_current else f"turn {turn}"


def amounts_of(spans: Sequence[Span], text: str, starts: Sequence[int]) -> list[Amount]:
    """What each span holds. A token counts for the span in which it begins; spans cover the whole text."""
    begins = [span.start for span in spans]
    tokens = [0] * len(spans)
    for start in starts:
        tokens[bisect_right(begins, start) - 1] += 1
    return [
        Amount(
            characters=span.end - span.start,
            bytes=len(writable(text[span.start : span.end]).encode()),
            tokens=count,
        )
        for span, count in zip(spans, tokens, strict=True)
    ]


def with_bos(spans: Sequence[Span], end: int) -> list[Span]:
    """``spans`` with the first ``end`` characters, the BOS that the template wrote, as a span of their own."""
    first = spans[0]  # where BOS is written, there is text
    if not (first.part == TEMPLATE and 0 < end <= first.end):
        return list(spans)
    rest = [Span(start=end, end=first.end, part=TEMPLATE, kind=first.kind, message=first.message)]
    bos = Span(start=0, end=end, part=TEMPLATE, kind="bos")
    return [bos, *(span for span in rest if span.start < span.end), *spans[1:]]


def with_head_in_message(spans: Sequence[Span], length: int) -> list[Span]:
    """``spans`` for a prompt that begins with the name of BOS, of ``length`` characters, and means no BOS by it: that
    is how its first message begins."""
    head, *rest = spans or [Span(start=0, end=0, part=TEMPLATE, kind="template")]  # a template may write nothing
    is_cut = rest and rest[0].kind == "template" and rest[0].message == 0
    if is_cut and head.kind == "template" and head.message is None and head.end == length:
        return [replace(head, message=0), *rest]
    return list(spans)


@dataclass(slots=True)
class RowMaker:
    """Makes the rows of one prompt. ``documents`` are those that the template was given; ``calls_are_dropped``: the
    prompt is the same without the calls of its messages."""

    spans: Sequence[Span]
    amounts: Sequence[Amount]
    text: str
    conversation: Conversation
    documents: Sequence[Any] = ()
    calls_are_dropped: bool = False
    turns: list[int] = field(init=False)
    told_apart: bool = field(init=False)
    _parts: list[str] = field(init=False)
    _of_message: dict[int | None, list[int]] = field(init=False)  # its spans
    _called_by_id: dict[Any, str | None] = field(init=False)

    def __post_init__(self) -> None:
        messages = self.conversation.messages
        self.turns = turns_of(messages)
        self._parts = parts_of_messages(messages)
        self._of_message = {}
        for index, span in enumerate(self.spans):
            self._of_message.setdefault(span.message, []).append(index)
        calls = [call for message in reversed(messages) for call in reversed(message.tool_calls)]
        self._called_by_id = {call.get("id"): tool_name(call) for call in calls if isinstance(call.get("id"), str)}
        has_text = any(message.content.strip() for message in messages)
        self.told_apart = not has_text or any(span.kind in _CONTENT_KINDS for span in self.spans)

    def rows(self) -> list[PartRow]:
        """The rows, part by part; within a part in the order of the prompt."""
        return [
            *self._of_messages(SYSTEM),
            *self._of_turns(),
            *self._of_messages(USER),
            *self._of_messages(RETRIEVED),
            *self._of_origins(),
            *self._of_tools(),
            *self._of_template(),
        ]

    def messages(self) -> tuple[MessageTokens, ...]:
        """Each message with what it takes and what the template adds to it."""
        found = self.conversation.messages
        return tuple(
            MessageTokens(
                index=index,
                role=message.role,
                turn=self.turns[index],
                part=self._parts[index],
                own=self._sum_of(index, lambda span: span.part != TEMPLATE),
                template_tokens=self._sum_of(index, lambda span: span.part == TEMPLATE).tokens,
                dropped_characters=self.dropped(index),
            )
            for index, message in enumerate(found)
        )

    def dropped(self, index: int) -> int:
        """Characters of a message that the template left out, blanks at its ends aside."""
        if not self.told_apart:
            return 0
        message = self.conversation.messages[index]
        content = "".join(block for block in message.blocks or (message.content,) if isinstance(block, str))
        lost = 0
        for kinds, sent in ((_CONTENT_KINDS, content), (("reasoning",), message.reasoning or "")):
            shown = sum(self.amounts[at].characters for at in self._spans_of(index) if self.spans[at].kind in kinds)
            lost += max(0, len(sent.strip()) - shown)
        if self.calls_are_dropped and message.tool_calls:
            lost += len(json.dumps(list(message.tool_calls), ensure_ascii=False))
        return lost

    def _sum(self, chosen: Iterable[bool]) -> Amount:
        return sum((amount for amount, is_in in zip(self.amounts, chosen, strict=True) if is_in), NOTHING)

    def _spans_of(self, message: int) -> Sequence[int]:
        return self._of_message.get(message, ())

    def _sum_of(self, message: int, is_in: Callable[[Span], bool]) -> Amount:
        """Of the spans of one message."""
        chosen = (at for at in self._spans_of(message) if is_in(self.spans[at]))
        return sum((self.amounts[at] for at in chosen), NOTHING)

    def _of_messages(self, part: str) -> list[PartRow]:
        messages = self.conversation.messages
        indexes = [index for index, own in enumerate(self._parts) if own == part]
        return [
            PartRow(
                part=part,
                kind="message",
                label=self._message_label(part, index, len(indexes) > 1),
                amount=self._sum_of(index, lambda span: span.part == part and span.kind != "named"),
                message=index,
                turn=self.turns[index],
                role=messages[index].role,
                tool=self._called(messages[index]),
                dropped_characters=self.dropped(index),
            )
            for index in indexes
        ]

    def _message_label(self, part: str, index: int, is_one_of_several: bool) -> str:
        message = self.conversation.messages[index]
        if part == SYSTEM:
            return f"instructions, message {index + 1}" if is_one_of_several else "instructions"
        if part == USER:
            return "the last question"
        name = self._called(message)
        of = f"turn {self.turns[index]}"
        return f"answer of {name}, {of}" if name else f"message {index + 1} ({message.role}), {of}"

    def _called(self, message: Message) -> str | None:
        """The tool whose answer a message is."""
        if message.tool_call_id is not None and message.tool_call_id in self._called_by_id:
            return self._called_by_id[message.tool_call_id]
        return message.name if message.role in ("tool", "function", "ipython") else None

    def _of_turns(self) -> list[PartRow]:
        messages = self.conversation.messages
        current = last_user_message(messages)
        by_turn: dict[int, list[int]] = {}
        for index in range(len(messages)):
            if self._parts[index] == HISTORY:
                by_turn.setdefault(self.turns[index], []).append(index)
        rows = []
        for turn, indexes in by_turn.items():
            is_current = current is not None and turn == self.turns[current]
            label = turn_label(turn, is_current=is_current)
            rows.append(
                PartRow(
                    part=HISTORY,
                    kind="turn",
                    label=label,
                    amount=sum((self._sum_of(index, lambda span: span.part == HISTORY) for index in indexes), NOTHING),
                    turn=turn,
                    dropped_characters=sum(map(self.dropped, indexes)),
                )
            )
        return rows

    def _of_origins(self) -> list[PartRow]:
        """Texts found in messages word for word, and documents."""
        origins = dict.fromkeys(span.origin for span in self.spans if span.kind == "named")
        rows = [
            PartRow(
                part=RETRIEVED,
                kind="text",
                label=origin or "",
                amount=self._sum(span.kind == "named" and span.origin == origin for span in self.spans),
            )
            for origin in origins
        ]
        for index, document in enumerate(self.documents):
            amount = self._sum(span.kind == "document" and span.origin == f"#{index}" for span in self.spans)
            sent = len(json.dumps(document, ensure_ascii=False))
            dropped = 0 if amount.characters else sent
            label = _title(document) or f"document {index + 1}"
            rows.append(
                PartRow(part=RETRIEVED, kind="document", label=label, amount=amount, dropped_characters=dropped)
            )
        return rows

    def _of_tools(self) -> list[PartRow]:
        rows = []
        for index, tool in enumerate(self.conversation.tools):
            if self.tool_is_hidden(index):
                continue  # its text is in the row of all of them
            amount = self._sum(span.part == TOOLS and span.tool == index for span in self.spans)
            dropped = 0 if amount.characters else len(json.dumps(tool, ensure_ascii=False))
            name = tool_name(tool) or f"tool {index + 1}"
            rows.append(
                PartRow(
                    part=TOOLS,
                    kind="tool",
                    label=name,
                    amount=amount,
                    tool=name,
                    tool_index=index,
                    dropped_characters=dropped,
                )
            )
        return rows

    def tool_is_hidden(self, index: int) -> bool:
        """The prompt has the tool's name and its text cannot be told from the others'."""
        if any(span.tool == index for span in self.spans):
            return False
        name = tool_name(self.conversation.tools[index]) or ""
        shown = (self.text[span.start : span.end] for span in self.spans if span.kind == "tools")
        return any(name in text for text in shown)

    def _of_template(self) -> list[PartRow]:
        num_messages = len(self.conversation.messages)
        hidden = any(map(self.tool_is_hidden, range(len(self.conversation.tools))))
        rows = []
        for kind, label in (
            ("bos", "BOS, the token that begins a prompt"),
            ("other", "its own text"),
            ("around_tools", "around the tools"),
            ("messages", "around the message" if num_messages == 1 else f"around {num_messages} messages"),
            ("generation_prompt", "the beginning of the answer"),
        ):
            chosen = [span.part == TEMPLATE and _template_kind(span) == kind for span in self.spans]
            if not any(chosen):
                continue
            if kind == "around_tools" and hidden:
                rows.append(PartRow(part=TOOLS, kind="tools", label="tools, not told apart", amount=self._sum(chosen)))
            else:
                rows.append(PartRow(part=TEMPLATE, kind=kind, label=label, amount=self._sum(chosen)))
        return rows


def _template_kind(span: Span) -> str:
    if span.kind == "tools":
        return "around_tools"
    if span.kind == "template":
        return "other" if span.message is None else "messages"
    return span.kind


def _title(document: Any) -> str | None:
    if not isinstance(document, Mapping):
        return None
    return next((str(document[key]) for key in ("title", "doc_id", "id", "name", "source") if document.get(key)), None)
