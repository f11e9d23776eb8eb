"""What an engine adapter must do. One adapter per engine; each says what it can do and never pretends.

The life of an engine in a trial: ``launch`` (a process exists, no model in it where the engine allows that) →
``load`` (ready to answer) → ``generate`` … → ``unload`` (the engine's own release, process still alive) → ``stop``
(process gone). Every step raises an ``EngineError`` of kvscope's tree, never the library's own exception.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol

from kvscope.errors import KvscopeError
from kvscope.prompt.conversation import Message as Message
from kvscope.scenario import SettingValue

NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """``baseline_before_load``: ``launch`` returns before the model is loaded, so memory can be read in between.
    ``can_unload``: the engine can give up its model while its process stays alive; ``unload_way`` says by what.
    ``owns_process``: kvscope starts it and ends it; otherwise it was running before, is used as it is, and is never
    stopped or given other settings. ``counts_by_requests``: to count, it sends the prompt and reads how many tokens the
    answer states, which takes time and may leave the prompt in the engine's cache. ``forces_length``: it obeys
    ``ChatRequest.ignore_end``. ``can_clear_cache``: see ``Engine.clear_cache``. ``answers_together``: it takes several
    requests at once (``Engine.generate_many``); what it cannot run at once it lets wait. ``completes_text``: it takes a
    prompt without a chat template (``ChatRequest.text``). ``scores_tokens``: see ``Engine.score`` and
    ``Engine.tokenize``, which it has both."""

    baseline_before_load: bool
    can_unload: bool
    counts_prompt_tokens: bool
    reports_prompt_tokens: bool
    reports_cached_tokens: bool
    reports_timings: bool
    reports_buffers: bool
    has_pid: bool
    owns_process: bool = True
    counts_by_requests: bool = False
    forces_length: bool = True
    can_clear_cache: bool = False
    unload_way: str = ""
    answers_together: bool = False
    completes_text: bool = False
    scores_tokens: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """``ignore_end`` asks for exactly ``max_output_tokens`` (end-of-text not obeyed). ``reuse_prefix`` lets the engine
    use what it kept from earlier requests. ``tools`` are offered as OpenAI's interface writes them;
    ``template_variables`` are further values for the chat template (enable_thinking ...). ``text``: sent as it is,
    without a chat template, in place of ``messages``, which are empty then. ``stop``: texts at which the answer
    ends; they are not part of it."""

    messages: tuple[Message, ...]
    max_output_tokens: int
    tools: tuple[Mapping[str, Any], ...] = ()
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    ignore_end: bool = True
    reuse_prefix: bool = False
    seed: int = 0
    timeout_s: float = 600.0
    stall_s: float = 120.0
    text: str | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """One streamed piece of text. ``at_s``: monotonic seconds from the moment the request's last byte was handed to
    the operating system, stamped when the bytes were read, before any parsing. ``kind``: whether it is of the answer
    itself, of the thinking before it, or of a call of a tool, as far as the server tells them apart; or a token that
    made no text of its own, of an engine that hands over every token with its time."""

    at_s: float
    text: str
    kind: Literal["content", "reasoning", "tool_call", "token"] = "content"


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One read of the socket: when, how many bytes, and how many of the answer's events (``Generation.events``) it
    completed. Over an answer, ``num_events`` sums to the number of events."""

    at_s: float
    num_bytes: int
    num_events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealth:
    """How kvscope's own client was while it measured; None: not measured. ``loop_lag_p99_s``: how late its event loop
    came to what was due. ``cpu_share``: CPU seconds of its process ÷ seconds that passed, of one processor.
    ``send_to_wire_s``: from the moment a request should have been sent to its last byte handed to the operating system
    (the 99th percentile of several). ``late_p99_s``: how long after its schedule a request was sent (open loop).
    ``coalesced_fraction``: pieces that came in one read with the piece before. ``num_resent``: requests sent once more
    over a new connection, because the server had just closed the one they were sent over. ``waited_share``: how much of
    the time it was ready to run and had no processor. ``first_late_s``, ``last_late_s``: how late it may have been to
    the first token, and to the first or the last one (the mean of several answers). ``limited_by``: the limits passed,
    in words; empty where the client kept up. See ``client_health.py``."""

    loop_lag_p99_s: float | None = None
    loop_lag_max_s: float | None = None
    cpu_share: float | None = None
    send_to_wire_s: float | None = None
    late_p99_s: float | None = None
    coalesced_fraction: float | None = None
    num_resent: int = 0
    waited_share: float | None = None
    first_late_s: float | None = None
    last_late_s: float | None = None
    limited_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One answer. Counts that the server did not state are None, never 0. ``prompt_tokens`` is the whole prompt, what
    was reused of it included; ``prompt_tokens_from`` says which of the server's numbers it is. ``engine_timings`` are
    the engine's own. ``tool_calls``: what the model asked for, each as ``Message.tool_calls``. ``reasoning_tokens``:
    those of the output that are thinking, sent or not. ``model``: whose answer it is, by the server's own words."""

    events: tuple[TokenEvent, ...]
    reads: tuple[Read, ...]
    completed_s: float
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    finish_reason: str | None
    engine_timings: Mapping[str, float] = field(default_factory=dict)
    prompt_tokens_from: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    reasoning_tokens: int | None = None
    model: str | None = None
    health: ClientHealth | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Several requests, and when they are sent. Closed loop (``rate_per_s`` None): ``concurrency`` streams; each sends
    the next request of the list when its last one has been answered. Open loop: requests fall due ``rate_per_s`` times
    a second, evenly (``arrival`` constant) or at random (poisson, from ``seed``), however many are under way."""

    requests: tuple[ChatRequest, ...]
    concurrency: int = 1
    arrival: Literal["closed", "constant", "poisson"] = "closed"
    rate_per_s: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAnswer:
    """What became of one request of a load. ``index``: its place in ``Load.requests``. ``stream``: which of those under
    way at once, from 0. ``sent_s``, ``due_s``: seconds from the begin of the load; ``due_s`` None in a closed loop.
    Either ``generation`` or ``error`` is there, the error as ``Engine.generate`` would have raised it."""

    index: int
    stream: int
    sent_s: float
    due_s: float | None = None
    generation: Generation | None = None
    error: KvscopeError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """A load that is over: its answers in the order of ``Load.requests``, how long it took, and how the client was.
    ``begin_s``: when it began, on ``time.perf_counter``'s clock, requests being ready and connections open; None: when
    it was asked for."""

    answers: tuple[LoadAnswer, ...]
    wall_s: float
    health: ClientHealth
    begin_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """How likely a text is, as the engine computes it. ``prompt`` and ``continuation`` are token ids by the engine's
    own tokenizer (``Engine.tokenize``); nothing is added to them. ``num_top``: so many of the likeliest tokens are
    wanted at each position beside the continuation's own. ``is_fresh``: the whole prefix is computed anew, in one pass,
    for each position, so that the batch has another shape than the engine's usual way of scoring."""

    prompt: tuple[int, ...]
    continuation: tuple[int, ...]
    num_top: int = 1
    is_fresh: bool = False
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredToken:
    """One position. ``logprob``: natural logarithm of the probability that ``token`` comes next, by the model's own
    distribution: no temperature, no bias, nothing cut off. ``top_tokens``, ``top_logprobs``: the likeliest tokens,
    likeliest first."""

    token: int
    logprob: float
    top_tokens: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """One for each token of the continuation. ``pattern``: in which passes the engine computed them; only scores of one
    pattern compare, since the same text in another batch shape gives other numbers. Counts as in ``Generation``, of all
    its requests together."""

    tokens: tuple[ScoredToken, ...]
    pattern: str
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedBuffer:
    """One buffer as the engine's own log states it. ``component`` is one of weights, kv_cache, compute_buffer,
    output_buffer, host_cache, checkpoint. ``printed_mib`` is the text of the log ("16.64"), whose precision is its
    own."""

    component: str
    name: str
    printed_mib: str
    cells: int | None = None
    streams: int | None = None
    layers: int | None = None
    k_mib: str | None = None
    v_mib: str | None = None
    line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLimit:
    """The most that one sequence may hold, prompt and output together, and where the running engine says so."""

    tokens: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """What the engine itself says after load. ``effective`` holds n_ctx, n_ctx_seq, n_batch ... as it states them.
    ``context_limit`` is None where it does not say it. ``warnings``: what the record should warn of, each as (slug,
    message, what to do)."""

    version: str
    build: str
    buffers: tuple[ReportedBuffer, ...]
    effective: Mapping[str, SettingValue]
    slots: tuple[int, ...]
    notes: tuple[str, ...] = ()
    context_limit: ContextLimit | None = None
    warnings: tuple[tuple[str, str, str], ...] = ()


