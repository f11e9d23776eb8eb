"""A running engine at one moment, and between two: its memory by cause, its KV cache in use, its speed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvscope.analysis.attribute import Attribution, Resident, Term, attribute
from kvscope.analysis.notes import note
from kvscope.record.rows import Json, MapRow, MarkRow, ReportedBufferRow, TrialResult, TrialRow

# Causes in the order in which they are shown, and the terms of ``attribute`` that each is made of.
CAUSES: Mapping[str, tuple[str, ...]] = {
    "weights": ("model_file", "weights"),
    "kv_cache": ("kv_cache", "recurrent_state"),
    "compute": ("compute_buffer", "output_buffer", "working_buffers"),
    "host_cache": ("host_cache", "checkpoint"),
    "runtime": ("heap", "heap_kept", "arenas", "python_arenas", "stacks", "library_data", "library_code", "swapped"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Memory with a name. ``basis``: predicted, reported, rule, shared (at most so much) or measured, of its largest
    part; unexplained for the rest. ``expected_bytes``: what all of its buffers take together, where not all of them
    were found: the others are among what has other names, or none."""

    slug: str
    num_bytes: int
    basis: str
    expected_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFound:
    """A cause of which nothing was found, though it should take ``expected_bytes``."""

    slug: str
    expected_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """The KV cache: what is reserved for it and how much of that is in use. ``used_bytes`` is None where tokens do not
    all take the same (windows, states). ``is_at_most``: what is in use is an upper bound, because slots may share
    cells."""

    reserved_bytes: int | None
    reserved_tokens: int | None
    used_tokens: int | None
    used_share: float | None
    used_bytes: int | None
    is_at_most: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Between two looks. A rate that the engine does not state, or of which nothing happened, is None.
    ``prompt_tokens_per_s``: of the time spent on prompts where the engine states it (llama.cpp counts a prompt when it
    has been read whole), else of the time between the looks."""

    seconds: float
    prompt_tokens_per_s: float | None
    output_tokens_per_s: float | None
    ttft_mean_s: float | None
    prefix_hit_share: float | None
    preemptions: int | None


def memory_by_cause(
    mark: MarkRow,
    maps: Sequence[MapRow],
    kept: Sequence[ReportedBufferRow],
    prediction: Mapping[str, Json] | None,
    model_file: str | None = None,
) -> tuple[Cause, ...]:
    """The causes of all memory that the process holds at ``mark``: anonymous, swapped, of files and shared; they sum
    to it. ``kept``: what the engine's log says it keeps of earlier prompts. ``model_file``: the mapping that is the
    model's. One cause, ``unnamed``, where its mappings could not be read."""
    found = _named(mark, maps, kept, prediction, model_file)
    if not found.maps_read:
        return (Cause(slug="unnamed", num_bytes=found.growth_bytes, basis="measured"),)
    causes = [cause for slug, terms in CAUSES.items() if (cause := _cause(slug, terms, found)) is not None]
    return (*causes, Cause(slug="unexplained", num_bytes=found.unexplained_bytes, basis="unexplained"))


def not_found(
    mark: MarkRow,
    maps: Sequence[MapRow],
    kept: Sequence[ReportedBufferRow],
    prediction: Mapping[str, Json] | None,
    model_file: str | None = None,
) -> tuple[NotFound, ...]:
    """Causes that the engine should have and of which nothing was found among its mappings."""
    found = _named(mark, maps, kept, prediction, model_file)
    if not found.maps_read:
        return ()
    return tuple(
        NotFound(slug=slug, expected_bytes=lost)
        for slug, terms in CAUSES.items()
        if _cause(slug, terms, found) is None and (lost := _lost(terms, found))
    )


def _named(
    mark: MarkRow,
    maps: Sequence[MapRow],
    kept: Sequence[ReportedBufferRow],
    prediction: Mapping[str, Json] | None,
    model_file: str | None,
) -> Attribution:
    """Without terms that were not seen and for which there is no room in what was seen and has no other name."""
    found = attribute(_after_a_request(mark, maps, kept), prediction, "after_request", model_file=model_file)
    assert found is not None  # the mark is there
    found = _with_compute(found) if kept else found
    if found.unexplained_anon_bytes >= 0:
        return found
    by_rule = {term.slug: term.num_bytes for term in found.terms if term.basis == "rule"}
    residents = dict(found.residents)
    for slug, size in by_rule.items():
        residents[slug] = Resident(num_bytes=None, how="unknown", note=note("no_own_mapping", size_bytes=size))
    return replace(found, terms=tuple(term for term in found.terms if term.basis != "rule"), residents=residents)


def _with_compute(found: Attribution) -> Attribution:
    """With the compute buffer, at most, where it is in a mapping that the kernel joined to others: nothing else tells
    it of an engine that was not seen before its first request. Only where all that the engine says it keeps of earlier
    prompts was found: else it may be that."""
    missing = found.residents.get("compute_buffer")
    size = None if missing is None or missing.note is None else missing.note.values.get("size_bytes")
    if missing is None or missing.how != "unknown" or not isinstance(size, int) or _lost(CAUSES["host_cache"], found):
        return found
    touched = [min(m.anonymous_bytes, size) for m in found.leftovers if m.size_bytes >= size]
    if not any(touched):
        return found
    compute = Term(slug="compute_buffer", backing="anonymous", num_bytes=max(touched), basis="shared")
    return replace(found, terms=(*found.terms, compute))


