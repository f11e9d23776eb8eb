"""What designs say of copies of prompts, of lengths and of a grid, from rows made by hand with known laws."""

from dataclasses import replace
from typing import Any

import pytest
from study_rows import answered, attempt, design_row, mark, memory, reported, request_row, trial_row

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims import claims_of
from kvscope.analysis.finding import Finding
from kvscope.record.rows import DesignRow
from kvscope.report.claims import claim_text
from kvscope.report.words import NO_BREAK

MIB = 2**20


def a_design(name: str, levels: tuple[Any, ...], factor: str, **changes: Any) -> DesignRow:
    own = {"factor": factor, "levels": levels, "baseline_level": levels[0], **changes}
    return replace(design_row("context_limit"), name=name, **own)


def found(design: DesignRow, attempts: list[Attempt], slug: str) -> Finding:
    (one,) = [finding for finding in claims_of(design, attempts) if finding.slug == slug]
    return one


HOST_CACHE = a_design("host_cache", (8192, 24, 0), "cache_ram_mib")
# 527 tokens × 23,040 B = 12,142,080 B. llama.cpp's log printed 11.586 MiB for such a copy on a real run: 12 B a token
# and some for each layer more.
COPY_LINE = "update:    - prompt 0x7f51: {tokens:7d} tokens, checkpoints: {checkpoints:2d}, {mib} MiB"
STEP_BYTES = 12_150_000


def cached(
    copies: int, *, mib: str = "11.586", limit: str = "8192.000", checkpoints: int = 0, step: int = STEP_BYTES
) -> dict[str, Any]:
    """Four conversations, each adding ``step`` bytes, after which the log lists ``copies`` copies."""
    lines = [COPY_LINE.format(tokens=527, checkpoints=checkpoints, mib=mib) for _ in range(copies)]
    total = f"{copies * float(mib):.3f}"
    line = "\n".join(
        [f"update: - cache state: {copies} prompts, {total} MiB (limits: {limit} MiB, 768 tokens)", *lines]
    )
    said = (reported("host_cache", total, phase="after_request", request_index=4, line=line),) if copies else ()
    marks = tuple(
        replace(mark("after_request", 0, request_index=n), anon_bytes=80 * MIB + n * step) for n in (1, 2, 3, 4)
    )
    return {"marks": marks, "requests": tuple(request_row(index=n) for n in (1, 2, 3, 4)), "reported": said}


def host_cache(level: int, *each: dict[str, Any]) -> list[Attempt]:
    return [attempt(trial_row(HOST_CACHE, level, n), design=HOST_CACHE, **rows) for n, rows in enumerate(each)]


def test_a_copy_is_the_bytes_of_its_tokens() -> None:
    finding = found(HOST_CACHE, host_cache(8192, cached(3), cached(3)), "host_cache_as_predicted")
    assert finding.values["kv_bytes"] == 527 * 23_040
    assert finding.values["tokens"] == 527
    # 11.586 MiB are 12,148,801 B: 6,721 B more, 12.75 a token, as far as three decimals tell.
    assert finding.values["beside_bytes"] == pytest.approx(6_721 / 527, abs=0.01)
    assert finding.values["growth_bytes"] == STEP_BYTES
    assert finding.size is not None
    assert finding.size.num == 2
    assert not finding.is_contradiction
    # Four conversations, the last of which is in the engine's own cache: three copies are theirs alone.
    assert "warm-up" not in claim_text(finding)


def test_a_copy_that_takes_more_than_its_tokens_is_a_contradiction() -> None:
    assert found(HOST_CACHE, host_cache(8192, cached(3, mib="12.000")), "host_cache_differs").is_contradiction
    # With checkpoints in it, it is larger for a reason.
    with_checkpoints = host_cache(8192, cached(3, mib="12.000", checkpoints=1))
    assert not found(HOST_CACHE, with_checkpoints, "host_cache_with_checkpoints").is_contradiction


