"""Metrics from hand-made arrival times; each expected number is derived beside it."""

from dataclasses import replace

import pytest
from rows_for_tests import full_result, mark_row, request_row, trial_row

from kvscope.record.metrics import DEFINITIONS, TrialMetrics, metrics_of, percentile, request_metrics
from kvscope.record.pieces import coalesced_fraction, count_doubt, tokens_in_one_piece
from kvscope.record.rows import SampleRow, TokenRow, TrialResult, WarningRow

MIB = 1024**2


def tokens(*times: float) -> list[TokenRow]:
    return [TokenRow(request_index=0, index=i, at_s=t, text="x") for i, t in enumerate(times)]


def test_times_of_one_request() -> None:
    # Pieces at 0.5, 0.6, 0.8, 1.1: gaps 0.1, 0.2, 0.3; (1.1 − 0.5) ÷ (4 − 1) = 0.2; 128 tokens in 0.5 s = 256/s.
    metrics = request_metrics(request_row(output_tokens=4), tokens(0.5, 0.6, 0.8, 1.1))
    assert metrics.ttft_s == 0.5
    assert metrics.itl_s == pytest.approx((0.1, 0.2, 0.3))
    assert metrics.tpot_s == pytest.approx(0.2)
    assert metrics.decode_tokens_per_s == pytest.approx(5)
    assert metrics.prefill_tokens_per_s == pytest.approx(256)


def test_of_several_requests_the_rate_is_one_divided_by_the_time() -> None:
    # Of two requests 0.1 s and 0.4 s a token: the median is 0.25 s, so 4 tokens/s. The rates' own median would be 6.25.
    quick, slow = request_row(output_tokens=2), request_row(index=1, output_tokens=2)
    pieces = [*tokens(0.5, 0.6), *(replace(token, request_index=1) for token in tokens(0.5, 0.9))]
    metrics = metrics_of(TrialResult(trial=trial_row(), requests=(quick, slow), tokens=tuple(pieces)))
    assert metrics.tpot_s == pytest.approx(0.25)
    assert metrics.decode_tokens_per_s == pytest.approx(4.0)


def test_the_first_token_is_not_part_of_tpot() -> None:
    slow_start = request_metrics(request_row(output_tokens=3), tokens(100.0, 100.1, 100.2))
    assert slow_start.tpot_s == pytest.approx(0.1)


def test_of_pieces_that_hold_several_tokens_the_first_ones_are_not_in_the_rate() -> None:
    # A token each 0.1 s, 9 of them shown as 3 pieces (a Korean syllable may take several), each when its third token is
    # there: 0.5, 0.8, 1.1. Of 0.6 s the 6 tokens after the first piece were made.
    request = request_row(output_tokens=9, output_tokens_limit=9)
    assert request_metrics(request, tokens(0.5, 0.8, 1.1)).tpot_s == pytest.approx(0.1)


def test_a_first_piece_of_one_token_before_pieces_of_several() -> None:
    # As vLLM streams at an interval of 4: the first token at once, then four at a time, one each 0.1 s.
    pieces = [
        replace(token, text=text)
        for token, text in zip(tokens(0.5, 0.9, 1.3), ("The", " sky is blue and", " so is the sea"), strict=True)
    ]
    request = request_row(output_tokens=9, output_tokens_limit=9)
    assert request_metrics(request, pieces).tpot_s == pytest.approx(0.1)


