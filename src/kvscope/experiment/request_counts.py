"""Before a request is sent: how many tokens it has by our count, and whether it fits what the engine says it holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvscope.engine.base import ChatRequest, ContextLimit, Engine
from kvscope.errors import PromptDoesNotFit, UsageError
from kvscope.experiment.attempt_rows import AttemptRows
from kvscope.experiment.draft_counts import DraftCounts
from kvscope.experiment.own_count import FROM_ENGINE, OwnCount, OwnCounter
from kvscope.experiment.reuse_prediction import NotPredicted
from kvscope.prompt.conversation import Message
from kvscope.prompt.counting.context_fit import ContextFit
from kvscope.prompt.counting.context_fit import ContextLimit as FitLimit
from kvscope.prompt.reuse.rules import Reusable


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is known of an attempt before it runs. ``counter``: our own tokenizer and template; None: the engine is
    asked. ``limit_tokens``: what was predicted that one sequence may hold; None: nothing was. ``predicted_bytes``: all
    that the engine was predicted to take, ``mapped_bytes`` of it pages of the model's file that are not locked.
    ``try_anyway``: send what does not fit, to see what the engine does. ``predict_reuse``: what a request will reuse
    (``ReusePredictor.predict``); None: nothing is known of it."""

    counter: OwnCounter | None = None
    limit_tokens: int | None = None
    predicted_bytes: int | None = None
    mapped_bytes: int = 0
    try_anyway: bool = False
    predict_reuse: Callable[..., Reusable | NotPredicted] | None = None