def test_where_the_limit_stops_it() -> None:
    bounded = found(HOST_CACHE, host_cache(24, cached(2, limit="24.000", step=0)), "host_cache_bounded")
    assert bounded.values["limit_bytes"] == 24 * MIB
    assert bounded.values["held_bytes"] == round(2 * 11.586 * MIB)
    over = host_cache(24, cached(3, limit="24.000"))
    assert found(HOST_CACHE, over, "host_cache_over_limit").is_contradiction
    # One copy is kept however large it is.
    found(HOST_CACHE, host_cache(24, cached(1, limit="8.000", step=0)), "host_cache_bounded")


def test_without_a_cache_nothing_is_kept() -> None:
    attempts = host_cache(0, {**cached(0, step=0), "effective": {"cache_ram_mib": 0}})
    none = found(HOST_CACHE, attempts, "host_cache_none_kept")
    assert none.values["growth_bytes"] == 0
    assert none.values["copies"] == 0


# Six conversations of 512 prompt and 16 output tokens in llama.cpp (xllamacpp 2026.10.11549, SmolLM2), 2026-11-30:
# the log's last list of copies, and RssAnon + VmSwap after each.
SEEN_COPIES = """srv        update:  - cache state: 6 prompts, 58.702 MiB (limits: 8192.000 MiB, 768 tokens, 372605 est)
srv        update:    - prompt 0x7f0c7071c800:      35 tokens, checkpoints:  0,     0.770 MiB
srv        update:    - prompt 0x7f0c704930b0:     527 tokens, checkpoints:  0,    11.586 MiB
srv        update:    - prompt 0x7f0c703edec0:     527 tokens, checkpoints:  0,    11.586 MiB
srv        update:    - prompt 0x7f0c713a9d30:     527 tokens, checkpoints:  0,    11.586 MiB
srv        update:    - prompt 0x7f0c70419fd0:     527 tokens, checkpoints:  0,    11.586 MiB
srv        update:    - prompt 0x7f0c700a0620:     527 tokens, checkpoints:  0,    11.586 MiB"""
SEEN_BYTES = (71_528_448, 83_681_280, 95_834_112, 107_986_944, 120_147_968, 132_300_800)


def test_what_a_real_run_left_is_as_predicted() -> None:
    marks = tuple(
        replace(mark("after_request", 0, request_index=n), anon_bytes=size)
        for n, size in enumerate(SEEN_BYTES, start=1)
    )
    rows = {
        "marks": marks,
        "requests": tuple(request_row(index=n) for n in range(1, 7)),
        "reported": (reported("host_cache", "58.702", phase="after_request", request_index=6, line=SEEN_COPIES),),
    }
    finding = found(HOST_CACHE, host_cache(8192, rows), "host_cache_as_predicted_with_warmup")
    assert finding.values["copies"] == 6
    assert "6 copies, the warm-up's among them" in claim_text(finding).replace(NO_BREAK, " ")
    # (132,300,800 − 83,681,280) ÷ 4 B; the tokens alone take 12,142,080.
    assert finding.values["growth_bytes"] == 12_154_880
    assert finding.size is not None
    assert finding.size.num == 4


INPUTS = a_design("input_length", (128, 512, 1024, 2048), "prompt_tokens")


def lengths(law: Any, blocks: int, levels: tuple[int, ...] = INPUTS.levels) -> list[Attempt]:
    return [
        attempt(trial_row(INPUTS, n, b), design=INPUTS, **{**memory(), **answered(n, ttft_s=law(n) * (1 + 0.01 * b))})
        for n in levels
        for b in range(blocks)
    ]


