"""Several exact prompts for one engine, no two beginning alike, so that none finds anything of another to reuse."""

from collections.abc import Iterator, Sequence
from typing import Any

from kvscope.errors import UsageError
from kvscope.prompt.exact_length.build import ExactPrompt, build_prompt
from kvscope.prompt.exact_length.draft import NUM_FIRST_CHARACTERS


def build_prompts(lengths: Sequence[int], *, repeats: int = 1, seed: int = 0, **wish: Any) -> Iterator[ExactPrompt]:
    """``repeats`` prompts of each of ``lengths``; ``wish`` is what build_prompt takes beside.

    The seeds go up from ``seed``, and one is passed over whose prompt would begin with a character that another begins
    with: each says its own, with which it can be built alone. Up to 62 prompts differ in their very first character;
    of more, some share it. Raises as build_prompt, and UsageError for a number of repeats below 1.
    """
    if repeats < 1:
        raise UsageError(f"{repeats} prompts of each length were asked for.", hint="Ask for one or more.")
    taken: set[str] = set()
    for prompt_tokens in lengths:
        for _ in range(repeats):
            prompt = build_prompt(prompt_tokens=prompt_tokens, seed=seed, **wish)
            while prompt.text[:1] in taken and len(taken) < NUM_FIRST_CHARACTERS:
                seed += 1
                prompt = build_prompt(prompt_tokens=prompt_tokens, seed=seed, **wish)
            taken.add(prompt.text[:1])
            seed += 1
            yield prompt
