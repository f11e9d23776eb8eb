"""What people reported of memory that did not come back, as curves made from their numbers, each with its verdict.

Each case names its thread. The numbers of the growth are the thread's; where it gives only a beginning and an end, the
rounds between are equal steps.
"""

from dataclasses import replace

import pytest
from release_rows import GIB, LAUNCHED, MIB, held_mark, judged, line, release_attempt
from study_rows import reported

from kvscope.analysis.findings import release_finding
from kvscope.analysis.prompt_copies import copies_after_clearing
from kvscope.analysis.release import judge_release
from kvscope.analysis.release_claim import claim_slug
from kvscope.analysis.release_curve import trend_of
from kvscope.report.claims import claim_text

KIB = 1024
GB = 10**9
MB = 10**6
# 36 layers × 8 KV heads × (128 + 128) × 2 B.
BYTES_PER_TOKEN_36_LAYERS = 36 * 8 * 256 * 2


def test_a_leak_of_so_much_a_token_is_the_host_prompt_cache() -> None:
    # ggml-org/llama.cpp#25740: 17,068 KiB more with each request of 118 tokens; cache_ram at its 8,192 MiB.
    found = judged(
        line(2 * GIB, 17_068 * KIB, 6),
        prompt_tokens=118,
        bytes_per_token=BYTES_PER_TOKEN_36_LAYERS,
        settings={"cache_ram_mib": 8192},
    )
    assert (found.verdict, found.cause, claim_slug(found)) == (
        "retained_bounded", "prompt_copies", "release_prompt_copies")  # fmt: skip
    assert found.per_token is not None
    assert found.per_token.growth.value == pytest.approx(144.64 * KIB, abs=0.01 * KIB)
    assert found.per_token.predicted_bytes == 144 * KIB
    (bound,) = found.bounds
    assert bound.limit_bytes == 8 * GIB
    assert bound.to_go_bytes == 8 * GIB - 5 * 17_068 * KIB
    text = claim_text(release_finding(found)).replace("\u00a0", " ")
    assert "144.6 KiB a token against 144.0 KiB of cache: copies of prompts" in text


def test_copies_on_a_server_that_does_not_state_its_context_are_told_by_the_models_own_bytes() -> None:
    # Measured on a llama.cpp server of two slots: +1.48 MiB a conversation, which are 67 tokens of 23,040 bytes.
    one = release_attempt(line(100 * MIB, 67 * 23_040, 6), prompt_tokens=67, limit_mib=None)
    trial = replace(one.trial, client={"cache_bytes_per_token": 23_040})
    found = judge_release(replace(one, prediction=None, result=replace(one.result, trial=trial)))
    assert found is not None
    assert (found.cause, claim_slug(found)) == ("prompt_copies", "release_growing_copies")
    assert found.per_token is not None
    assert found.per_token.predicted_bytes == 23_040


def test_the_same_growth_with_no_limit_known_is_growing() -> None:
    found = judged(line(2 * GIB, 17_068 * KIB, 6), prompt_tokens=118, bytes_per_token=BYTES_PER_TOKEN_36_LAYERS)
    assert (found.verdict, claim_slug(found)) == ("growing", "release_growing_copies")


def test_8_gib_of_host_memory_behind_a_model_on_the_gpu_is_a_full_cache() -> None:
    # ollama/ollama#18264: after a day 27 prompts, 7,377.676 MiB of 8,192; the GPU's memory did not move.
    stated = round(7377.676 * MIB)
    levels = [round(8.3 * GB)] * 6
    found = judged(levels, copies=[stated] * 6, device_levels=[20 * GIB] * 6, devices={"launched": 0})
    assert (found.verdict, claim_slug(found), found.judged_place) == (
        "retained_bounded", "release_host_cache_full_running", "host")  # fmt: skip
    (bound,) = found.bounds
    assert bound.limit_bytes == 8 * GIB
    assert bound.held_bytes == pytest.approx(stated, abs=KIB)
    assert found.device is not None


