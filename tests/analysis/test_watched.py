"""A running engine between two looks: rates by hand, and what is in use of its cache."""

from kvscope.analysis.watched import NotFound, cache_use, memory_by_cause, not_found, rates
from kvscope.record.rows import MapRow, MarkRow, ReportedBufferRow

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


def test_prompts_are_read_in_the_time_spent_on_them() -> None:
    """llama.cpp's counter stands still while a prompt is read, and then has all of it: 600 tokens in 4 s of reading."""
    before = {"prompt_tokens": 100, "prefill_s": 1.0}
    assert rates(before, {"prompt_tokens": 700, "prefill_s": 5.0}, 2.0).prompt_tokens_per_s == 150
    assert rates(before, before, 2.0).prompt_tokens_per_s is None  # none was finished: not 0


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


def predicted(**sizes: int) -> dict[str, object]:
    buffers = [
        {"name": name.rstrip("0123456789"), "bytes": size, "backing": "anonymous", "device": "cpu"}
        for name, size in sizes.items()
    ]
    return {"scenario": {"engine": "llama.cpp"}, "buffers": buffers, "totals": {}}


def test_a_cache_that_is_larger_than_all_that_is_held_is_not_shown() -> None:
    """Seen: a server with its layers on a GPU held 10.6 MiB, and 180.0 MiB of cache were shown "by the rule"."""
    held, prediction = mark(11_115_000, 0), predicted(kv_cache=180 * MIB)
    maps = [mapping("heap", 3 * MIB, 3 * MIB)]
    found = {c.slug: c.num_bytes for c in memory_by_cause(held, maps, (), prediction)}
    assert found == {"runtime": 3 * MIB, "unexplained": 11_115_000 - 3 * MIB}
    assert not_found(held, maps, (), prediction) == (NotFound(slug="kv_cache", expected_bytes=180 * MIB),)


def test_a_cache_of_which_a_part_was_found_is_told_as_a_part() -> None:
    """Seen (gemma3 270M, -c 4096 -np 2): 30.0 MiB found among the mappings, and the log states 42.0 MiB: its caches of
    12 MiB lie in larger mappings with other memory."""
    prediction = predicted(kv_cache1=30 * MIB, kv_cache2=12 * MIB)
    maps = [mapping("anonymous", 30 * MIB, 30 * MIB), mapping("arena", 14 * MIB, 14 * MIB)]
    (cache, *_) = memory_by_cause(mark(44 * MIB, 0), maps, (), prediction)
    assert (cache.slug, cache.num_bytes, cache.expected_bytes) == ("kv_cache", 30 * MIB, 42 * MIB)
    assert not_found(mark(44 * MIB, 0), maps, (), prediction) == ()


def checkpoint(mib: str) -> ReportedBufferRow:
    return ReportedBufferRow(
        phase="watched",
        component="checkpoint",
        name="context checkpoint, slot 0",
        printed_mib=mib,
        cells=None,
        streams=None,
        layers=None,
        k_mib=None,
        v_mib=None,
        line="",
    )


def test_copies_of_which_a_part_was_found_are_told_as_a_part() -> None:
    kept = [checkpoint("20.000"), checkpoint("8.500")]
    maps = [mapping("anonymous", 20 * MIB, 20 * MIB)]
    (copies, *_) = memory_by_cause(mark(30 * MIB, 0), maps, kept, None)
    assert copies.slug == "host_cache"
    assert copies.expected_bytes is not None
    assert abs(copies.expected_bytes - 28.5 * MIB) < 2000  # half of the last printed digit of each
    assert copies.expected_bytes - copies.num_bytes > 8 * MIB


def test_a_model_file_is_weights_whatever_it_is_called() -> None:
    """Seen: 92 MiB of a file named sha256-... were "heap, stacks, libraries"."""
    maps = [mapping("file", 92 * MIB, 0, "/store/sha256-ab"), mapping("file", 5 * MIB, 0, "/usr/lib/libc.so")]
    found = memory_by_cause(mark(0, 97 * MIB), maps, (), None, "/store/sha256-ab")
    assert {c.slug: c.num_bytes for c in found} == {"weights": 92 * MIB, "runtime": 5 * MIB, "unexplained": 0}


def test_cells_that_slots_may_share_are_at_most_so_many() -> None:
    """Seen: four answers to one prompt in a unified cache stated 4,548 of 4,096 tokens."""
    prediction = {
        "totals": {"cache_bytes": 1000},
        "growth": {"bytes_per_token": 10, "bytes_per_sequence": 0, "knees": []},
        "effective": {"context_tokens": 4096},
    }
    use = cache_use({}, prediction, 4548)
    assert (use.used_tokens, use.used_share, use.is_at_most) == (4096, 1.0, True)
    assert not cache_use({"kv_cache_used_tokens": 7}, prediction).is_at_most


def test_a_compute_buffer_in_a_joined_mapping_is_at_most_what_is_touched_of_it() -> None:
    """Seen: the cache and a copy share a mapping, and the compute buffer (19,546,112 B) is in another, larger one, of
    which 15,470,592 B are resident. Where the copies are not stated, that may be one."""
    prediction = predicted(kv_cache=90 * MIB)
    prediction["buffers"] += [{"name": "compute_buffer", "bytes": 19_546_112, "device": "cpu"}]  # type: ignore[operator]
    joined = MapRow(
        phase="watched",
        kind="anonymous",
        name="",
        size_bytes=25_600_000,
        resident_bytes=15_470_592,
        anonymous_bytes=15_470_592,
    )
    maps = [mapping("anonymous", 110 * MIB, 110 * MIB), joined]
    held = mark(110 * MIB + 15_470_592, 0)
    found = {c.slug: c for c in memory_by_cause(held, maps, [checkpoint("20.000")], prediction)}
    assert found["host_cache"].expected_bytes is None
    assert (found["compute"].num_bytes, found["compute"].basis) == (15_470_592, "shared")
    without_log = {c.slug: c for c in memory_by_cause(held, maps, (), prediction)}
    assert "compute" not in without_log
    assert sum(c.num_bytes for c in without_log.values()) == 110 * MIB + 15_470_592