def test_the_law_of_ttft_is_recovered_with_both_parts() -> None:
    attempts = lengths(lambda n: 0.1 + 0.001 * n + 1e-6 * n * n, 3)
    linear, square = claims_of(INPUTS, attempts)
    assert (linear.slug, square.slug) == ("input_length_linear", "input_length_quadratic")
    # Blocks are slower by 0, 1 and 2 %: 1 % on average. Per 1,000 tokens 1 s, for (1,000 tokens)² 1 s.
    assert linear.values["linear_s"] == pytest.approx(1.01)
    assert linear.values["intercept_s"] == pytest.approx(0.101)
    assert square.values["quadratic_s"] == pytest.approx(1.01)
    assert square.values["part_s"] == pytest.approx(1.01 * 2048**2 * 1e-6)
    assert square.values["further_s"] == pytest.approx(1.01 * (0.1 + 4.096 + 4.096**2))
    assert square.size is not None
    assert square.size.contains(1.01)
    assert square.size.num == 3


def test_a_straight_law_has_no_square_that_is_seen() -> None:
    noise = {128: 1.01, 512: 0.99, 1024: 1.02, 2048: 0.98}
    attempts = [
        attempt(trial_row(INPUTS, n, b), design=INPUTS,
                **{**memory(), **answered(n, ttft_s=(0.1 + 0.001 * n) * (noise[n] if b % 2 else 2 - noise[n]))})
        for n in INPUTS.levels for b in range(4)
    ]  # fmt: skip
    square = found(INPUTS, attempts, "input_length_quadratic_not_seen")
    most = square.values["most_s"]
    assert isinstance(most, float)
    assert most > 0


def test_where_the_parts_cannot_be_told_that_it_grows_still_is() -> None:
    # Three noisy blocks, as on a busy machine: the whole grows in each of them, its bend goes up and down.
    seen = {
        0: {128: 0.4, 512: 4.7, 1024: 10.4, 2048: 20.3},
        1: {128: 0.7, 512: 3.2, 1024: 6.7, 2048: 16.8},
        2: {128: 2.1, 512: 7.2, 1024: 12.8, 2048: 23.7},
    }
    attempts = [
        attempt(trial_row(INPUTS, n, b), design=INPUTS, **{**memory(), **answered(n, ttft_s=ttft)})
        for b, each in seen.items()
        for n, ttft in each.items()
    ]
    told = claims_of(INPUTS, attempts)
    assert "input_length_linear_unclear" in [finding.slug for finding in told]
    longest = next(finding for finding in told if finding.values.get("level") == 2048)
    assert longest.slug == "time_more"
    # 19.9, 16.1 and 21.6 s.
    assert longest.values["difference_s"] == pytest.approx(19.2)


def test_one_block_tells_no_bend_and_two_lengths_no_law() -> None:
    found(INPUTS, lengths(lambda n: 0.1 + 0.001 * n, 1), "input_length_quadratic_unknown")
    two = claims_of(INPUTS, lengths(lambda n: 0.001 * n, 3, (128, 512)))
    assert [finding.slug for finding in two] == ["time_more"]


OUTPUTS = a_design("output_length", (16, 64), "output_tokens")


def outputs(*tokens: int, limit: int | None = None) -> list[Attempt]:
    found = []
    for n in tokens:
        for block in range(3):
            rows = answered(output=n, tpot_s=0.02)
            if limit is not None and n == max(tokens):
                rows["requests"] = (replace(rows["requests"][0], output_tokens_limit=limit),)
            found.append(attempt(trial_row(OUTPUTS, n, block), design=OUTPUTS, **rows))
    return found


def test_what_a_token_takes_is_told_by_the_interval_of_every_difference() -> None:
    # 14 and 16 ms a token: mean 15, standard error 1, so t = 15. t(1) is 12.7 at 95 % and 18.2 at 96.5 %.
    rows = [
        attempt(trial_row(OUTPUTS, n, block), design=OUTPUTS, **answered(ttft_s=0.5, tpot_s=tpot_s, output=n))
        for n in OUTPUTS.levels
        for block, tpot_s in enumerate((0.014, 0.016))
    ]
    finding = found(OUTPUTS, rows, "output_length_per_token_unclear")
    assert finding.size is not None
    assert finding.size.low is not None
    assert finding.size.low > 0


