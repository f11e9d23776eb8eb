"""What an app sent otherwise in the second of two requests: each difference with the request that would not have it.

A difference is only a candidate. Whether it broke anything is seen by rendering the mended request
(``kvscope.prompt.reuse.compare``).
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvscope.prompt.conversation import RETRIEVED, Image, Message
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.reuse import text_changes
from kvscope.prompt.reuse.text_changes import TextChange, change_between, edit_between

THOUGHT_ENDS = "</think>"
PICTURES_CHANGED = "image-changed"
_SYSTEM_ROLES = ("system", "developer")
_WHERE = {"system": "the system prompt", "retrieved": "retrieved text", "tool": "a tool's result"}
# Words near which text was looked up, where the request itself does not say so.
_RETRIEVAL_WORDS = (
    *("<context", "<document", "<passage", "<source", "context:", "passages", "retrieved", "search results"),
    *("검색 결과", "검색된", "참고 자료", "참고자료", "참고 문서", "관련 문서", "발췌"),
)
_LOOKED_AT = 400  # characters before a change in which such a word is looked for
_MOST_MESSAGES = 3  # the first differences decide; later ones are found once these are mended


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """``slug`` names it, ``what`` says it in one sentence, ``first`` and ``second`` are what stands in each request.
    ``mended_first`` and ``mended_second`` are the requests without it; ``message`` and ``tool`` are indexes."""

    slug: str
    what: str
    first: str = ""
    second: str = ""
    mended_first: LoadedRequest
    mended_second: LoadedRequest
    message: int | None = None
    tool: int | None = None


def changes_between(first: LoadedRequest, second: LoadedRequest) -> Iterator[Change]:
    """Differences that can break a common beginning, those of the whole before those of one message."""
    yield from _tool_changes(first, second)
    yield from _history_changes(first, second)
    yield from _message_changes(first, second)
    yield from _variable_changes(first, second)


def with_messages(request: LoadedRequest, messages: Sequence[Message]) -> LoadedRequest:
    """``request`` with other messages."""
    return replace(request, conversation=replace(request.conversation, messages=tuple(messages)))


def same_message(first: Message, second: Message) -> bool:
    """Equal in everything that a template is given, order of keys included."""
    return first == second and _written(first.tool_calls) == _written(second.tool_calls)


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _sorted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _tool_changes(first: LoadedRequest, second: LoadedRequest) -> Iterator[Change]:
    ours, theirs = first.conversation.tools, second.conversation.tools
    if _written(ours) == _written(theirs):
        return
    slug, what, left, right, index = _tools_compared(ours, theirs)
    mended = replace(second, conversation=replace(second.conversation, tools=ours))
    yield Change(slug=slug, what=what, first=left, second=right, mended_first=first, mended_second=mended, tool=index)


def _tools_compared(
    ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]
) -> tuple[str, str, str, str, int]:
    pairs = enumerate(zip(map(_written, ours), map(_written, theirs), strict=False))
    index = next((i for i, (left, right) in pairs if left != right), min(len(ours), len(theirs)))
    ours_sorted, theirs_sorted = [_sorted(tool) for tool in ours], [_sorted(tool) for tool in theirs]
    names, new_names = [_tool_name(tool) for tool in ours], [_tool_name(tool) for tool in theirs]
    left, right = ", ".join(names), ", ".join(new_names)
    if sorted(ours_sorted) == sorted(theirs_sorted):
        if ours_sorted != theirs_sorted:
            return "tools-reordered", "The same tools are listed in another order.", left, right, index
        what = f"The keys of the tool {names[index]} are in another order."
        return "tool-key-order", what, _written(ours[index]), _written(theirs[index]), index
    added = [name for name in new_names if name not in names]
    removed = [name for name in names if name not in new_names]
    if removed:
        return "tool-removed", f"A tool is no longer offered: {', '.join(removed)}.", left, right, index
    if added:
        return "tool-added", f"A tool was added: {', '.join(added)}.", left, right, index
    if index >= min(len(ours), len(theirs)):
        return "tool-changed", "A tool is listed more than once.", left, right, index
    change = change_between(_sorted(ours[index]), _sorted(theirs[index]))
    kind = f" ({change.kind})" if change and change.kind != text_changes.EDITED else ""
    return "tool-changed", f"The definition of the tool {new_names[index]} changed{kind}.", *_pieces(change), index


def _pieces(change: TextChange | None) -> tuple[str, str]:
    return (change.first, change.second) if change else ("", "")


def _tool_name(tool: Mapping[str, Any]) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else tool.get("name")
    return str(name) if name is not None else "(without a name)"


def _history_changes(first: LoadedRequest, second: LoadedRequest) -> Iterator[Change]:
    """Messages left out, replaced by fewer, or put in between."""
    ours, theirs = first.conversation.messages, second.conversation.messages
    begin = _same_messages(ours, theirs)
    for slug, what, mended in _alignments(ours, theirs, begin):
        yield Change(
            slug=slug,
            what=what,
            first=_excerpt(ours, begin),
            second=_excerpt(theirs, begin),
            mended_first=first,
            mended_second=with_messages(second, mended),
            message=begin,
        )


def _same_messages(ours: Sequence[Message], theirs: Sequence[Message]) -> int:
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, pair in enumerate(pairs) if not same_message(*pair)), min(len(ours), len(theirs)))


def _excerpt(messages: Sequence[Message], index: int) -> str:
    return f"{messages[index].role}: {messages[index].content}" if index < len(messages) else ""


def _alignments(
    ours: Sequence[Message], theirs: Sequence[Message], begin: int
) -> Iterator[tuple[str, str, list[Message]]]:
    """(slug, sentence, messages of the second request without it)."""
    if begin == len(theirs) < len(ours):
        gone = len(ours) - begin
        what = f"The last {gone} messages are no longer there." if gone > 1 else "The last message is no longer there."
        yield "messages-taken-back", what, list(ours)
        return
    for left_out in range(1, len(ours) - begin):
        rest = ours[begin + left_out :]
        which = f"{left_out} earlier message{'s are' if left_out > 1 else ' is'}"
        if _continues(theirs[begin:], rest):
            yield "history-cut", f"{which} left out of the history.", [*ours[: begin + left_out], *theirs[begin:]]
            return
        if left_out > 1 and begin < len(theirs) and _continues(theirs[begin + 1 :], rest):
            what = f"{which} replaced by one, as a summary is."
            yield "history-summarised", what, [*ours[: begin + left_out], *theirs[begin + 1 :]]
            return
    for put_in in range(1, len(theirs) - begin):
        if begin < len(ours) and _continues(theirs[begin + put_in :], ours[begin:]):
            new = theirs[begin : begin + put_in]
            retrieved = any(_is_retrieved(message) for message in new)
            slug = "retrieved-first" if retrieved else "message-inserted"
            what = "Retrieved text was put before what was there." if retrieved else "A message was put before others."
            yield slug, what, [*theirs[:begin], *theirs[begin + put_in :]]
            return


def _continues(messages: Sequence[Message], rest: Sequence[Message]) -> bool:
    """``messages`` begin with all of ``rest``."""
    return len(messages) >= len(rest) > 0 and all(map(same_message, messages, rest))


def _is_retrieved(message: Message) -> bool:
    return message.origin == RETRIEVED


def _message_changes(first: LoadedRequest, second: LoadedRequest) -> Iterator[Change]:
    ours, theirs = first.conversation.messages, second.conversation.messages
    differing = [index for index, pair in enumerate(zip(ours, theirs, strict=False)) if not same_message(*pair)]
    for index in differing[:_MOST_MESSAGES]:
        for slug, what, pieces, mended in _field_changes(ours, theirs, index):
            messages = [*theirs[:index], mended, *theirs[index + 1 :]]
            yield Change(
                slug=slug,
                what=what,
                first=pieces[0],
                second=pieces[1],
                mended_first=first,
                mended_second=with_messages(second, messages),
                message=index,
            )


def _field_changes(
    ours: Sequence[Message], theirs: Sequence[Message], index: int
) -> Iterator[tuple[str, str, tuple[str, str], Message]]:
    """(slug, sentence, what stands in each, the message without it) of one message's fields."""
    mine, new = ours[index], theirs[index]
    if mine.role != new.role:
        asked, asked_anew = ({m.content for m in messages if m.role == "user"} for messages in (ours, theirs))
        if not asked & asked_anew:
            what = "It is another conversation: the two have no question in common."
            yield "other-conversation", what, (_excerpt(ours, index), _excerpt(theirs, index)), mine
            return
        what = f"Message {index} had the role {mine.role} and now has {new.role}."
        yield "role-changed", what, (mine.role, new.role), mine
        return
    if mine.name != new.name:
        what = f"The name of message {index} changed."
        yield "name-changed", what, (mine.name or "", new.name or ""), replace(new, name=mine.name)
    if (mine.reasoning or "") != (new.reasoning or ""):
        lost = bool(mine.reasoning) and not new.reasoning
        what = "The reasoning of an earlier answer is no longer sent." if lost else "An answer's reasoning was changed."
        slug = "reasoning-dropped" if lost else "answer-changed"
        yield slug, what, (mine.reasoning or "", new.reasoning or ""), replace(new, reasoning=mine.reasoning)
    if mine.content != new.content:
        change = change_between(mine.content, new.content)
        assert change is not None
        yield _content_change(ours, theirs, index, change)
        if change.mended != mine.content:  # where what looked like a clock was more
            yield _content_change(ours, theirs, index, edit_between(mine.content, new.content))
    if _pictures(mine) != _pictures(new):
        what = f"The pictures of message {index} changed."
        yield PICTURES_CHANGED, what, (_pictures(mine), _pictures(new)), replace(new, blocks=mine.blocks)
    if _written(mine.tool_calls) != _written(new.tool_calls):
        yield _call_change(mine, new)
    if mine.tool_call_id != new.tool_call_id:
        ids = (mine.tool_call_id or "", new.tool_call_id or "")
        yield "random-id", "The id of a tool call changed.", ids, replace(new, tool_call_id=mine.tool_call_id)


