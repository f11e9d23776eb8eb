"""Buffers among mappings. The sizes are those that llama.cpp and the kernel really showed (KiB)."""

from hypothesis import given, settings
from hypothesis import strategies as st
from study_rows import KIB, mapping

from kvscope.analysis.match import Buffer, new_mappings, place_buffers

KV = Buffer(component="kv_cache", name="full", num_bytes=46_080 * KIB, is_filled=True)
COMPUTE = Buffer(component="compute_buffer", name="CPU", num_bytes=17_042 * KIB, is_filled=False)
OUTPUT = Buffer(component="output_buffer", name="CPU", num_bytes=192 * KIB, is_filled=False)


def test_a_buffer_with_a_mapping_of_its_own() -> None:
    # Seen: the compute buffer of 17,042 KiB is a mapping of 17,044 KiB, 284 KiB of it resident after load.
    places, missing = place_buffers([COMPUTE], [mapping("loaded", "anonymous", 17_044, 284)])
    assert missing == ()
    assert places[0].touched_bytes == 284 * KIB


def test_64_kib_more_is_still_its_own_and_one_page_further_is_not() -> None:
    for extra, found in ((64, True), (68, False)):
        places, _ = place_buffers([COMPUTE], [mapping("loaded", "anonymous", 17_042 + extra, 284)])
        assert bool(places) is found


def test_a_mapping_smaller_than_the_buffer_is_never_it() -> None:
    places, missing = place_buffers([COMPUTE], [mapping("loaded", "anonymous", 17_040, 284)])
    assert (places, missing) == ((), (COMPUTE,))


def test_buffers_that_the_kernel_joined() -> None:
    # Seen at 2,048 cells: one mapping of 106,100 KiB holds all three, 46,372 KiB resident.
    places, missing = place_buffers([KV, OUTPUT, COMPUTE], [mapping("loaded", "anonymous", 106_100, 46_372)])
    assert missing == ()
    assert len(places) == 1
    assert {b.component for b in places[0].buffers} == {"kv_cache", "compute_buffer", "output_buffer"}
    assert places[0].touched_bytes == (46_372 - 46_080) * KIB


def test_where_only_one_fits_the_larger_one_is_in_it() -> None:
    # Seen at 4,096 cells: KV 92,160 KiB and compute 19,090.6 KiB in a mapping of 111,256 KiB; the 192 KiB output buffer
    # lies elsewhere. Placed first it would leave no room for the compute buffer, which is most of what is resident.
    kv = Buffer(component="kv_cache", name="full", num_bytes=92_160 * KIB, is_filled=True)
    compute = Buffer(component="compute_buffer", name="CPU", num_bytes=19_090 * KIB, is_filled=False)
    places, missing = place_buffers([kv, OUTPUT, compute], [mapping("loaded", "anonymous", 111_256, 105_000)])
    assert missing == (OUTPUT,)
    assert places[0].buffers == (kv, compute)


def test_more_resident_than_the_buffers_can_hold_is_no_match() -> None:
    # All three full are 63,314 KiB; 256 KiB of small neighbours are allowed, one KiB more is not.
    for resident, found in ((63_314 + 256, True), (63_314 + 257, False)):
        places, _ = place_buffers([KV, OUTPUT, COMPUTE], [mapping("loaded", "anonymous", 106_100, resident)])
        assert bool(places) is found


def test_a_cache_that_is_not_all_resident_is_not_found_in_a_shared_mapping() -> None:
    places, missing = place_buffers([KV], [mapping("loaded", "anonymous", 106_100, 46_079)])
    assert (places, missing) == ((), (KV,))


def test_what_partly_touched_buffers_hold_is_never_more_than_their_size() -> None:
    # 250 KiB beyond the KV cache and the output buffer (192 KiB): the 58 KiB over stay outside.
    places, _ = place_buffers([KV, OUTPUT], [mapping("loaded", "anonymous", 60_000, 46_080 + 250)])
    assert places[0].touched_bytes == 192 * KIB