@pytest.mark.parametrize("each", [2, 4, 8])
@pytest.mark.parametrize("is_one_piece", [False, True])
def test_tokens_in_groups_are_as_fast_as_they_were_made(each: int, is_one_piece: bool) -> None:
    """5 ms a token, written to the network when a group of them is there, as single events or as one of all."""
    times = [0.1 + 0.005 * each * (1 + number // each) for number in range(64)]
    pieces = tokens(*(times[::each] if is_one_piece else times))
    request = request_row(output_tokens=64, output_tokens_limit=64)
    metrics = metrics_of(TrialResult(trial=trial_row(), requests=(request,), tokens=tuple(pieces)))
    assert metrics.tpot_s == pytest.approx(0.005)
    assert metrics.decode_tokens_per_s == pytest.approx(200)
    assert (metrics.itl_p50_s, metrics.itl_p99_s) == (None, None)  # neither shows the time between single tokens
    assert metrics.coalesced_fraction == (0 if is_one_piece else (each - 1) / each)
    assert tokens_in_one_piece([(request, pieces)]) == pytest.approx(
        (64 - 64 // each - 1) / 64 if is_one_piece else 0.0
    )


def test_a_last_token_without_text_hides_no_gap() -> None:
    # 8 tokens, the last of them the end of the answer, which has no text: 7 pieces.
    request = request_row(output_tokens=8, output_tokens_limit=9)
    pieces = tokens(*(0.5 + 0.1 * number for number in range(7)))
    assert tokens_in_one_piece([(request, pieces)]) == 0
    metrics = metrics_of(TrialResult(trial=trial_row(), requests=(request,), tokens=tuple(pieces)))
    assert metrics.itl_p50_s == pytest.approx(0.1)


@pytest.mark.parametrize("first_s", [0.0, -0.05])
def test_an_answer_that_began_before_it_was_asked_for_has_no_time_to_its_first_token(first_s: float) -> None:
    metrics = request_metrics(request_row(output_tokens=3), tokens(first_s, 0.1, 0.2))
    assert (metrics.ttft_s, metrics.first_answer_s, metrics.prefill_tokens_per_s) == (None, None, None)
    told_apart = [replace(token, kind="content") for token in tokens(first_s, 0.1, 0.2)]
    assert request_metrics(request_row(output_tokens=3), told_apart).first_answer_s is None
    assert request_metrics(request_row(completed_s=first_s), tokens(first_s)).completion_s is None


def test_cached_tokens_were_not_computed() -> None:
    # (128 − 28) ÷ 0.5 = 200.
    metrics = request_metrics(request_row(cached_tokens=28), tokens(0.5, 0.6))
    assert metrics.prefill_tokens_per_s == pytest.approx(200)


def test_more_cached_than_there_was_gives_no_rate() -> None:
    assert request_metrics(request_row(cached_tokens=128), tokens(0.5, 0.6)).prefill_tokens_per_s is None
    assert request_metrics(request_row(cached_tokens=150), tokens(0.5, 0.6)).prefill_tokens_per_s is None


def test_unknown_is_none_never_zero() -> None:
    nothing = request_metrics(request_row(output_tokens=None, cached_tokens=None), [])
    assert (nothing.ttft_s, nothing.tpot_s, nothing.prefill_tokens_per_s, nothing.coalesced_fraction) == (None,) * 4
    one = request_metrics(request_row(output_tokens=1), tokens(0.5))
    assert (one.ttft_s, one.tpot_s, one.decode_tokens_per_s) == (0.5, None, None)
    failed = metrics_of(TrialResult(trial=trial_row(outcome="engine_died")))
    assert all(value in (None, ()) for value in (getattr(failed, name) for name in TrialMetrics.__slots__))


def test_an_answer_that_came_in_one_read_has_no_time_between_its_tokens() -> None:
    # Its pieces share one moment: what lay between them is not known, and is not 0.
    clump = request_metrics(request_row(output_tokens=4), tokens(0.5, 0.5, 0.5, 0.5))
    assert (clump.ttft_s, clump.itl_s, clump.tpot_s, clump.decode_tokens_per_s) == (0.5, (), None, None)
    assert clump.coalesced_fraction == 0.75  # three of four came with the one before
    trial = metrics_of(replace(full_result(trial_row()), tokens=tuple(tokens(0.5, 0.5, 0.5))))
    assert (trial.itl_p50_s, trial.itl_p99_s, trial.tpot_s) == (None, None, None)


def test_thinking_that_was_not_sent_is_not_among_the_steps() -> None:
    # 8 tokens are counted, 4 of them thinking that was not sent; 4 pieces 40 ms apart: 0.12 / (4 - 1) = 0.04.
    timings = {"reasoning_tokens": 4.0}
    request = request_row(output_tokens=8, output_tokens_limit=8, engine_timings=timings)
    hidden = request_metrics(request, tokens(0.5, 0.54, 0.58, 0.62))
    assert hidden.tpot_s == pytest.approx(0.04)
    assert hidden.prefill_tokens_per_s is None  # the time to the first piece holds the thinking
    sent = [TokenRow(request_index=0, index=i, at_s=0.5 + 0.04 * i, text="x", kind="reasoning") for i in range(4)]
    # Sent, it is: two tokens in each of the 4 pieces, six of them after the first.
    assert request_metrics(request, sent).tpot_s == pytest.approx(0.12 / 6)


@pytest.mark.parametrize(("stated", "limit", "doubt"), [(80, 8, "over-limit"), (4, 8, "more-pieces"), (9, 9, None)])
def test_a_count_that_cannot_be_gives_no_speed(stated: int, limit: int, doubt: str | None) -> None:
    # 8 pieces, as a server sent them that said 80 (554 tokens/s came of it) or 4 in its usage.
    request = request_row(output_tokens=stated, output_tokens_limit=limit)
    eight = tokens(*(0.5 + 0.02 * number for number in range(8)))
    assert count_doubt(request, eight) == doubt
    metrics = request_metrics(request, eight)
    assert (metrics.tpot_s is None, metrics.decode_tokens_per_s is None) == (doubt is not None, doubt is not None)


def test_the_token_between_thinking_and_answer_may_be_two_pieces() -> None:
    kinds = ["reasoning", "reasoning", "content", "content"]
    rows = [
        TokenRow(request_index=0, index=number, at_s=at_s, text="x", kind=kind)
        for number, (at_s, kind) in enumerate(zip((0.5, 0.6, 0.6, 0.7), kinds, strict=True))
    ]
    assert count_doubt(request_row(output_tokens=3), rows) is None
    assert count_doubt(request_row(output_tokens=2), rows) == "more-pieces"


def test_where_pieces_came_together_no_gap_of_one_token_is_known() -> None:
    # Two pieces a read: half of the gaps are 0, and the others are of two tokens.
    result = TrialResult(
        trial=trial_row(),
        requests=(request_row(output_tokens=8, output_tokens_limit=8),),
        tokens=tuple(tokens(0.5, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.8)),
    )
    metrics = metrics_of(result)
    assert (metrics.itl_p50_s, metrics.itl_p99_s) == (None, None)
    assert metrics.coalesced_fraction == 0.5
    assert metrics.tpot_s == pytest.approx(0.3 / 6)  # six came after the first two


def test_empty_pieces_are_not_a_first_token() -> None:
    opening = [TokenRow(request_index=0, index=0, at_s=0.1, text=""), *tokens(0.5, 0.6)]
    assert request_metrics(request_row(), opening).ttft_s == 0.5


def test_a_token_without_text_of_its_own_has_its_time_all_the_same() -> None:
    """An engine that hands over every token: the first may be the beginning of a character."""
    times = (0.1, 0.2, 0.3, 0.4)
    bare = [
        replace(token, text=text, kind="content" if text else "token")
        for token, text in zip(tokens(*times), ("", "", "", "한"), strict=True)
    ]
    metrics = request_metrics(request_row(output_tokens=4), bare)
    assert (metrics.ttft_s, metrics.first_answer_s) == (0.1, 0.1)
    assert metrics.tpot_s == pytest.approx(0.1)  # 0.3 s over three gaps, not over none
    assert len(metrics.itl_s) == 3


def test_what_a_model_thinks_first_is_a_first_token_and_not_the_first_of_the_answer() -> None:
    kinds = ("reasoning", "reasoning", "content", "content")
    told_apart = [replace(token, kind=kind) for token, kind in zip(tokens(0.5, 0.6, 2.5, 2.6), kinds, strict=True)]
    metrics = request_metrics(request_row(), told_apart)
    assert (metrics.ttft_s, metrics.first_answer_s) == (0.5, 2.5)
    assert request_metrics(request_row(), told_apart[:2]).first_answer_s is None
    assert request_metrics(request_row(), [replace(told_apart[2], kind="tool_call")]).first_answer_s == 2.5
    # An older record did not keep it.
    assert request_metrics(request_row(), tokens(0.5, 0.6)).first_answer_s is None


def test_pieces_that_arrived_together_are_counted() -> None:
    # Two of four arrived in the same read as the one before.
    assert request_metrics(request_row(), tokens(0.5, 0.5, 0.6, 0.6)).coalesced_fraction == 0.5


def test_of_several_requests_all_pieces_count_for_what_came_together() -> None:
    """Three of eight answers come in groups of four, each of 16 tokens: 3 × 12 of 128 pieces came with the one before.
    The median over the answers would be none, and their gaps of 0 would make the percentiles."""
    alone = [0.5 + 0.005 * number for number in range(16)]
    grouped = [0.5 + 0.020 * (number // 4) for number in range(16)]
    pieces = [
        replace(token, request_index=index)
        for index in range(8)
        for token in tokens(*(grouped if index < 3 else alone))
    ]
    requests = tuple(request_row(index=index, output_tokens=16, output_tokens_limit=16) for index in range(8))
    metrics = metrics_of(TrialResult(trial=trial_row(), requests=requests, tokens=tuple(pieces)))
    assert metrics.coalesced_fraction == 36 / 128
    assert (metrics.itl_p50_s, metrics.itl_p99_s) == (None, None)
    assert metrics.tpot_s == pytest.approx(0.005)
    assert coalesced_fraction([]) is None


def test_memory_moments_and_a_peak_that_no_sample_saw() -> None:
    marks = (
        mark_row("launched", 10 * MIB, at_s=0.0, file_bytes=20 * MIB),
        mark_row("loaded", 80 * MIB, at_s=1.0, file_bytes=100 * MIB),
        mark_row("before_request", 82 * MIB, at_s=2.0, file_bytes=100 * MIB, peak_bytes=182 * MIB),
        # Kernel's peak 230 MiB of all kinds, at most 104 MiB of it file-backed: at least 126 MiB were anonymous.
        mark_row("after_request", 100 * MIB, at_s=3.0, swap_bytes=2 * MIB, file_bytes=104 * MIB, peak_bytes=230 * MIB),
        mark_row("unloaded", 40 * MIB, at_s=4.0, file_bytes=25 * MIB),
        mark_row("exited", 0, at_s=5.0, file_bytes=0),
    )
    samples = (SampleRow(quantity="anon_bytes", at_s=2.5, value_bytes=110 * MIB, late_s=0.0),)
    found = metrics_of(TrialResult(trial=trial_row(outcome="ok"), marks=marks, samples=samples))
    assert found.memory_baseline_bytes == 10 * MIB
    assert found.memory_loaded_bytes == 80 * MIB
    assert found.memory_peak_bytes == 126 * MIB
    assert found.memory_after_bytes == 102 * MIB
    assert found.memory_released_bytes == 40 * MIB
    assert found.memory_loaded_bytes_file == 100 * MIB
    without_counter = replace(marks[3], peak_bytes=None)
    sampled = metrics_of(TrialResult(trial=trial_row(), marks=(*marks[:3], without_counter), samples=samples))
    assert sampled.memory_peak_bytes == 110 * MIB


def test_the_zero_of_a_process_that_is_gone_is_no_release_that_was_not_reached() -> None:
    # Ctrl-C at the second request of a llama.cpp trial: its own release, its unload, was never asked for.
    marks = (
        mark_row("launched", 10, at_s=0.0),
        mark_row("loaded", 80, at_s=1.0),
        mark_row("exited", 0, at_s=2.0, file_bytes=0, device_bytes=0),
    )
    for outcome in ("interrupted", "out_of_memory", "timed_out", None):
        found = metrics_of(TrialResult(trial=trial_row(outcome=outcome), marks=marks))
        assert found.memory_released_bytes is None
        assert found.memory_released_bytes_file is None
        assert found.memory_released_bytes_device is None
    # Somebody else's request was running: the engine was told to release nothing.
    busy = (WarningRow(slug="requests-active", message="1 was running.", hint="Wait."),)
    left_alone = TrialResult(trial=trial_row(outcome="ok"), marks=marks, warnings=busy)
    assert metrics_of(left_alone).memory_released_bytes is None
    # An engine without an unload (llama-server) releases all of it as its process ends.
    assert metrics_of(TrialResult(trial=trial_row(outcome="ok"), marks=marks)).memory_released_bytes == 0
    # What failed after the release has been released.
    late = (*marks[:2], mark_row("unloaded", 40, at_s=1.5), marks[2])
    assert metrics_of(TrialResult(trial=trial_row(outcome="interrupted"), marks=late)).memory_released_bytes == 40


def test_peaks_look_only_at_the_time_between_load_and_last_answer() -> None:
    marks = (
        mark_row("launched", 10, at_s=0.0, file_bytes=20),
        mark_row("loaded", 80, at_s=1.0, file_bytes=100),
        mark_row("after_request", 90, at_s=2.0, file_bytes=100),
    )
    before = (
        SampleRow(quantity="file_bytes", at_s=0.5, value_bytes=500, late_s=0.0),
        SampleRow(quantity="anon_bytes", at_s=0.5, value_bytes=700, late_s=0.0),
    )
    found = metrics_of(TrialResult(trial=trial_row(), marks=marks, samples=before))
    assert (found.memory_peak_bytes, found.memory_peak_bytes_file) == (90, 100)


def test_file_pages_dropped_between_marks_are_not_taken_for_anonymous() -> None:
    # 300 resident at the peak, of which a sample saw 200 file-backed: at least 100 anonymous, not 300 − 90.
    marks = (
        mark_row("loaded", 80, at_s=1.0, file_bytes=90),
        mark_row("after_request", 85, at_s=3.0, file_bytes=90, peak_bytes=300),
    )
    samples = (SampleRow(quantity="file_bytes", at_s=2.0, value_bytes=200, late_s=0.0),)
    assert metrics_of(TrialResult(trial=trial_row(), marks=marks, samples=samples)).memory_peak_bytes == 100


def test_a_peak_that_was_not_set_back_counts_only_where_it_rose() -> None:
    # A server that was running before had peaked at 900 while it loaded; its counter was left alone.
    marks = (
        mark_row("loaded", 80, at_s=1.0, peak_bytes=900, file_bytes=0),
        mark_row("before_request", 80, at_s=2.0, peak_bytes=900, file_bytes=0),
        mark_row("after_request", 85, at_s=3.0, peak_bytes=900, file_bytes=0),
    )
    assert metrics_of(TrialResult(trial=trial_row(), marks=marks)).memory_peak_bytes == 85
    risen = (*marks[:2], replace(marks[2], peak_bytes=950))
    assert metrics_of(TrialResult(trial=trial_row(), marks=risen)).memory_peak_bytes == 950


def test_memory_on_devices_is_known_where_it_was_read_and_nowhere_else() -> None:
    marks = (
        mark_row("launched", 10, at_s=0.0, device_bytes=0),
        mark_row("loaded", 80, at_s=1.0, device_bytes=500),
        mark_row("after_request", 85, at_s=3.0, device_bytes=600),
        mark_row("exited", 0, at_s=4.0, device_bytes=0),
    )
    samples = (
        SampleRow(quantity="device_bytes", at_s=2.0, value_bytes=740, late_s=0.0),
        SampleRow(quantity="device_used_bytes", at_s=2.0, value_bytes=9000, late_s=0.0),
        SampleRow(quantity="anon_bytes", at_s=2.01, value_bytes=82, late_s=0.0),
    )
    found = metrics_of(TrialResult(trial=trial_row(outcome="ok"), marks=marks, samples=samples))
    assert found.memory_baseline_bytes_device == 0
    assert found.memory_loaded_bytes_device == 500
    assert found.memory_peak_bytes_device == 740  # the engine's, not what the whole device held
    assert found.memory_after_bytes_device == 600
    assert found.memory_released_bytes_device == 0
    assert found.memory_peak_bytes == 85
    without = tuple(replace(mark, device_bytes=None) for mark in marks)
    unknown = metrics_of(TrialResult(trial=trial_row(), marks=without))
    assert unknown.memory_peak_bytes_device is None
    assert unknown.memory_released_bytes_device is None


def test_warm_up_and_failed_requests_give_no_times() -> None:
    result = full_result(trial_row(outcome="ok"))
    for changed in ({"role": "warmup"}, {"error_slug": "connection-lost"}):
        request = replace(result.requests[0], **changed)
        assert metrics_of(replace(result, requests=(request,))).ttft_s is None


def test_percentiles() -> None:
    assert percentile([], 50) is None
    assert percentile([3.0], 99) == 3.0
    # Ranks 0..4: the 50th is rank 2; the 90th is rank 3.6 = 4 + 0.6 × (5 − 4).
    assert percentile([5, 1, 3, 2, 4], 50) == 3
    assert percentile([1, 2, 3, 4, 5], 90) == pytest.approx(4.6)


def test_every_time_metric_is_defined_in_words() -> None:
    assert {"ttft_s", "itl_s", "tpot_s", "completion_s", "prefill_tokens_per_s"} <= set(DEFINITIONS)
