"""What the designs of context limits and of turns say of rows made by hand, whose numbers are known by derivation."""

from dataclasses import replace
from typing import Any

import pytest
from study_rows import KV_BYTES_PER_CELL, answered, attempt, design_row, memory, prediction, request_row, trial_row

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.design_claims import claims_of
from kvscope.analysis.finding import Finding
from kvscope.record.rows import DesignRow
from kvscope.report.claims import claim_text, size_text
from kvscope.report.words import NO_BREAK

CONTEXT = design_row("context_limit", levels=(512, 2048, 8192))
TURNS = design_row("turns", levels=(1, 2, 4))


def found(design: DesignRow, attempts: list[Attempt], slug: str) -> Finding:
    (one,) = [finding for finding in claims_of(design, attempts) if finding.slug == slug]
    return one


def plain(text: str | None) -> str:
    return str(text).replace(NO_BREAK, " ")


def loads() -> list[Attempt]:
    """Three loads at each limit, whose cache takes its 23,040 B a token."""
    return [
        attempt(
            trial_row(CONTEXT, n_ctx, block, settings={"n_ctx": n_ctx}),
            design=CONTEXT,
            predicted=prediction(n_ctx),
            effective={"n_ctx": n_ctx},
            **{**memory(n_ctx), **answered()},
        )
        for n_ctx in CONTEXT.levels
        for block in range(3)
    ]


def test_the_price_of_a_token_of_context_is_said_with_its_interval() -> None:
    said = [f for f in claims_of(CONTEXT, loads()) if f.slug.startswith("slope_")]
    assert len(said) == 1
    assert said[0].values["predicted_bytes"] == pytest.approx(KV_BYTES_PER_CELL)
    assert said[0].size is not None
    assert said[0].size.has_interval
    assert "One token of context costs 23,040 bytes by prediction" in plain(claim_text(said[0]))
    assert "95 % interval" in plain(size_text(said[0]))


def conversations(cached: dict[int, tuple[int, ...]]) -> list[Attempt]:
    """The last turn of 1, 2 and 4: 200, 300 and 500 prompt tokens; 0.5, 0.6 and 0.8 s, and 10 ms more each block."""
    prompts, waits = {1: 200, 2: 300, 4: 500}, {1: 0.5, 2: 0.6, 4: 0.8}
    rows = []
    for turns, each in cached.items():
        for block, count in enumerate(each):
            seen: dict[str, Any] = answered(prompts[turns], ttft_s=waits[turns] + 0.01 * block)
            last = request_row(
                seen["requests"][-1].index, prompt=prompts[turns], cached_tokens=count,
                prompt_tokens_server=prompts[turns],
            )  # fmt: skip
            seen["requests"] = (*seen["requests"][:-1], replace(last, role="measured"))
            rows.append(attempt(trial_row(TURNS, turns, block), design=TURNS, **seen))
    return rows


def test_each_number_of_turns_has_its_wait_with_an_interval_and_what_was_computed() -> None:
    rows = conversations({1: (0, 0, 0), 2: (190, 190, 190), 4: (380, 379, 380)})
    said = [f for f in claims_of(TURNS, rows) if f.slug == "turns_last"]
    assert [f.values["turns"] for f in said] == [1, 2, 4]
    # 0.80, 0.81 and 0.82 s: mean 0.81, t(2) = 4.303 × 0.01 ÷ √3.
    assert said[-1].values["ttft_s"] == pytest.approx(0.81)
    assert said[-1].size is not None
    assert said[-1].size.low == pytest.approx(0.81 - 0.024843, abs=1e-5)
    assert "of its 500 prompt tokens 120 to 121 were computed anew" in plain(claim_text(said[-1]))
    assert "of its 300 prompt tokens 110 were computed anew" in plain(claim_text(said[1]))
    # Against one turn, paired by block: 0.1 and 0.3 s.
    longer = [f.values["difference_s"] for f in claims_of(TURNS, rows) if f.slug == "time_more"]
    assert longer == pytest.approx([0.1, 0.3])


def test_what_a_server_does_not_state_is_not_made_up() -> None:
    rows = conversations({1: (0, 0)})
    silent = [
        replace(a, result=replace(a.result, requests=tuple(replace(r, cached_tokens=None) for r in a.result.requests)))
        for a in rows
    ]
    assert "does not state what of it was reused" in plain(claim_text(found(TURNS, silent, "turns_last_unstated")))
