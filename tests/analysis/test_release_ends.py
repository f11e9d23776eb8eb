"""Curves that have ended, copies dearer than stated, and the slope of the part that grows: readings of real runs.

The readings are MiB of the process's own memory after each conversation, and what llama.cpp's log said of its host
prompt cache then, from `kvscope measure release` with llama.cpp b9860 on a CPU.
"""

import pytest
from release_rows import GIB, LAUNCHED, MIB, judged, line, release_attempt
from study_rows import reported

from kvscope.analysis.findings import release_finding
from kvscope.analysis.release import judge_release
from kvscope.analysis.release_claim import claim_slug
from kvscope.analysis.release_curve import trend_of
from kvscope.report.claims import claim_text
from kvscope.report.section_release import per_token_text


def mib(*values: float) -> list[int]:
    return [round(value * MIB) for value in values]


# Gemma 3 270M, two slots: --input-tokens 128 --output-tokens 4, n_ctx 2048, n_parallel 2; the last three conversations
# repeat a text. The second without context checkpoints.
TWO_SLOTS = mib(129.68, 136.32, 141.14, 145.96, 150.79, 155.61, 157.41, 157.41, 157.42)
TWO_SLOTS_COPIES = mib(0.816, 4.955, 9.094, 13.234, 17.373, 21.513, 21.513, 21.513, 21.513)
NO_CHECKPOINTS = mib(128.04, 131.05, 134.05, 137.06, 140.06, 143.06, 143.07, 143.07, 143.07)
NO_CHECKPOINTS_COPIES = mib(0.492, 2.799, 5.105, 7.411, 9.717, 12.023, 12.023, 12.023, 12.023)
GEMMA = {"same": 3, "prompt_tokens": 128, "output_tokens": 4, "bytes_per_token": 18_432, "exited": 0}


@pytest.mark.parametrize(
    ("levels", "copies", "step_mib", "share"),
    # (155.61 − 136.32) ÷ 4 = 4.82 against (21.513 − 4.955) ÷ 4 = 4.14; 3.0025 against 2.306.
    [(TWO_SLOTS, TWO_SLOTS_COPIES, 4.823, 0.165), (NO_CHECKPOINTS, NO_CHECKPOINTS_COPIES, 3.003, 0.302)],
)
def test_copies_dearer_than_the_log_counts_them_are_copies(
    levels: list[int], copies: list[int], step_mib: float, share: float
) -> None:
    found = judged(levels, copies=copies, unloaded=round(73.0 * MIB), **GEMMA)
    assert (found.verdict, found.cause, claim_slug(found)) == (
        "retained_bounded", "host_cache", "release_host_cache_dearer")  # fmt: skip
    assert found.step.value == pytest.approx(step_mib * MIB, rel=1e-3)
    assert found.copies_share == pytest.approx(share, abs=2e-3)
    assert found.bounds[0].limit_bytes == 8 * GIB
    assert "dearer than the engine's log counts it" in claim_text(release_finding(found)).replace("\u00a0", " ")


