"""What of an attempt's texts is kept: a person's own texts are not, unless it was asked for (``--keep-text``).

Own texts are what ``--text``, ``--documents`` and ``--questions`` name, and what an answer repeats of them. Prompts
made of the bundled texts and the bundled wiki are kvscope's: they can be made again from the seed and hold nothing of
anyone's, so questions, right answers and given answers of theirs stay readable. The pieces of any answer are kept by
their times and lengths alone. What else holds text (an error, a log's last lines, a warning) is searched for own text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from kvscope.engine.stated_words import END_WORDS, TIMINGS
from kvscope.experiment.design import Condition
from kvscope.experiment.echoed_text import OwnText
from kvscope.hiding import hide_secrets
from kvscope.record.rows import LEFT_OUT, AnswerRow, RequestRow, TokenRow, TrialResult, TrialRow, WarningRow, left_out

# Among what is noted of an attempt (TrialRow.client): whether its texts were kept.
TEXT = "text"
KEPT = "kept"
# Facts of an answer that are words of kvscope's, names or reasons, and no text of the question or the answer.
_WORDS = frozenset(
    ("finish_reason", "error", "failure", "given", "embedder", "form", "lost_part", "passages", "judge", "batch_shape")
)
_QUESTION = "question"
# From this verbosity on llama.cpp writes prompts into its log, token by token, where no search would find them.
_VERBOSE = 5
_VERBOSE_FLAGS = re.compile(
    r"(?:^|\s)(?:-v|--verbose|--log-verbose)(?:\s|$)|(?:-lv|--verbosity|--log-verbosity)[ =][5-9]"
)


def kept_of(result: TrialResult, condition: Condition, *, keep_text: bool, command: str | None = None) -> TrialResult:
    """The result as it is recorded. ``command``: the engine's own, which may make it write prompts into its log."""
    if keep_text:
        return replace(result, trial=_noted(_without_secrets(result.trial), KEPT))
    own = own_text(condition)
    kept = replace(result, tokens=tuple(_by_length(token) for token in result.tokens))
    if own is None:
        return replace(kept, trial=_noted(_without_secrets(kept.trial), LEFT_OUT))
    return replace(
        kept,
        trial=_noted(_trial(kept.trial, own, logs_prompts=_logs_prompts(condition, command)), LEFT_OUT),
        requests=tuple(_request(each, own) for each in kept.requests),
        warnings=tuple(_warning(each, own) for each in kept.warnings),
        answers=tuple(_answer(each, condition) for each in kept.answers),
    )


def own_text(condition: Condition) -> OwnText | None:
    """The texts of a person's own that a trial sends; None where all that it sends is kvscope's."""
    texts: list[str] = [] if condition.text is None else list(condition.text.sentences)
    asked = condition.retrieval
    if asked is not None and asked.is_own:
        for document in asked.documents:
            texts += [document.text, document.title or ""]
        for question in asked.questions:
            texts += [question.text, *question.expected, *question.evidence]
    return _made(tuple(texts)) if texts else None


@lru_cache(maxsize=2)  # the same at every trial of a study, and long
def _made(texts: tuple[str, ...]) -> OwnText:
    return OwnText(texts)


def _by_length(token: TokenRow) -> TokenRow:
    return token if not token.text else replace(token, text="·" * len(token.text))


def _noted(trial: TrialRow, how: str) -> TrialRow:
    return replace(trial, client={**trial.client, TEXT: how})


def _without_secrets(trial: TrialRow) -> TrialRow:
    message, hint, trace, tail, evidence = hide_secrets(
        (trial.error_message, trial.error_hint, trial.traceback, trial.engine_log_tail, trial.evidence)
    )
    return replace(
        trial, error_message=message, error_hint=hint, traceback=trace, engine_log_tail=tail, evidence=evidence
    )


def _trial(trial: TrialRow, own: OwnText, *, logs_prompts: bool) -> TrialRow:
    trial = _without_secrets(trial)
    tail = trial.engine_log_tail
    if tail and logs_prompts:
        tail = f"{left_out(tail)} At this verbosity the engine writes prompts into its log."
    return replace(
        trial,
        error_message=own.hide(trial.error_message),
        error_hint=own.hide(trial.error_hint),
        traceback=own.hide(trial.traceback),
        engine_log_tail=own.hide(tail),
        evidence=own.hide(trial.evidence),
    )


def _request(row: RequestRow, own: OwnText) -> RequestRow:
    """Known words and names of times are nobody's, and there may be very many of them: they are not searched."""
    if (row.finish_reason or "").lower() not in END_WORDS:
        row = replace(row, finish_reason=own.hide(row.finish_reason))
    if not TIMINGS.issuperset(row.engine_timings):
        row = replace(row, engine_timings=own.hide(row.engine_timings))
    return row


def _warning(warning: WarningRow, own: OwnText) -> WarningRow:
    return replace(warning, message=own.hide(warning.message), hint=own.hide(warning.hint))


def _answer(row: AnswerRow, condition: Condition) -> AnswerRow:
    """Of a question on documents of one's own: what it was read as, and why; not what was asked, expected and said."""
    if condition.retrieval is None or not condition.retrieval.is_own:
        return row
    return replace(
        row,
        expected=None if row.expected is None else left_out(row.expected),
        answer=None if row.answer is None else left_out(row.answer),
        facts={
            name: value if name in _WORDS else _without_text(value)
            for name, value in row.facts.items()
            if name != _QUESTION  # reports then name the item
        },
    )


def _without_text(value: Any) -> Any:
    match value:
        case str():
            return left_out(value)
        case Mapping():
            return {name: _without_text(each) for name, each in value.items()}
        case Sequence():
            return [_without_text(each) for each in value]
        case _:
            return value


def _logs_prompts(condition: Condition, command: str | None) -> bool:
    verbosity = condition.settings.get("verbosity")
    is_verbose = isinstance(verbosity, int | float) and verbosity >= _VERBOSE
    return is_verbose or (command is not None and _VERBOSE_FLAGS.search(command) is not None)