def test_each_further_output_token_takes_its_time() -> None:
    finding = found(OUTPUTS, outputs(16, 64), "output_length_per_token")
    # 64 − 16 tokens, 20 ms each.
    assert finding.values["per_token_s"] == pytest.approx(0.02)
    assert "time_equal" in [f.slug for f in claims_of(OUTPUTS, outputs(16, 64))]


def test_an_answer_that_ended_early_is_held_against_what_came() -> None:
    finding = found(OUTPUTS, outputs(16, 64, limit=256), "output_length_short")
    assert (finding.values["limits"], finding.values["fewest"]) == ((256,), 64)


CELLS: tuple[dict[str, int], ...] = tuple({"a": a, "b": b} for a in (1, 2) for b in (1, 2))


def test_of_one_repeat_no_law_is_claimed() -> None:
    told = [finding.slug for finding in claims_of(INPUTS, lengths(lambda n: 0.1 + 0.001 * n, 1))]
    assert told == ["time_unknown"] * 3 + ["input_length_quadratic_unknown"]


def test_a_part_that_may_be_more_than_there_is_is_not_called_unseen() -> None:
    # The longest takes 2.1 s, give or take 30 %.
    attempts = [
        attempt(trial_row(INPUTS, n, b), design=INPUTS, **{**memory(), **answered(n, ttft_s=(0.1 + 0.001 * n) * noise)})
        for b, noises in enumerate(((1, 1, 1, 1.3), (1, 1.2, 1, 0.7), (1, 1, 1.2, 1)))
        for n, noise in zip(INPUTS.levels, noises, strict=True)
    ]
    told = found(INPUTS, attempts, "input_length_quadratic_cannot_tell")
    assert isinstance(told.values["most_s"], float)
    assert isinstance(told.values["total_s"], float)
    assert told.values["most_s"] > told.values["total_s"] / 2


@pytest.mark.parametrize(
    ("starts", "slug", "says"),
    [
        ((0.10, 0.10, 0.10), "input_length_linear", "100 ms to begin with (100 ms to 100 ms, 95 %)"),
        # −250, −106 and 38 ms: mean −106, deviation 144, t(2) = 4.303: ± 358 ms.
        ((-0.25, -0.106, 0.038), "input_length_linear_start_unclear", "(-106 ms, -464 ms to 252 ms, 95 %)"),
        (
            (-0.2, -0.21, -0.19),
            "input_length_linear_from_below",
            "begin below zero (-200 ms, -225 ms to -175 ms, 95 %)",
        ),
    ],
)
def test_where_the_law_begins_has_its_interval_too(starts: tuple[float, ...], slug: str, says: str) -> None:
    attempts = [
        attempt(
            trial_row(INPUTS, n, b),
            design=INPUTS,
            **{**memory(), **answered(n, ttft_s=start + 0.01 * n + 1e-6 * n * n)},
        )
        for n in INPUTS.levels
        for b, start in enumerate(starts)
    ]
    assert says in claim_text(found(INPUTS, attempts, slug)).replace(NO_BREAK, " ")


def test_what_a_longer_prompt_would_wait_has_its_interval() -> None:
    square = found(INPUTS, lengths(lambda n: 0.1 + 0.001 * n + 1e-6 * n * n, 3), "input_length_quadratic")
    # Blocks are slower by 0, 1 and 2 %: at 4,096 tokens 20.97 s times 1.01 ± 4.303 × 0.01 ÷ √3.
    law = 0.1 + 4.096 + 4.096**2
    assert square.values["further_low_s"] == pytest.approx(law * (1.01 - 0.024843), rel=1e-4)
    assert square.values["further_high_s"] == pytest.approx(law * (1.01 + 0.024843), rel=1e-4)
    assert square.values["part_low_s"] == pytest.approx(4.194304 * (1.01 - 0.024843), rel=1e-4)