def test_the_two_caches_of_a_sliding_window_model_in_one_mapping() -> None:
    full = Buffer(component="kv_cache", name="non-SWA", num_bytes=6_144 * KIB, is_filled=True)
    window = Buffer(component="kv_cache", name="SWA", num_bytes=15_360 * KIB, is_filled=True)
    places, missing = place_buffers([full, window], [mapping("loaded", "anonymous", 30_000, 21_510)])
    assert missing == ()
    assert set(places[0].filled) == {full, window}


def test_the_choice_of_neighbours_that_explains_the_most() -> None:
    # Seen with Gemma 3 270M at 512 cells: a mapping of 77,644 KiB, 21,800 resident. Repacked weights (12,960) and the
    # sliding-window cache (7,680) are in it; the small cache of the full layers (1,536) is not: it came from the heap.
    repack = Buffer(component="weights", name="CPU_REPACK", num_bytes=12_960 * KIB, is_filled=True)
    full = Buffer(component="kv_cache", name="non-SWA", num_bytes=1_536 * KIB, is_filled=True)
    window = Buffer(component="kv_cache", name="SWA", num_bytes=7_680 * KIB, is_filled=True)
    compute = Buffer(component="compute_buffer", name="CPU", num_bytes=19_743 * KIB, is_filled=False)
    places, missing = place_buffers([repack, full, window, compute], [mapping("loaded", "anonymous", 77_644, 21_800)])
    assert set(places[0].filled) == {repack, window}
    assert missing == (full,)
    assert places[0].touched_bytes == (21_800 - 12_960 - 7_680) * KIB


def test_of_two_candidates_the_tighter_one_is_taken() -> None:
    loose, tight = mapping("loaded", "anonymous", 90_000, 46_200), mapping("loaded", "anonymous", 90_004, 46_090)
    places, _ = place_buffers([KV], [loose, tight])
    assert places[0].mapping == tight


def test_mappings_that_were_there_before_the_load_are_no_candidates() -> None:
    old = mapping("launched", "anonymous", 1024, 1000)
    after = [mapping("loaded", "anonymous", 1024, 1000), mapping("loaded", "anonymous", 1024, 900)]
    assert new_mappings([old], after, "anonymous") == (after[1],)


def test_sums_of_small_mappings_are_no_candidates() -> None:
    small = mapping("loaded", "anonymous", 17_044, 284, count=14)
    assert new_mappings([], [small], "anonymous") == ()


def test_only_a_mapping_as_large_as_its_buffers_is_known_to_hold_nothing_else() -> None:
    # 46,080 + 192 + 17,042 = 63,314 KiB; three buffers may have 64 KiB more each.
    for extra, exact in ((0, True), (192, True), (196, False)):
        places, _ = place_buffers([KV, OUTPUT, COMPUTE], [mapping("loaded", "anonymous", 63_314 + extra, 46_372)])
        assert places[0].is_exact is exact
    places, _ = place_buffers([COMPUTE], [mapping("loaded", "anonymous", 17_044, 284)])
    assert places[0].is_exact


def test_a_copy_that_fills_a_mapping_is_not_taken_for_a_buffer_that_is_touched_as_it_is_used() -> None:
    # Seen at 4,096 cells after two prompts of 502 tokens, watched from then on: 103,496 KiB of a mapping of 146,464 KiB
    # are resident, which are the cache and the copy that the log states (11.059 MiB). The compute buffer is elsewhere.
    cache = Buffer(component="kv_cache", name="full", num_bytes=92_160 * KIB, is_filled=True)
    compute = Buffer(component="compute_buffer", name="CPU", num_bytes=19_088 * KIB, is_filled=False)
    copy = Buffer(component="host_cache", name="copy", num_bytes=11_595_677, is_filled=True, source="reported")
    seen = mapping("watched", "anonymous", 146_464, 103_496)
    joined = mapping("watched", "anonymous", 25_000, 15_108)  # the compute buffer, joined to something not known
    (place,), missing = place_buffers([cache, compute, copy], [seen, joined])
    assert place.buffers == (cache, copy)
    assert missing == (compute,)