def _pictures(message: Message) -> str:
    images = [block for block in message.blocks if isinstance(block, Image)]
    return ", ".join(f"{image.source} {image.width} x {image.height}" for image in images)


def _content_change(
    ours: Sequence[Message], theirs: Sequence[Message], index: int, change: TextChange
) -> tuple[str, str, tuple[str, str], Message]:
    mine, new = ours[index], theirs[index]
    slug = change.kind
    if slug == text_changes.EDITED:
        follows = any(map(same_message, ours[index + 1 :], theirs[index + 1 :]))
        asked = next((i for i, message in enumerate(ours) if message.role == "user"), index)
        slug = _edit(mine, change, follows, is_first_question=index == asked)
    mended = replace(new, content=change.mended, blocks=() if new.blocks and not _pictures(new) else new.blocks)
    return slug, _content_sentence(slug, mine, index), (change.first, change.second), mended


def _edit(mine: Message, change: TextChange, follows: bool, *, is_first_question: bool) -> str:
    """The name of a change of words in a message. ``follows``: a message that is the same in both comes after it."""
    if mine.role == "assistant":
        lost = THOUGHT_ENDS in mine.content and mine.content.split(THOUGHT_ENDS)[-1].strip() == change.second.strip()
        return "reasoning-dropped" if lost else "answer-changed"
    if mine.role in ("tool", "function"):
        return "tool-result-changed"
    before = mine.content[max(0, change.begin - _LOOKED_AT) : change.begin].lower()
    # Retrieved text that is put before a question, or taken away: the mark stands in the change itself.
    written = mine.content[change.begin + len(change.first) :].strip() and f"{change.first} {change.second}".lower()
    looks_retrieved = any(word in text for word in _RETRIEVAL_WORDS for text in (before, written))
    if _is_retrieved(mine) or looks_retrieved:
        return "retrieved-first" if follows or mine.role in _SYSTEM_ROLES or looks_retrieved else "retrieved-changed"
    if mine.role in _SYSTEM_ROLES:
        return "system-edited"
    other = is_first_question and not follows and change.begin == 0
    return "other-conversation" if other else "message-edited"


