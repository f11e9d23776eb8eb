"""The prompt of a request as the engine sees it: its text, its token ids, and where in the text each token begins."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvscope.errors import ChatTemplateError
from kvscope.prompt.chat_template.files import LLAMA_CPP
from kvscope.prompt.chat_template.template import ChatTemplate, Clock, local_time
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.llama_cpp_request import LlamaCppReading
from kvscope.prompt.tokenizers.base import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptIds:
    """``text`` is what the template made. ``starts``: for each id the index of the first character of ``text`` that it
    stands for. ``bos_added``: the first id is a BOS that is not in ``text``, whose start is 0."""

    ids: tuple[int, ...]
    text: str
    starts: tuple[int, ...]
    bos_added: bool


def prompt_ids(
    request: LoadedRequest, *, template: ChatTemplate, tokenizer: Tokenizer, clock: Clock = local_time
) -> PromptIds:
    """``request`` as the model is given it: rendered by the template, names of control tokens read as such, BOS once.

    Raises ChatTemplateError, UsageError and what the tokenizer raises.
    """
    request = as_read_by(request, template)
    text = template.render(
        request.conversation,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=continuation(request),
        clock=clock,
        extra=request.extra,
    )
    return ids_of_text(text, tokenizer=tokenizer)


def as_read_by(request: LoadedRequest, template: ChatTemplate) -> LoadedRequest:
    """``request`` as the engine reads it whose way of using ``template`` is followed: llama.cpp's server passes over
    some keys and gives others to the template. Raises ChatTemplateError for what that server refuses."""
    reading = request.llama_cpp
    if template.style != LLAMA_CPP or reading is None:
        return request
    refused = reading.refused
    if refused is None and any(_has_half_character(text) for text in _given(reading)):
        refused = "a text holds half of a character (a lone surrogate, such as \\ud800)"
    if refused is not None:
        raise ChatTemplateError(
            f"llama.cpp's server refuses this request: {refused}.", kind="refused", hint="Correct the request."
        )
    return replace(
        request,
        conversation=reading.conversation,
        extra=reading.extra,
        add_generation_prompt=reading.add_generation_prompt,
        warnings=reading.warnings,
        uncounted=tuple(each for each in request.uncounted if each != "system"),
        not_followed=reading.not_followed,
        llama_cpp=None,
    )


def _texts_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield key
            yield from _texts_of(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts_of(each)


def _given(reading: LlamaCppReading) -> Iterator[str]:
    for message in reading.conversation.messages:
        yield from _texts_of((message.content, message.reasoning or "", message.blocks, message.tool_calls))
    yield from _texts_of((reading.conversation.tools, reading.extra))


def _has_half_character(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def continuation(request: LoadedRequest) -> bool | None:
    """Whether the last message is left open; None: as the engine does."""
    return request.continue_final_message


def ids_of_text(text: str, *, tokenizer: Tokenizer) -> PromptIds:
    """The ids of a rendered prompt. BOS is added where the model's own encoding begins with it and ``text`` does not
    name it itself. Raises what the tokenizer raises."""
    ids, starts = tokenizer.encode_with_starts(text, parse_special=True)
    bos = tokenizer.bos_id
    add = tokenizer.adds_bos and bos is not None and ids[:1] != [bos]
    if add and bos is not None:
        ids, starts = [bos, *ids], [0, *starts]
    return PromptIds(ids=tuple(ids), text=text, starts=tuple(starts), bos_added=add)
