"""Prompts of an exact length that share their beginning, and differ from the next token on.

The shared beginning is a text of its own, searched for like a prompt (``build.py``); what follows is built behind it,
so that each prompt as a whole has the length asked for. How many tokens two prompts have in common is seen in their ids
where those can be had: no two of them have more or fewer than all. Where only counts of whole texts can be had, the
beginning is as long as a message of its text alone is counted, which is off by what the chat template writes behind a
message.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from kvscope.errors import BadDesign
from kvscope.prompt.conversation import Message
from kvscope.prompt.exact_length.build import ExactPrompt, build_prompt, draft_variant
from kvscope.prompt.exact_length.draft import label
from kvscope.prompt.exact_length.search import Count, one_message
from kvscope.prompt.exact_length.source_text import SourceText

_JOINT = "\n\n"
# Where there is one prompt alone, what another one could go on with.
_OTHER_LABELS = ("A", "z")
# So many labels are looked at for each prompt, in search of ones whose first tokens differ.
_MOST_LABELS = 8

# The token ids of whole prompts of one user message each; None where they cannot be had.
Ids = Callable[[Sequence[tuple[Message, ...]]], Sequence[Sequence[int]] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingPrompts:
    """``shared_tokens``: tokens that all of them begin with, the chat template's opening among them;
    ``most_shared_tokens``: the most that any two do. Both None where their ids cannot be had, so that it is only known
    about."""

    prompts: tuple[ExactPrompt, ...]
    shared_tokens: int | None
    most_shared_tokens: int | None


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

    build = partial(build_prompt, language=language, source=source, key_percent=key_percent)
    head, seeds = "", [seed + index for index in range(number)]
    if shared_tokens:
        known = None if ids is None or ids([one_message("")]) is None else ids
        variant = draft_variant(language if source is None else source.language, prompt_tokens, salt)
        candidates = seeds if known is None else _lettered(seed, variant, number * _MOST_LABELS)
        labels = [label(each, variant) for each in candidates[:number]]
        common = count if known is None else _common_counter(known, labels)
        shared = build(prompt_tokens=shared_tokens, count=common, seed=seed, salt=f"{salt}/shared")
        head = shared.text + _JOINT
        if known is not None:
            seeds = _apart(known, head, {each: label(each, variant) for each in candidates}, shared_tokens, number)

    def count_behind(messages: Sequence[Message]) -> int:
        return count(one_message(head + messages[0].content))

    built = [build(prompt_tokens=prompt_tokens, count=count_behind, seed=each, salt=salt) for each in seeds]
    prompts = tuple(replace(prompt, messages=one_message(head + prompt.text)) for prompt in built)
    least, most = common_tokens(prompts, ids)
    return SharingPrompts(prompts=prompts, shared_tokens=least, most_shared_tokens=most)


def _lettered(seed: int, variant: str, number: int) -> list[int]:
    """Seeds whose labels begin with a letter: before a digit some tokenizers cut the line end otherwise, so that two
    labels with digits would share more than others."""
    seeds = (each for each in itertools.count(seed) if label(each, variant)[0].isalpha())
    return list(itertools.islice(seeds, number))


def _apart(ids: Ids, head: str, labels: Mapping[int, str], shared_tokens: int, number: int) -> list[int]:
    """Seeds of labels that, behind the head, differ from one another in their first token; as many as there are, then
    others."""
    found = ids([one_message(f"{head}{text}:") for text in labels.values()])
    assert found is not None
    firsts: dict[object, int] = {}
    for seed, each in zip(labels, found, strict=True):
        if _common(found[0], each) >= shared_tokens and len(each) > shared_tokens:
            firsts.setdefault(each[shared_tokens], seed)
    chosen = list(firsts.values())[:number]
    return [*chosen, *[seed for seed in labels if seed not in chosen][: number - len(chosen)]]


def check_room(shared_tokens: int, prompt_tokens: int) -> None:
    """Raises BadDesign where prompts would have nothing left to tell them apart."""
    if shared_tokens >= prompt_tokens:
        raise BadDesign(
            f"Prompts of {prompt_tokens} tokens cannot share {shared_tokens} of them and differ too.",
            hint="Use longer prompts (--input-tokens), or a shorter --shared-prefix.",
        )


def common_tokens(prompts: Sequence[ExactPrompt], ids: Ids | None) -> tuple[int | None, int | None]:
    """Tokens with which all of them begin, and the most with which any two do, by their ids; None where those cannot be
    had, are not as many as were counted, or there are not two prompts."""
    found = None if ids is None or len(prompts) < 2 else ids([prompt.messages for prompt in prompts])
    if found is None or any(len(each) != prompt.prompt_tokens for each, prompt in zip(found, prompts, strict=True)):
        return None, None
    # In order, those with most in common stand beside each other, and those with least at the ends.
    ordered = sorted(tuple(each) for each in found)
    return _common(ordered[0], ordered[-1]), max(_common(one, other) for one, other in itertools.pairwise(ordered))


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
