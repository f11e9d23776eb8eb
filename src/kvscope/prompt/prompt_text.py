"""The prompt of a request as the engine sees it: its text, its token ids, and where in the text each token begins."""

from dataclasses import dataclass

from kvscope.prompt.chat_template.template import ChatTemplate, Clock, local_time
from kvscope.prompt.conversation_file import LoadedRequest
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
    text = template.render(
        request.conversation,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=continuation(request),
        clock=clock,
        **request.extra,
    )
    return ids_of_text(text, tokenizer=tokenizer)


def continuation(request: LoadedRequest) -> bool | None:
    """Whether the last message is left open; None: as the engine does. A request that asks for no answer is closed."""
    if request.continue_final_message is None and not request.add_generation_prompt:
        return False
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
