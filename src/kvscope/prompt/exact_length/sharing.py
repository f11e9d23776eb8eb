"""Prompts of an exact length that share their beginning, and differ from the next token on.

The shared beginning is a text of its own, searched for like a prompt (``build.py``); what follows is built behind it,
so that each prompt as a whole has the length asked for. How many tokens two prompts have in common is seen in their ids
where those can be had. Where only counts of whole texts can be had, the beginning is as long as a message of its text
alone is counted, which is off by what the chat template writes behind a message.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvscope.errors import BadDesign
from kvscope.prompt.conversation import Message
from kvscope.prompt.exact_length.build import ExactPrompt, build_prompt, draft_variant
from kvscope.prompt.exact_length.draft import label
from kvscope.prompt.exact_length.search import Count, one_message
from kvscope.prompt.exact_length.source_text import SourceText

_JOINT = "\n\n"
# Where there is one prompt alone, what another one could go on with.
_OTHER_LABELS = ("A", "z")

# The token ids of whole prompts of one user message each; None where they cannot be had.
Ids = Callable[[Sequence[tuple[Message, ...]]], Sequence[Sequence[int]] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingPrompts:
    """``shared_tokens``: tokens that all of them begin with, the chat template's opening among them; None where their
    ids cannot be had, so that it is only known about."""

    prompts: tuple[ExactPrompt, ...]
    shared_tokens: int | None


def build_sharing(
    *,
    number: int,
    prompt_tokens: int,
    shared_tokens: int,
    count: Count,
    ids: Ids | None,
    language: str = "en",
    seed: int,
    salt: str,
    source: SourceText | None = None,
    key_percent: float | None = None,
) -> SharingPrompts:
    """``number`` prompts of exactly ``prompt_tokens`` that begin with the same ``shared_tokens`` (0: each has a text of
    its own from the first word on). ``count`` and the rest: as ``build_prompt``, whose errors are raised. Raises
    BadDesign where nothing would be left to tell them apart."""
    check_room(shared_tokens, prompt_tokens)

    def build(tokens: int, counted: Count, each_seed: int, each_salt: str) -> ExactPrompt:
        return build_prompt(
            prompt_tokens=tokens,
            count=counted,
            language=language,
            seed=each_seed,
            salt=each_salt,
            source=source,
            key_percent=key_percent,
        )

    head = ""
    if shared_tokens:
        variant = draft_variant(language if source is None else source.language, prompt_tokens, salt)
        labels = [label(seed + index, variant) for index in range(number)]
        common = count if ids is None or ids([one_message("")]) is None else _common_counter(ids, labels)
        head = build(shared_tokens, common, seed, f"{salt}/shared").text + _JOINT

    def count_behind(messages: Sequence[Message]) -> int:
        return count(one_message(head + messages[0].content))

    built = [build(prompt_tokens, count_behind, seed + index, salt) for index in range(number)]
    prompts = tuple(replace(prompt, messages=one_message(head + prompt.text)) for prompt in built)
    return SharingPrompts(prompts=prompts, shared_tokens=common_tokens(prompts, ids))


def check_room(shared_tokens: int, prompt_tokens: int) -> None:
    """Raises BadDesign where prompts would have nothing left to tell them apart."""
    if shared_tokens >= prompt_tokens:
        raise BadDesign(
            f"Prompts of {prompt_tokens} tokens cannot share {shared_tokens} of them and differ too.",
            hint="Use longer prompts (--input-tokens), or a shorter --shared-prefix.",
        )


def common_tokens(prompts: Sequence[ExactPrompt], ids: Ids | None) -> int | None:
    """Tokens with which all of them begin, by their ids; None where those cannot be had, are not as many as were
    counted, or there are not two prompts."""
    found = None if ids is None or len(prompts) < 2 else ids([prompt.messages for prompt in prompts])
    if found is None or any(len(each) != prompt.prompt_tokens for each, prompt in zip(found, prompts, strict=True)):
        return None
    return min(_common(found[0], each) for each in found[1:])


def _common_counter(ids: Ids, labels: Sequence[str]) -> Count:
    """Counts the tokens that prompts have in common that begin with a text and go on with ``labels``. What follows a
    line's end may decide how it is cut into tokens, a digit otherwise than a letter."""
    ends = list({text[0]: text for text in labels}.values())
    if len(ends) == 1:
        ends += [text for text in _OTHER_LABELS if text[0] != ends[0][0]]

    def count(messages: Sequence[Message]) -> int:
        head = messages[0].content + _JOINT
        found = ids([one_message(f"{head}{end}:") for end in ends])
        assert found is not None
        return min(_common(found[0], each) for each in found[1:])

    return count


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))
