"""Every metric of a trial, derived from its rows, defined here and nowhere else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from statistics import median

from kvscope.record.pieces import (
    BARE_TOKEN,
    COALESCED_SHARE,
    after_sending,
    coalesced_fraction,
    count_doubt,
    hidden_tokens,
    timed_pieces,
    tokens_after_first_read,
    tokens_in_one_piece,
)
from kvscope.record.quality_metrics import QUALITY_DEFINITIONS, quality_metrics
from kvscope.record.rows import MEASURED_OUTCOMES, MarkRow, RequestRow, TokenRow, TrialResult
from kvscope.record.sampled import columns_between

# Raised whenever a definition changes what comes out: metrics that a record keeps of before are made anew then.
METRICS_VERSION = 5

DEFINITIONS = {
    "ttft_s": "Time to first token: from the request's last byte handed to the operating system to the first "
    "non-empty piece of the answer read from the socket. Of an engine that hands over every token with its time "
    "(transformers): to the first token, whether it made text of its own or not. Of several requests the median, of "
    "several at once too: their wait for their turn is in it. Not known where the answer began before the request was "
    "sent.",
    "first_answer_s": "Time to the first piece of the answer itself: as TTFT, but what a model thinks before it "
    "answers (its reasoning, where the server tells it apart) is not counted. Equal to TTFT where it thinks nothing.",
    "itl_s": "Inter-token latency: each gap between two consecutive pieces of the answer. The wait for the first "
    "piece is not one of them. Not known of an answer that came in one read; its percentiles are not known where more "
    "than 10 % of the attempt's pieces came in one read with the piece before (those gaps are the network's), or more "
    "than 10 % of its tokens in one piece with the token before (they are gaps of several tokens).",
    "tpot_s": "Time per output token: (last piece − first piece) ÷ (output tokens − tokens of the first read). The "
    "first token is excluded, and with it those that came in one read with it. Where pieces hold several tokens, the "
    "first read has as many of them as its share of the answer's text. Not known of an answer that came in one read. "
    "Tokens of thinking that the server counts and does not send are not among the output tokens. Not known where the "
    "server's count contradicts the pieces that came.",
    "completion_s": "From sending the request to the end of the answer.",
    "prefill_tokens_per_s": "(Prompt tokens − cached tokens) ÷ TTFT. It includes the first token's own step. Of "
    "several requests the median of each one's. Not known where the model thought first and the server did not send "
    "it.",
    "decode_tokens_per_s": "1 ÷ TPOT. Of several requests 1 ÷ the median of their TPOT, so that the two are always one "
    "number.",
    "load_wall_s": "Of several requests at once: from the sending of the first to the end of the last answer.",
    "output_tokens_per_s_all": "All output tokens of such a load ÷ load_wall_s: what the engine gave to all of them "
    "together. decode_tokens_per_s is what one of them got.",
    "ttft_p50_s": "Of several requests at once: half of them had their first token sooner.",
    "ttft_p99_s": "The same of 99 in 100. Not known of fewer than 100 answered requests.",
    "ttft_max_s": "Of several requests at once: the longest wait for a first token.",
    "queue_wait_s": "TTFT less the time that the engine says it spent on the prompt: mostly the wait for its turn. The "
    "median of several requests at once. Not known where the engine does not state that time (llama.cpp does).",
    "memory_baseline_bytes": "Engine's process tree before the model is loaded.",
    "memory_loaded_bytes": "The same after the model is loaded, before the first request.",
    "memory_peak_bytes": "The largest seen between load and the end of the last request, from the samples and from the "
    "kernel's own peak counter (VmHWM less what was file-backed or shared).",
    "memory_after_bytes": "After the last request, engine idle.",
    "memory_released_bytes": "What is still held after the engine's own release (its unload; its exit where it has no "
    "unload). Not known of an attempt that ended before it came to that.",
    "on devices": "Memory on accelerators at the same moments: what the driver says the engine's processes hold. "
    "The peak is of samples, and of a counter where the device has one (NVML has none).",
    **QUALITY_DEFINITIONS,
    "needed": "What the tokens require, by the model's shapes.",
    "allocated": "What the engine reserves for it.",
    "engine-reported": "What the engine's own log says it reserved.",
    "resident": "What the operating system says is in memory.",
    "peak": "The largest resident seen.",
    "anonymous": "Memory that belongs to the process alone and is backed by no file (RssAnon + VmSwap).",
    "file-backed": "Memory that holds pages of a file (RssFile): mapped weights and program code. The system can drop "
    "and re-read it.",
}


# From so many requests on, one in a hundred is more than a single one's accident.
P99_REQUESTS = 100
_PROMPT_MS = "prompt_ms"
# Kinds of pieces that are the answer itself. A record that did not keep them does not say when it began.
_ANSWER = ("content", "tool_call", BARE_TOKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Of one answered request. A metric that cannot be derived is None."""

    ttft_s: float | None
    first_answer_s: float | None
    itl_s: tuple[float, ...]
    tpot_s: float | None
    completion_s: float | None
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None
    coalesced_fraction: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialMetrics:
    """Of one attempt: times are medians over its measured requests, memory is in bytes."""

    ttft_s: float | None
    first_answer_s: float | None
    itl_s: tuple[float, ...]
    itl_p50_s: float | None
    itl_p99_s: float | None
    tpot_s: float | None
    completion_s: float | None
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None
    coalesced_fraction: float | None
    memory_baseline_bytes: int | None
    memory_loaded_bytes: int | None
    memory_peak_bytes: int | None
    memory_after_bytes: int | None
    memory_released_bytes: int | None
    memory_baseline_bytes_file: int | None
    memory_loaded_bytes_file: int | None
    memory_peak_bytes_file: int | None
    memory_after_bytes_file: int | None
    memory_released_bytes_file: int | None
    memory_baseline_bytes_device: int | None
    memory_loaded_bytes_device: int | None
    memory_peak_bytes_device: int | None
    memory_after_bytes_device: int | None
    memory_released_bytes_device: int | None
    quality_score: float | None = None
    quality_low: float | None = None
    quality_high: float | None = None
    quality_items: int | None = None
    quality_twin_score: float | None = None
    quality_truncated: int | None = None
    quality_unread: int | None = None
    quality_task: str | None = None
    load: "LoadMetrics | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMetrics:
    """Of an attempt whose requests were sent as a load. ``failed``: measured requests without an answer. Tokens are
    summed over the answered ones, None where one of them is not known."""

    failed: int
    load_wall_s: float | None
    output_tokens_per_s_all: float | None
    load_prompt_tokens: int | None
    load_cached_tokens: int | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    ttft_max_s: float | None
    queue_wait_s: float | None