def test_growth_that_was_swapped_out_is_growth() -> None:
    # ollama/ollama#18106: 0.3 GiB fresh; later 70 MiB resident, 9.35 GiB with what is on the swap device.
    end, resident = round(9.35 * GIB), 70 * MIB
    levels = line(round(0.3 * GIB), round((9.35 - 0.3) * GIB / 5), 6)
    swapped = [max(0, held - resident) for held in levels]
    found = judged(levels, swapped=swapped)
    assert found.verdict == "growing"
    assert found.last_bytes == pytest.approx(end, abs=5)
    assert found.grown_bytes == pytest.approx(9.05 * GIB, rel=1e-6)
    # Given back as the process sees it (it is swapped out, and so not resident), it is still held.
    stays = judged([end] * 6, swapped=[end - resident] * 6, unloaded=end)
    assert stays.verdict == "retained_bounded"


def test_one_copy_larger_than_the_limit_is_no_bound() -> None:
    # ikawrakow/ik_llama.cpp#2320: limit 8,192 MiB, one entry of 222 GB: it keeps one, however large.
    copies = [2 * GB, 50 * GB, 90 * GB, 130 * GB, 180 * GB, 222 * GB]
    found = judged([8 * GB + copy for copy in copies], copies=copies)
    assert (found.verdict, found.cause, claim_slug(found)) == ("growing", "host_cache", "release_growing_over_limit")
    assert found.bounds[0].limit_bytes == 8 * GIB
    # Over its limit and standing still it does not grow, and the sentence says that the limit does not hold.
    still = judged([230 * GB] * 6, copies=[222 * GB] * 6)
    assert (still.verdict, claim_slug(still)) == ("retained_bounded", "release_host_cache_over")
    assert "One copy is kept however large it is" in claim_text(release_finding(still))


def test_host_memory_that_rises_while_the_gpu_stands_still() -> None:
    # lmstudio-ai/lmstudio-bug-tracker#1764: 604, 2,629, 5,304 MB at 10, 70, 130 s; device memory moved 74 and 23 MB.
    found = judged(
        [604 * MB, 2629 * MB, 5304 * MB],
        device_levels=[9000 * MB, 9074 * MB, 9097 * MB],
        devices={"launched": 0},
    )
    assert (found.verdict, found.judged_place) == ("growing", "host")
    # Without the first minute: 5304 − 2629.
    assert found.step.value == 2675 * MB
    assert found.device is not None
    assert found.device.grown_bytes == 97 * MB


def test_a_cache_without_a_limit_grows_by_a_session_each_time() -> None:
    # TheTom/llama-cpp-turboquant#350: 16 full layers × 4 × (256 + 256) × 2 B × 220,000 tokens; cache_ram -1.
    entry = 16 * 4 * 512 * 2 * 220_000
    assert entry == 14_417_920_000
    levels = line(40 * GIB, entry, 4)
    found = judged(levels, copies=line(0, entry, 4), limit_mib=None, settings={"cache_ram_mib": -1})
    assert (found.verdict, found.cause, claim_slug(found)) == ("growing", "host_cache", "release_growing_no_limit")
    assert found.step.value == entry


def test_without_a_limit_in_bytes_one_in_tokens_counts() -> None:
    # As xllamacpp 2026.10.11549 logs it with cache_ram -1 and n_ctx 512: 23,040 B × 512 tokens is the most.
    lines = [
        reported(
            "host_cache", "6.662", "after_request", request_index=number,
            line="srv update:  - cache state: 1 prompts, 6.662 MiB (limits: 0.000 MiB, 512 tokens, 512 est)\n"
            "srv update:    - prompt 0x7fd6043edf10:     303 tokens, checkpoints:  0,     6.662 MiB",
        )
        for number in range(1, 7)
    ]  # fmt: skip
    one = release_attempt([GIB] * 6, settings={"cache_ram_mib": -1})
    object.__setattr__(one.result, "reported", tuple(lines))
    found = judge_release(one)
    assert found is not None
    assert (found.verdict, claim_slug(found)) == ("retained_bounded", "release_host_cache_full_running")
    assert found.bounds[0].limit_bytes == pytest.approx(23_040 * 512, rel=1e-3)


