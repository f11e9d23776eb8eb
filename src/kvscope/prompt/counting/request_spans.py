"""Which part of a prompt each stretch of its text belongs to.

Rules: messages of the system are ``system``; the last message of the user is ``user``; other messages are ``history``;
what was looked up (answers of tools, messages that say so, documents of the template, texts that were named) is
``retrieved``; each tool on offer is ``tools``; all that the template adds is ``template``.
"""

import json
import sys
from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvscope.prompt.chat_template.cost import TemplatePiece
from kvscope.prompt.conversation import RETRIEVED, Conversation, Message

SYSTEM, HISTORY, USER, TOOLS, TEMPLATE = "system", "history", "user", "tools", "template"
PARTS = (SYSTEM, HISTORY, USER, RETRIEVED, TOOLS, TEMPLATE)
_OF_MESSAGES = ("content", "reasoning", "tool_calls")
_SYSTEM_ROLES = ("system", "developer")
_TOOL_ROLES = ("tool", "function", "ipython")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """``text[start:end]`` (code points) belongs to ``part``. ``kind`` is the template piece's, or "document" (of the
    template) or "named" (a text that was named as retrieved); ``origin`` is its name then."""

    start: int
    end: int
    part: str
    kind: str
    message: int | None = None
    tool: int | None = None
    origin: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedText:
    """A text that was looked up, and what it is called."""

    name: str
    text: str


def is_question(message: Message) -> bool:
    """Whether it is the user who speaks, and not the app with something it looked up."""
    return message.role == "user" and message.origin != RETRIEVED


def last_user_message(messages: Sequence[Message]) -> int | None:
    """The index of the user's last message, with which the current turn begins."""
    return max((index for index, message in enumerate(messages) if is_question(message)), default=None)


def turns_of(messages: Sequence[Message]) -> list[int]:
    """The turn of each message. Every message of the user begins one, together with what the app looked up and put
    right before it. What stands before the first is turn 0."""
    turns: list[int] = []
    turn = sum(map(is_question, messages))
    belongs_to_next = False
    for message in reversed(messages):
        is_before_question = belongs_to_next and message.origin == RETRIEVED
        if not is_before_question and belongs_to_next:
            turn -= 1
        turns.append(turn)
        belongs_to_next = is_question(message) or is_before_question
    return turns[::-1]


def parts_of_messages(messages: Sequence[Message]) -> list[str]:
    """The part that the own text of each message belongs to."""
    last = last_user_message(messages)
    return [_part(message, is_last=index == last) for index, message in enumerate(messages)]


def part_of_message(messages: Sequence[Message], index: int) -> str:
    """As ``parts_of_messages``, of one of them."""
    return _part(messages[index], is_last=index == last_user_message(messages))


def _part(message: Message, *, is_last: bool) -> str:
    if message.origin == RETRIEVED or message.role in _TOOL_ROLES:
        return RETRIEVED
    if message.role in _SYSTEM_ROLES:
        return SYSTEM
    return USER if is_last else HISTORY


def spans_of(pieces: Sequence[TemplatePiece], conversation: Conversation) -> list[Span]:
    """The pieces of a prompt with the parts they belong to: side by side, from the first character to the last."""
    parts = parts_of_messages(conversation.messages)
    spans = []
    for piece in pieces:
        part = TOOLS if piece.kind == "tool" else TEMPLATE
        if piece.kind in _OF_MESSAGES and piece.message is not None:
            part = parts[piece.message]
        spans.append(
            Span(
                start=piece.start,
                end=piece.end,
                part=part,
                kind=piece.kind,
                message=piece.message,
                tool=piece.tool,
            )
        )
    return spans


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFound:
    """Where texts were found. ``missing``: the names of those that are in no message. ``covered``: of those with
    characters that other texts hold too, the name, theirs, and whether that is all of it."""

    spans: list[Span]
    missing: list[str]
    covered: list[tuple[str, str, bool]]


