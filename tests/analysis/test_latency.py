"""Laws of time recovered from trials that obey them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from study_rows import answered, attempt, design_row, trial_row

from kvscope.analysis.latency import output_limits, tpot_law, ttft_law


def trial(prompt: int, repeat: int, ttft_s: float, tpot_s: float = 0.01, **changes: object):  # type: ignore[no-untyped-def]
    design = design_row("input_length")
    rows = answered(prompt, ttft_s=ttft_s, tpot_s=tpot_s)
    return attempt(trial_row(design, prompt, repeat, **changes), design=design, **rows)


@given(st.floats(0.01, 1), st.floats(1e-5, 1e-2))
def test_a_known_law_of_the_first_token_comes_back(start_s: float, per_token_s: float) -> None:
    law = ttft_law([trial(n, r, start_s + per_token_s * n) for n in (128, 512, 2048) for r in range(2)])
    assert law is not None
    assert law.line.slope.value == pytest.approx(per_token_s)
    assert [s.per_token_s for s in law.steps] == pytest.approx([per_token_s, per_token_s])
    assert [x for x, _ in law.levels] == [128, 512, 2048]


def test_a_law_that_bends_is_called_so_and_a_straight_one_is_not() -> None:
    for bend, bends in ((1e-6, True), (0.0, False)):
        trials = [
            trial(n, r, 0.1 + 0.001 * n + bend * n * n + 0.001 * (r - 1))
            for n in (128, 512, 1024, 2048)
            for r in range(3)
        ]
        law = ttft_law(trials)
        assert law is not None
        assert law.bends_up is bends


def test_later_tokens_are_counted_without_the_first() -> None:
    law = tpot_law([trial(n, 0, 5.0, 0.01 + n * 1e-5) for n in (128, 2048)])
    assert law is not None
    assert law.line.slope.value == pytest.approx(1e-5)


def test_failures_and_warmups_are_not_part_of_a_law() -> None:
    good = [trial(n, 0, 0.001 * n) for n in (100, 200)]
    bad = [trial(300, 0, 9.0, outcome="timed_out"), trial(300, 1, 9.0, role="warmup")]
    law = ttft_law([*good, *bad])
    assert law is not None
    assert [x for x, _ in law.points] == [100, 200]
    assert ttft_law(bad) is None


def test_the_limit_set_is_not_the_length_produced() -> None:
    design = design_row("output_length")
    early = answered(output=40)
    request = early["requests"][0]
    early["requests"] = (replace(request, output_tokens_limit=64),)
    found = output_limits(
        [
            attempt(trial_row(design, 64, 0, outcome="stopped_early"), design=design, **early),
            attempt(trial_row(design, 64, 1), design=design, **answered(output=64)),
            attempt(trial_row(design, 16, 0), design=design, **answered(output=16)),
        ]
    )
    assert [(x.limit_tokens, x.produced_tokens, x.is_reached) for x in found] == [
        (16, (16,), True),
        (64, (40, 64), False),
    ]