_SHORT = (
    Message(role="user", content="Hello, what is 17 + 4?"),
    Message(role="assistant", content="It is 21."),
    Message(role="user", content="고마워요!"),
)


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

    @property
    def counter(self) -> OwnCounter | None:
        """Our own tokenizer and template, as far as they are known to be the engine's."""
        return self._expected.counter

    @property
    def counts_by_sending(self) -> bool:
        """Whether prompts are counted by being sent, now that it has been found who counts (``prompt_counter``)."""
        can = self._engine.capabilities
        return can.counts_by_requests and self._expected.counter is None

    def of_engine(self, messages: Sequence[Message]) -> int | None:
        """The engine's own count before sending; None where it cannot count, or only by being sent it."""
        can = self._engine.capabilities
        return (
            self._engine.count_prompt_tokens(messages)
            if can.counts_prompt_tokens and not can.counts_by_requests
            else None
        )

    def prompt_counter(self, asked: tuple[int, int] | None = None) -> Callable[[Sequence[Message]], int]:
        """Who counts while prompts are built. The engine, where it can count without computing; else the model's own
        files, where they say of a short conversation what the engine states; else the engine, by being sent each
        prompt, of which a warning tells. The files of a model that a running server has are left aside from then on
        where they say otherwise than it: Ollama has templates of its own, and any server may have been given one.
        ``asked``: tokens of the one prompt that is to be built, and of its answer. Raises UsageError where nobody can
        count, PromptDoesNotFit where the server would have to be sent more than it holds."""
        can = self._engine.capabilities
        if can.counts_prompt_tokens and not can.counts_by_requests:
            if not can.owns_process and not self._files_agree():
                self._expected = replace(self._expected, counter=None)
            return self._engine.count_prompt_tokens
        if self._files_agree():
            return self._by_files
        self._expected = replace(self._expected, counter=None)
        if can.counts_prompt_tokens:
            self._rows.warn(
                "counted-by-requests",
                "The server counts a prompt only by being sent it: each one was sent about a dozen times while it was "
                "built.",
                "What the server keeps of earlier prompts can make the measured request faster: look at cached_tokens, "
                "turn its prefix cache off, or give the model's file with --model to count here.",
            )
            if asked is None:
                return self._engine.count_prompt_tokens
            self._check_fit(*asked)
            return DraftCounts(self._engine.count_prompt_tokens, asked_tokens=asked[0], limit=self._limit)
        raise UsageError(
            "The server does not say how many tokens a prompt has, so none of an exact length can be made.",
            hint="Give the model's own file (a GGUF, or a folder with its tokenizer) with --model.",
        )

    def _files_agree(self) -> bool:
        counted = None if self._expected.counter is None else self._by_files_or_none(_SHORT)
        if counted is None or not self._engine.capabilities.counts_prompt_tokens:
            return counted is not None
        stated = self._engine.count_prompt_tokens(_SHORT)
        if counted != stated and not self._engine.capabilities.owns_process:
            self._rows.warn(
                "files-count-otherwise",
                f"The server counts {stated} tokens in a short conversation in which the model's files have {counted}: "
                "it has another template, or another model than the one that was given.",
                "Where it is another model, what was predicted is not this server's. The server's counts were used.",
            )
        return counted == stated

    def _by_files(self, messages: Sequence[Message]) -> int:
        tokens = self._by_files_or_none(messages)
        if tokens is None:
            raise UsageError(
                "The model's files do not say how many tokens this prompt has.", hint="Use the model's own GGUF."
            )
        return tokens

    def _by_files_or_none(self, messages: Sequence[Message]) -> int | None:
        assert self._expected.counter is not None
        own = self._expected.counter.count([ChatRequest(messages=tuple(messages), max_output_tokens=1)])[0]
        return None if own is None else own.tokens

    def before_sending(self, request: ChatRequest, *, by_engine: int | None, index: int) -> OwnCount | None:
        """Our count of the request with this index: by the model's files, else ``by_engine``, what the engine counted;
        None where there is neither."""
        counter = self._expected.counter
        own = None if counter is None else counter.count([request])[0]
        if own is None and by_engine is not None:
            own = OwnCount(tokens=by_engine, counted_by=FROM_ENGINE)
        return self._noted(own, request, index)

    def before_sending_all(
        self, requests: Sequence[ChatRequest], *, by_engine: Sequence[int | None], first_index: int
    ) -> list[OwnCount | None]:
        """As ``before_sending``, of many at once: they are rendered together. Indexes count on from ``first_index``."""
        counter = self._expected.counter
        counted = [None] * len(requests) if counter is None else counter.count(requests)
        found = []
        for number, (own, stated) in enumerate(zip(counted, by_engine, strict=True)):
            if own is None and stated is not None:
                own = OwnCount(tokens=stated, counted_by=FROM_ENGINE)
            found.append(self._noted(own, requests[number], first_index + number))
        return found

    def ids_by_files(self, requests: Sequence[ChatRequest]) -> Sequence[Sequence[int]] | None:
        """The ids of the prompts by the model's own files; None where they do not give them."""
        counter = self._expected.counter
        prompts = None if counter is None else counter.prompts(requests)
        return None if prompts is None else [prompt.ids for prompt in prompts]

    def _noted(self, own: OwnCount | None, request: ChatRequest, index: int) -> OwnCount | None:
        self._rows.leading_bos[index] = None if own is None else own.leading_bos
        if own is not None and self._limit is not None and own.tokens > self._limit.tokens:
            self._rows.surely_over[index] = own.tokens - self._template_tokens(request) > self._limit.tokens
        return own

    def _template_tokens(self, request: ChatRequest) -> int:
        """Tokens of the request without its texts, by the model's files: a server's template may need none of them."""
        if self._expected.counter is None or request.text is not None:
            return 0
        empty = tuple(replace(message, content="") for message in request.messages)
        own = self._expected.counter.count([replace(request, messages=empty)])[0]
        return 0 if own is None else own.tokens

    def check_fit(self, counted: OwnCount | None, request: ChatRequest) -> None:
        """Raises PromptDoesNotFit where prompt and output are known to be more than one sequence may hold."""
        if counted is not None:
            self._check_fit(counted.tokens, request.max_output_tokens)

    def _check_fit(self, prompt_tokens: int, output_tokens: int) -> None:
        if self._limit is None or self._expected.try_anyway:
            return
        fit = ContextFit(
            limit=FitLimit(tokens=self._limit.tokens, source=self._limit.source),
            prompt_tokens=prompt_tokens,
            reserved_output_tokens=output_tokens,
        )
        if fit.fits is False:
            raise PromptDoesNotFit(
                prompt_tokens=fit.prompt_tokens,
                output_tokens=fit.reserved_output_tokens,
                limit_tokens=self._limit.tokens,
                limit_from=self._limit.source,
            )
