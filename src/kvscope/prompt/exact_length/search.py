"""The search for an exact length: a count that is asked for whole texts, and is not trusted blindly."""

from collections.abc import Callable, Sequence
from math import ceil

from kvscope.errors import PromptLengthUnreachable
from kvscope.prompt.conversation import Message

MAX_COUNT_CALLS = 200
# No token holds eight words, so a count that is still too low then does not follow the text at all.
_MOST_WORDS_A_TOKEN = 8

Count = Callable[[Sequence[Message]], int]


class Counter:
    """Counts each text once, and no more than MAX_COUNT_CALLS of them."""

    def __init__(self, count: Count, prompt_tokens: int) -> None:
        self._count = count
        self._prompt_tokens = prompt_tokens
        self._known: dict[str, int] = {}
        self.calls = 0

    def tokens(self, text: str) -> int:
        """What ``count`` says of a text. Raises PromptLengthUnreachable for an answer that is no number of tokens."""
        if text not in self._known:
            if self.calls >= MAX_COUNT_CALLS:
                raise no_convergence(self._prompt_tokens, self.calls)
            self._known[text] = self._ask(text)
        return self._known[text]

    def _ask(self, text: str) -> int:
        self.calls += 1
        answer = self._count(one_message(text))
        if not isinstance(answer, int) or isinstance(answer, bool) or answer < 0:
            raise PromptLengthUnreachable(
                f"The count of a text came back as {answer!r}, which is no number of tokens.", hint=_COUNT_HINT
            )
        return answer

    def check_again(self, text: str) -> None:
        """That the same text is counted in the same way twice."""
        first, second = self.tokens(text), self._ask(text)
        if first != second:
            raise PromptLengthUnreachable(
                f"The same text was counted as {first} tokens and then as {second}.", hint=_COUNT_HINT
            )


_COUNT_HINT = "The fault lies with what counts: a server, or a function of yours. Compare it with kvscope count."


def one_message(text: str) -> tuple[Message, ...]:
    """What is counted: a text as all that a user says."""
    return (Message(role="user", content=text),)


def no_convergence(prompt_tokens: int, calls: int) -> PromptLengthUnreachable:
    """The error for a length that was not found."""
    return PromptLengthUnreachable(
        f"No text of exactly {prompt_tokens} tokens was found in {calls} counts.",
        hint="Try a length one or two tokens longer, or another seed. If every length fails, the server's count "
        "does not follow the text that it is sent.",
    )


def largest_within(tokens_at: Callable[[int], int], target: int, slope: float, slack: int = 0) -> int | None:
    """A number n with ``tokens_at(n) == target``, or up to ``slack`` less, or else one with ``tokens_at(n) < target <
    tokens_at(n + 1)``. None where the count does not come near the target at all.

    ``tokens_at(0)`` must not exceed the target. It may rise and fall by a few tokens on its way up, as real counts do:
    the two ends enclose a crossing at every moment, whatever lies between them. ``slope`` is a first guess of the
    tokens that one step adds."""
    low, low_tokens = 0, tokens_at(0)
    high: int | None = None
    high_tokens = 0
    halve = False
    while target - low_tokens > slack and (high is None or high - low > 1):
        guess = low + (target - low_tokens) / slope
        if high is None:
            probe = max(ceil(guess), low + 1)
        elif halve:
            probe = (low + high) // 2
        else:
            probe = min(max(round(guess), low + 1), high - 1)
        if probe > _MOST_WORDS_A_TOKEN * target + 100:
            return None
        tokens = tokens_at(probe)
        width = None if high is None else high - low
        if tokens <= target:
            slope = max((tokens - low_tokens) / (probe - low), 1 / _MOST_WORDS_A_TOKEN)
            low, low_tokens = probe, tokens
        else:
            high, high_tokens = probe, tokens
        if high is not None:
            slope = (high_tokens - low_tokens) / (high - low)
            # Interpolation alone may creep up on the crossing from one side.
            halve = width is not None and high - low > width / 2
    return low
