"""What is kept, as plain rows of numbers, strings and JSON-ready values. The narrow waist of kvscope: everything left
of it runs things, everything right of it reads these.

Times named ``started_at`` are UTC, ISO 8601. Times named ``at_s`` are monotonic seconds from the start of their trial,
except in TokenRow and ReadRow, where they count from the moment the request was sent. A value that is not known is
None, never 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = Any  # a value json.dumps accepts

OUTCOMES = (
    "ok",
    "out_of_memory",
    "context_overflow",
    "truncated_input",
    "invalid_settings",
    "connection_refused",
    "connection_lost",
    "timed_out",
    "stalled",
    "rate_limited",
    "server_error",
    "bad_reply",
    "engine_died",
    "model_error",
    "stopped_early",
    "refused",
    "interrupted",
    "internal",
)
# Trials with these outcomes were measured; all others are failures, kept and shown but left out of averages.
MEASURED_OUTCOMES = ("ok", "stopped_early")
# Of a request that was answered, but whose prompt the server had cut in silence.
TRUNCATED_SLUG = "truncated-input"
# Whether an attempt's texts are in the record, among TrialRow.client as "text"; absent where nobody asked (before there
# was a choice, all were kept).
LEFT_OUT = "left_out"
# Role of a request that sends the text of the one before it once more: what it adds is no copy of another prompt.
SAME_AGAIN = "same_again"
# Role of a request that is sent for its answer alone: it counts for no time and no memory.
QUALITY = "quality"

PHASES = (
    "launched",  # process exists, no model loaded
    "loaded",  # model loaded, nothing asked yet
    "before_request",  # after the warm-up request, peak counter reset
    "after_request",  # measured request(s) answered
    "after_quality",  # a quality task's questions asked, in no metric of time or memory
    "cache_cleared",  # engine's own clearing of kept prompts done, model still loaded
    "unloaded",  # engine's own release done, process alive
    "exited",  # process gone
    "watched",  # a look at an engine that was running already (kvscope watch)
)


def left_out(text: str) -> str:
    """What stands in the place of a text that is not kept."""
    return f"[{len(text)} characters left out]"


def is_left_out(text: str | None) -> bool:
    """Whether this stands in the place of a text that was not kept."""
    return text is not None and text.startswith("[") and text.endswith(" characters left out]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One sitting: one call of the command line or of ``measure``."""

    run_id: str
    started_at: str
    kvscope_version: str
    command: str
    machine_id: str
    machine: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignRow:
    """One question with its factor. ``design_id`` is a hash of everything that makes rows comparable: design, version,
    model, settings, engine build, machine, seed. ``held`` lists what is kept equal, ``holds`` says it in words.

    ``study_id`` is a hash of what was asked alone (``definition``, the model, the engine's name): the same on every
    machine and with every build. Trial ids are made of it, so one trial has one id wherever it runs."""

    design_id: str
    name: str
    version: int
    question: str
    factor: str
    levels: tuple[Json, ...]
    baseline_level: Json
    held: Mapping[str, Json]
    confounders: tuple[str, ...]
    is_grid: bool
    repeats: int
    seed: int
    model_name: str
    model_source: str
    model_fingerprint: str
    engine: str
    engine_version: str
    engine_build: str
    settings: Mapping[str, Json]
    machine_id: str
    created_at: str
    study_id: str = ""
    holds: tuple[str, ...] = ()
    definition: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One attempt at one point of a design, told apart by (design_id, trial_id, attempt): the trial's id is the same on
    every machine. ``outcome`` is None while it runs. ``levels`` maps factor to level.
    ``evidence`` of a failure: by the names of ``errors.EVIDENCE``."""

    trial_id: str
    attempt: int
    design_id: str
    run_id: str
    role: str
    levels: Mapping[str, Json]
    level: Json
    repeat: int
    block: int
    position: int
    started_at: str
    settings: Mapping[str, Json]
    duration_s: float | None = None
    outcome: str | None = None
    error_slug: str | None = None
    error_message: str | None = None
    error_hint: str | None = None
    traceback: str | None = None
    engine_log_tail: str | None = None
    prompt_tokens_asked: int | None = None
    client: Mapping[str, Json] = field(default_factory=dict)
    evidence: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRow:
    """The prediction JSON (contract: kvscope.prediction/1), stored with the attempt it is of, before it runs."""

    created_at: str
    prediction: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """One request of a trial, in order. ``role`` is warmup, measured, earlier_turn (a turn of a conversation before the
    one that is measured), or quality: asked for its answer alone, after everything else was measured. ``sent_at_s`` is
    on the trial's clock. ``prompt_tokens_ours_from``: "files" (our tokenizer and template, from the model's files) or
    "engine" (it was asked before sending).

    ``stream``: which of several at once, from 0. ``due_s``: when it should have been sent, on the trial's clock, where
    a schedule said so (open loop). ``client``: the health of our own client while it ran (engine.base.ClientHealth)."""

    index: int
    role: str
    sent_at_s: float
    completed_s: float | None
    prompt_tokens_asked: int | None
    prompt_tokens_ours: int | None
    prompt_tokens_server: int | None
    cached_tokens: int | None
    output_tokens_limit: int
    output_tokens: int | None
    finish_reason: str | None
    error_slug: str | None = None
    engine_timings: Mapping[str, Json] = field(default_factory=dict)
    prompt_tokens_ours_from: str | None = None
    prompt_tokens_server_from: str | None = None
    cached_tokens_predicted: int | None = None
    stream: int | None = None
    due_s: float | None = None
    client: Mapping[str, Json] = field(default_factory=dict)

    @property
    def is_answered(self) -> bool:
        """Whether there is an answer, and so numbers: of a prompt that was cut there are too."""
        return self.error_slug in (None, TRUNCATED_SLUG)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One token's arrival. ``at_s``: seconds since its request was sent. ``kind``: content, reasoning (what a model
    thinks before it answers) or tool_call, as the server tells them apart, or token: one that made no text of its own,
    of an engine that hands over each with its time. None in records that did not keep it."""

    request_index: int
    index: int
    at_s: float
    text: str
    kind: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRow:
    """One read from the connection: its bytes, and the tokens' events in it."""

    request_index: int
    at_s: float
    num_bytes: int
    num_events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkRow:
    """The engine's process tree at a named moment. ``anon_bytes`` is RssAnon, ``swap_bytes`` VmSwap. ``peak_bytes`` is
    the kernel's VmHWM (all resident kinds together) since it was last reset. ``request_index`` where the moment
    follows one request of several. ``device_bytes`` is what the engine's processes hold on their devices,
    ``cgroup_bytes`` what the control group holds that they are in, page cache and other programs in it included."""

    phase: str
    at_s: float
    anon_bytes: int
    swap_bytes: int
    file_bytes: int
    shmem_bytes: int
    peak_bytes: int | None
    machine_available_bytes: int | None
    request_index: int | None = None
    active_requests: int | None = None
    device_bytes: int | None = None
    device_peak_bytes: int | None = None
    cgroup_bytes: int | None = None
    cgroup_peak_bytes: int | None = None
    cgroup_oom_kills: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRow:
    """One memory mapping of the engine's process at a marked phase, from /proc/PID/smaps. ``kind``: heap (brk),
    arena (a malloc arena of a thread), stack, anonymous, file. ``name`` is the file's path or empty. ``size_bytes``
    is address space, ``resident_bytes`` what is in memory of it, ``anonymous_bytes`` the part not backed by a file."""

    phase: str
    kind: str
    name: str
    size_bytes: int
    resident_bytes: int
    anonymous_bytes: int
    count: int = 1
    request_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """One reading of memory. ``late_s``: seconds after it was due."""

    quantity: str
    at_s: float
    value_bytes: int
    late_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedBufferRow:
    """One buffer as the engine's own log states it; ``printed_mib`` keeps the log's own digits. ``phase``: loaded, or
    after_request for what the engine states later (its host prompt cache)."""

    phase: str
    component: str
    name: str
    printed_mib: str
    cells: int | None
    streams: int | None
    layers: int | None
    k_mib: str | None
    v_mib: str | None
    line: str
    request_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OccupantRow:
    """Another program's memory. ``phase``: before (the engine was started) or after (the last request). ``device``:
    None for the machine's own memory, else the device that holds it."""

    pid: int
    name: str
    resident_bytes: int
    phase: str = "before"
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticRow:
    """One of the engine's own counters at a marked moment. ``name`` is one of ``engine.statistics``."""

    phase: str
    at_s: float
    name: str
    value: float
    request_index: int | None = None