def request_metrics(request: RequestRow, tokens: Sequence[TokenRow]) -> RequestMetrics:
    """Metrics of one request from the arrival times of its pieces (``tokens``: those of this request, in order)."""
    timed = timed_pieces(tokens)
    times = [token.at_s for token in timed]
    ttft = after_sending(times[0]) if times else None
    gaps = tuple(later - earlier for earlier, later in pairwise(times))
    # An answer that came in one read shows no time between its tokens: that is not known, and not 0.
    is_one_read = len(times) > 1 and times[0] == times[-1]
    steps = tokens_after_first_read(request, tokens)
    is_timed = len(times) > 1 and steps > 0 and not is_one_read and count_doubt(request, tokens) is None
    tpot = (times[-1] - times[0]) / steps if is_timed else None
    computed = None if hidden_tokens(request, tokens) else computed_prompt_tokens(request)
    return RequestMetrics(
        ttft_s=ttft,
        first_answer_s=next((after_sending(token.at_s) for token in timed if token.kind in _ANSWER), None),
        itl_s=() if is_one_read else gaps,
        tpot_s=tpot,
        completion_s=None if request.completed_s is None else after_sending(request.completed_s),
        prefill_tokens_per_s=computed / ttft if computed and ttft else None,
        decode_tokens_per_s=1 / tpot if tpot else None,
        coalesced_fraction=coalesced_fraction([tokens]),
    )


