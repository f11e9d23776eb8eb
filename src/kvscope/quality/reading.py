"""What an answer is read as: first whether it can say anything of the model at all, then whether it is right.

In this order: the request failed; the prompt did not reach the model whole (``truncated_input``, never a wrong answer);
the server says that it broke the answer off (``failed``); thinking is taken out; nothing is left (``no_answer``); the
limit of the output cut before an answer could be read (``cut_output``); otherwise ``right`` or ``wrong``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvscope.quality.answer_text import first_sentence, goes_round, is_refusal, without_thinking
from kvscope.quality.numbers_said import numbers_said
from kvscope.quality.scoring import Score, scored
from kvscope.quality.task import Form, Question
from kvscope.quality.tool_call_said import calls_as_text, scored_call

_TRUNCATED_SLUG = "truncated-input"
_CUT_REASONS = ("length", "max_tokens", "limit", "model_length", "max_length", "max_new_tokens", "max_output_tokens")
# The server's words for an answer that came to its end. Any other (content_filter, abort, error ...) says that it did
# not, whatever stands there.
_END_REASONS = (
    *("stop", "stop_sequence", "eos", "eos_token", "end_turn", "end", "complete", "completed", "done", "load"),
    *("tool_calls", "tool_call", "tool_use", "function_call"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What came back. ``content``, ``reasoning``: as the server tells them apart; ``tool_calls``: as
    ``Message.tool_calls``. ``finish_reason``: the server's word. ``error_slug``: of a request that ended in an error,
    or whose prompt is known to have been cut."""

    content: str
    reasoning: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    finish_reason: str | None = None
    error_slug: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSeen:
    """Tokens of the whole prompt by our count and by the server's; None: not known. ``slack_tokens``: how much fewer
    the server may state before the prompt counts as cut: 0 where our count is known to be the server's own."""

    counted_tokens: int | None = None
    server_tokens: int | None = None
    slack_tokens: int = 8

    @property
    def is_cut(self) -> bool:
        """Whether the server read fewer tokens than were sent."""
        if self.counted_tokens is None or self.server_tokens is None:
            return False
        return self.server_tokens < self.counted_tokens - self.slack_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer:
    """``reading``: one of the record's READINGS. ``score``: 1.0, 0.0, between them a part; None where nothing can be
    said of the model. ``answer``: the text that was judged, without thinking; calls that the server read, as JSON.
    ``facts``: refused, also_named, precision, recall, goes_round, had_thinking, finish_reason ..., for the record."""

    reading: str
    score: float | None
    answer: str | None
    facts: Mapping[str, Any] = field(default_factory=dict)


NOTHING_KNOWN = PromptSeen()


def read_answer(
    question: Question, said: Said, prompt: PromptSeen = NOTHING_KNOWN, *, form: Form = "chat"
) -> ReadAnswer:
    """See the module's docstring. ``form``: how the question was put; what a base model went on with is read to the end
    of its first sentence."""
    facts: dict[str, Any] = {} if said.finish_reason is None else {"finish_reason": said.finish_reason}
    if said.error_slug == _TRUNCATED_SLUG or (said.error_slug is None and prompt.is_cut):
        if prompt.is_cut:
            facts |= {"counted_tokens": prompt.counted_tokens, "server_tokens": prompt.server_tokens}
        return ReadAnswer(reading="truncated_input", score=None, answer=said.content or None, facts=facts)
    if said.error_slug is not None:
        return ReadAnswer(reading="failed", score=None, answer=None, facts={"error": said.error_slug})
    reason = (said.finish_reason or "stop").lower()
    was_cut = reason in _CUT_REASONS
    if not was_cut and reason not in _END_REASONS:
        return ReadAnswer(reading="failed", score=None, answer=said.content or None, facts=facts)
    text, had_thinking = without_thinking(said.content)
    if had_thinking or said.reasoning.strip():
        facts["had_thinking"] = True
    if not text and not said.tool_calls:
        reading = "cut_output" if was_cut and "had_thinking" in facts else "no_answer"
        return ReadAnswer(reading=reading, score=None, answer=None, facts=facts)
    return _judged(question, said, text, form=form, was_cut=was_cut, facts=facts)


def _judged(
    question: Question, said: Said, text: str, *, form: Form, was_cut: bool, facts: dict[str, Any]
) -> ReadAnswer:
    if question.scoring == "tool_call":
        begun = (question.cue or "").split("\n")[-1] if form == "cue" else ""
        score = scored_call(question.expected[0], said.tool_calls, begun + text)
        text = calls_as_text(said.tool_calls) or text
    else:
        if form == "cue":
            text, is_whole = first_sentence(text)
            was_cut = was_cut and not is_whole
        score = scored(question, text)
    facts |= score.facts
    if score.value < 1.0 and is_refusal(text):
        facts["refused"] = True
    if was_cut and goes_round(text):
        facts["goes_round"] = True
    elif was_cut and _may_go_on(question, text, score):
        return ReadAnswer(reading="cut_output", score=None, answer=text, facts=facts)
    reading = "right" if score.value == 1.0 else "wrong"
    return ReadAnswer(reading=reading, score=score.value, answer=text, facts=facts)


def _may_go_on(question: Question, text: str, score: Score) -> bool:
    """Of an answer that ran into its limit: whether what was cut off could have made it right."""
    if score.value == 1.0:
        return question.scoring == "set"  # it might have named the rest of the text too
    if score.facts.get("also_named"):
        return _last_number_is_begun(question, text, score)
    if not score.names_something:
        return not is_refusal(text)
    return question.scoring in ("set", "normalised", "regex")


def _last_number_is_begun(question: Question, text: str, score: Score) -> bool:
    """Whether all that is wrong is a number at the very end whose first digits are those of a right one."""
    others = score.facts["also_named"]
    numbers = numbers_said(text)
    if len(others) != 1 or not numbers or numbers[-1] != others[0] or not text.rstrip()[-1:].isdigit():
        return False
    return any(value != others[0] and value.startswith(others[0]) for value in question.expected)
