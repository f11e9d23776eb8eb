"""Predicted against the digits that an engine's log prints, and the four columns of a component."""

import pytest
from study_rows import KIB, attempt, log_lines, memory, prediction, reported

from kvscope.analysis.attribute import attribute
from kvscope.analysis.compare import Component, buffers_agree, compare_components, prints_as


@pytest.mark.parametrize(
    ("num_bytes", "printed", "same"),
    [
        (17_451_040, "16.64", True),  # 16.6426…
        (96_576_768, "92.10", True),  # 92.1027…
        (196_608, "0.19", True),  # 0.1875 rounds to 0.19
        (47_185_920, "45.00", True),
        (47_185_920, "45", True),
        (47_185_920 + 5_243, "45.01", True),  # 45.005 is 47,191,163.2: the first whole byte above prints 45.01
        (47_185_920 + 5_243, "45.00", False),
        (17_451_040, "16.63", False),
    ],
)
def test_a_size_as_the_log_prints_it(num_bytes: int, printed: str, same: bool) -> None:
    assert prints_as(num_bytes, printed) is same


def test_buffers_are_compared_one_by_one() -> None:
    # Gemma 3 at 2,048: non-SWA 6.00 MiB and SWA 15.00 MiB. Equal sums of unequal buffers do not agree.
    predicted = [("non-SWA", 6_291_456), ("SWA", 15_728_640)]
    assert buffers_agree(predicted, [("SWA", "15.00"), ("non-SWA", "6.00")]) is True
    assert buffers_agree(predicted, [("SWA", "14.00"), ("non-SWA", "7.00")]) is False
    assert buffers_agree(predicted, [("SWA", "21.00")]) is False
    assert buffers_agree(predicted, [("SWA", "15.00"), ("non-SWA", "6.00"), ("SWA", "0.00")]) is False


def test_a_mapped_file_is_not_a_buffer_of_the_same_size() -> None:
    # With memory mapping off the log says "CPU model buffer size = 92.10 MiB", with it "CPU_Mapped model buffer size".
    assert buffers_agree([("CPU_Mapped", 96_576_768)], [("CPU", "92.10")]) is False
    assert buffers_agree([("CPU_Mapped", 96_576_768)], [("CPU_Mapped", "92.10")]) is True
    # Sizes swapped between the two kinds.
    assert buffers_agree([("a", 1 << 20), ("b", 2 << 20)], [("a", "2.00"), ("b", "1.00")]) is False


def test_a_buffer_without_a_name_is_compared_by_its_size() -> None:
    assert buffers_agree([("", 1 << 20), ("b", 1 << 20)], [("b", "1.00"), ("a", "1.00")]) is True
    assert buffers_agree([("a", 1 << 20), ("b", 1 << 20)], [("", "1.00"), ("b", "1.00")]) is True
    assert buffers_agree([("a", 1 << 20)], [("", "2.00")]) is False


def test_nothing_to_compare_is_not_agreement() -> None:
    assert buffers_agree([], [("CPU", "1.00")]) is None
    assert buffers_agree([("CPU", 1)], []) is None


def components(**rows: object) -> dict[str, Component]:
    one = attempt(**{**memory(), **rows})
    attribution = attribute(one.result, one.prediction, "loaded")
    return {c.slug: c for c in compare_components(one.result, one.prediction, attribution)}


def test_the_four_columns() -> None:
    found = components(reported=log_lines())
    kv = found["kv_cache"]
    # needed: 100 tokens × 23,040 B; allocated: 2,048 cells × 23,040 B.
    assert (kv.needed_bytes, kv.allocated_bytes) == (2_304_000, 47_185_920)
    assert (kv.reported_mib, kv.reported_total_mib, kv.agrees) == (("45.00",), "45.00", True)
    assert kv.resident.num_bytes == 47_185_920
    assert found["weights"].resident.num_bytes == 94_320 * KIB
    assert {c.agrees for c in found.values()} == {True}


def test_an_engine_that_reports_nothing() -> None:
    kv = components()["kv_cache"]
    assert (kv.reported_mib, kv.reported_total_mib, kv.agrees) == ((), None, None)


def test_an_engine_that_reports_something_else() -> None:
    assert components(reported=(reported("kv_cache", "22.50", name="full"),))["kv_cache"].agrees is False


def test_what_an_engine_of_unknown_rules_reserves_is_not_predicted() -> None:
    # "logical" is what the tokens need: 100 tokens × 23,040 B. It knows no context limit.
    logical = prediction(scenario={"engine": "logical", "tokens": 100, "settings": {}}, buffers=[])
    one = attempt(predicted=logical, **memory(), reported=log_lines())
    found = {c.slug: c for c in compare_components(one.result, one.prediction, None)}
    assert (found["kv_cache"].needed_bytes, found["kv_cache"].allocated_bytes) == (2_304_000, None)
    assert found["kv_cache"].agrees is None
    assert found["weights"].allocated_bytes == 96_576_768  # as the file says


def test_one_unknown_item_makes_the_sum_unknown() -> None:
    predicted = prediction()
    predicted["items"][3]["needed_bytes"] = None
    one = attempt(predicted=predicted, **memory())
    found = {c.slug: c for c in compare_components(one.result, one.prediction, None)}
    assert found["kv_cache"].needed_bytes is None
    assert found["kv_cache"].resident.num_bytes is None


def test_the_host_cache_is_not_held_against_its_prediction_at_load() -> None:
    line = reported("host_cache", "13.521", "after_request", request_index=1)
    one = attempt(**memory(), reported=(line,))
    after = attribute(one.result, one.prediction, "after_request")
    found = {c.slug: c for c in compare_components(one.result, one.prediction, after)}
    assert found["host_cache"].agrees is None
    assert found["host_cache"].reported_mib == ("13.521",)