def with_named_texts(spans: Sequence[Span], text: str, named: Sequence[NamedText]) -> NamedFound:
    """``spans`` with every place of a message's content that is one of the ``named`` texts, word for word, made
    retrieved. Where several hold the same characters, they count for the longest text, whatever the order."""
    found = list(spans)
    contents = [(span.start, span.end) for span in spans if span.kind == "content"]
    taken: list[tuple[int, int, str]] = []  # in order
    missing, covered = [], []
    texts = dict.fromkeys(sorted(named, key=lambda each: (-len(each.text.strip()), each.name)))
    for each in texts:
        places = [place for form in forms_of(each.text) for place in _places(text, form) if _is_inside(place, contents)]
        own = 0
        others: dict[str, None] = {}
        for place in places:
            free, holders = _free_parts(place, taken)
            others.update(dict.fromkeys(name for name in holders if name != each.name))
            for start, end in free:
                found = _overlaid(found, start, end, kinds=("content",), kind="named", origin=each.name)
                insort(taken, (start, end, each.name))
                own += end - start
        if not places:
            missing.append(each.name)
        elif others:
            covered.append((each.name, ", ".join(others), not own))
    return NamedFound(spans=found, missing=missing, covered=covered)


def _is_inside(place: tuple[int, int], contents: Sequence[tuple[int, int]]) -> bool:
    index = bisect_right(contents, (place[0], sys.maxsize)) - 1
    return index >= 0 and place[1] <= contents[index][1]


def _free_parts(
    place: tuple[int, int], taken: Sequence[tuple[int, int, str]]
) -> tuple[list[tuple[int, int]], list[str]]:
    """What of ``place`` is not ``taken``, and who has the rest."""
    at, end = place
    free, holders = [], []
    for index in range(max(bisect_right(taken, (at,)) - 1, 0), len(taken)):
        start, stop, name = taken[index]
        if start >= end:
            break
        if stop > at:
            holders.append(name)
            if start > at:
                free.append((at, start))
            at = max(at, stop)
    return ([*free, (at, end)] if at < end else free), holders


def with_documents(
    spans: Sequence[Span], text: str, region: tuple[int, int], documents: Sequence[Any]
) -> tuple[list[Span], list[str]]:
    """As ``with_named_texts``, for the documents that the template was given: looked for in ``region``, the part of the
    text that is not there without them."""
    found = list(spans)
    missing = []
    at = region[0]
    for index, document in enumerate(documents):
        before, end = found, at
        for value in _texts_in(document):
            place = next((p for form in forms_of(value) for p in _places(text, form, at, region[1])), None)
            if place is not None:
                found = _overlaid(found, *place, kinds=("template", "tools"), kind="document", origin=f"#{index}")
                end = max(end, place[1])
        at = end  # documents stand in their order; what one holds may stand in any
        if found == before:
            missing.append(f"#{index}")
    return found, missing


def forms_of(text: str) -> list[str]:
    """How a text may stand in a prompt: whole, trimmed, with another kind of line end, or inside a JSON string."""
    one_end = text.replace("\r\n", "\n")
    forms = [text, text.strip(), one_end, one_end.strip()]
    forms += [json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in tuple(forms) for ascii_only in (False, True)]
    return [form for form in dict.fromkeys(forms) if form.strip()]


def added_region(longer: str, shorter: str) -> tuple[int, int]:
    """The part of ``longer`` that is not in ``shorter``: what is left between their equal beginnings and ends."""
    limit = min(len(longer), len(shorter))
    start = next((index for index in range(limit) if longer[index] != shorter[index]), limit)
    same_end = 0
    while same_end < limit - start and longer[-1 - same_end] == shorter[-1 - same_end]:
        same_end += 1
    # Where text repeats, the same insertion can be seen further to the left.
    while start and len(longer) - same_end > start and longer[start - 1] == longer[len(longer) - same_end - 1]:
        start, same_end = start - 1, same_end + 1
    return start, len(longer) - same_end


def _texts_in(document: Any) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, Mapping):
        for value in document.values():
            yield from _texts_in(value)
    elif isinstance(document, list):
        for value in document:
            yield from _texts_in(value)


def _places(text: str, form: str, start: int = 0, end: int | None = None) -> Iterator[tuple[int, int]]:
    at = text.find(form, start, end)
    while at >= 0:
        yield at, at + len(form)
        at = text.find(form, at + len(form), end)


def _overlaid(
    spans: Sequence[Span], start: int, end: int, *, kinds: Sequence[str], kind: str, origin: str
) -> list[Span]:
    """``spans`` with ``start`` to ``end`` made retrieved, where that lies in one span of ``kinds``."""
    result: list[Span] = []
    for span in spans:
        if span.kind not in kinds or not span.start <= start < end <= span.end:
            result.append(span)
            continue
        middle = replace(span, start=start, end=end, part=RETRIEVED, kind=kind, origin=origin)
        parts = (replace(span, end=start), middle, replace(span, start=end))
        result += [part for part in parts if part.start < part.end]
    return result
