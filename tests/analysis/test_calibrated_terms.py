"""What is read off a trial is a term only up to what a tiny model held, or the rules give: by hand."""

from dataclasses import replace
from typing import Any

import pytest
from study_rows import KIB, attempt, mapping, mark, model_file, prediction, request_row

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.identity import row_identity
from kvscope.record.rows import MapRow, StatisticRow

MIB = 1024 * KIB
LEAK = 30 * MIB
WEIGHTS = 8 * MIB


def tiny(own_kib: int = 0, **sizes: int) -> dict[str, Any]:
    row = {"own_bytes": own_kib * KIB, "kept_bytes": 0, **sizes}
    return {"moments": {"loaded": row, "after_request": [{"prompt_tokens": 512, **row}]}}


def with_client(found: Attempt, calibration: Any) -> Attempt:
    trial = replace(found.result.trial, client={"calibration": calibration})
    return replace(found, result=replace(found.result, trial=trial))


def mapped(name: str, size: int = LEAK, phase: str = "loaded", anonymous: int = 0) -> MapRow:
    row = mapping(phase, "file", size // KIB, size // KIB)
    return replace(row, name=name, anonymous_bytes=anonymous)


def llama(*more: MapRow, anon_kib: int = 0, file_kib: int = 0, shared_kib: int = 0) -> Attempt:
    """A llama.cpp after its load: a model's file of 94,320 KiB, 2 MiB of its own, and what is given."""
    library = mapped("/usr/lib/libllama.so.1", 2 * MIB)
    marks = (
        mark("launched", 0),
        replace(
            mark("loaded", 2048 + anon_kib),
            file_bytes=(94_320 + 2048 + file_kib) * KIB,
            shmem_bytes=shared_kib * KIB,
        ),
    )
    maps = (
        mapping("launched", "heap", 10, 0),
        mapping("loaded", "heap", 2048, 2048),
        model_file("loaded"),
        library,
        *more,
    )
    found = attempt(predicted={**prediction(), "buffers": []}, marks=marks, maps=maps)
    found = replace(found, result=replace(found.result, maps=maps, marks=marks))
    return with_client(found, {"fixed": tiny(2048, library_code_bytes=2 * MIB), "vocabulary": None})


def rests(found: Attempt) -> tuple[int, int, int]:
    moment = row_identity(found).loaded
    assert moment is not None
    got = moment.attribution
    return got.unexplained_anon_bytes // KIB, got.unexplained_file_bytes // KIB, got.shared_growth_bytes // KIB


def test_what_was_calibrated_has_a_name() -> None:
    model_kib = 94_320
    anon, file, shared = rests(llama())
    assert (anon, shared) == (0, 0)
    assert abs(file) <= abs(model_kib - model_file("loaded").resident_bytes // KIB)


@pytest.mark.parametrize("name", ["/tmp/some-data", "/usr/lib/libplugin.so"])
def test_a_file_that_is_no_library_and_a_library_beyond_the_calibrated_have_no_name(name: str) -> None:
    base = rests(llama())
    got = rests(llama(mapped(name), file_kib=LEAK // KIB))
    assert (got[0] - base[0], got[1] - base[1], got[2]) == (0, LEAK // KIB, 0)


def test_a_file_mapped_privately_and_written_has_no_name() -> None:
    base = rests(llama())
    got = rests(llama(mapped("/tmp/some-data", anonymous=LEAK), anon_kib=LEAK // KIB))
    assert (got[0] - base[0], got[1] - base[1]) == (LEAK // KIB, 0)


@pytest.mark.parametrize("name", ["/dev/zero (deleted)", "/memfd:x (deleted)", "/dev/shm/x", "/SYSV00000000 (deleted)"])
def test_shared_memory_is_counted_and_has_no_name(name: str) -> None:
    base = rests(llama())
    found = llama(mapped(name), shared_kib=LEAK // KIB)
    assert rests(found) == (base[0], base[1], LEAK // KIB)
    before, now = row_identity(llama()).loaded, row_identity(found).loaded
    assert before is not None
    assert now is not None
    assert now.growth_bytes - before.growth_bytes == LEAK
    assert now.unexplained_bytes - before.unexplained_bytes == LEAK


COUNTS = ("heap_in_use_bytes", "heap_mmapped_bytes", "heap_free_bytes", "python_arena_bytes")


def counting(*, leak: int = 0, arenas: int = MIB, peak: int = 0, work: Any = None) -> Attempt:
    """A transformers with 8 MiB of weights: 1 MiB of scratch after a prompt of 512 tokens, ``leak`` and Python's
    ``arenas`` beside them, and ``peak`` more in use under way."""
    used = {"launched": 0, "loaded": WEIGHTS, "after_request": WEIGHTS + MIB + leak}
    python = {"launched": 0, "loaded": 0, "after_request": arenas}
    statistics = [
        StatisticRow(phase=phase, at_s=0.0, name=name, value=float(value), request_index=index)
        for phase, index in (("launched", None), ("loaded", None), ("after_request", 1))
        for name, value in zip(COUNTS, (used[phase], 0, 0, python[phase]), strict=True)
    ]
    highest = {"heap_peak_bytes": used["after_request"] + peak, "heap_peak_free_bytes": 0}
    statistics += [
        StatisticRow(phase="after_request", at_s=0.0, name=name, value=float(value), request_index=1)
        for name, value in highest.items()
    ]
    held = {phase: (used[phase] + python[phase]) // KIB for phase in used}
    marks = (
        mark("launched", 0),
        mark("loaded", held["loaded"]),
        mark("after_request", held["after_request"], request_index=1),
    )
    maps = (
        mapping("launched", "heap", 10, 0),
        mapping("loaded", "heap", held["loaded"], held["loaded"]),
        mapping("after_request", "heap", held["after_request"], held["after_request"], request_index=1),
    )
    found = attempt(predicted={**prediction(), "buffers": []}, marks=marks, maps=maps)
    requests = (replace(request_row(1), prompt_tokens_server=512),)
    effective = {"device": "cpu", "weights_bytes": WEIGHTS}
    result = replace(found.result, statistics=tuple(statistics), requests=requests, effective=effective)
    fixed = tiny(0, python_bytes=MIB)
    fixed["moments"]["after_request"][0]["own_bytes"] = MIB
    calibration = {"fixed": fixed, "vocabulary": None, "work": work}
    return with_client(replace(found, result=result), calibration)


@pytest.mark.parametrize(("leak", "arenas", "rest"), [(0, MIB, 0), (LEAK, MIB, LEAK), (0, MIB + LEAK, LEAK)])
def test_a_leak_while_a_request_runs_has_no_name(leak: int, arenas: int, rest: int) -> None:
    row = row_identity(counting(leak=leak, arenas=arenas, work={"activation_bytes_per_token": 10_000}))
    assert row.after is not None
    assert row.after.unexplained_bytes == rest


@pytest.mark.parametrize(
    ("peak", "work", "named"),
    [
        (3 * MIB, {"activation_bytes_per_token": 10_240}, 3 * MIB),
        # 512 tokens × 10,240 B = 5 MiB: of 30 more, 25 have no name.
        (LEAK, {"activation_bytes_per_token": 10_240}, 5 * MIB),
        (LEAK, {}, 0),
        (LEAK, None, 0),
        (LEAK, {"activation_bytes_per_token": True}, 0),
        (LEAK, {"activation_bytes_per_token": -5}, 0),
    ],
)
def test_what_a_prompt_takes_is_named_up_to_what_the_widths_give(peak: int, work: Any, named: int) -> None:
    row = row_identity(counting(peak=peak, work=work))
    assert row.peak is not None
    assert row.peak.attribution.term_bytes("work_in_use") == named


def scored(mapping_kib: int, flash: str = "off") -> Attempt:
    """A llama.cpp after a prompt of 2,048 tokens, with one new mapping that is full."""
    predicted = prediction()
    effective = {
        "flash_attn": flash, "cache_type_v": "float16", "microbatch_tokens": 512, "context_per_sequence_tokens": 4096,
    }  # fmt: skip
    marks = (mark("launched", 0), mark("loaded", 0), mark("after_request", mapping_kib, request_index=1))
    maps = (
        mapping("launched", "heap", 10, 0),
        mapping("loaded", "heap", 10, 0),
        mapping("after_request", "anonymous", mapping_kib, mapping_kib, request_index=1),
    )
    found = attempt(predicted={**predicted, "buffers": [], "effective": effective}, marks=marks, maps=maps)
    requests = (replace(request_row(1), prompt_tokens_server=2048, cached_tokens=0),)
    result = replace(found.result, requests=requests, effective={"n_threads_batch": 1})
    return with_client(
        replace(found, result=result), {"fixed": tiny(0), "vocabulary": None, "work": {"query_heads": 9}}
    )


def test_the_work_buffer_is_seen_in_its_mapping() -> None:
    moment = row_identity(scored(18_878_464 // KIB)).after
    assert moment is not None
    (term,) = [each for each in moment.attribution.terms if each.slug == "work_buffer"]
    assert (term.num_bytes, term.basis) == (18_874_368 + 64, "predicted")
    assert 0 <= moment.attribution.unexplained_anon_bytes <= 4096


def test_with_flash_attention_there_is_none() -> None:
    moment = row_identity(scored(18_436, flash="on")).after
    assert moment is not None
    assert moment.attribution.term_bytes("work_buffer") == 0
    assert moment.attribution.unexplained_anon_bytes == 18_436 * KIB


def test_the_growth_with_the_prompt_is_a_term_and_what_came_at_load_stays() -> None:
    def part(loaded_kib: int, after_kib: int) -> dict[str, Any]:
        found = tiny(loaded_kib)
        found["moments"]["after_request"][0]["own_bytes"] = after_kib * KIB
        return found

    found = with_client(scored(18_436, flash="on"), {"fixed": part(4_000, 8_000), "vocabulary": part(24_000, 27_500)})
    row = row_identity(found)
    assert row.loaded is not None
    assert row.after is not None
    for moment in (row.loaded, row.after):
        assert moment.attribution.term_bytes("runtime") == 4_000 * KIB
        assert moment.attribution.term_bytes("vocabulary") == 20_000 * KIB
    assert row.loaded.attribution.term_bytes("prompt_growth") == 0
    assert row.after.attribution.term_bytes("prompt_growth") == 3_500 * KIB