def _after_a_request(mark: MarkRow, maps: Sequence[MapRow], kept: Sequence[ReportedBufferRow]) -> TrialResult:
    """What was seen, as a trial's moment after a request: of such a moment memory is named."""
    trial = TrialRow(
        trial_id="watch",
        attempt=1,
        design_id="watch",
        run_id="watch",
        role="measured",
        levels={},
        level=None,
        repeat=0,
        block=0,
        position=0,
        started_at="",
        settings={},
    )
    phase = "after_request"
    return TrialResult(
        trial=trial,
        marks=(replace(mark, phase=phase, request_index=0),),
        maps=tuple(replace(m, phase=phase, request_index=0) for m in maps),
        reported=tuple(replace(r, phase=phase, request_index=0) for r in kept),
    )


def _cause(slug: str, names: Sequence[str], found: Attribution) -> Cause | None:
    terms = [term for term in found.terms if term.slug in names and term.num_bytes]
    if not terms:
        return None
    largest = max(terms, key=lambda term: term.num_bytes)
    size, lost = sum(term.num_bytes for term in terms), _lost(names, found)
    return Cause(slug=slug, num_bytes=size, basis=largest.basis, expected_bytes=size + lost if lost else None)


# Components that are resident in full, so that a part of them that was not found is missing.
_RESIDENT_IN_FULL = ("kv_cache", "recurrent_state", "host_cache", "checkpoint")
_NOT_ALL_FOUND = ("partly_found", "no_own_mapping", "by_rule_in_heap")


def _lost(names: Sequence[str], found: Attribution) -> int:
    """Bytes of these components that are in memory by what is known, and were not found among the mappings."""
    notes = [found.residents[name].note for name in names if name in _RESIDENT_IN_FULL and name in found.residents]
    sizes = [n.values["size_bytes"] for n in notes if n is not None and n.slug in _NOT_ALL_FOUND]
    return sum(size for size in sizes if isinstance(size, int))


def cache_use(
    statistics: Mapping[str, float], prediction: Mapping[str, Json] | None, used_at_most_tokens: int | None = None
) -> CacheUse:
    """The KV cache as the engine states it, and by the prediction where it does not. ``used_at_most_tokens``: where
    only an upper bound of the tokens in use is known."""
    totals = (prediction or {}).get("totals") or {}
    growth = (prediction or {}).get("growth") or {}
    effective = (prediction or {}).get("effective") or {}
    reserved_tokens = _whole(statistics.get("kv_cache_pool_tokens")) or effective.get("context_tokens")
    used_tokens = _whole(statistics.get("kv_cache_used_tokens"))
    is_at_most = used_tokens is None and used_at_most_tokens is not None
    if is_at_most and used_at_most_tokens is not None:
        used_tokens = min(used_at_most_tokens, reserved_tokens or used_at_most_tokens)
    share = statistics.get("kv_cache_used_share")
    if share is None and used_tokens is not None and reserved_tokens:
        share = used_tokens / reserved_tokens
    per_token = growth.get("bytes_per_token")
    is_even = not growth.get("knees") and not growth.get("bytes_per_sequence")
    return CacheUse(
        reserved_bytes=_whole(statistics.get("kv_cache_pool_bytes")) or totals.get("cache_bytes"),
        reserved_tokens=reserved_tokens,
        used_tokens=used_tokens,
        used_share=share,
        used_bytes=used_tokens * per_token if is_even and per_token and used_tokens is not None else None,
        is_at_most=is_at_most,
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def rates(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> Rates:
    """What happened between two looks ``seconds`` apart. A counter that went back (the engine was started anew) tells
    nothing."""

    def grown(name: str) -> float | None:
        if name not in before or name not in after or after[name] < before[name]:
            return None
        return after[name] - before[name]

    def per_s(name: str) -> float | None:
        growth = grown(name)
        return None if growth is None or seconds <= 0 else growth / seconds

    def reading_per_s() -> float | None:
        if "prefill_s" not in before or "prefill_s" not in after:
            return per_s("prompt_tokens")
        tokens, spent = grown("prompt_tokens"), grown("prefill_s")
        return tokens / spent if tokens and spent else None

    answered, waited = grown("ttft_count"), grown("ttft_sum_s")
    queried, hit = grown("prefix_queried_tokens"), grown("prefix_hit_tokens")
    preempted = grown("preemptions")
    return Rates(
        seconds=seconds,
        prompt_tokens_per_s=reading_per_s(),
        output_tokens_per_s=per_s("output_tokens"),
        ttft_mean_s=waited / answered if answered and waited is not None else None,
        prefix_hit_share=hit / queried if queried and hit is not None else None,
        preemptions=None if preempted is None else round(preempted),
    )
