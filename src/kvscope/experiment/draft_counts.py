"""Counting by sending: the lengths of drafts, while a prompt of an exact length is made for a server that counts a
prompt only by being sent it.

Drafts are longer and shorter than what is asked for. A server refuses one that does not fit it, or cuts it without a
word; neither says that the prompt which is asked for does not fit.
"""

from collections.abc import Callable, Sequence

from kvscope.engine.base import ContextLimit
from kvscope.errors import ContextOverflow, EngineError, InputTruncated, KvscopeError
from kvscope.prompt.conversation import Message

# Of two texts this much apart in length, no tokenizer gives the longer one as few tokens as the other.
_SURELY_LONGER = 1.25


class DraftCounts:
    """Counts drafts of a prompt of ``asked_tokens``. ``limit``: what one sequence may hold, where that is known."""

    def __init__(
        self, count: Callable[[Sequence[Message]], int], *, asked_tokens: int, limit: ContextLimit | None
    ) -> None:
        self._count = count
        self._asked_tokens = asked_tokens
        self._limit = limit
        self._seen: list[tuple[int, int]] = []  # characters, tokens
        self._refused: ContextOverflow | None = None

    def __call__(self, messages: Sequence[Message]) -> int:
        """The server's count; of a draft that it refuses as too long, what it says it has, else more than was asked
        for, which is all that is known of it and all that the search needs."""
        try:
            tokens = self._count(messages)
        except ContextOverflow as error:
            if error.prompt_tokens is not None:
                return error.prompt_tokens
            self._refused = error
            if self._limit is not None and self._asked_tokens > self._limit.tokens:
                raise self._refusal(error) from error
            return self._asked_tokens + 1
        self._seen.append((sum(len(message.content) for message in messages), tokens))
        return tokens

    def why_unreachable(self, error: KvscopeError) -> KvscopeError:
        """Why no prompt was found: the server refused drafts or cut them; ``error`` where it did neither."""
        if self._refused is not None:
            return self._refusal(self._refused)
        return self._cut() or error

    def _refusal(self, error: ContextOverflow) -> EngineError:
        holds = "" if self._limit is None else f" One sequence may hold {self._limit.tokens:,} ({self._limit.source})."
        return ContextOverflow(
            f"The server counts a prompt only by being sent it, and refused a draft of a prompt of "
            f"{self._asked_tokens:,} tokens as too long.{holds} It said: {error.message}",
            hint="Shorten the prompt, load the model with a larger context, or give the model's file with --model to "
            "count here.",
            evidence=error.evidence,
        )

    def _cut(self) -> EngineError | None:
        """The error for counts that stand still while the text grows."""
        ordered = sorted(self._seen)
        longest, tokens = ordered[-1] if ordered else (0, 0)
        shorter = [each for each in ordered if each[0] * _SURELY_LONGER <= longest and each[1] >= tokens]
        if not shorter or tokens >= self._asked_tokens:
            return None
        return InputTruncated(
            f"The server cuts prompts without a word: while a prompt of {self._asked_tokens:,} tokens was built, it "
            f"counted {shorter[0][1]:,} tokens in {shorter[0][0]:,} characters and {tokens:,} in {longest:,}.",
            hint="Load the model with a larger context (num_ctx, n_ctx), ask for shorter prompts, or give the model's "
            "file with --model to count here.",
            evidence={"known_by": "counters"},
        )
