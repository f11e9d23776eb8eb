"""The identity of rows: by hand, from processes whose every KiB is known. The arithmetic stands beside each number."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from study_rows import (
    KIB,
    KV_BYTES_PER_CELL,
    attempt,
    design_row,
    mapping,
    mark,
    memory,
    model_file,
    prediction,
    reported,
    trial_row,
)

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.calibration import calibration_of
from kvscope.analysis.identity import PEAK, between, row_identities, row_identity, worst_between
from kvscope.analysis.identity_lines import identity_lines
from kvscope.record.rows import StatisticRow, TrialResult

KV_KIB = 2048 * KV_BYTES_PER_CELL // KIB  # 46,080
FIXED_KIB, SAME_KIB = 5_000, 25_000


def tiny(loaded_kib: int, *after: tuple[int, int]) -> dict[str, Any]:
    rows = [{"prompt_tokens": tokens, "own_bytes": kib * KIB} for tokens, kib in after]
    return {"moments": {"loaded": {"own_bytes": loaded_kib * KIB, "kept_bytes": 0}, "after_request": rows}}


CALIBRATION = {
    "fixed": tiny(FIXED_KIB, (64, 5_400), (512, 6_296)),
    "vocabulary": tiny(SAME_KIB, (64, 26_400), (512, 27_296)),
}


def calibrated(found: Attempt, calibration: Any = CALIBRATION) -> Attempt:
    """The attempt as it is recorded with a calibration."""
    trial = replace(found.result.trial, client={"calibration": calibration})
    return replace(found, result=replace(found.result, trial=trial))


def llama(*, own_kib: int = SAME_KIB, leaked_kib: int = 0) -> Attempt:
    """A llama.cpp whose own memory is ``own_kib`` and that leaks so much more into an arena."""
    return attempt(**memory(runtime_kib=own_kib + leaked_kib))


def test_with_a_calibration_a_heap_is_a_place_and_a_leak_in_it_has_no_name() -> None:
    leaking = calibrated(llama(leaked_kib=3_000))
    row = row_identity(leaking)
    assert row.loaded is not None
    found = row.loaded.attribution
    # Grew: KV cache 46,080 + own 25,000 + leak 3,000. Named: 46,080 + 5,000 fixed + (25,000 - 5,000) vocabulary.
    assert found.anon_growth_bytes == (KV_KIB + SAME_KIB + 3_000) * KIB
    assert {t.slug: t.num_bytes // KIB for t in found.terms if t.backing == "anonymous" and t.num_bytes} == {
        "kv_cache": KV_KIB,
        "runtime": FIXED_KIB,
        "vocabulary": SAME_KIB - FIXED_KIB,
    }
    assert found.unexplained_anon_bytes == 3_000 * KIB
    # Without one the same leak is inside a term that only says where it is.
    by_place = row_identity(llama(leaked_kib=3_000)).loaded
    assert by_place is not None
    assert by_place.attribution.term_bytes("arenas") == (SAME_KIB + 3_000) * KIB
    assert by_place.unexplained_bytes == 0
    assert not by_place.attribution.is_calibrated


def test_less_than_was_calibrated_is_negative_and_is_not_cut_off() -> None:
    row = row_identity(calibrated(llama(own_kib=SAME_KIB - 1_500)))
    assert row.loaded is not None
    assert row.loaded.unexplained_bytes == -1_500 * KIB


@pytest.mark.parametrize(
    ("tokens", "fixed_kib"),
    [(None, 5_400), (10, 5_400), (64, 5_400), (288, 5_848), (512, 6_296), (4_000, 6_296)],
)
def test_after_a_request_it_goes_by_the_length_of_the_prompt(tokens: int | None, fixed_kib: int) -> None:
    # Between 64 and 512 tokens 896 KiB more: 2 KiB a token. 288 is half way: 5,400 + 224 × 2 = 5,848.
    found = calibration_of(calibrated(llama()).result)
    assert found is not None
    assert found.fixed_bytes("after_request", tokens) == fixed_kib * KIB
    assert found.vocabulary_bytes("after_request", tokens) == 21_000 * KIB
    assert found.fixed_bytes("loaded", tokens) == FIXED_KIB * KIB


@pytest.mark.parametrize("recorded", [None, {}, [], {"fixed": {"moments": {}}}, {"fixed": {"moments": {"loaded": 3}}}])
def test_a_calibration_that_cannot_be_read_is_none(recorded: Any) -> None:
    found = calibrated(llama(), recorded)
    assert calibration_of(found.result) is None
    row = row_identity(found)
    assert row.calibration is None
    assert row.loaded is not None
    assert row.loaded.attribution.term_bytes("runtime") == 0


def test_what_the_allocator_keeps_is_its_own_count() -> None:
    def free(phase: str, kib: int, index: int | None = None) -> StatisticRow:
        name = "heap_free_bytes"
        return StatisticRow(phase=phase, at_s=0.0, name=name, value=float(kib * KIB), request_index=index)

    base = calibrated(llama(leaked_kib=3_000))
    counts = (free("launched", 300), free("loaded", 2_500))
    row = row_identity(replace(base, result=replace(base.result, statistics=counts)))
    assert row.loaded is not None
    # Of the 3,000 KiB without a name the allocator says that it keeps 2,200 more than at the start: 800 are left.
    assert row.loaded.attribution.term_bytes("heap_kept") == 2_200 * KIB
    assert row.loaded.unexplained_bytes == 800 * KIB


def test_the_peak_is_the_highest_reading_and_its_rest_is_what_nothing_was_seen_of() -> None:
    rows = memory()
    top = replace(rows["marks"][2], at_s=1.0, anon_bytes=rows["marks"][3].anon_bytes + 5_000 * KIB)
    marks = (*rows["marks"][:3], top, *rows["marks"][3:])
    found = calibrated(attempt(marks=marks, maps=rows["maps"]))
    row = row_identity(found)
    assert row.after is not None
    assert row.peak is not None
    assert row.peak.growth_bytes == row.after.growth_bytes + 5_000 * KIB
    assert row.peak.unexplained_bytes == row.after.unexplained_bytes + 5_000 * KIB


def test_between_two_rows_the_terms_and_the_rest_are_the_whole_difference() -> None:
    first, second = row_identity(calibrated(llama())), row_identity(calibrated(llama(leaked_kib=700)))
    pair = between(first, replace(second, key="other"), "loaded")
    assert pair is not None
    assert pair.growth_bytes == 700 * KIB
    assert sum(pair.terms.values()) + pair.unexplained_bytes == pair.growth_bytes
    assert pair.unexplained_bytes == 700 * KIB
    # Of the smaller growth: 46,080 + 25,000 own and 94,320 of the model's file.
    assert pair.unexplained_share == pytest.approx(700 / (KV_KIB + SAME_KIB + 94_320))
    assert between(first, replace(second, peak=None), PEAK) is None


def test_the_pair_furthest_apart_is_found_in_each_sitting_and_not_between_two() -> None:
    rows = [
        replace(row_identity(calibrated(llama(leaked_kib=kib))), key=str(kib), run_id=run)
        for kib, run in ((0, "a"), (300, "a"), (100, "a"), (90_000, "b"))
    ]
    (worst,) = worst_between(rows, "loaded")
    assert {worst.first, worst.second} == {"0", "300"}


@settings(deadline=None, max_examples=40)
@given(
    own=st.integers(0, 60_000), leaked=st.integers(0, 60_000), fixed=st.integers(0, 30_000), same=st.integers(0, 60_000)
)
def test_terms_and_rest_are_always_the_growth(own: int, leaked: int, fixed: int, same: int) -> None:
    calibration = {"fixed": tiny(fixed, (64, fixed)), "vocabulary": tiny(same, (64, same))}
    row = row_identity(calibrated(llama(own_kib=own, leaked_kib=leaked), calibration))
    for moment in row.moments:
        found = moment.attribution
        assert sum(term.num_bytes for term in found.terms) + found.unexplained_bytes == found.growth_bytes
    assert row.loaded is not None
    assert row.loaded.unexplained_bytes == (own + leaked - same) * KIB


def test_the_four_columns_are_kept_apart() -> None:
    found = calibrated(llama())
    lines = {line.slug: line for line in identity_lines(found, row_identity(found))}
    cache = lines["kv_cache"]
    # Needed by 100 tokens; reserved for 2,048; no log in this record; all of it in memory.
    assert (cache.needed_bytes, cache.allocated_bytes) == (100 * KV_BYTES_PER_CELL, 2048 * KV_BYTES_PER_CELL)
    assert cache.reported_mib is None
    assert cache.resident["loaded"] == 2048 * KV_BYTES_PER_CELL
    assert cache.is_seen
    own = lines["runtime"]
    assert (own.needed_bytes, own.allocated_bytes, own.calibrated_on, own.is_seen) == (None, None, "tiny_model", False)
    assert "heap" not in lines


def test_a_row_without_mappings_has_no_identity() -> None:
    rows = memory()
    assert row_identities([attempt(marks=rows["marks"])]) == ()


def test_a_buffer_that_shares_its_mapping_has_what_came_since_the_load() -> None:
    """Tables that were there at load are not the compute buffer's: 900 KiB beside the cache then, 14,900 afterwards."""
    rows = memory()
    maps = tuple(
        replace(m, anonymous_bytes=m.anonymous_bytes + 900 * KIB, resident_bytes=m.resident_bytes + 900 * KIB)
        if m.kind == "anonymous"
        else m
        for m in rows["maps"]
    )
    found = row_identity(calibrated(attempt(marks=rows["marks"], maps=maps)))
    assert found.loaded is not None
    assert found.after is not None
    work = [
        sum(map(m.attribution.term_bytes, ("working_buffers", "compute_buffer"))) for m in (found.loaded, found.after)
    ]
    assert work == [0, 14_000 * KIB]