def computed_prompt_tokens(request: RequestRow) -> int | None:
    """Prompt tokens that were not reused. None where one of the counts is not known, or they contradict each other."""
    if request.prompt_tokens_server is None or request.cached_tokens is None:
        return None
    computed = request.prompt_tokens_server - request.cached_tokens
    return computed if computed >= 0 else None


def tokens_by_request(result: TrialResult) -> dict[int, list[TokenRow]]:
    """Index of a request → the pieces of its answer, in order."""
    found: dict[int, list[TokenRow]] = {}
    for token in result.tokens:
        found.setdefault(token.request_index, []).append(token)
    return found


def metrics_of(result: TrialResult) -> TrialMetrics:
    """All metrics of an attempt. Failed requests give no times; memory is given as far as it was read."""
    tokens = tokens_by_request(result)
    measured = [request for request in result.requests if request.role == "measured"]
    answered = [request for request in measured if request.is_answered]
    each = [request_metrics(request, tokens.get(request.index, ())) for request in answered]
    gaps = tuple(gap for metrics in each for gap in metrics.itl_s)
    pieces = [tokens.get(request.index, ()) for request in answered]
    coalesced = each[0].coalesced_fraction if len(each) == 1 else coalesced_fraction(pieces)
    grouped = tokens_in_one_piece(list(zip(answered, pieces, strict=True)))
    one_by_one = gaps if max(coalesced or 0.0, grouped or 0.0) <= COALESCED_SHARE else ()
    tpot = _median([m.tpot_s for m in each])
    moments = _memory_moments(result)
    return TrialMetrics(
        ttft_s=_median([m.ttft_s for m in each]),
        first_answer_s=_median([m.first_answer_s for m in each]),
        itl_s=gaps,
        itl_p50_s=percentile(one_by_one, 50),
        itl_p99_s=percentile(one_by_one, 99),
        tpot_s=tpot,
        completion_s=_median([m.completion_s for m in each]),
        prefill_tokens_per_s=_median([m.prefill_tokens_per_s for m in each]),
        decode_tokens_per_s=1 / tpot if tpot else None,
        coalesced_fraction=coalesced,
        **{f"memory_{name}_bytes": values[0] for name, values in moments.items()},
        **{f"memory_{name}_bytes_file": values[1] for name, values in moments.items()},
        **{f"memory_{name}_bytes_device": values[2] for name, values in moments.items()},
        **quality_metrics(result.answers),
        load=_load_metrics(answered, each, failed=len(measured) - len(answered)) if _is_load(measured) else None,
    )


def _is_load(measured: Sequence[RequestRow]) -> bool:
    return any(request.stream is not None for request in measured)


def _load_metrics(answered: Sequence[RequestRow], each: Sequence[RequestMetrics], *, failed: int) -> LoadMetrics:
    begun_s = min((request.sent_at_s for request in answered), default=0.0)
    ends_s = [request.sent_at_s + request.completed_s for request in answered if request.completed_s is not None]
    wall_s = max(ends_s) - begun_s if ends_s else None
    output = _sum([request.output_tokens for request in answered])
    ttft = [metrics.ttft_s for metrics in each if metrics.ttft_s is not None]
    return LoadMetrics(
        failed=failed,
        load_wall_s=wall_s,
        output_tokens_per_s_all=output / wall_s if output is not None and wall_s else None,
        load_prompt_tokens=_sum([request.prompt_tokens_server for request in answered]),
        load_cached_tokens=_sum([request.cached_tokens for request in answered]),
        ttft_p50_s=percentile(ttft, 50),
        ttft_p99_s=percentile(ttft, 99) if len(ttft) >= P99_REQUESTS else None,
        ttft_max_s=max(ttft, default=None),
        queue_wait_s=_median([_queue_wait(*pair) for pair in zip(answered, each, strict=True)]),
    )


def _queue_wait(request: RequestRow, metrics: RequestMetrics) -> float | None:
    stated = request.engine_timings.get(_PROMPT_MS)
    return None if metrics.ttft_s is None or not isinstance(stated, int | float) else metrics.ttft_s - stated / 1000


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def held_bytes(mark: MarkRow) -> int:
    """Anonymous memory of the process tree at a mark, in memory or swapped out."""
    return mark.anon_bytes + mark.swap_bytes


