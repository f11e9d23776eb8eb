"""Drafts that a server refuses or cuts while it counts them, by the numbers that Ollama's releases give."""

from collections.abc import Sequence

import pytest

from kvscope.engine.base import ContextLimit
from kvscope.errors import ContextOverflow, InputTruncated, PromptLengthUnreachable
from kvscope.experiment.draft_counts import DraftCounts
from kvscope.prompt.conversation import Message
from kvscope.prompt.exact_length.build import build_prompt

LIMIT = ContextLimit(tokens=2048, source="/api/ps: context_length")


def tokens(messages: Sequence[Message]) -> int:
    """A byte a token, and 12 for the template."""
    return 12 + sum(len(message.content.encode()) for message in messages)


def refuses(messages: Sequence[Message]) -> int:
    """As Ollama 0.12.6 to 0.29, which does not say by how much."""
    if tokens(messages) > 2048:
        raise ContextOverflow("the input length exceeds the context length")
    return tokens(messages)


def keeps_what_fits(messages: Sequence[Message]) -> int:
    """As Ollama 0.4 to 0.12.5."""
    return min(tokens(messages), 2048)


def keeps_half(messages: Sequence[Message]) -> int:
    """As llama.cpp's context shift: 4 and half of the rest."""
    counted = tokens(messages)
    return counted if counted <= 2048 else 2048 - (2048 - 4) // 2


@pytest.mark.parametrize("count", [refuses, keeps_what_fits])
@pytest.mark.parametrize("limit", [LIMIT, None])
@pytest.mark.parametrize("asked", [300, 1000, 1900, 2040])
def test_what_fits_is_built_though_drafts_do_not(count: object, limit: ContextLimit | None, asked: int) -> None:
    counts = DraftCounts(count, asked_tokens=asked, limit=limit)  # type: ignore[arg-type]  # one of the functions above
    prompt = build_prompt(prompt_tokens=asked, count=counts, seed=1)
    assert tokens(prompt.messages) == asked


@pytest.mark.parametrize("count", [keeps_what_fits, keeps_half])
@pytest.mark.parametrize("asked", [2500, 9000])
def test_what_is_cut_is_told_as_cut(count: object, asked: int) -> None:
    counts = DraftCounts(count, asked_tokens=asked, limit=None)  # type: ignore[arg-type]  # one of the functions above
    with pytest.raises(PromptLengthUnreachable) as caught:
        build_prompt(prompt_tokens=asked, count=counts, seed=1)
    found = counts.why_unreachable(caught.value)
    assert isinstance(found, InputTruncated)
    assert f"{asked:,} tokens" in found.message


@pytest.mark.parametrize("limit", [LIMIT, None])
def test_what_is_refused_is_told_as_refused(limit: ContextLimit | None) -> None:
    counts = DraftCounts(refuses, asked_tokens=5000, limit=limit)
    with pytest.raises((PromptLengthUnreachable, ContextOverflow)) as caught:
        build_prompt(prompt_tokens=5000, count=counts, seed=1)
    found = counts.why_unreachable(caught.value)
    assert isinstance(found, ContextOverflow)
    assert "a draft of a prompt of 5,000 tokens" in found.message


def test_what_a_refusal_states_is_a_count() -> None:
    def states(messages: Sequence[Message]) -> int:
        if tokens(messages) > 2048:
            error = ContextOverflow("too long")
            error.prompt_tokens = tokens(messages)
            raise error
        return tokens(messages)

    counts = DraftCounts(states, asked_tokens=5000, limit=LIMIT)
    assert tokens(build_prompt(prompt_tokens=5000, count=counts, seed=1).messages) == 5000


def test_a_length_that_cannot_be_is_neither() -> None:
    """A count of twos only: no odd length."""
    counts = DraftCounts(lambda messages: 2 * tokens(messages), asked_tokens=501, limit=LIMIT)
    with pytest.raises(PromptLengthUnreachable) as caught:
        build_prompt(prompt_tokens=501, count=counts, seed=1)
    assert counts.why_unreachable(caught.value) is caught.value
