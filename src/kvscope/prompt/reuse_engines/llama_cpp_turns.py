"""Where llama.cpp's server sees a user's message begin: it keeps checkpoints there.

The server learns from the chat template what stands before a user's message ("<start_of_turn>user"), and looks for the
ids of that text in the prompt (common/chat-diff-analyzer.cpp: detect_user_start_marker; common/chat.cpp:
common_chat_msg_delimiters). What a user writes counts too: a message in which the marker is quoted begins another one.

For some families the server does not look but knows the marker (common/chat.cpp). It may be another one, and was not
compared with the server: ``has_marks_of_its_own``.
"""

import re
from collections.abc import Mapping, Sequence

from kvscope.errors import ChatTemplateError
from kvscope.prompt.chat_template.render import DEFAULT_LIMITS, render_in_child
from kvscope.prompt.chat_template.template import ChatTemplate, local_time
from kvscope.prompt.conversation import Conversation, Message
from kvscope.prompt.tokenizers.base import Tokenizer

_ASKED = {"role": "user", "content": "alpha"}
_ANSWERED = {"role": "assistant", "content": "beta"}
_ASKED_AGAIN = {"role": "user", "content": "gamma"}
_TAG = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")


# What llama.cpp's server tells these families by: all texts of a row stand in the template.
_FAMILIES = (
    ("[SYSTEM_PROMPT]", "[TOOL_CALLS]", "[ARGS]"),  # Ministral 3
    ("<|channel|>",),  # gpt-oss
    ("<atem:function_calls>",),
    (">>>all", ">>>${recipient}"),  # Functionary
    ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),  # Kimi K2
    ("<|open|>", "<|close|>", "<|end_of_msg|>"),
    ("<role>ASSISTANT</role>", "<arg_key>"),  # Ling
    ("<|START_TEXT|>", "<|START_ACTION|>"),  # Command A
    ("List of tools: [",),  # LFM 2
    ("<|role_sep|>", "<|message_sep|>"),  # GigaChat
    ("]<]minimax[>[", "<invoke name="),
    ("dsml_token", "DSML"),  # DeepSeek 3.2
    ("'<|tool_call>call:'",),  # Gemma 4
    ("Tool usage guidelines:", '<function name="'),
    ("<tool_call>", "<function=", "<parameter="),  # Qwen 3 Coder
    ("You have access to the following functions in JSONSchema format",),
)


def has_marks_of_its_own(text: str) -> bool:
    """Whether the server knows what marks a user's message for the family of this template's text."""
    return any(all(part in text for part in family) for family in _FAMILIES)


def user_marker(template: ChatTemplate) -> str | None:
    """What the server takes for the beginning of a user's message; None where the template shows none, or refuses a
    plain conversation. Raises ChatTemplateError where the template had to be stopped."""
    conversations: tuple[tuple[Mapping[str, str], ...], ...] = (
        (),
        (_ASKED_AGAIN,),
        (_ASKED, _ANSWERED),
        (_ASKED, _ANSWERED, _ASKED_AGAIN),
    )
    text = template.text_for(Conversation(messages=(Message(role="user", content=_ASKED["content"]),)))
    variables = [
        {**template.special_tokens, "messages": list(each), "add_generation_prompt": False, "enable_thinking": True}
        for each in conversations
    ]
    made = render_in_child(text, variables, source=template.source, now=local_time(), limits=DEFAULT_LIMITS)
    nothing, one, before, after = made
    if isinstance(one, ChatTemplateError):
        return None
    if not isinstance(nothing, ChatTemplateError):
        return _marker(nothing, one)
    # llama.cpp renders no messages where Python's Jinja stops at their first; two longer conversations show the same
    # marker, unless the first message is marked otherwise than later ones.
    if isinstance(before, ChatTemplateError) or isinstance(after, ChatTemplateError):
        return None
    marker = _marker(before, after)
    first = one.partition(_ASKED_AGAIN["content"])[0]
    return marker if marker is not None and first.rstrip().endswith(marker) else None


def _marker(shorter: str, longer: str) -> str | None:
    written, found, _ = _added(shorter, longer).partition(_ASKED_AGAIN["content"])
    return (_without_ends(written) or None) if found else None


def _added(shorter: str, longer: str) -> str:
    """What comes in ``longer`` behind the common beginning, from a whole tag on; nothing of an answer."""
    length = next((at for at, (one, other) in enumerate(zip(shorter, longer, strict=False)) if one != other), None)
    start = min(len(shorter), len(longer)) if length is None else length
    for tag in _TAG.finditer(longer):
        if tag.start() < start < tag.end():
            start = tag.start()
    return longer[start:].rpartition(_ANSWERED["content"])[2]


def _without_ends(text: str) -> str:
    """``text`` without the tags at its beginning that end a message, by their names."""
    text = text.strip()
    while (tag := _TAG.match(text)) and any(word in tag[0].lower() for word in ("end", "close")):
        text = text[tag.end() :].strip()
    return text


def user_marker_ids(template: ChatTemplate, tokenizer: Tokenizer) -> tuple[int, ...] | None:
    """The ids of ``user_marker``, which ``places_of`` looks for. Raises as ``user_marker``, and what the tokenizer
    raises."""
    marker = user_marker(template)
    return None if marker is None else tuple(tokenizer.encode(marker, parse_special=True))


def user_starts(ids: Sequence[int], *, template: ChatTemplate, tokenizer: Tokenizer) -> tuple[int, ...] | None:
    """The tokens of a prompt with which users' messages begin; None where the template does not show what marks them.
    Raises as ``user_marker_ids``."""
    marker = user_marker_ids(template, tokenizer)
    return None if marker is None else places_of(marker, ids)


def places_of(part: Sequence[int], ids: Sequence[int]) -> tuple[int, ...]:
    """Where in ``ids`` the ids of ``part`` stand."""
    part, ids = tuple(part), tuple(ids)
    return tuple(index for index in range(len(ids) - len(part) + 1) if ids[index : index + len(part)] == part)
