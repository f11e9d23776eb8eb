"""How far readings can be off: each part by hand."""

from typing import Any

import pytest
from study_rows import KIB, attempt, memory

from kvscope.analysis.attribute import attribute
from kvscope.analysis.identity import row_identity
from kvscope.analysis.probe_bounds import ReadingBound, reading_bound

MACHINE = {"system": "Linux", "kernel": "6.8.0-45-generic", "usable_cpus": 8, "page_bytes": 4096}


def bound(**machine: Any) -> ReadingBound:
    found = attempt(**memory())
    attribution = attribute(found.result, found.prediction, "loaded")
    assert attribution is not None
    return reading_bound({**MACHINE, **machine}, found.result, attribution)


@pytest.mark.parametrize(
    ("kernel", "cpus", "expected_kib"),
    [
        # A batch of 32 pages on each of 8 processors, for 2 counters, at 2 readings: 32 × 8 × 4 KiB × 4.
        ("6.8.0", 8, 4096),
        # From 17 processors on the batch is 2 × processors: 128 × 64 × 4 KiB × 4.
        ("6.2.1", 64, 131_072),
        ("6.17.3-arch1", 64, 0),
        ("7.0", 2, 0),
        ("5.15.0", 8, None),
        ("", 8, None),
    ],
)
def test_the_kernels_counters(kernel: str, cpus: int, expected_kib: int | None) -> None:
    found = bound(kernel=kernel, usable_cpus=cpus)
    assert found.counters_bytes == (None if expected_kib is None else expected_kib * KIB)
    assert (found.total_bytes is None) is (expected_kib is None)


def test_pages_time_and_what_was_seen_apart() -> None:
    found = bound(page_bytes=16_384)
    # The cache, the model's file, and the compute and output buffers that are looked for in the cache's mapping.
    assert found.pages_bytes == 3 * 2 * 16_384
    assert found.time_bytes == 2 * 64 * KIB
    assert found.digits_bytes == 0
    assert found.seen_apart_bytes == 0


def test_the_peak_is_read_from_the_counters_whatever_the_kernel() -> None:
    found = attempt(**memory())
    row = row_identity(found)
    assert row.peak is not None
    machine = {**MACHINE, "kernel": "6.18"}
    peak = reading_bound(machine, found.result, row.peak.attribution)
    assert peak.counters_bytes == 32 * 8 * 4 * 2 * KIB


def test_another_system_says_nothing() -> None:
    assert bound(system="Darwin", kernel="24.1.0").total_bytes is None