def test_what_a_framework_keeps_of_the_gpu_is_a_floor() -> None:
    # huggingface/transformers#26571: 8.125 MB allocated and 20 MB reserved after everything was deleted. What was held
    # before is not said; a twentieth of it must be less than 20 MB for them to count.
    allocated, reserved = round(8.125 * MIB), 20 * MIB
    found = judged(
        [500 * MIB] * 6,
        unloaded=LAUNCHED,
        device_levels=[120 * MIB] * 6,
        devices={"launched": 0, "unloaded": reserved},
        statistics={"allocated_bytes": allocated, "reserved_bytes": reserved},
    )
    assert (found.verdict, found.judged_place) == ("retained_bounded", "device")
    assert {bound.holder: bound.held_bytes for bound in found.bounds} == {
        "framework_floor": allocated,
        "allocator": reserved - allocated,
    }


@pytest.mark.parametrize(
    ("keep_alive", "slug", "until_s"),
    [
        ("5m", "release_keep_alive", 300.0),
        (300, "release_keep_alive", 300.0),
        ("1h30m", "release_keep_alive", 5400.0),
        (-1, "release_keep_alive_for_ever", float("inf")),
        ("-1m", "release_keep_alive_for_ever", float("inf")),
    ],
)
def test_a_server_keeps_its_model_for_a_while(keep_alive: object, slug: str, until_s: float) -> None:
    # ollama/ollama#8660 and #4443: the GPU's memory stays full after the chat; keep_alive is 5 minutes by default.
    known = {"device_levels": [6 * GIB] * 4, "devices": {"launched": 0}}
    found = judged([400 * MIB] * 4, effective={"keep_alive": keep_alive}, **known)
    assert (found.verdict, claim_slug(found)) == ("retained_bounded", slug)
    assert found.bounds[0].until_s == until_s


def test_a_server_says_until_when_it_keeps_its_model() -> None:
    # Ollama's /api/ps states expires_at.
    until = "2026-11-30T12:05:00Z"
    found = judged([400 * MIB] * 4, effective={"keep_alive_until": until, "keep_alive": "5m"})
    assert (found.verdict, claim_slug(found)) == ("retained_bounded", "release_keep_alive_until")
    assert f"until {until} (keep_alive" in claim_text(release_finding(found))


def test_asked_to_give_its_model_up_it_is_released() -> None:
    # The same, with keep_alive 0 and a reading after it.
    found = judged(
        [400 * MIB] * 4,
        unloaded=LAUNCHED,
        device_levels=[6 * GIB] * 4,
        devices={"launched": 0, "unloaded": 0},
        effective={"keep_alive": "5m"},
    )
    assert (found.verdict, found.released_at) == ("released", "unload")


def test_a_prompt_cache_with_a_cap_in_bytes_and_without() -> None:
    # nirecom/cc-local-llm#80: weights of 67 GB; with a cap of 24 GB it ends at 91, without it grew to 116.
    capped = judged([*line(67 * GB, 6 * GB, 5), *[91 * GB] * 5])
    assert capped.verdict == "retained_bounded"
    assert capped.last_bytes == 91 * GB
    assert capped.bounds[0].held_bytes == 24 * GB
    uncapped = judged(line(67 * GB, 7 * GB, 8))
    assert uncapped.verdict == "growing"
    assert uncapped.last_bytes == 116 * GB


def test_after_a_crash_memory_is_back_already() -> None:
    # ollama/ollama#11997: the runner died of memory; five seconds were waited for memory that was free by then.
    died = release_attempt([9 * GIB], exited=0, outcome="out_of_memory")
    found = judge_release(died)
    assert found is not None
    assert (found.verdict, found.released_at) == ("released", "exit")
    # Of a failure whose process was not seen to end, nothing is said.
    assert judge_release(release_attempt([9 * GIB], outcome="out_of_memory")) is None
    assert judge_release(release_attempt([9 * GIB], exited=0, outcome="timed_out")) is None


# Six more that the reports do not have, so that each kind of verdict and reason is met.


