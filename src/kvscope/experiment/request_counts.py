"""Before a request is sent: how many tokens it has by our count, and whether it fits what the engine says it holds."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.engine.base import ChatRequest, ContextLimit, Engine
from kvscope.errors import PromptDoesNotFit
from kvscope.experiment.attempt_rows import AttemptRows
from kvscope.experiment.own_count import FROM_ENGINE, OwnCount, OwnCounter
from kvscope.prompt.conversation import Message
from kvscope.prompt.counting.context_fit import ContextFit
from kvscope.prompt.counting.context_fit import ContextLimit as FitLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is known of an attempt before it runs. ``counter``: our own tokenizer and template; None: the engine is
    asked. ``limit_tokens``: what was predicted that one sequence may hold; None: nothing was. ``predicted_bytes``: all
    that the engine was predicted to take. ``try_anyway``: send what does not fit, to see what the engine does."""

    counter: OwnCounter | None = None
    limit_tokens: int | None = None
    predicted_bytes: int | None = None
    try_anyway: bool = False


class RequestCounts:
    """The counts of one attempt's requests."""

    def __init__(self, engine: Engine, rows: AttemptRows, expected: Expected) -> None:
        self._engine = engine
        self._rows = rows
        self._expected = expected
        self._limit: ContextLimit | None = None

    def note_limit(self, limit: ContextLimit | None) -> None:
        """Keep what the engine says that one sequence may hold, and doubt it where something else was predicted."""
        if limit is None:
            return
        self._limit = limit
        self._rows.limit_tokens = limit.tokens
        self._rows.effective = {
            **self._rows.effective,
            "context_limit_tokens": limit.tokens,
            "context_limit_from": limit.source,
        }
        predicted = self._expected.limit_tokens
        if predicted is not None and predicted != limit.tokens:
            self._rows.warn(
                "context-limit-mismatch",
                f"One sequence was predicted to hold {predicted:,} tokens; the engine says {limit.tokens:,} "
                f"({limit.source}).",
                "A server caps a sequence at what the model was trained for, or rounds it. The engine's number counts.",
            )

    def of_engine(self, messages: Sequence[Message]) -> int | None:
        """The engine's own count before sending; None where it cannot count."""
        if not self._engine.capabilities.counts_prompt_tokens:
            return None
        return self._engine.count_prompt_tokens(messages)

    def before_sending(self, request: ChatRequest, *, by_engine: int | None, index: int) -> OwnCount | None:
        """Our count of the request with this index: by the model's files, else ``by_engine``, what the engine counted;
        None where there is neither."""
        counter = self._expected.counter
        own = None if counter is None else counter.count([request])[0]
        if own is None and by_engine is not None:
            own = OwnCount(tokens=by_engine, counted_by=FROM_ENGINE)
        self._rows.leading_bos[index] = None if own is None else own.leading_bos
        return own

    def check_fit(self, counted: OwnCount | None, request: ChatRequest) -> None:
        """Raises PromptDoesNotFit where prompt and output are known to be more than one sequence may hold."""
        if counted is None or self._limit is None or self._expected.try_anyway:
            return
        fit = ContextFit(
            limit=FitLimit(tokens=self._limit.tokens, source=self._limit.source),
            prompt_tokens=counted.tokens,
            reserved_output_tokens=request.max_output_tokens,
        )
        if fit.fits is False:
            raise PromptDoesNotFit(
                prompt_tokens=fit.prompt_tokens,
                output_tokens=fit.reserved_output_tokens,
                limit_tokens=self._limit.tokens,
                limit_from=self._limit.source,
            )