# What an answer was read as. Only the first two say anything of the model; the others are left out of every share.
READINGS = (
    "right",
    "wrong",
    "truncated_input",  # the prompt did not reach the model whole
    "cut_output",  # the answer ran into its limit before it could be read
    "no_answer",  # nothing but thinking, or nothing at all
    "failed",  # the request ended in an error
    "unscored",  # it was asked, and no right answer is known
    "scored",  # no answer was asked for: ``score`` is a log-probability or a divergence, in nats
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRow:
    """One item of a quality task, put to the model once. ``item`` names it: the same at every level and in every
    repeat, so rows pair by (task, item, is_twin). ``document``: items of one document are one cluster. ``is_twin``: the
    document without the planted fact, where a right answer is a guess. ``reading``: one of READINGS. ``score``: 1.0
    right, 0.0 wrong, between them where a part is right (``facts`` says which); of ``scored`` rows what the task
    defines, in nats; None where nothing can be said. ``chance``: the share right for who guesses.
    ``evidence_in_prompt``: whether the text that holds the answer was in what was sent. ``request_index``: its request,
    with times and counts."""

    index: int
    task: str
    item: str
    document: str
    language: str
    reading: str
    score: float | None
    chance: float | None = None
    is_twin: bool = False
    depth_percent: float | None = None
    document_tokens: int | None = None
    evidence_in_prompt: bool | None = None
    request_index: int | None = None
    expected: str | None = None
    answer: str | None = None
    facts: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredTokenRow:
    """One position of a text whose tokens were scored, in nats. ``answer_index``: the AnswerRow that it belongs to.
    ``pattern``: in which passes the engine computed it (``engine.base.TokenScores``)."""

    answer_index: int
    position: int
    token: int
    logprob: float
    pattern: str
    top_tokens: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningRow:
    """A doubt about the numbers of this trial. ``slug``: noisy-machine, swap-active, late-samples,
    token-count-mismatch, cache-not-cleared, clock-limited, probe-unavailable ..."""

    slug: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """Everything one finished attempt leaves, written in one transaction."""

    trial: TrialRow
    requests: tuple[RequestRow, ...] = ()
    tokens: tuple[TokenRow, ...] = ()
    reads: tuple[ReadRow, ...] = ()
    marks: tuple[MarkRow, ...] = ()
    maps: tuple[MapRow, ...] = ()
    samples: Sequence[SampleRow] = ()
    reported: tuple[ReportedBufferRow, ...] = ()
    effective: Mapping[str, Json] = field(default_factory=dict)
    occupants: tuple[OccupantRow, ...] = ()
    statistics: tuple[StatisticRow, ...] = ()
    warnings: tuple[WarningRow, ...] = ()
    answers: tuple[AnswerRow, ...] = ()
    scored_tokens: tuple[ScoredTokenRow, ...] = ()