def test_growth_with_the_same_text_again_is_no_copy_of_a_prompt() -> None:
    # Different texts add what copies would; the same text four times adds as much: that is no cache of prompts.
    step = 17_068 * KIB
    levels = line(GIB, step, 9)
    known = {"prompt_tokens": 118, "bytes_per_token": BYTES_PER_TOKEN_36_LAYERS, "settings": {"cache_ram_mib": 8192}}
    assert judged(levels, same=3, **known).verdict == "growing"
    copies = [*levels[:6], *[levels[5]] * 3]
    found = judged(copies, same=3, **known)
    assert found.verdict == "retained_bounded"
    assert found.same_text_step is not None
    assert found.same_text_step.value == 0


def test_growth_beyond_the_limit_is_not_bounded_by_it() -> None:
    found = judged(
        line(GIB, 17_068 * KIB, 6), prompt_tokens=118, bytes_per_token=BYTES_PER_TOKEN_36_LAYERS,
        settings={"cache_ram_mib": 64},
    )  # fmt: skip
    assert (found.verdict, claim_slug(found)) == ("growing", "release_growing_over_limit")


def test_growth_of_another_size_than_the_cache_is_something_else() -> None:
    found = judged(
        line(GIB, 3 * MIB, 6), prompt_tokens=118, bytes_per_token=BYTES_PER_TOKEN_36_LAYERS,
        settings={"cache_ram_mib": 8192},
    )  # fmt: skip
    assert (found.verdict, found.cause, claim_slug(found)) == ("growing", "unknown", "release_growing_per_token")


def test_memory_of_a_device_that_grows_counts_as_much_as_the_hosts() -> None:
    found = judged(
        [500 * MIB] * 6, unloaded=LAUNCHED, device_levels=line(3 * GIB, 64 * MIB, 6), devices={"launched": 0}
    )
    assert (found.verdict, found.judged_place, found.step.value) == ("growing", "device", 64 * MIB)


@pytest.mark.parametrize(
    ("levels", "known", "reason"),
    [
        ([GIB] * 6, {"active": 2, "unloaded": LAUNCHED}, "release_requests_active"),
        ([GIB, GIB], {"unloaded": 900 * MIB}, "release_too_few"),
        ([GIB], {"unloaded": 900 * MIB}, "release_one_conversation"),
        ([GIB, 2 * GIB, GIB, 2 * GIB, GIB], {"unloaded": LAUNCHED}, "release_noise"),
        ([GIB] * 6, {"launched": None, "unloaded": 300 * MIB}, "release_no_baseline"),
        ([GIB] * 6, {"exited": 512 * MIB}, "release_left_after_exit"),
        ([GIB] * 6, {}, "release_not_read"),
        ([], {}, "release_no_request"),
    ],
)
def test_what_cannot_be_told_says_why(levels: list[int], known: dict[str, object], reason: str) -> None:
    found = judged(levels, **known)
    assert found.verdict == "cannot_tell"
    assert found.reason is not None
    assert found.reason.slug == reason
    assert claim_text(release_finding(found)).endswith(".")


def test_without_a_probe_nothing_is_claimed() -> None:
    one = release_attempt([GIB] * 3)
    blind = release_attempt([GIB] * 3)
    object.__setattr__(blind.result, "marks", (held_mark("launched", 0),))
    assert judge_release(one) is not None
    found = judge_release(blind)
    assert found is not None
    assert found.reason is not None
    assert (found.verdict, found.reason.slug) == ("cannot_tell", "release_no_probe")


def test_copies_of_the_same_text_that_the_log_accounts_for_are_no_leak() -> None:
    # An engine that copies every conversation, also one that it has had: its log says so, and its limit holds.
    copies = line(0, 12 * MIB, 9)
    found = judged([GIB + size for size in copies], copies=copies, same=3, unloaded=512 * MIB)
    assert (found.verdict, found.cause) == ("retained_bounded", "host_cache")
    assert found.bounds[0].held_bytes == pytest.approx(copies[-1], abs=2 * KIB)
    unlogged = judged([GIB + size for size in copies], same=3, unloaded=512 * MIB, prompt_tokens=12,
                      bytes_per_token=MIB)  # fmt: skip
    assert (unlogged.verdict, claim_slug(unlogged)) == ("growing", "release_growing_copies")


