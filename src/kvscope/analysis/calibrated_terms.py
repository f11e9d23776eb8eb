"""The engine's own memory as terms of the identity, held against what was measured or computed outside of the trial.

No term here is what is left over in the trial that it explains. What is read off the trial itself, and is no buffer, is
a term only up to what a tiny model held, or up to what the rules of the engine say; what goes beyond it has no name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kvscope.analysis.attribution import Term
from kvscope.analysis.calibration import (
    FIXED,
    VOCABULARY,
    Calibration,
    calibration_of,
    kept_growth,
    longest_prompt,
)
from kvscope.analysis.calibration_record import RECORDED_AS
from kvscope.analysis.match import Buffer
from kvscope.predict.work_memory import score_copy_bytes
from kvscope.record.metrics import last_mark
from kvscope.record.rows import QUALITY, Json, MarkRow, TrialResult

# Moments for which the engine's own memory is calibrated.
CALIBRATED = ("loaded", "after_request")
# Under which name a calibration has the facts of the measured model that its work follows from.
WORK = "work"
MOST_FACT = 2**40


def own_terms(result: TrialResult, phase: str) -> list[Term] | None:
    """The engine's own memory as it was calibrated, and what its allocator keeps by its own count; None where nothing
    was calibrated for such a moment."""
    calibration = calibration_of(result) if phase in CALIBRATED else None
    start, mark = last_mark(result, "launched"), last_mark(result, phase)
    if calibration is None or start is None or mark is None:
        return None
    last = calibration.vocabulary or calibration.fixed
    on = VOCABULARY if calibration.vocabulary is not None else FIXED
    sizes: list[tuple[str, int | None, str]] = [
        ("runtime", calibration.fixed_bytes("loaded", None), FIXED),
        ("vocabulary", calibration.vocabulary_bytes("loaded", None), VOCABULARY),
    ]
    if phase != "loaded":
        tokens = longest_prompt(result, mark)
        sizes.append(("prompt_growth", last.own_bytes(phase, tokens) - last.loaded.own, on))
    terms = [
        Term(slug=slug, backing="anonymous", num_bytes=size, basis="calibrated", calibrated_on=on)
        for slug, size, on in sizes
        if size is not None
    ]
    kept = kept_growth(result, start, mark)
    counted = [] if kept is None else [Term(slug="heap_kept", backing="anonymous", num_bytes=kept, basis="counted")]
    return terms + counted


def bounded(terms: Iterable[Term], result: TrialResult, mark: MarkRow) -> tuple[Term, ...]:
    """The terms, those that are kinds of memory (Python's arenas, stacks, libraries) no larger than a tiny model had of
    them at such a moment. One of which the calibration says nothing stays as it was seen."""
    calibration = calibration_of(result)
    if calibration is None or mark.phase not in CALIBRATED:
        return tuple(terms)
    most = _of_kinds(calibration, mark.phase, longest_prompt(result, mark))
    return tuple(_no_more(term, most.get(term.slug)) for term in terms)


def _of_kinds(calibration: Calibration, phase: str, tokens: int | None) -> Mapping[str, int | None]:
    """Kind of memory → the most that a tiny model had of it then."""
    tiny = [each.at(phase, tokens) for each in (calibration.fixed, calibration.vocabulary) if each is not None]
    arenas = [each.python for each in tiny if each.python is not None]
    return {
        "python_arenas": max(arenas, default=None),
        "stacks": max(each.stacks for each in tiny),
        "library_data": max(each.library_data for each in tiny),
        "library_code": max(each.library_code for each in tiny),
    }


def _no_more(term: Term, most: int | None) -> Term:
    if most is None or term.num_bytes <= most:
        return term
    return replace(term, num_bytes=most)


def work_bytes_at_most(result: TrialResult, mark: MarkRow) -> int | None:
    """The most that computing a prompt takes, by the measured model's widths; None where they were not recorded. The
    prompt is the longest, or as much of it as is computed at once."""
    per_token, tokens = _fact(result, "activation_bytes_per_token"), longest_prompt(result, mark)
    chunk = result.trial.settings.get("prefill_chunk_tokens")
    if per_token is None or tokens is None:
        return None
    return per_token * (min(tokens, chunk) if isinstance(chunk, int) else tokens)


def work_buffer(result: TrialResult, prediction: Mapping[str, Json], request_index: int | None) -> list[Buffer]:
    """llama.cpp's work buffer after the requests up to that one, where its size follows from rules: without flash
    attention, values in 2 B, requests one after another."""
    effective, heads = prediction.get("effective") or {}, _fact(result, "query_heads")
    microbatch, cells = effective.get("microbatch_tokens"), effective.get("context_per_sequence_tokens")
    is_copied = effective.get("flash_attn") == "off" and effective.get("cache_type_v") in ("float16", "bfloat16")
    if heads is None or not is_copied or not isinstance(microbatch, int) or not isinstance(cells, int):
        return []
    threads = result.effective.get("n_threads_batch")
    sizes = [
        score_copy_bytes(
            prompt_tokens=count,
            cached_tokens=request.cached_tokens or 0,
            microbatch=microbatch,
            cells=cells,
            heads=heads,
            threads=threads if isinstance(threads, int) else 1,
            has_checkpoints=any(row.component == "checkpoint" for row in result.reported),
        )
        for request in result.requests
        if request.role != QUALITY
        and (request_index is None or request.index <= request_index)
        and (count := request.prompt_tokens_server or request.prompt_tokens_ours) is not None
    ]
    size = max(sizes, default=0)
    if size == 0:
        return []
    return [Buffer(component="work_buffer", name="work_buffer", num_bytes=size, is_filled=True)]


def _fact(result: TrialResult, name: str) -> int | None:
    recorded = result.trial.client.get(RECORDED_AS)
    work = recorded.get(WORK) if isinstance(recorded, Mapping) else None
    value = work.get(name) if isinstance(work, Mapping) else None
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_FACT
    return value if is_count else None
