"""A running engine between two looks: rates by hand, and what is in use of its cache."""

from kvscope.analysis.watched import cache_use, memory_by_cause, rates
from kvscope.record.rows import MapRow, MarkRow

MIB = 2**20


def test_rates_are_what_the_counters_grew_by() -> None:
    before = {"output_tokens": 100, "prompt_tokens": 50, "ttft_sum_s": 1.0, "ttft_count": 4, "preemptions": 1}
    after = {"output_tokens": 160, "prompt_tokens": 50, "ttft_sum_s": 2.5, "ttft_count": 7, "preemptions": 3}
    found = rates(before, after, 2.0)
    assert found.output_tokens_per_s == 30  # 60 tokens in 2 s
    assert found.prompt_tokens_per_s == 0  # stated, and nothing happened
    assert found.ttft_mean_s == 0.5  # 1.5 s over 3 answers
    assert found.preemptions == 2
    assert found.prefix_hit_share is None  # not stated


def test_a_mean_over_no_answers_is_not_known() -> None:
    counters = {"ttft_sum_s": 1.0, "ttft_count": 4, "prefix_queried_tokens": 9, "prefix_hit_tokens": 3}
    found = rates(counters, counters, 1.0)
    assert found.ttft_mean_s is None
    assert found.prefix_hit_share is None


def test_counters_of_an_engine_that_was_started_anew_tell_nothing() -> None:
    assert rates({"output_tokens": 100}, {"output_tokens": 3}, 1.0).output_tokens_per_s is None


def test_prefix_hits_are_a_share_of_what_was_looked_up_meanwhile() -> None:
    before = {"prefix_queried_tokens": 1000, "prefix_hit_tokens": 900}
    after = {"prefix_queried_tokens": 1200, "prefix_hit_tokens": 950}
    assert rates(before, after, 1.0).prefix_hit_share == 0.25


def test_a_pool_that_the_engine_states_goes_before_the_prediction() -> None:
    prediction = {
        "totals": {"cache_bytes": 1000},
        "growth": {"bytes_per_token": 10, "bytes_per_sequence": 0, "knees": []},
        "effective": {"context_tokens": 100},
    }
    found = cache_use({"kv_cache_pool_tokens": 400, "kv_cache_used_tokens": 100}, prediction)
    assert (found.reserved_tokens, found.used_share, found.used_bytes) == (400, 0.25, 1000)
    assert cache_use({"kv_cache_used_share": 0.5}, None).used_share == 0.5
    assert cache_use({}, None).used_tokens is None


def test_bytes_in_use_are_not_worked_out_where_tokens_differ() -> None:
    prediction = {
        "totals": {"cache_bytes": 1000},
        "growth": {"bytes_per_token": 10, "bytes_per_sequence": 0, "knees": [{"tokens": 50, "why": "window full"}]},
        "effective": {"context_tokens": 100},
    }
    assert cache_use({"kv_cache_used_tokens": 100}, prediction).used_bytes is None


def mark(anon: int, file: int) -> MarkRow:
    return MarkRow(
        phase="watched",
        at_s=1.0,
        anon_bytes=anon,
        swap_bytes=0,
        file_bytes=file,
        shmem_bytes=0,
        peak_bytes=None,
        machine_available_bytes=None,
    )


def mapping(kind: str, resident: int, anonymous: int, name: str = "") -> MapRow:
    return MapRow(
        phase="watched", kind=kind, name=name, size_bytes=resident, resident_bytes=resident, anonymous_bytes=anonymous
    )


def test_causes_sum_to_all_that_is_held_also_without_a_prediction() -> None:
    maps = [
        mapping("heap", 10 * MIB, 10 * MIB),
        mapping("anonymous", 50 * MIB, 50 * MIB),
        mapping("file", 90 * MIB, 0, "/models/a.gguf"),
    ]
    found = {c.slug: c.num_bytes for c in memory_by_cause(mark(60 * MIB, 90 * MIB), maps, (), None)}
    assert found == {"weights": 90 * MIB, "runtime": 10 * MIB, "unexplained": 50 * MIB}


def test_mappings_that_may_not_be_read_leave_one_number_without_a_name() -> None:
    (cause,) = memory_by_cause(mark(60 * MIB, 90 * MIB), (), (), None)
    assert (cause.slug, cause.num_bytes) == ("unnamed", 150 * MIB)
