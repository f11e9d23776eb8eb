"""Where llama.cpp's server sees a user's message begin: it keeps checkpoints there.

The server learns from the chat template what stands before a user's message ("<start_of_turn>user"), and looks for the
ids of that text in the prompt (common/chat.cpp: common_chat_msg_delimiters). What a user writes counts too: a message
in which the marker is quoted begins another one.
"""

from collections.abc import Sequence

from kvscope.errors import ChatTemplateError
from kvscope.prompt.chat_template import ChatTemplate, Rendering
from kvscope.prompt.conversation import Conversation, Message
from kvscope.prompt.tokenizers.base import Tokenizer

_ASKED, _ANSWERED, _ASKED_AGAIN = "alpha", "beta", "gamma"


def user_marker(template: ChatTemplate) -> str | None:
    """What the template writes before a user's message, after an answer; None where it writes nothing, or refuses a
    plain conversation. Raises ChatTemplateError where the template had to be stopped."""
    before = (Message(role="user", content=_ASKED), Message(role="assistant", content=_ANSWERED))
    after = (*before, Message(role="user", content=_ASKED_AGAIN))
    shown = [
        Rendering(
            conversation=Conversation(messages=messages), add_generation_prompt=False, continue_final_message=False
        )
        for messages in (before, after)
    ]
    shorter, longer = template.render_each(shown)
    if isinstance(longer, ChatTemplateError):
        return None
    _, _, answered = longer.partition(_ANSWERED)
    between, found, ended = answered.partition(_ASKED_AGAIN)
    if not found:
        return None
    if isinstance(shorter, str) and longer.startswith(shorter):
        between = longer[len(shorter) : len(longer) - len(_ASKED_AGAIN) - len(ended)]
    # A template may end a turn otherwise where it is the last.
    return between.strip().removeprefix(ended.strip()).strip() or None


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
