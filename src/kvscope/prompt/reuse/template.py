"""What the chat template does to break a common beginning, where an app sent the same as before.

A template writes a conversation anew for each request, and may write an earlier message otherwise than it did when
that message was the last, or otherwise than the model wrote its answer.
"""

import re
from dataclasses import replace

from kvscope.prompt.conversation import Message
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.reuse import text_changes
from kvscope.prompt.reuse.changes import THOUGHT_ENDS, Change, same_message, with_messages
from kvscope.prompt.reuse.render import Pair, answer_index
from kvscope.prompt.reuse.text_changes import change_between

REASONING_DROPPED = "reasoning-dropped"
_THOUGHT = re.compile(rf"\s*<think>.*?{THOUGHT_ENDS}\s*", re.DOTALL)


def unthinking_change(pair: Pair, answer: str | None) -> tuple[Change, str | None] | None:
    """Both requests, and a stated ``answer``, without the thinking before answers; None where there is none."""
    first, second = (_unthinking(request) for request in (pair.first, pair.second))
    short = None if answer is None else _THOUGHT.sub("", answer)
    if first == pair.first and second == pair.second and short == answer:
        return None
    index = answer_index(pair.first, pair.second)
    sent = second != pair.second and index is not None
    what = "The template does not write the reasoning of earlier answers again."
    if short != answer and not (sent and _thinks(pair.second.conversation.messages[index or 0])):
        what = "The app does not send the reasoning of the answer back."
    change = Change(slug=REASONING_DROPPED, what=what, mended_first=first, mended_second=second, message=index)
    return change, short


def _thinks(message: Message) -> bool:
    return bool(message.reasoning) or THOUGHT_ENDS in message.content


def _unthinking(request: LoadedRequest) -> LoadedRequest:
    messages = [_without_thought(message) for message in request.conversation.messages]
    return with_messages(request, messages)


def _without_thought(message: Message) -> Message:
    if message.role != "assistant":
        return message
    return replace(message, reasoning=None, content=message.content.split(THOUGHT_ENDS)[-1].lstrip("\n"))


def template_change(pair: Pair, *, answer_is_stated: bool) -> Change | None:
    """What of the template lies behind the first difference of the two texts, None where they do not differ.

    ``answer_is_stated``: the answer is the model's own text, and not taken from the second request."""
    at = pair.common_characters
    if at == min(len(pair.held), len(pair.text)):
        return None
    index = answer_index(pair.first, pair.second)
    if at >= len(pair.prompt):
        return _answer_change(pair, index, answer_is_stated=answer_is_stated)
    if at < pair.body_length and not _goes_on(pair):
        return _change(
            "several-changes", "More than one thing was sent otherwise, and they cannot be told apart.", pair
        )
    if at < pair.body_length:
        what = "The template writes earlier messages otherwise once others follow them."
        return _change("template-rewrites-history", what, pair)
    if index is None:
        what = "The answer to the first request is not in the history of the second."
        return _change("answer-left-out", what, pair)
    what = "The template asks for an answer with text that it does not write before earlier answers."
    return _change("generation-prompt", what, pair)


def _goes_on(pair: Pair) -> bool:
    """The second request has all that the first has, unchanged."""
    ours, theirs = pair.first.conversation, pair.second.conversation
    same = len(theirs.messages) >= len(ours.messages) and all(map(same_message, ours.messages, theirs.messages))
    return same and ours.tools == theirs.tools and pair.first.extra == pair.second.extra


def _answer_change(pair: Pair, index: int | None, *, answer_is_stated: bool) -> Change:
    if index is None:
        what = "The answer to the first request is not in the history of the second."
        return _change("answer-left-out", what, pair)
    change = change_between(pair.answer or "", pair.second.conversation.messages[index].content)
    if answer_is_stated and change is not None:
        kind = f" ({change.kind})" if change.kind != text_changes.EDITED else ""
        what = f"The answer in the history is not the text that the model wrote{kind}."
        return replace(_change("answer-changed", what, pair, index), first=change.first, second=change.second)
    what = "The template writes the answer otherwise than the model did."
    return _change("template-rewrites-answer", what, pair, index)


def _change(slug: str, what: str, pair: Pair, message: int | None = None) -> Change:
    return Change(slug=slug, what=what, mended_first=pair.first, mended_second=pair.second, message=message)