def last_mark(result: TrialResult, *phases: str) -> MarkRow | None:
    """The last mark of the first of ``phases`` that the attempt reached."""
    for phase in phases:
        found = [mark for mark in result.marks if mark.phase == phase]
        if found:
            return found[-1]
    return None


def _memory_moments(result: TrialResult) -> dict[str, tuple[int | None, int | None, int | None]]:
    """Moment → (anonymous + swapped, file-backed, on devices)."""
    moments: dict[str, tuple[int | None, int | None, int | None]] = {}
    for name, phases in (
        ("baseline", ("launched",)),
        ("loaded", ("loaded",)),
        ("after", ("after_request", "watched")),
        ("released", _released_phases(result)),
    ):
        mark = last_mark(result, *phases)
        moments[name] = (None, None, None) if mark is None else (held_bytes(mark), mark.file_bytes, mark.device_bytes)
    asked = [mark for mark in result.marks if mark.phase in _ASKED_PHASES]
    curves = columns_between(result.samples, asked[0].at_s, asked[-1].at_s) if asked else {}
    moments["peak"] = (_peak_anonymous(asked, curves), _peak_file(asked, curves), _peak_device(asked, curves))
    return moments


def _released_phases(result: TrialResult) -> tuple[str, ...]:
    """An attempt that failed, or was not allowed to release, ended with its process too: that is not the release of an
    engine that has no other, and the zero of a process that is gone says nothing of it."""
    is_cut_short = result.trial.outcome not in MEASURED_OUTCOMES
    was_left_alone = any(warning.slug == "requests-active" for warning in result.warnings)
    return ("unloaded",) if is_cut_short or was_left_alone else ("unloaded", "exited")


_ASKED_PHASES = ("loaded", "before_request", "after_request", "watched")


def _peak_anonymous(marks: Sequence[MarkRow], curves: Mapping[str, Sequence[int]]) -> int | None:
    if not marks:
        return None
    anonymous, swapped = curves.get("anon_bytes", ()), curves.get("swap_bytes", ())
    sampled = list(map(sum, zip_longest(anonymous, swapped, fillvalue=0)))
    # The counter holds all resident kinds together; less the most that was file-backed or shared it is a lower bound
    # of the anonymous peak, and catches what fell between two samples. Where it could not be set back it may still
    # hold a peak of before: only what it rose by is of this trial.
    shared_most = max(mark.shmem_bytes for mark in marks)
    file_most = max([*(mark.file_bytes for mark in marks), *curves.get("file_bytes", ())])
    counted = [peak - file_most - shared_most for peak in _risen_peaks(marks)]
    return max([*sampled, *counted, *(held_bytes(mark) for mark in marks)])


def _risen_peaks(marks: Sequence[MarkRow]) -> list[int]:
    """The kernel's peak after each request, where it rose since the first mark that has one right before the requests.
    Without such a mark (a record of a release that made none) each counts."""
    before = next((mark.peak_bytes for mark in marks if mark.phase == "before_request"), None)
    after = [mark.peak_bytes for mark in marks if mark.phase == "after_request" and mark.peak_bytes]
    return [peak for peak in after if before is None or peak > before]


def _peak_file(marks: Sequence[MarkRow], curves: Mapping[str, Sequence[int]]) -> int | None:
    if not marks:
        return None
    return max([*(mark.file_bytes for mark in marks), *curves.get("file_bytes", ())])


def _peak_device(marks: Sequence[MarkRow], curves: Mapping[str, Sequence[int]]) -> int | None:
    """The most that was held on devices, from the marks, their counters and the samples; None where none was read."""
    known = [value for mark in marks for value in (mark.device_bytes, mark.device_peak_bytes) if value is not None]
    if not known:
        return None
    return max([*known, *curves.get("device_bytes", ())])


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Percentile by linear interpolation between the two nearest ranks; None of an empty sequence."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
