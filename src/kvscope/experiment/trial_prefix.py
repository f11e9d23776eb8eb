"""The measured part of a trial of ``prefix``: something is sent, time passes, the prompt is sent, and what the engine
reuses of it is said before."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kvscope.engine.base import ChatRequest, Engine, Generation, Message
from kvscope.experiment.attempt_rows import AttemptRows
from kvscope.experiment.design import Condition
from kvscope.experiment.play import AskNext
from kvscope.experiment.prefix_levels import PrefixLevel, prefix_level
from kvscope.experiment.reuse_prediction import NotPredicted, SentBefore
from kvscope.prompt.reuse.rules import Reusable
from kvscope.scenario import SettingValue

# The role of the request that is sent before the measured one.
BEFORE = "before"
# So many texts are counted in search of one that differs in a character and has as many tokens.
_MOST_COUNTS = 24
_NEAR = 12
_ALPHABETS = ("abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", "가나다라마바사아자차카타파하")

Count = Callable[[Sequence[Message]], int]


class Predict(Protocol):
    """As ``ReusePredictor.predict``."""

    def __call__(
        self, before: Sequence[SentBefore], request: ChatRequest, engine_settings: Mapping[str, SettingValue]
    ) -> Reusable | NotPredicted: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixPrompts:
    """``measured``: the prompt that is measured. ``other``: one of the same length that begins otherwise. ``tokens``:
    of each, None where only the answers tell. ``count``: counts a changed text; None where that would be to send it."""

    measured: tuple[Message, ...]
    other: tuple[Message, ...]
    tokens: int | None
    count: Count | None


@dataclass(slots=True, kw_only=True)
class PrefixTrial:
    """``sent``: all that the engine has answered in this trial, which grows as it does. ``request_of``: the request
    that ``ask_next`` makes of messages. ``now``, ``sleep``: the trial's clock. ``predict`` None: nothing is known of
    what the engine will do."""

    engine: Engine
    rows: AttemptRows
    condition: Condition
    sent: Sequence[SentBefore]
    request_of: Callable[[tuple[Message, ...]], ChatRequest]
    ask_next: AskNext
    now: Callable[[], float]
    sleep: Callable[[float], None]
    predict: Predict | None = None

    def run(self, prompts: PrefixPrompts) -> None:
        """Send what comes before, wait, and measure. Raises as the engine does."""
        level = prefix_level(self.condition.prefix)
        before, tokens = sent_before(level, prompts)
        self._ask(before, tokens, BEFORE, is_last=False)
        answered_s = self.now()
        if level.wait_s:
            self.sleep(max(0.0, level.wait_s - (self.now() - answered_s)))
        self._ask(prompts.measured, prompts.tokens, "measured", is_last=True)

    def _ask(self, messages: tuple[Message, ...], tokens: int | None, role: str, *, is_last: bool) -> Generation:
        predicted = self._predicted(messages)
        num_rows = len(self.rows.requests)
        try:
            return self.ask_next(messages, ours=tokens, asked=self.condition.prompt_tokens, role=role, is_last=is_last)
        finally:
            for index in range(num_rows, len(self.rows.requests)):
                self.rows.requests[index] = replace(self.rows.requests[index], cached_tokens_predicted=predicted)

    def _predicted(self, messages: tuple[Message, ...]) -> int | None:
        found: Reusable | NotPredicted = NotPredicted(because="nothing is known of this engine's rule")
        if self.predict is not None:
            found = self.predict(self.sent, self.request_of(messages), self.engine.settings)
        if isinstance(found, NotPredicted):
            self.rows.warn(
                "reuse-not-predicted",
                f"How much of the prompt will be reused was not said before: {found.because}.",
                "What the server states of it is recorded all the same.",
            )
            return None
        return found.tokens


def prompts_salt(trial_id: str, engine: Engine) -> str:
    """What makes a trial's prompts unlike all others. A server that runs on may still hold what an earlier attempt
    sent, so that each attempt has texts of its own there."""
    return trial_id if engine.capabilities.owns_process else f"{trial_id}/{uuid.uuid4().hex}"


def sent_before(level: PrefixLevel, prompts: PrefixPrompts) -> tuple[tuple[Message, ...], int | None]:
    """The messages that are sent before, and their tokens."""
    if not level.is_same:
        return prompts.other, prompts.tokens
    if level.changed_at is None:
        return prompts.measured, prompts.tokens
    return changed_character(prompts.measured, level.changed_at, prompts.tokens, prompts.count)


def changed_character(
    messages: tuple[Message, ...], place: float, tokens: int | None, count: Count | None
) -> tuple[tuple[Message, ...], int | None]:
    """``messages`` with one letter or digit of the last one's text replaced by another, ``place`` (0 to 1) down it as
    nearly as can be, and their tokens: as many as before where such a letter is found near."""
    first: tuple[tuple[Message, ...], int | None] | None = None
    for number, text in enumerate(_variants(messages[-1].content, place)):
        changed = (*messages[:-1], replace(messages[-1], content=text))
        if count is None:
            return changed, None
        found = changed, count(changed)
        if found[1] == tokens:
            return found
        first = first or found
        if number + 1 >= _MOST_COUNTS:
            break
    return first or (messages, tokens)


def _variants(text: str, place: float) -> Iterator[str]:
    """``text`` with one character replaced, the nearest to ``place`` first, a few ways each."""
    wanted = place * (len(text) - 1)
    nearest = sorted(range(len(text)), key=lambda index: (abs(index - wanted), index))
    letters = [(index, alphabet) for index in nearest for alphabet in [_alphabet(text[index])] if alphabet]
    for index, alphabet in letters[:_NEAR]:
        at = alphabet.find(text[index])
        for step in (1, 7):
            other = alphabet[(at + step) % len(alphabet)]
            yield text[:index] + other + text[index + 1 :]


def _alphabet(character: str) -> str | None:
    """What may stand in its place."""
    if "가" <= character <= "힣":
        return _ALPHABETS[-1]
    return next((alphabet for alphabet in _ALPHABETS if character in alphabet), None)


def prefix_prompts(prompts: Sequence[tuple[Message, ...]], *, tokens: int, count: Count | None) -> PrefixPrompts:
    """From two prompts of ``tokens`` tokens, the measured one first. ``count`` None: to count them they were sent, so
    that a server may hold them by now; then others are made of them, whose length only their answers tell."""
    if count is not None:
        return PrefixPrompts(measured=prompts[0], other=prompts[1], tokens=tokens, count=count)
    return PrefixPrompts(measured=_unsent(prompts[0]), other=_unsent(prompts[1]), tokens=None, count=None)


def _unsent(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """``messages`` with the letters of the last one's first word replaced by others: nobody has sent a text that begins
    so."""
    text = list(messages[-1].content)
    for index, number in zip(range(len(text)), uuid.uuid4().bytes, strict=False):
        alphabet = _alphabet(text[index])
        if alphabet is None:
            break
        text[index] = alphabet[number % len(alphabet)]
    return (*messages[:-1], replace(messages[-1], content="".join(text)))