def test_a_cache_that_the_kernel_joined_to_memory_nobody_knows_is_seen_in_it() -> None:
    # Seen with SmolLM2 at 256 cells: the cache (5,760 KiB) and llama.cpp's tables of the graph (2,180 KiB, all of them
    # written at load) in one mapping of 7,944 KiB; at 512 cells the cache with more, of which little is touched.
    # The compute buffer has a mapping of its own (7,628 KiB).
    compute = Buffer(component="compute_buffer", name="CPU", num_bytes=7_808_032, is_filled=False)
    own = mapping("loaded", "anonymous", 7_628, 284)
    for cache_kib, size, resident in ((5_760, 7_944, 7_944), (11_520, 56_676, 13_708), (5_760, 50_916, 7_948)):
        cache = Buffer(component="kv_cache", name="full", num_bytes=cache_kib * KIB, is_filled=True)
        joined = mapping("loaded", "anonymous", size, resident)
        (_, place), missing = place_buffers([cache, OUTPUT, compute], [joined, own], is_untouched=True)
        assert (place.mapping, place.buffers, missing) == (joined, (cache,), (OUTPUT,))
        assert not place.is_exact
        assert place.touched_bytes == 0  # the rest of the mapping is not known to be any buffer's


def test_memory_that_requests_touched_is_no_place_for_what_was_not_seen_at_load() -> None:
    cache = Buffer(component="kv_cache", name="full", num_bytes=5_760 * KIB, is_filled=True)
    assert place_buffers([cache], [mapping("after_request", "anonymous", 50_600, 8_138)]) == ((), (cache,))


def test_a_cache_as_small_as_the_engines_own_tables_is_not_taken_to_be_in_them() -> None:
    # Gemma 3 270M at 512 cells: the cache of the full layers (1,536 KiB) came from the heap, and the tables of the
    # graph are a mapping of their own, somewhat larger.
    full = Buffer(component="kv_cache", name="non-SWA", num_bytes=1_536 * KIB, is_filled=True)
    tables = mapping("loaded", "anonymous", 2_180, 2_180)
    assert place_buffers([full], [tables], is_untouched=True) == ((), (full,))


def test_a_mapping_that_is_mostly_something_else_is_no_place() -> None:
    cache = Buffer(component="kv_cache", name="full", num_bytes=5_760 * KIB, is_filled=True)
    for resident, found in ((11_520, True), (11_524, False)):
        places, _ = place_buffers([cache], [mapping("loaded", "anonymous", 20_000, resident)], is_untouched=True)
        assert bool(places) is found


_sizes = st.integers(1, 300)
_buffers = st.lists(
    st.builds(
        lambda size, filled: Buffer(component="b", name="b", num_bytes=size * 64 * KIB, is_filled=filled),
        _sizes,
        st.booleans(),
    ),
    max_size=6,
)
_mappings = st.lists(
    st.builds(lambda size, part: mapping("loaded", "anonymous", size * 64, size * 64 * part // 10), _sizes,
              st.integers(0, 10)),
    max_size=6,
)  # fmt: skip


@settings(deadline=None)  # a busy machine is no failure
@given(_buffers, _mappings, st.booleans())
def test_every_buffer_is_placed_once_or_missing_and_nothing_is_counted_twice(buffers, mappings, untouched) -> None:  # type: ignore[no-untyped-def]  # given by Hypothesis
    places, missing = place_buffers(buffers, mappings, is_untouched=untouched)
    placed = [b for p in places for b in p.buffers]
    assert sorted(map(id, [*placed, *missing])) == sorted(map(id, buffers))
    assert len({id(p.mapping) for p in places}) == len(places)
    for place in places:
        inside = sum(b.num_bytes for b in place.buffers)
        assert inside <= place.mapping.size_bytes
        assert place.touched_bytes <= sum(b.num_bytes for b in place.partly_touched)
