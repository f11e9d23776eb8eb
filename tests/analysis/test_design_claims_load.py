"""What the design of several requests at once says of rows made by hand, whose numbers are known by derivation."""

from dataclasses import replace
from typing import Any

import pytest
from study_rows import attempt, design_row, mark, prediction, request_row, token_rows, trial_row

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims import claims_of
from kvscope.analysis.finding import Finding
from kvscope.record.rows import DesignRow, RequestRow, TokenRow
from kvscope.report.claims import claim_text, size_text

# SmolLM2: 30 layers × 3 KV heads × 64 wide × keys and values × 2 B (f16) = 23,040 B a cell.
CELLS, SLOTS = 3072, 4
SLOT_BYTES = 23_040 * CELLS // SLOTS  # 17,694,720 B = 16.875 MiB
MIB = 1024 * 1024


def a_design(levels: tuple[Any, ...] = (1, 4), **changes: Any) -> DesignRow:
    own = {"factor": "concurrency", "levels": levels, "baseline_level": levels[0], **changes}
    return replace(design_row("context_limit"), name="concurrency", **own)


def a_load(
    design: DesignRow,
    level: Any,
    repeat: int,
    *,
    ttft_s: float,
    step_s: float,
    after_kib: int,
    cached: tuple[int, ...] = (),
    shared: int | None = None,
) -> Attempt:
    """``level`` streams of two requests each, of three tokens, all alike: every request takes ttft + 2 steps."""
    requests: list[RequestRow] = []
    tokens: list[TokenRow] = []
    times = [ttft_s, ttft_s + step_s, ttft_s + 2 * step_s]
    for index in range(2 * level):
        row = request_row(
            index,
            output=3,
            sent_at_s=(index // level) * times[-1],
            completed_s=times[-1],
            stream=index % level,
            cached_tokens=cached[index] if cached else 0,
        )
        requests.append(row)
        tokens += token_rows(index, times)
    return attempt(
        trial_row(design, level, repeat, client={"concurrency": level, "shared_prefix_tokens": shared}),
        requests=tuple(requests),
        tokens=tuple(tokens),
        marks=(mark("loaded", 60_000), mark("before_request", 90_000), mark("after_request", after_kib)),
        design=design,
        predicted=prediction(CELLS),
        effective={"slots": [CELLS // SLOTS] * SLOTS, "n_ctx": CELLS},
    )


def said(design: DesignRow, attempts: list[Attempt], slug: str) -> Finding:
    (found,) = [f for f in claims_of(design, attempts) if f.slug == slug]
    return found


def slugs(design: DesignRow, attempts: list[Attempt]) -> list[str]:
    return [f.slug for f in claims_of(design, attempts)]


def study(design: DesignRow, after: dict[int, list[int]], **more: Any) -> list[Attempt]:
    times = {1: (1.0, 0.5), 4: (3.0, 1.0), 8: (9.0, 1.0)}
    return [
        a_load(design, level, repeat, ttft_s=times[level][0], step_s=times[level][1], after_kib=kib, **more)
        for level, all_kib in after.items()
        for repeat, kib in enumerate(all_kib)
    ]


FLAT = {1: [90_000, 90_010, 90_004, 90_002], 4: [90_008, 90_012, 90_012, 90_004]}


def test_one_users_result_is_held_against_a_services() -> None:
    design = a_design()
    claims = claims_of(design, study(design, FLAT))
    lead, each, together = claims[:3]
    assert claim_text(lead).startswith("One user's result is not a service's capacity")
    assert lead.values["share_bytes"] == pytest.approx(90_009 * 1024 / 4)
    assert lead.size is not None
    assert lead.size.has_interval
    # A token each 0.5 s, and each 1 s: one second of a token less.
    assert (each.slug, each.values["metric"]) == ("rate_less", "decode_tokens_per_s")
    assert each.values["baseline_per_s"] == pytest.approx(2.0)
    assert each.values["difference_per_s"] == pytest.approx(-1.0)
    # One: two requests of three tokens, 2 s each: 6 ÷ 4 s. Four at once: eight of 5 s each, four at a time: 24 ÷ 10 s.
    assert (together.slug, together.values["metric"]) == ("rate_more", "output_tokens_per_s_all")
    assert together.values["baseline_per_s"] == pytest.approx(1.5)
    assert together.values["difference_per_s"] == pytest.approx(0.9)
    assert "output of all together with concurrency = 4: +0.9 tokens/s against 1 (+60.0 % of its 1.5)" in claim_text(
        together
    ).replace("\u00a0", " ")
    assert "+0.9 to +0.9 tokens/s, 4 pairs" in str(size_text(together)).replace("\u00a0", " ")
    waits = [f.values["metric"] for f in claims if f.slug == "time_more"]
    assert waits == ["ttft_s", "ttft_max_s"]


def open_load(design: DesignRow, rate: float, repeat: int, *, served_s: float, num: int = 16) -> Attempt:
    """``num`` requests, one each 1 ÷ rate seconds, answered one after the other in ``served_s`` each."""
    requests, tokens, free_s = [], [], 0.0
    for index in range(num):
        due_s = index / rate
        begun_s = max(due_s, free_s)
        free_s = begun_s + served_s
        completed_s = free_s - due_s
        row = request_row(index, output=2, sent_at_s=100 + due_s, completed_s=completed_s, stream=0, due_s=due_s)
        requests.append(row)
        tokens += token_rows(index, [completed_s - served_s / 2, completed_s])
    trial = trial_row(design, rate, repeat)
    return attempt(trial, requests=tuple(requests), tokens=tuple(tokens), design=design)


def test_a_rate_faster_than_the_engine_is_called_that() -> None:
    # 0.4 s a request: at 1 a second it keeps up, at 2.4 it just does, at 20 it answers 2.5 a second whatever arrives.
    design = a_design((1.0, 2.4, 20.0), factor="rate_per_s")
    rows = [open_load(design, rate, n, served_s=0.4) for rate in design.levels for n in range(2)]
    behind = said(design, rows, "load_not_kept_up")
    assert behind.values["level"] == 20.0
    assert behind.values["asked_per_s"] == pytest.approx(20.0)
    # Sixteen answers after 6.4 s; the last request was due after 0.75 s.
    assert behind.values["answered_per_s"] == pytest.approx(2.5)
    assert behind.values["behind_s"] == pytest.approx(6.4 - 0.75)
    assert (behind.values["trials"], behind.values["behind"]) == (2, 2)
    text = claim_text(behind).replace("\u00a0", " ")
    assert "20.0 requests a second arrived and 2.5 were answered" in text
    # Eight are enough, as in the shortest load that kvscope sends by itself.
    few = [open_load(design, rate, n, served_s=0.4, num=8) for rate in design.levels for n in range(2)]
    assert said(design, few, "load_not_kept_up").values["level"] == 20.0


def test_a_long_answer_that_all_get_at_once_is_no_overload() -> None:
    # Each takes 3 s whatever else is under way: more and more are until the first ends, and then no more.
    design = a_design((1.0, 4.0), factor="rate_per_s")
    rows = []
    for rate in design.levels:
        requests = tuple(
            request_row(n, output=2, sent_at_s=n / rate, completed_s=3.0, stream=0, due_s=n / rate) for n in range(32)
        )
        tokens = tuple(token for n in range(32) for token in token_rows(n, [1.0, 3.0]))
        rows.append(attempt(trial_row(design, rate, 0), requests=requests, tokens=tokens, design=design))
    assert "load_not_kept_up" not in slugs(design, rows)


def test_caches_of_their_own_are_of_the_requests_more_whether_a_pool_was_predicted_or_what_they_need() -> None:
    design = a_design()
    needed = [
        replace(each, prediction={**(each.prediction or {}), "totals": {"kv_cache_bytes": 1000 * each.trial.level}})
        for each in study(design, FLAT)
    ]
    found = next(f for f in claims_of(design, needed) if f.slug.startswith("load_memory"))
    assert found.values["own_bytes"] == 3 * 1000


def test_memory_that_stays_is_called_flat_and_held_against_caches_of_their_own() -> None:
    design = a_design()
    found = said(design, study(design, FLAT), "load_memory_flat")
    # Differences in KiB: 8, 2, 8, 2.
    assert found.values["difference_bytes"] == pytest.approx(5 * 1024)
    assert found.values["own_bytes"] == 3 * SLOT_BYTES
    # Of four at once, all began with 90,000 KiB: 8, 12, 12 and 4 more.
    assert found.values["grown_bytes"] == 9 * 1024
    assert (found.values["slots"], found.values["pool_tokens"]) == (SLOTS, CELLS)
    assert "it stays as it is" in claim_text(found)
    assert "50.62 MiB" in claim_text(found).replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("changed", "slug"),
    [
        ([141_840, 141_850, 141_844, 141_842], "load_memory_grows"),  # by three slots' caches: 51,840 KiB
        ([70_000, 70_010, 70_004, 70_002], "load_memory_falls"),
        ([90_000, 99_000, 90_000, 99_000], "load_memory_unclear"),
    ],
)
def test_memory_that_does_not_stay(changed: list[int], slug: str) -> None:
    design = a_design()
    assert slug in slugs(design, study(design, {1: FLAT[1], 4: changed}))


def test_without_a_prediction_or_with_one_repeat_no_more_is_said_than_is_known() -> None:
    design = a_design()
    unpredicted = [replace(each, prediction=None) for each in study(design, FLAT)]
    assert not [slug for slug in slugs(design, unpredicted) if slug.startswith("load_memory")]
    assert [slug for slug in slugs(design, unpredicted) if slug.startswith("memory_")]
    once = study(design, {1: FLAT[1][:1], 4: FLAT[4][:1]})
    assert "memory_unknown" in slugs(design, once)


def test_the_wait_grows() -> None:
    design = a_design()
    found = next(
        f for f in claims_of(design, study(design, FLAT)) if f.slug == "time_more" and f.values["metric"] == "ttft_s"
    )
    assert found.values["difference_s"] == pytest.approx(2.0)


def test_levels_beyond_the_slots_are_said_to_have_waited() -> None:
    design = a_design((1, 4, 8))
    attempts = study(design, {**FLAT, 8: FLAT[4]})
    found = said(design, attempts, "load_over_slots")
    assert (found.values["slots"], found.values["levels"]) == (4, [8])
    assert "load_over_slots" not in slugs(a_design(), study(a_design(), FLAT))
    assert [f.slug for f in claims_of(design, attempts)[:2]] == ["load_share", "load_capacity"]  # the highest level


def test_what_of_a_shared_beginning_was_reused() -> None:
    design = a_design(held={"shared_prefix_tokens": 64})
    attempts = [
        a_load(design, 1, 0, ttft_s=1.0, step_s=0.5, after_kib=90_000, cached=(20, 64), shared=64),
        a_load(design, 4, 0, ttft_s=1.0, step_s=0.5, after_kib=90_000, cached=(20,) * 4 + (64,) * 4, shared=64),
    ]
    one, four = [f for f in claims_of(design, attempts) if f.slug == "load_shared"]
    assert (one.values["cached_tokens"], one.values["found"], one.values["requests"]) == (84, 1, 2)
    assert (four.values["cached_tokens"], four.values["found"], four.values["requests"]) == (336, 4, 8)
    assert "4 of 8 requests found the beginning" in claim_text(four).replace("\u00a0", " ")
    about = [replace(a, result=replace(a.result, trial=replace(a.trial, client={}))) for a in attempts]
    assert "load_shared_about" in slugs(design, about)


def test_at_rates_no_cache_of_its_own_is_spoken_of() -> None:
    design = a_design((1, 4), factor="rate_per_s")
    found = slugs(design, study(design, FLAT))
    assert "rate_more" in found
    assert not [slug for slug in found if slug.startswith(("load_memory", "load_capacity", "load_over"))]
