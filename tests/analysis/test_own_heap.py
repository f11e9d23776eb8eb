"""Terms of an engine that counts its own heap. The figures are of a real trial: a Llama of 8 layers in float32 with
random weights on transformers 5.24.0 and torch 2.13 (CPU, glibc), a prompt of 512 tokens, 2026-11-30."""

from dataclasses import replace
from typing import Any

import pytest

from kvscope.analysis.attribute import Attribution, attribute
from kvscope.record.rows import MapRow, MarkRow, StatisticRow, TrialResult, TrialRow

WEIGHTS = 27_280_384
CACHE = 4_251_648  # 519 tokens × 8 layers × 2 × 4 KV heads × 32 × 4 B
HEAP = {
    "launched": (135_101_840, 6_078_464, 537_200, 136_314_880),
    "loaded": (154_138_480, 14_475_264, 235_664, 137_363_456),
    "after_request": (162_572_192, 14_475_264, 6_985_824, 137_363_456),
}
HELD = {"launched": 285_749_248, "loaded": 313_827_328, "after_request": 328_491_008}
NAMES = ("heap_in_use_bytes", "heap_mmapped_bytes", "heap_free_bytes", "python_arena_bytes")


def mark(phase: str) -> MarkRow:
    return MarkRow(
        phase=phase,
        at_s=0.0,
        anon_bytes=HELD[phase],
        swap_bytes=0,
        file_bytes=0,
        shmem_bytes=0,
        peak_bytes=None,
        machine_available_bytes=None,
    )


def mapping(phase: str, kind: str, anonymous: int, name: str = "", size: int = 0) -> MapRow:
    resident = anonymous or size
    return MapRow(
        phase=phase,
        kind=kind,
        name=name,
        size_bytes=size or anonymous,
        resident_bytes=resident,
        anonymous_bytes=anonymous,
    )


def trial(**effective: Any) -> TrialResult:
    row = TrialRow(
        trial_id="t", attempt=1, design_id="d", run_id="r", role="measured", levels={}, level=512, repeat=0, block=0,
        position=0, started_at="", settings={}, outcome="ok",
    )  # fmt: skip
    statistics = [
        StatisticRow(phase=phase, at_s=0.0, name=name, value=float(value))
        for phase, values in HEAP.items()
        for name, value in zip(NAMES, values, strict=True)
    ]
    statistics.append(StatisticRow(phase="after_request", at_s=0.0, name="cache_storage_bytes", value=float(CACHE)))
    return TrialResult(
        trial=row,
        marks=tuple(map(mark, HELD)),
        maps=tuple(
            mapping(phase, kind, size)
            for phase, stack in (("launched", 110_592), ("loaded", 110_592), ("after_request", 122_880))
            for kind, size in (("stack", stack), ("heap", 135_000_000))
        ),
        statistics=tuple(statistics),
        effective={"device": "cpu", "weights_bytes": WEIGHTS, **effective},
    )


def named(found: Attribution | None) -> dict[str, int]:
    assert found is not None
    return {term.slug: term.num_bytes for term in found.terms if term.backing == "anonymous"}


def test_what_a_load_added_has_a_name() -> None:
    found = attribute(trial(), None, "loaded")
    # In use: (154,138,480 + 14,475,264) - (135,101,840 + 6,078,464) = 27,433,440, of which the weights are 27,280,384.
    assert named(found) == {
        "weights": WEIGHTS,
        "heap": 27_433_440 - WEIGHTS,
        "heap_kept": 235_664 - 537_200,
        "python_arenas": 1_048_576,
        "stacks": 0,
        "library_data": 0,
    }
    assert found is not None
    # 28,078,080 grew; the named are 27,433,440 - 301,536 + 1,048,576.
    assert found.unexplained_anon_bytes == 28_078_080 - 28_180_480
    assert abs(found.unexplained_anon_bytes) < 0.05 * found.anon_growth_bytes


def test_the_cache_is_part_of_the_heap_that_is_in_use() -> None:
    found = attribute(trial(), None, "after_request")
    terms = named(found)
    assert terms["kv_cache"] == CACHE
    assert sum(terms[slug] for slug in ("weights", "kv_cache", "heap")) == 177_047_456 - 141_180_304
    assert found is not None
    assert abs(found.unexplained_anon_bytes) < 0.05 * found.anon_growth_bytes


def test_mapped_weights_are_pages_of_their_file_and_not_of_the_heap() -> None:
    result = trial()
    file = mapping("loaded", "file", 0, "/m/model.safetensors", WEIGHTS + 4096)
    terms = named(attribute(replace(result, maps=(*result.maps, file)), None, "loaded"))
    assert "weights" not in terms
    assert terms["heap"] == 27_433_440


def test_a_model_on_a_device_is_no_part_of_the_hosts_heap() -> None:
    assert "heap_kept" not in named(attribute(trial(device="cuda:0"), None, "loaded"))


@pytest.mark.parametrize("phase", ["launched", "loaded"])
def test_counters_that_are_not_stated_at_both_moments_name_nothing(phase: str) -> None:
    result = trial()
    less = replace(result, statistics=tuple(row for row in result.statistics if row.phase != phase))
    assert "heap_kept" not in named(attribute(less, None, "loaded"))


def test_an_arena_of_python_counts_as_far_as_it_is_in_memory() -> None:
    """A Llama of two layers in bfloat16 (279,168 B of weights), 2026-11-30: memory grew by 835,584 bytes, while Python
    mapped one more arena of 1 MiB, of which a part was touched. Unnamed private mappings grew from 3,891,200 to
    4,591,616 bytes, the heap by 135,168."""
    heap = {
        "launched": (135_111_888, 6_078_464, 441_136, 136_314_880),
        "loaded": (135_507_184, 6_078_464, 193_296, 137_363_456),
    }
    held = {"launched": 285_773_824, "loaded": 286_609_408}
    unnamed = {"launched": 3_891_200, "loaded": 4_591_616}
    rows = trial(weights_bytes=279_168)
    found = attribute(
        replace(
            rows,
            marks=tuple(replace(mark(phase), anon_bytes=size) for phase, size in held.items()),
            maps=tuple(mapping(phase, "anonymous", size) for phase, size in unnamed.items()),
            statistics=tuple(
                StatisticRow(phase=phase, at_s=0.0, name=name, value=float(value))
                for phase, values in heap.items()
                for name, value in zip(NAMES, values, strict=True)
            ),
        ),
        None,
        "loaded",
    )
    assert found is not None
    # 279,168 weights + 116,128 in use - 247,840 no longer free + 700,416 of Python's arenas = 847,872.
    assert named(found)["python_arenas"] == 4_591_616 - 3_891_200
    assert found.unexplained_anon_bytes == 835_584 - 847_872
