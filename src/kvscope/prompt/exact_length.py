"""A prompt of exactly so many tokens, as the server itself counts them, chat template included.

Tokens do not add up at joints, so nothing is computed: each candidate is counted whole, and the next one is chosen from
the answer. First the number of words is found at which one word more would be too many, then the rest is closed with
spaced dots. About a dozen counts are needed, whatever the length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil

from kvscope.errors import BadDesign, PromptLengthUnreachable
from kvscope.prompt.conversation import Conversation, Message
from kvscope.prompt.draft import FRAMES, LABEL_LENGTH, Draft, Frame
from kvscope.prompt.source_text import load_source_text

MAX_COUNT_CALLS = 200
# How many words to give back, one at a time, when the dots alone do not close a gap.
_WORDS_GIVEN_BACK = 12
# First guesses only; the search corrects them. Measured with a tokenizer made for English.
_TOKENS_A_WORD = {"en": 1.4, "ko": 8.0}
# No token holds eight words, so a count that is still too low then does not follow the text at all.
_MOST_WORDS_A_TOKEN = 8

Count = Callable[[Sequence[Message]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactPrompt:
    """``prompt_tokens`` is what the count said of ``messages``. ``template_tokens`` is its answer to an empty message:
    what the chat template costs by itself. ``frame`` tells how much instruction there was room for (full, short,
    minimal). ``count_calls`` is the number of questions it took."""

    messages: tuple[Message, ...]
    prompt_tokens: int
    template_tokens: int
    key_sentence: str
    language: str
    seed: int
    frame: str
    count_calls: int

    @property
    def characters(self) -> int:
        """Unicode code points of the contents."""
        return Conversation(messages=self.messages).characters

    @property
    def bytes(self) -> int:
        """Bytes of the contents in UTF-8."""
        return Conversation(messages=self.messages).bytes


def build_prompt(*, prompt_tokens: int, count: Count, language: str, seed: int, salt: str = "") -> ExactPrompt:
    """One user message that ``count`` finds to be exactly ``prompt_tokens`` long.

    ``language`` is "en" or "ko". The same arguments give the same text; another seed, salt or length gives other
    sentences in another order behind another first word. The key sentence stands in the middle of every prompt.

    Raises PromptLengthUnreachable when the length is too short for the template, the key sentence and the shortest
    instruction (the message says how much they need), or when no text of that length was found; UnknownName for
    another language; BadDesign for a length below 1. Errors of ``count`` pass through.
    """
    if prompt_tokens < 1:
        raise BadDesign(f"A prompt of {prompt_tokens} tokens cannot be built.", hint="Ask for a positive number.")
    source = load_source_text(language)
    counter = _Counter(count, prompt_tokens)
    template_tokens = counter.tokens("")
    draft = Draft(source, seed=seed, variant=f"{language}|{prompt_tokens}|{salt}")
    shortest = 0
    for frame in FRAMES[language]:
        shortest = counter.tokens(draft.text(frame, num_words=0))
        if shortest > prompt_tokens:
            continue
        text = _fill(draft, frame, counter, prompt_tokens, _TOKENS_A_WORD[language])
        if text is not None:
            return ExactPrompt(
                messages=_messages(text),
                prompt_tokens=prompt_tokens,
                template_tokens=template_tokens,
                key_sentence=source.key_sentence,
                language=language,
                seed=seed,
                frame=frame.name,
                count_calls=counter.calls,
            )
    if shortest > prompt_tokens:
        # Labels cost one token to one a character, so the next length may need a little more than this one.
        safe = shortest + LABEL_LENGTH - 1
        raise PromptLengthUnreachable(
            f"{prompt_tokens} tokens are too few: the chat template takes {template_tokens}, and with the key sentence "
            f"and the shortest instruction it is {shortest}.",
            hint=f"Ask for {safe} tokens or more.",
        )
    raise _no_convergence(prompt_tokens, counter.calls)


def _messages(text: str) -> tuple[Message, ...]:
    return (Message(role="user", content=text),)


def _no_convergence(prompt_tokens: int, calls: int) -> PromptLengthUnreachable:
    return PromptLengthUnreachable(
        f"No text of exactly {prompt_tokens} tokens was found in {calls} counts.",
        hint="Try a length one or two tokens longer, or another seed. If every length fails, the server's count "
        "does not follow the text that it is sent.",
    )


class _Counter:
    """Counts each text once, and no more than MAX_COUNT_CALLS of them."""

    def __init__(self, count: Count, prompt_tokens: int) -> None:
        self._count = count
        self._prompt_tokens = prompt_tokens
        self._known: dict[str, int] = {}

    @property
    def calls(self) -> int:
        return len(self._known)

    def tokens(self, text: str) -> int:
        if text not in self._known:
            if self.calls >= MAX_COUNT_CALLS:
                raise _no_convergence(self._prompt_tokens, self.calls)
            self._known[text] = self._count(_messages(text))
        return self._known[text]


def _fill(draft: Draft, frame: Frame, counter: _Counter, target: int, tokens_a_word: float) -> str | None:
    """The text in ``frame`` that counts to ``target``, or None."""

    def tokens_of_words(num_words: int) -> int:
        return counter.tokens(draft.text(frame, num_words=num_words))

    most_words = _largest_within(tokens_of_words, target, tokens_a_word)
    for num_words in range(most_words, max(most_words - _WORDS_GIVEN_BACK, 0) - 1, -1):
        for comma in (False, True):
            text = _close(partial(draft.text, frame, num_words=num_words, comma=comma), counter, target)
            if text is not None:
                return text
    return None


def _close(text: Callable[..., str], counter: _Counter, target: int) -> str | None:
    """``text(num_dots=...)`` with the number of dots that makes it count to ``target``, or None."""

    def tokens_of_dots(num_dots: int) -> int:
        return counter.tokens(text(num_dots=num_dots))

    if tokens_of_dots(0) > target:
        return None
    num_dots = _largest_within(tokens_of_dots, target, 1.0)
    return text(num_dots=num_dots) if tokens_of_dots(num_dots) == target else None


def _largest_within(tokens_at: Callable[[int], int], target: int, slope: float) -> int:
    """A number n with ``tokens_at(n) == target``, or else one with ``tokens_at(n) < target < tokens_at(n + 1)``.

    ``tokens_at(0)`` must not exceed the target. It may rise and fall by a few tokens on its way up, as real counts do:
    the two ends enclose a crossing at every moment, whatever lies between them. ``slope`` is a first guess of the
    tokens that one step adds."""
    low, low_tokens = 0, tokens_at(0)
    high: int | None = None
    high_tokens = 0
    halve = False
    while low_tokens != target and (high is None or high - low > 1):
        guess = low + (target - low_tokens) / slope
        if high is None:
            probe = max(ceil(guess), low + 1)
        elif halve:
            probe = (low + high) // 2
        else:
            probe = min(max(round(guess), low + 1), high - 1)
        if probe > _MOST_WORDS_A_TOKEN * target + 100:
            return low
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