class OwnMapping(Protocol):
    """One mapping, as ``kvscope.probe.base.MemoryMapping``."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def resident_bytes(self) -> int: ...
    @property
    def anonymous_bytes(self) -> int: ...
    @property
    def count(self) -> int: ...


class OwnMemory(Protocol):
    """Readings that an engine gives of itself: the same as ``kvscope.probe.base.MemoryProbe``, which this package does
    not import."""

    name: str

    def unavailable(self) -> str | None: ...

    def read(self) -> Mapping[str, int]: ...

    def reset_peak(self) -> str | None: ...

    def maps(self) -> Sequence[OwnMapping]: ...


class Engine(Protocol):
    """See the module's docstring for the order of calls. ``settings`` uses the engine's own names."""

    name: str
    capabilities: Capabilities
    settings: Mapping[str, SettingValue]

    def launch(self) -> None: ...

    def load(self) -> EngineReport: ...

    def pids(self) -> tuple[int, ...]:
        """Process ids that belong to this engine now; empty when it runs nowhere we can see."""
        ...

    def memory_probe(self) -> OwnMemory | None:
        """Readings of its own where there is no process to watch (the fake engine); None: watch ``pids``."""
        ...

    def count_prompt_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        template_variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> int:
        """Prompt tokens as the engine counts them, chat template included."""
        ...

    def generate(self, request: ChatRequest) -> Generation: ...

    def generate_many(self, load: Load) -> LoadResult:
        """Send several requests at once. An error of one request is its answer; Ctrl-C ends them all. Raises
        UsageError where ``Capabilities.answers_together`` is False."""
        ...

    def tokenize(self, text: str, *, with_special: bool) -> tuple[int, ...]:
        """Token ids of a text by the engine's own tokenizer; ``with_special``: with the ones that it puts before a
        prompt (BOS). Marks of a chat template in the text are read as such. Raises UsageError where
        ``Capabilities.scores_tokens`` is False."""
        ...

    def score(self, request: ScoreRequest) -> TokenScores:
        """Log-probabilities of a continuation. What is kept of earlier requests is used unless ``is_fresh``. Raises
        UsageError where ``Capabilities.scores_tokens`` is False, an EngineError as ``generate`` does."""
        ...

    def host_cache(self) -> ReportedBuffer | None:
        """The engine's host prompt cache as it last stated it, or None when it never did."""
        ...

    def checkpoints(self) -> Sequence[ReportedBuffer]:
        """Copies of a sequence's state that the engine keeps beside its cache now, as it stated them (llama.cpp:
        context checkpoints of sliding-window and recurrent models)."""
        ...

    def active_requests(self) -> int | None: ...

    def statistics(self) -> Mapping[str, float]:
        """The engine's own counters now, by the names of ``kvscope.engine.statistics``; a counter that it does not
        state is absent. Read-only. Raises an EngineError where the engine has gone."""
        ...

    def clear_cache(self) -> str | None:
        """Drop what is kept of earlier prompts, the model staying loaded: the engine's own way (llama.cpp: erase each
        slot). None when done, otherwise why it cannot be. To be called between requests."""
        ...

    def unload(self) -> None: ...

    def stop(self) -> None:
        """End the process: cleanly, then by force. Safe to call twice and at any moment. Never raises for a process
        that is already gone."""
        ...

    def log_tail(self, lines: int = 60) -> str: ...