def test_small_copies_are_not_called_dearer_for_noise() -> None:
    # 0.2 MiB a copy and 0.3 MiB of memory: what is over stays within the noise of a process's heap.
    copies = [200 * 1024 * number for number in range(1, 10)]
    levels = [GIB + 3 * size // 2 for size in copies]
    found = judged(levels, copies=copies, unloaded=GIB, same=3)
    assert (found.verdict, found.copies_share) == ("retained_bounded", 0)


def test_more_than_half_as_much_again_is_not_called_a_copy() -> None:
    copies = line(0, 2 * MIB, 6)
    levels = [100 * MIB + 2 * size for size in copies]
    found = judged([*levels, *levels[-1:] * 3], copies=[*copies, *copies[-1:] * 3], same=3, unloaded=50 * MIB)
    assert (found.verdict, found.cause) == ("growing", "unknown")
    # Nor where the same text was not sent again.
    assert judged(NO_CHECKPOINTS[:6], copies=NO_CHECKPOINTS_COPIES[:6], unloaded=73 * MIB).verdict == "growing"


# SmolLM2 135M, cache_ram_mib 16: --requests 12 --input-tokens 96, n_ctx 512.
FULL = mib(50.27, 52.45, 54.64, 56.82, 59.0, 61.18, 63.37, 65.55, 65.56, 65.55, 65.55, 65.55, 65.56, 65.56, 65.57)
FULL_COPIES = mib(0, 2.176, 4.353, 6.53, 8.708, 10.885, 13.062, *[15.239] * 8)
# The same as a server that was running, asked with --url: its log is not read.
ATTACHED = mib(77.55, 79.74, 81.93, 84.11, 86.29, 88.46, 90.65, 92.83, *[92.82] * 7)
# The same with --levels -1 and n_ctx 1024: the limit is one in tokens.
NO_BYTES = mib(66.99, 72.95, 78.92, 84.89, 84.91, 83.96, 83.97, 83.97, 83.97)


def test_a_cache_that_is_full_has_nothing_to_go() -> None:
    found = judged(FULL, copies=FULL_COPIES, limit_mib=16, same=3, unloaded=round(45.64 * MIB), exited=0)
    assert (found.verdict, claim_slug(found)) == ("retained_bounded", "release_host_cache_full")
    assert found.step.value == pytest.approx(0, abs=0.01 * MIB)
    assert found.per_token is None
    # While it filled, 2.18 MiB a conversation.
    filling = judged(FULL[:8], copies=FULL_COPIES[:8], limit_mib=16, unloaded=round(45.64 * MIB), exited=0)
    assert (filling.verdict, claim_slug(filling)) == ("retained_bounded", "release_host_cache")
    assert filling.step.value == pytest.approx(2.183 * MIB, rel=1e-3)


def test_a_last_text_that_took_the_place_of_another_is_a_full_cache() -> None:
    # Copies of 527 tokens × 23,040 B = 11.58 MiB under a limit of 64 MiB: five fit, and what is left is less than one.
    copy = 527 * 23_040
    copies = [copy * min(number, 5) for number in range(1, 7)]
    levels = [100 * MIB + size for size in copies]
    known = {"copies": copies, "limit_mib": 64, "unloaded": 40 * MIB, "exited": 0}
    found = judged(levels, **known)
    assert (found.verdict, claim_slug(found)) == ("retained_bounded", "release_host_cache_full")
    assert found.step.value == 0
    # With room for another copy it is not full: it may have been another reason, and the limit is ahead.
    roomy = judged(levels, **{**known, "limit_mib": 128})
    assert (roomy.verdict, claim_slug(roomy)) == ("retained_bounded", "release_host_cache")
    assert judged(levels[:5], **{**known, "copies": copies[:5]}).step.value == copy


def test_a_running_server_that_has_stopped_growing_is_not_growing() -> None:
    found = judged(ATTACHED, launched=None, same=3, bytes_per_token=23_040, prompt_tokens=96, output_tokens=4)
    assert (found.verdict, claim_slug(found)) == ("retained_bounded", "release_plateau")
    text = claim_text(release_finding(found))
    assert "unknown" not in text
    assert "added nothing" in text


def test_three_flat_readings_of_six_end_a_curve() -> None:
    assert trend_of(NO_BYTES[:6]).kind == "still"
    # Stairs are as flat before: that is no end, nor can growth be claimed.
    assert trend_of([GIB, GIB, GIB, *mib(1044, 1044, 1044)]).kind == "unclear"
    # Three that lie together by chance, below what was held before, neither.
    assert trend_of(mib(100, 104, 109, 103, 103.5, 103.2)).kind == "unclear"


@pytest.mark.parametrize(("count", "flat"), [(12, 4), (12, 5), (100, 34), (100, 48), (1000, 498), (1000, 10)])
def test_a_rise_that_has_ended_is_not_growing(count: int, flat: int) -> None:
    levels = line(GIB, 3 * MIB, count - flat)
    assert trend_of([*levels, *levels[-1:] * flat]).kind == "still"


def test_an_approach_to_a_ceiling_is_not_growing() -> None:
    for count in (12, 20, 100):
        levels = [GIB + round(60 * MIB * (1 - 2.718 ** (-8 * number / count))) for number in range(count)]
        assert trend_of(levels).kind == "still"


def test_stairs_of_a_leak_are_growth_however_many() -> None:
    # Every fifth conversation leaves 10 MiB: the last readings are as flat as ever, and no flatter.
    levels = [GIB + 10 * MIB * (number // 5) for number in range(100)]
    assert trend_of(levels).kind == "growing"


@pytest.mark.parametrize(
    ("mib_over", "step_mib"),
    [
        ((0, 0, 0, 10, 20, 30), 10),
        ((0, 100, 110, 120), 10),
        ((0, 100, 110, 120, 130, 140, 150), 10),
        ((0, 10, 20, 30, 40, 50), 10),
    ],
)
def test_the_slope_is_that_of_the_part_that_grows(mib_over: tuple[int, ...], step_mib: int) -> None:
    found = judged([GIB + over * MIB for over in mib_over], unloaded=LAUNCHED, exited=0)
    assert (found.verdict, found.step.value) == ("growing", step_mib * MIB)


def test_growth_with_the_same_text_alone_states_that_slope() -> None:
    found = judged([*[GIB] * 6, *line(GIB + 10 * MIB, 10 * MIB, 3)], same=3, unloaded=LAUNCHED, exited=0)
    assert (found.verdict, claim_slug(found)) == ("growing", "release_growing_again")
    finding = release_finding(found)
    assert finding.size is not None
    assert finding.size.value == 10 * MIB
    assert "10.0\u00a0MiB more each time that the same text was sent again" in claim_text(finding)


def test_a_device_that_was_not_read_once_is_still_judged() -> None:
    # 100 MiB more with each request; the fourth reading failed.
    at = [GIB + 100 * MIB * number for number in range(6)]
    known = {"unloaded": LAUNCHED, "exited": 0, "devices": {"launched": 0, "unloaded": 0}}
    found = judged([GIB] * 6, device_levels=[*at[:3], None, *at[4:]], **known)
    assert (found.verdict, found.judged_place, found.step.value) == ("growing", "device", 100 * MIB)


def test_a_device_that_was_not_read_at_the_release_is_back_at_exit() -> None:
    found = judged([GIB] * 6, unloaded=LAUNCHED, exited=0, devices={"launched": 0}, device_levels=[5 * GIB] * 6)
    assert (found.verdict, found.released_at, found.judged_place) == ("released", "exit", "device")


def test_copies_that_carry_checkpoints_say_so() -> None:
    # Gemma 3, --input-tokens 256: each copy of 271 tokens has two checkpoints, 8.480 MiB in all.
    one = release_attempt(
        mib(115.04, 127.21, 135.68, 144.15, 152.62, 161.11), prompt_tokens=256, output_tokens=16,
        bytes_per_token=18_432, unloaded=round(77.49 * MIB), exited=0,
    )  # fmt: skip
    lines = [
        reported(
            "host_cache", f"{0.816 + 8.48 * number:.3f}", "after_request", request_index=number + 1,
            line=f" - cache state: {number + 1} prompts, {0.816 + 8.48 * number:.3f} MiB (limits: 8192.000 MiB, 0 t)\n"
            "   - prompt 0x7f51c9458000:     271 tokens, checkpoints:  2,     8.480 MiB",
        )
        for number in range(6)
    ]  # fmt: skip
    object.__setattr__(one.result, "reported", tuple(lines))
    found = judge_release(one)
    assert found is not None
    assert per_token_text(found).endswith("The copies carry context checkpoints too, beside the cache.")