def place_of(message: Message, index: int) -> str:
    """A message in words: "the system prompt", "message 3 (user)"."""
    key = "retrieved" if _is_retrieved(message) else "system" if message.role in _SYSTEM_ROLES else message.role
    return _WHERE.get(key, f"message {index} ({message.role})")


def _content_sentence(slug: str, message: Message, index: int) -> str:
    where = place_of(message, index)
    return {
        text_changes.CLOCK: f"The time is written in {where}, and it changed.",
        text_changes.DATE: f"The date is written in {where}, and it changed.",
        text_changes.RANDOM_ID: f"An identifier in {where} is new in each request.",
        text_changes.COUNTER: f"A number in {where} changed, and nothing else in it.",
        text_changes.LINE_ENDS: f"Only the line ends of {where} changed (CRLF against LF).",
        text_changes.UNICODE_FORM: f"{_upper(where)} is the same text in another Unicode form (NFC against NFD).",
        text_changes.INVISIBLE: f"Only characters that are not seen changed in {where}.",
        text_changes.WHITESPACE: f"Only blanks changed in {where}.",
        "reasoning-dropped": "The reasoning of an earlier answer was cut out of it.",
        "answer-changed": f"An answer in the history is not the text that was sent before ({where}).",
        "tool-result-changed": f"A tool's result in the history was changed (message {index}).",
        "retrieved-first": "Retrieved text changed, and text that stays the same comes after it.",
        "retrieved-changed": "Retrieved text changed.",
        "system-edited": "The system prompt was changed.",
        "other-conversation": "It is another conversation: its first question is not the same.",
        "message-edited": f"An earlier message was changed ({where}).",
    }[slug]


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _call_change(mine: Message, new: Message) -> tuple[str, str, tuple[str, str], Message]:
    mended = replace(new, tool_calls=mine.tool_calls)
    change = _pieces(change_between(_written(mine.tool_calls), _written(new.tool_calls)))
    if _sorted(_parsed_calls(mine)) == _sorted(_parsed_calls(new)):
        return (
            "tool-arguments-rewritten",
            "The arguments of a tool call are the same, written otherwise.",
            change,
            mended,
        )
    if _sorted(_parsed_calls(mine, ids=False)) == _sorted(_parsed_calls(new, ids=False)):
        return "random-id", "The id of a tool call changed.", change, mended
    return "answer-changed", "A tool call in the history was changed.", change, mended