def test_without_log_and_prediction_the_texts_tell() -> None:
    # A running llama.cpp server, measured: 64 prompt tokens and 3 of 4 output tokens, 1.48 MiB more with each different
    # text, nothing with the same (23,040 B × 67 tokens are 1.47 MiB).
    step = round(1.48 * MIB)
    levels = [*line(58 * MIB, step, 6), *[58 * MIB + 5 * step] * 3]
    found = judged(levels, same=3, launched=None)
    assert (found.verdict, found.cause, claim_slug(found)) == ("growing", "prompt_copies", "release_growing_texts")
    limited = judged(levels, same=3, launched=None, settings={"cache_ram_mib": 512})
    assert (limited.verdict, claim_slug(limited)) == ("retained_bounded", "release_host_cache")
    # With the model it is told by its size.
    sized = judged(levels, same=3, launched=None, prompt_tokens=64, output_tokens=4, bytes_per_token=23_040)
    assert claim_slug(sized) == "release_growing_copies"
    other = judged(levels, same=3, launched=None, prompt_tokens=64, output_tokens=4, bytes_per_token=5_000)
    assert (other.cause, claim_slug(other)) == ("unknown", "release_growing_per_token")


@pytest.mark.parametrize(("count", "least"), [(6, MIB / 3), (12, MIB / 6)])
def test_how_little_growth_is_seen(count: int, least: float) -> None:
    # The later half of five steps are three, of eleven six: what they rise by must be more than 1 MiB.
    assert trend_of([GIB + int(0.99 * least * n) for n in range(count)]).kind == "still"
    assert trend_of([GIB + int(1.01 * least * n) for n in range(count)]).kind != "still"
    assert trend_of([GIB + int(1.6 * least * n) for n in range(count)]).kind == "growing"


@pytest.mark.parametrize(
    "steps_mib",
    [
        [0, 0, 0.6, 20, 0],  # one step makes all of the rise; the other is noise
        [0, -400, 10, 10, 10],  # it comes back to where it has been before
        [100, 100, -50, 100],  # it falls in between, and four readings show no slope
    ],
)
def test_what_is_not_steady_is_no_growth(steps_mib: list[float]) -> None:
    levels = [GIB]
    for step in steps_mib:
        levels.append(levels[-1] + int(step * MIB))
    found = judged(levels, unloaded=LAUNCHED)
    assert found.reason is not None
    assert (found.verdict, found.reason.slug) == ("cannot_tell", "release_noise")


def test_a_process_that_is_gone_holds_nothing_on_a_device() -> None:
    found = judged([GIB] * 6, exited=0, device_levels=[3 * GIB] * 6, devices={"launched": 0})
    assert (found.verdict, found.released_at) == ("released", "exit")


@pytest.mark.parametrize(("kept_mib", "verdict"), [(64, "released"), (65, "retained_bounded")])
def test_however_much_was_added_64_mib_are_not_nothing(kept_mib: int, verdict: str) -> None:
    # A twentieth of 100 GiB would be 5 GiB.
    assert judged([LAUNCHED + 100 * GIB] * 6, unloaded=LAUNCHED + kept_mib * MIB).verdict == verdict


def test_a_limit_that_was_turned_off_is_none() -> None:
    known = {"prompt_tokens": 118, "bytes_per_token": BYTES_PER_TOKEN_36_LAYERS}
    found = judged(line(2 * GIB, 17_068 * KIB, 6), settings={"cache_ram_mib": -1}, **known)
    assert (found.verdict, claim_slug(found)) == ("growing", "release_growing_copies")
    assert found.bounds[0].limit_bytes is None


def test_copies_that_clearing_dropped_are_not_among_what_remains() -> None:
    stated = [
        reported("host_cache", mib, phase, request_index=index, line=f"cache state: {mib} MiB (limits: 8192.000 MiB)")
        for mib, phase, index in (("40.000", "after_request", 1), ("8.000", "cache_cleared", None))
    ]
    one = release_attempt([GIB])
    object.__setattr__(one.result, "reported", tuple(stated))
    (left,) = copies_after_clearing(one.result)
    # The least that prints as 8.000 MiB.
    assert 8 * MIB - KIB <= left.num_bytes <= 8 * MIB
    object.__setattr__(one.result, "reported", tuple(stated[:1]))
    assert copies_after_clearing(one.result) == []
