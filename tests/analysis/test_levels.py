"""The baseline, one changed condition, repeats and failures."""

from typing import Any

import pytest
from study_rows import answered, attempt, design_row, trial_row

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.levels import level_rows


def at(level: int, repeat: int, ttft_s: float, **changes: Any) -> Attempt:
    design = design_row()
    return attempt(trial_row(design, level, repeat, **changes), design=design, **answered(ttft_s=ttft_s))


def test_the_baseline_comes_first_and_has_no_difference() -> None:
    design = design_row(levels=(2048, 512), baseline_level=512)
    rows = level_rows(design, [at(512, 0, 0.5), at(2048, 0, 0.7)])
    assert [r.level for r in rows] == [512, 2048]
    assert rows[0].is_baseline
    assert rows[0].differences == {}


def test_differences_are_paired_by_block() -> None:
    # Block 1 is a slow quarter of an hour: both levels take a second longer. The change is 0.25 s in every block.
    found = [at(512, b, 0.5 + slow) for b, slow in enumerate((0, 1, 0))]
    found += [at(2048, b, 0.75 + slow) for b, slow in enumerate((0, 1, 0))]
    difference = level_rows(design_row(), found)[1].differences["ttft_s"]
    assert (difference.value, difference.low, difference.high) == pytest.approx((0.25, 0.25, 0.25), abs=2e-6)


def test_a_block_without_its_baseline_gives_no_pair() -> None:
    found = [at(512, 0, 0.5), at(2048, 0, 0.75), at(2048, 1, 9.0)]
    row = level_rows(design_row(), found)[1]
    assert row.differences["ttft_s"].num == 1
    assert row.differences["ttft_s"].value == 0.25
    assert row.num_measured == 2


def test_failures_and_warmups_stay_out_of_the_mean() -> None:
    found = [
        at(512, 0, 0.5),
        at(512, 1, 99.0, outcome="timed_out"),
        at(512, 2, 77.0, role="warmup"),
        at(512, 3, 0.75, outcome="stopped_early"),
    ]
    row = level_rows(design_row(), found)[0]
    assert row.means["ttft_s"].value == 0.625
    assert (row.num_measured, row.num_failed) == (2, 1)


def test_levels_of_a_grid() -> None:
    low, high = {"n_ctx": 512, "n_batch": 64}, {"n_ctx": 2048, "n_batch": 64}
    design = design_row(levels=(low, high), baseline_level=low, is_grid=True, factor="n_ctx × n_batch")
    # A grid's levels are mappings, whose keys may come back from the record in another order.
    same = {"n_batch": 64, "n_ctx": 2048}
    found = [attempt(trial_row(design, same, trial_id="x"), design=design, **answered(ttft_s=0.5))]
    assert level_rows(design, found)[1].num_measured == 1