def reused(levels: tuple[str, ...], cached: tuple[int, int] = (103, 103)) -> tuple[DesignRow, list[Attempt]]:
    """Two repeats of 128 tokens: 1.30 s where nothing is reused, 1.20 and 1.26 s sooner where some of it is."""
    design = a_design("prefix_reuse", levels, "prefix")
    times = {"cold": (1.30, 1.30)}
    rows = []
    for level in levels:
        for block, ttft_s in enumerate(times.get(level, (0.10, 0.04))):
            seen = answered(128, ttft_s=ttft_s)
            count = 0 if level == "cold" else cached[block]
            requests = tuple(replace(row, cached_tokens=count, prompt_tokens_server=128) for row in seen["requests"])
            rows.append(attempt(trial_row(design, level, block), design=design, **{**seen, "requests": requests}))
    return design, rows


def test_what_a_token_saves_is_said_where_the_wait_is_told_and_nowhere_else() -> None:
    # 1.20 and 1.26 s: deviation 0.0424, so ± 0.38 s at 95 %. For one level t(1) at 3.5 % is 18.2: ± 0.55 s, told. For
    # five t(1) at 0.7 % is 90.9: ± 2.73 s, not told.
    one, rows = reused(("cold", "warm"))
    assert {"time_less", "prefix_saved"} <= {finding.slug for finding in claims_of(one, rows)}
    several, rows = reused(("cold", "warm", "changed_start", "changed_middle", "changed_end", "after_2s"))
    slugs = [finding.slug for finding in claims_of(several, rows)]
    assert slugs.count("time_cannot_tell") == 5
    assert "prefix_saved" not in slugs


def test_counts_that_differ_between_repeats_are_told_as_such() -> None:
    design, rows = reused(("cold", "changed_middle"), cached=(75, 72))
    text = claim_text(found(design, rows, "prefix_changed_middle")).replace(NO_BREAK, " ")
    assert "53 to 56 of 128 prompt tokens were computed again" in text


GRID = a_design("grid", CELLS, "a × b", is_grid=True)


def grid(both: float, blocks: int = 3) -> list[Attempt]:
    """TTFT by cell: 1 s; a alone +0.5, b alone +0.25; a and b together ``both``. Blocks differ by 0.1 s as a whole."""
    times = {(1, 1): 1.0, (2, 1): 1.5, (1, 2): 1.25, (2, 2): both}
    found = []
    for cell in CELLS:
        for block in range(blocks):
            ttft = times[cell["a"], cell["b"]] + 0.1 * block + 0.001 * block * cell["a"]
            trial = trial_row(GRID, cell, block, trial_id=f"{cell}{block}")
            found.append(attempt(trial, design=GRID, **{**memory(), **answered(ttft_s=ttft)}))
    return found


def test_a_grid_lays_no_difference_of_two_changes_to_one_of_them() -> None:
    claims = claims_of(GRID, grid(2.5))
    assert claims[0].slug == "grid_label"
    cells = {str(f.values["level"]): f for f in claims if f.values.get("metric") == "ttft_s" and f.slug == "time_more"}
    assert len(cells) == 3
    labelled = [key for key, f in cells.items() if "both_factors_changed" in f.also_possible]
    assert labelled == [str({"a": 2, "b": 2})]


def test_the_interaction_is_what_both_do_beyond_the_sum_of_each() -> None:
    claims = claims_of(GRID, grid(2.5))
    seen = next(f for f in claims if f.slug == "interaction_time_seen" and f.values["metric"] == "ttft_s")
    # 2.5 − 1.5 − 1.25 + 1.0
    assert seen.values["beyond_s"] == pytest.approx(0.75)
    added_up = claims_of(GRID, grid(1.75))
    alone = [f.slug for f in added_up if f.values.get("metric") == "ttft_s" and f.slug.startswith("interaction")]
    assert alone == ["interaction_time_not_seen"]
    once = [f.slug for f in claims_of(GRID, grid(2.5, blocks=1)) if f.slug.startswith("interaction_time")]
    assert once[0] == "interaction_time_unknown"


def test_a_grid_of_any_design_speaks_as_a_grid() -> None:
    assert claims_of(replace(GRID, name="input_length"), grid(2.5))[0].slug == "grid_label"
