"""Marks in place of contents, and where the contents then are in the real text."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvscope.prompt.conversation import Conversation, Message

_PRIVATE_USE = range(0xE000, 0xF8FF)
_FIELDS = ("content", "reasoning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """``kind`` (content or reasoning) of a message is at ``start`` to ``end`` of the text; a content in blocks has one
    place for each block of text."""

    start: int
    end: int
    kind: str
    message: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """``opening`` and ``closing`` are characters that the conversation's text does not hold."""

    opening: str
    closing: str

    @classmethod
    def not_in(cls, text: str) -> "Marks":
        """Two characters for private use that are not in ``text``."""
        free = [chr(number) for number in _PRIVATE_USE if chr(number) not in text][:2]
        opening, closing = free if len(free) == 2 else (chr(0xE000), chr(0xE001))
        return cls(opening=opening, closing=closing)

    def mark(self, message: int, kind: str, block: int = 0) -> str:
        """The mark of one message's content (or of one of its blocks) or reasoning."""
        return f"{self.opening}{message}{kind[0]}{block}{self.closing}"

    def put(self, messages: Sequence[Message], *, around: bool = False, calls: bool = True) -> tuple[Message, ...]:
        """``messages`` with marks for what they hold, or ``around`` it; ``calls`` False leaves tool calls out.
        Empty contents stay empty, as templates may do without them."""
        marked = []
        for index, message in enumerate(messages):
            fields: dict[str, Any] = {}
            for kind in _FIELDS:
                text = getattr(message, kind)
                if text:
                    fields[kind] = self._put(text, self.mark(index, kind), around)
            fields["blocks"] = tuple(
                self._put(block, self.mark(index, "content", number), around) if isinstance(block, str) else block
                for number, block in enumerate(message.blocks)
            )
            marked.append(replace(message, **fields, tool_calls=message.tool_calls if calls else ()))
        return tuple(marked)

    @staticmethod
    def _put(text: str, mark: str, around: bool) -> str:
        if not text:
            return ""
        return f"{mark}{text}{mark}" if around else mark

    def _pattern(self) -> str:
        return f"{self.opening}([0-9]+)([cr])([0-9]+){self.closing}"

    def after_last(self, text: str, message: int) -> str | None:
        """What follows the last mark of ``message`` in ``text``; None where it has none."""
        found = list(re.finditer(f"{self.opening}{message}[cr][0-9]+{self.closing}", text))
        return text[found[-1].end() :] if found else None

    def before_first(self, text: str) -> str | None:
        """What stands before the first mark; None where there is none."""
        found = re.search(self._pattern(), text)
        return text[: found.start()] if found else None

    def gaps(self, text: str) -> list[str]:
        """What stands before, between and after the marks."""
        return re.split(self._pattern(), text)[::4]

    def split(self, text: str) -> tuple[list[str], list[tuple[int, str, int]]]:
        """The gaps, and which message's what, and which block of it, stands between them. Marks around a content count
        as one with it."""
        gaps, found, at = [], [], 0
        pattern = re.compile(f"{self._pattern()}(?:.*?{self.opening}\\1\\2\\3{self.closing})?", re.DOTALL)
        for match in pattern.finditer(text):
            gaps.append(text[at : match.start()])
            found.append((int(match[1]), "content" if match[2] == "c" else "reasoning", int(match[3])))
            at = match.end()
        return [*gaps, text[at:]], found


def find_contents(body: str, marked: str | None, conversation: Conversation, marks: Marks) -> list[Located] | None:
    """The contents in ``body``, whose text with marks is ``marked``; None where the two do not fit together (the
    template looks into contents, or writes one of them twice)."""
    if marked is None:
        return None
    gaps, order = marks.split(marked)
    if len(set(order)) < len(order) or order != sorted(order, key=lambda item: item[0]):
        return None
    if not order or not body.startswith(gaps[0]):
        return None
    located: list[Located] = []
    at = len(gaps[0])
    for (message, kind, block), gap in zip(order, gaps[1:], strict=True):
        text = _text(conversation.messages[message], kind, block)
        is_last = len(located) == len(order) - 1
        forms = [form for form in _forms(text) if body.startswith(form + gap, at)]
        if is_last:
            forms = [form for form in forms if at + len(form) + len(gap) == len(body)]
        if not forms:
            return None
        located.append(Located(start=at, end=at + len(forms[0]), kind=kind, message=message))
        at += len(forms[0]) + len(gap)
    return located


def _text(message: Message, kind: str, block: int) -> str:
    if kind == "reasoning":
        return message.reasoning or ""
    return str(message.blocks[block]) if message.blocks else message.content


def _forms(text: str) -> list[str]:
    """How templates write a content: whole, trimmed, without its reasoning, or inside a JSON string."""
    answer = text.split("</think>")[-1]
    forms = {text, text.strip(), text.lstrip(), text.rstrip(), text.strip("\n"), text.lstrip("\n"), text.rstrip("\n")}
    forms |= {answer, answer.strip(), answer.lstrip("\n")}
    forms |= {json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True)}
    return sorted(forms, key=len, reverse=True)