def test_a_checkpoint_that_lies_in_the_heap_is_stated_and_is_a_term() -> None:
    design = design_row()
    marks = (mark("launched", 0), mark("loaded", 30_000), mark("after_request", 33_000, request_index=1))
    maps = (
        mapping("launched", "heap", 10, 1),
        mapping("loaded", "heap", 30_000, 30_000),
        mapping("after_request", "heap", 33_000, 33_000, request_index=1),
        model_file("loaded"),
    )
    checkpoint = reported("checkpoint", "2.50", phase="after_request", request_index=1)
    result = TrialResult(trial=trial_row(design, 512), marks=marks, maps=maps, reported=(checkpoint,))
    found = replace(attempt(), result=result)
    moment = row_identity(calibrated(found)).after
    assert moment is not None
    # The least that prints as 2.50 MiB: 2.495.
    assert moment.attribution.term_bytes("checkpoint") == int(2.495 * 1024 * KIB)


def test_a_buffer_is_where_memory_grew_and_not_where_there_was_room_for_it() -> None:
    """Seen on llama.cpp with a microbatch of 128: the kernel had joined the compute buffer to a table of the process,
    while the cache's mapping had room for it and never grew."""
    compute_kib = 3_880
    predicted = prediction()
    buffers = [{**b, "bytes": compute_kib * KIB} if b["name"] == "compute_buffer" else b for b in predicted["buffers"]]
    cache, table = KV_KIB + 42_000, compute_kib + 2_180
    marks = (
        mark("launched", 0),
        mark("loaded", KV_KIB + 2_400),
        mark("after_request", KV_KIB + 5_300, request_index=1),
    )
    maps = (
        mapping("launched", "heap", 10, 0),
        mapping("loaded", "anonymous", cache, KV_KIB),
        mapping("loaded", "anonymous", table, 2_400),
        mapping("after_request", "anonymous", cache, KV_KIB, request_index=1),
        mapping("after_request", "anonymous", table, 5_300, request_index=1),
    )
    found = attempt(predicted={**predicted, "buffers": buffers}, marks=marks, maps=maps)
    moment = row_identity(calibrated(found)).after
    assert moment is not None
    terms = {term.slug: (term.num_bytes // KIB, term.basis) for term in moment.attribution.terms if term.num_bytes}
    assert terms["compute_buffer"] == (2_900, "shared")
    assert terms["kv_cache"] == (KV_KIB, "predicted")
