"""What designs of load-time settings say of rows made by hand, whose differences are known by derivation."""

from dataclasses import replace
from typing import Any

import pytest
from scipy.special import stdtrit
from study_rows import (
    answered,
    attempt,
    design_row,
    mapping,
    mark,
    memory,
    prediction,
    reported,
    request_row,
    trial_row,
)

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims import claims_of
from kvscope.analysis.finding import Finding
from kvscope.record.rows import AnswerRow, DesignRow, WarningRow
from kvscope.report.claims import claim_text
from kvscope.report.words import NO_BREAK

KIB = 1024
CELLS = 1024
# SmolLM2: 30 layers × 3 KV heads × 64 wide, keys and values. f16: 2 B an element. q8_0: 34 B for 32 elements.
F16_BYTES = 30 * 3 * 64 * 2 * 2 * CELLS
Q8_BYTES = 30 * 3 * (64 // 32 * 34) * 2 * CELLS


def a_design(name: str, levels: tuple[Any, ...], factor: str | None = None, **changes: Any) -> DesignRow:
    own = {"factor": factor or name, "levels": levels, "baseline_level": levels[0], **changes}
    return replace(design_row("context_limit"), name=name, **own)


def with_cache(num_bytes: int, *, printed: str | None = None, seen: int | None = None) -> dict[str, Any]:
    """Marks, mappings, log and prediction of a load whose KV cache has that size."""
    seen_kib = (num_bytes if seen is None else seen) // KIB
    marks = (mark("launched", 8_400), mark("loaded", 8_400 + 27_000 + seen_kib))
    maps = (
        mapping("launched", "heap", 8_400, 8_400),
        mapping("loaded", "heap", 8_400, 8_400),
        mapping("loaded", "arena", 64_000, 27_000),
        mapping("loaded", "anonymous", num_bytes // KIB, seen_kib),
    )
    said = prediction(CELLS)
    items = [item for item in said["items"] if item["component"] != "kv_cache"]
    items.append({"component": "kv_cache", "layer_index": 0, "device": "cpu", "needed_bytes": num_bytes,
                  "allocated_bytes": num_bytes, "because": "by hand"})  # fmt: skip
    buffers = [b for b in said["buffers"] if b["name"] != "kv_cache"]
    buffers.append({"name": "kv_cache", "kind": "full", "bytes": num_bytes, "device": "cpu", "backing": "anonymous"})
    line = reported("kv_cache", printed or f"{num_bytes / 2**20:.2f}", name="full")
    return {
        "marks": marks,
        "maps": maps,
        "reported": (line,),
        "predicted": {**said, "items": items, "buffers": buffers},
    }


def rows(design: DesignRow, per_level: dict[Any, dict[str, Any]], ttfts: dict[Any, list[float]]) -> list[Attempt]:
    """One attempt for each level and block; a block's TTFT by level."""
    return [
        attempt(trial_row(design, level, block), design=design, **{**answered(ttft_s=ttft), **per_level[level]})
        for level, each in ttfts.items()
        for block, ttft in enumerate(each)
    ]


def found(design: DesignRow, attempts: list[Attempt], slug: str) -> Finding:
    (one,) = [finding for finding in claims_of(design, attempts) if finding.slug == slug]
    return one


def slugs(design: DesignRow, attempts: list[Attempt]) -> list[str]:
    return [finding.slug for finding in claims_of(design, attempts)]


KV = a_design("kv_dtype", ("f16", "q8_0"))
TTFTS = {"f16": [0.5, 0.5, 0.5], "q8_0": [0.75, 0.76, 0.74]}


def kv_rows(**changes: Any) -> list[Attempt]:
    return rows(KV, {"f16": with_cache(F16_BYTES), "q8_0": with_cache(Q8_BYTES, **changes)}, TTFTS)


def test_bytes_saved_are_those_predicted_printed_and_seen() -> None:
    saved = found(KV, kv_rows(), "buffer_confirmed")
    # 1,024 cells × (23,040 − 12,240) B
    assert saved.values["difference_bytes"] == -11_059_200
    assert saved.values["reported_mib"] == "11.95"
    assert saved.size is not None
    # The same in three pairs, of sizes read in pages: t(2) = 4.303 × 1,672 B ÷ √3 = 4,154 B to either side.
    assert saved.size.value == -11_059_200
    assert (saved.size.low, saved.size.high) == pytest.approx((-11_063_354, -11_055_046), abs=1)
    assert len(saved.evidence) == 6
    assert saved.design_id == KV.design_id
    memory_less = found(KV, kv_rows(), "memory_less_predicted")
    assert memory_less.values["difference_bytes"] == memory_less.values["predicted_bytes"] == -11_059_200


def test_where_all_memory_changed_by_something_else_the_difference_from_the_prediction_is_told() -> None:
    # 4 MiB more went away than the buffer is smaller, in each of three pairs.
    beside = found(KV, kv_rows(seen=Q8_BYTES - 4 * 2**20), "memory_less_beside")
    assert beside.values["beyond_bytes"] == -4 * 2**20
    text = claim_text(beside).replace(NO_BREAK, " ")
    assert "By prediction its buffer differs by -10.55 MiB, which the interval excludes" in text
    assert "measured less predicted is -4.00 MiB" in text
    assert "of it" not in text


def memory_rows(after: list[int]) -> list[Attempt]:
    """The sizes after the load in KiB at q8_0, against 300,000 at f16, with nothing predicted."""
    sizes = {"f16": [300_000] * len(after), "q8_0": after}
    return [
        attempt(
            trial_row(UNPREDICTED, level, block),
            design=UNPREDICTED,
            marks=(mark("loaded", kib),),
            **answered(ttft_s=0.5),
        )
        for level, each in sizes.items()
        for block, kib in enumerate(each)
    ]


UNPREDICTED = a_design("offload", ("f16", "q8_0"))


@pytest.mark.parametrize(
    ("after", "slug"),
    [
        ([400_000, 400_010, 400_004], "memory_more"),
        ([300_000, 300_004, 299_996], "memory_equal"),
        ([300_100, 299_900, 300_050], "memory_no_difference_seen"),
        # A process of 300 MiB that may have become 160 MiB larger or smaller: nothing is known of it.
        ([290_000, 360_000, 270_000], "memory_cannot_tell"),
        ([290_000], "memory_unknown"),
    ],
)
def test_what_memory_cannot_tell_is_not_called_noise(after: list[int], slug: str) -> None:
    told = found(UNPREDICTED, memory_rows(after), slug)
    text = claim_text(told).replace(NO_BREAK, " ")
    assert "no more than noise" not in text
    if slug == "memory_cannot_tell":
        # 5 % of 300,000 KiB is 14.65 MiB.
        assert "of 14.65 MiB, if it is there" in text
        assert isinstance(told.values["needed"], int)


def test_a_log_that_says_otherwise_is_a_contradiction() -> None:
    finding = found(KV, kv_rows(printed="22.50"), "buffer_contradicted")
    assert finding.is_contradiction
    assert finding.values["reported_mib"] == "22.50"


def test_a_cache_that_is_not_in_memory_is_one_too() -> None:
    finding = found(KV, kv_rows(seen=Q8_BYTES - 4 * 2**20), "buffer_not_in_memory")
    assert finding.is_contradiction
    assert finding.values["seen_difference_bytes"] == -11_059_200 - 4 * 2**20


def test_a_longer_wait_is_told_with_its_interval() -> None:
    slower = found(KV, kv_rows(), "time_more")
    assert slower.values["metric"] == "ttft_s"
    assert slower.values["difference_s"] == pytest.approx(0.25)
    assert slower.values["share"] == pytest.approx(0.5, abs=1e-3)
    # Differences 0.25, 0.26, 0.24: deviation 0.01, t(2) = 4.303 at 95 %.
    assert slower.size is not None
    assert slower.size.low is not None
    assert slower.size.low == pytest.approx(0.25 - 4.303 * 0.01 / 3**0.5, abs=1e-5)
    assert "answers_not_judged" in slugs(KV, kv_rows())


def test_where_answers_were_asked_for_it_is_not_said_that_they_are_not_judged() -> None:
    row = AnswerRow(
        index=0, task="keys", item="d/0", document="d", language="en", reading="right", score=1.0, chance=0.1
    )
    asked = [replace(each, result=replace(each.result, answers=(row,))) for each in kv_rows()]
    assert "answers_not_judged" not in slugs(KV, asked)


def test_noise_is_not_called_an_effect_and_the_repeats_needed_are_named() -> None:
    noisy = {"f16": [1.0, 1.0, 1.0], "q8_0": [1.2, 0.8, 1.1]}
    attempts = rows(KV, {"f16": with_cache(F16_BYTES), "q8_0": with_cache(Q8_BYTES)}, noisy)
    finding = next(f for f in claims_of(KV, attempts) if f.slug == "time_cannot_tell")
    # Deviation of 0.2, −0.2, 0.1: 0.20817, their mean 0.033. To call a difference of 5 % of 1 s one, with an interval
    # that misses in 3.5 % of studies: t · 0.20817 ÷ √n ≤ 0.05.
    first = next(n for n in range(2, 200) if stdtrit(n - 1, 0.9825) * 0.20817 / n**0.5 <= 0.05)
    assert finding.values["target_s"] == pytest.approx(0.05)
    assert finding.values["needed"] == first


def test_one_pair_tells_nothing() -> None:
    one = {"f16": [0.5], "q8_0": [0.9]}
    attempts = rows(KV, {"f16": with_cache(F16_BYTES), "q8_0": with_cache(Q8_BYTES)}, one)
    assert "time_unknown" in slugs(KV, attempts)
    assert "time_more" not in slugs(KV, attempts)


def test_a_level_that_was_never_measured_is_not_spoken_of() -> None:
    attempts = rows(KV, {"f16": with_cache(F16_BYTES)}, {"f16": [0.5, 0.5]})
    assert slugs(KV, attempts) == ["answers_not_judged"]


OFFLOAD = a_design("offload", ("none", "all"))


def placed(weights: str, cache: str) -> dict[str, Any]:
    return {
        **memory(),
        "reported": (reported("weights", "92.10", name=weights), reported("compute_buffer", "16.64", name="CPU")),
        "effective": {"kv_cache_devices": cache},
        "warnings": (WarningRow(slug="setting-not-confirmed", message="n_gpu_layers", hint=""),),
    }


def test_where_nothing_was_moved_no_time_is_laid_to_it() -> None:
    ttfts = {"none": [0.5, 0.5], "all": [0.9, 0.9]}
    attempts = rows(OFFLOAD, {"none": placed("CPU_Mapped", "CPU"), "all": placed("CPU_Mapped", "CPU")}, ttfts)
    assert slugs(OFFLOAD, attempts) == ["offload_nothing_moved"]
    finding = found(OFFLOAD, attempts, "offload_nothing_moved")
    assert finding.values["places"] == ("weights: CPU_Mapped", "compute_buffer: CPU", "kv_cache: CPU")
    assert (finding.values["unconfirmed"], finding.values["measured"]) == (2, 2)


@pytest.mark.parametrize("places", [("CUDA0", "CPU"), ("CPU_Mapped", "CUDA0"), ("CUDA_Host", "ROCm0")])
def test_what_the_engine_put_on_a_device_is_told_and_compared(places: tuple[str, str]) -> None:
    ttfts = {"none": [0.5, 0.5], "all": [0.1, 0.1]}
    attempts = rows(OFFLOAD, {"none": placed("CPU_Mapped", "CPU"), "all": placed(*places)}, ttfts)
    assert slugs(OFFLOAD, attempts)[0] == "offload_moved"
    assert "time_less" in slugs(OFFLOAD, attempts)


WINDOW = a_design("window", (False, True), "swa_full")


def conversation(cached: int, prompt: int = 2000, checkpoints: int = 0) -> dict[str, Any]:
    kept = tuple(
        reported("checkpoint", "3.00", phase="after_request", name="context checkpoint, slot 0", request_index=1)
        for _ in range(checkpoints)
    )
    return {**memory(), "requests": (request_row(prompt=prompt, cached_tokens=cached),), "reported": kept}


def test_what_the_next_turn_reused_either_way() -> None:
    ttfts = {False: [0.5] * 3, True: [0.5] * 3}
    attempts = rows(WINDOW, {False: conversation(1200, checkpoints=2), True: conversation(1990)}, ttfts)
    reuse = found(WINDOW, attempts, "reuse_differs")
    assert (reuse.values["cached_tokens"], reuse.values["baseline_cached_tokens"]) == (1990, 1200)
    assert reuse.size is not None
    assert reuse.size.value == 790
    held = found(WINDOW, attempts, "window_checkpoints")
    # Printed to two decimals: at least 2.995 MiB each.
    assert held.values["held_bytes"] == 2 * int(2.995 * 2**20)
    assert (held.values["level"], held.values["count"]) == (False, 2)
    alike = rows(WINDOW, {False: conversation(1990), True: conversation(1990)}, ttfts)
    assert "reuse_equal" in slugs(WINDOW, alike)


MICROBATCH = a_design("microbatch", (512, 128, 1024), "n_ubatch")


def test_a_level_that_the_engine_did_not_take_is_named_first() -> None:
    per_level = {level: {**memory(), "effective": {"n_ubatch": min(level, 512)}} for level in MICROBATCH.levels}
    attempts = rows(MICROBATCH, per_level, {512: [0.5], 128: [0.6], 1024: [0.5]})
    first = claims_of(MICROBATCH, attempts)[0]
    assert (first.slug, first.values["level"], first.values["used"]) == ("level_not_taken", 1024, 512)
    # Prompts of 100 tokens fill none of them.
    assert slugs(MICROBATCH, attempts).count("microbatch_not_filled") == 3