def _parsed_calls(message: Message, *, ids: bool = True) -> list[Any]:
    """Calls with their arguments as values, whether they were sent as text or as an object."""
    calls = []
    for call in message.tool_calls:
        function = dict(call.get("function") or {})
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            with contextlib.suppress(ValueError):  # not JSON: compared as text
                function["arguments"] = json.loads(arguments)
        calls.append({**{key: value for key, value in call.items() if ids or key != "id"}, "function": function})
    return calls


def _variable_changes(first: LoadedRequest, second: LoadedRequest) -> Iterator[Change]:
    """Documents, and other variables of the template."""
    names = [*first.extra, *(name for name in second.extra if name not in first.extra)]
    for name in names:
        ours, theirs = first.extra.get(name), second.extra.get(name)
        if _written(ours) == _written(theirs):
            continue
        extra = {key: value for key, value in second.extra.items() if key != name}
        if name in first.extra:
            extra[name] = ours
        documents = name == "documents"
        what = f"The template's variable {name} changed."
        change = change_between(_written(ours), _written(theirs))
        yield Change(
            slug="retrieved-first" if documents else "template-variable-changed",
            what="Retrieved documents changed, and text that stays the same comes after them." if documents else what,
            first=_pieces(change)[0],
            second=_pieces(change)[1],
            mended_first=first,
            mended_second=replace(second, extra=extra),
        )
