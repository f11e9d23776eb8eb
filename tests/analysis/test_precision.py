"""Repeating until the interval is narrow enough: when it ends, and that ending by what was seen spoils nothing."""

from collections.abc import Sequence
from functools import partial

import pytest
from simulated_studies import SimulatedStudy, a_design
from study_rows import answered, attempt, design_row, trial_row

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.effects import FIXED, STOPPED
from kvscope.analysis.levels import level_rows
from kvscope.analysis.precision import Precision, precision, stated_precision
from kvscope.experiment.design import Until
from kvscope.record.rows import DesignRow
from kvscope.scenario import SettingValue

STUDIES = 1000
LAW: dict[str, SettingValue] = {"ttft_s": 0.1, "ttft_s_per_token": 0.0005}
NULL: dict[str, SettingValue] = {"ttft_s": 0.1, "ttft_s_per_token": 0.0}
UNTIL = Until(share=0.06, metric="ttft_s", most_repeats=30)
NORMAL: dict[str, SettingValue] = {"noise_share": 0.045}
SKEWED: dict[str, SettingValue] = {"noise_share": 0.06, "noise_is_skewed": 1}


def is_enough(design: DesignRow, attempts: Sequence[Attempt]) -> bool:
    found = stated_precision(design, attempts)
    return found is not None and found.is_enough


def studies(law: dict[str, SettingValue], noise: dict[str, SettingValue]) -> list[SimulatedStudy]:
    found = []
    for number in range(STUDIES):
        study = SimulatedStudy(a_design((20, 100), until=UNTIL, **law, **noise, noise_seed=number), f"until-{number}")
        study.run(is_enough)
        found.append(study)
    return found


@pytest.mark.parametrize("noise", [NORMAL, SKEWED], ids=["normal", "skewed"])
def test_ending_early_spoils_no_interval(noise: dict[str, SettingValue]) -> None:
    found = studies(LAW, noise)
    effects = [level_rows(study.row, study.attempts, ("ttft_s",))[1].effects["ttft_s"] for study in found]
    # 0.04 s from 20 to 100 tokens. As in test_effects_coverage, chance alone leaves 930 … 970 in 0.4 % of cases.
    assert 930 <= sum(one.difference.contains(0.04) for one in effects) <= 970
    blocks = [one.num_pairs for one in effects]
    assert min(blocks) in (7, 9)  # some end early,
    assert len(set(blocks)) > 8  # others much later
    ended = [one for one in effects if one.num_pairs < UNTIL.most_repeats]
    assert len(ended) > 800
    assert all(one.half_width is not None and one.baseline is not None for one in ended)
    assert all((one.half_width or 0) <= UNTIL.share * (one.baseline or 0) for one in ended)


def test_nor_does_it_call_a_difference_where_there_is_none() -> None:
    found = studies(NULL, NORMAL)
    effects = [level_rows(study.row, study.attempts, ("ttft_s",))[1].effects["ttft_s"] for study in found]
    assert sum(one.is_seen for one in effects) <= 50


def test_with_the_usual_interval_it_would() -> None:
    # The same studies, ended at the first narrow look and read with the usual quantile: why the rule is what it is.
    missed = 0
    for number in range(500):
        until = Until(share=0.06, metric="ttft_s", most_repeats=30)
        study = SimulatedStudy(a_design((20, 100), repeats=3, until=until, **LAW, **NORMAL, noise_seed=number), "x")
        plain = row_without_until(study.row)
        study.run(partial(at_first_look, plain))
        one = level_rows(plain, study.attempts, ("ttft_s",))[1].effects["ttft_s"]
        missed += not one.difference.contains(0.04)
    assert missed > 35


def row_without_until(row: DesignRow) -> DesignRow:
    return design_row("input_length", design_id=row.design_id, levels=row.levels, baseline_level=row.baseline_level)


def at_first_look(design: DesignRow, _: DesignRow, attempts: Sequence[Attempt]) -> bool:
    one = level_rows(design, attempts, ("ttft_s",))[1].effects["ttft_s"]
    return one.half_width is not None and one.half_width <= 0.06 * (one.baseline or 0)


def seen(differences_ms: Sequence[float], *, levels: tuple[int, ...] = (512, 2048), **changes: object) -> Precision:
    """A baseline of 100 ms, and one level that differs by so much in each block."""
    design = design_row("context_limit", levels=levels, **changes)
    found = []
    for block, difference in enumerate(differences_ms):
        found.append(attempt(trial_row(design, 512, block), design=design, **answered(ttft_s=0.1)))
        found.append(attempt(trial_row(design, 2048, block), design=design, **answered(ttft_s=0.1 + difference / 1000)))
    return precision(design, found, metric="ttft_s", share=0.05, most_blocks=50)


def test_the_width_worked_out_by_hand() -> None:
    # Differences 10, 12, 14, 16, 18 ms: standard deviation √10 = 3.1623; t(4) = 2.7764; half width
    # 2.7764 × 3.1623 / √5 = 3.9264 ms, 3.93 % of 100 ms.
    found = seen([10, 12, 14, 16, 18])
    assert found.share == pytest.approx(0.039264, abs=1e-6)
    assert (found.num_blocks, found.most_blocks, found.widest_level) == (5, 50, 2048)


def test_it_has_to_be_narrow_three_times_in_a_row() -> None:
    # The looks are at 3, 5 and 7 blocks. Of 10, 12, 14 ms the half width is 4.3027 × 2 / √3 = 4.97 ms: narrow.
    assert seen([10, 12, 14, 12, 12, 12, 12]).is_enough
    # Of 8, 12, 16 it is 4.3027 × 4 / √3 = 9.94 ms: not, although all seven together are.
    found = seen([8, 12, 16, 12, 12, 12, 12])
    assert found.share is not None
    assert found.share < 0.03
    assert not found.is_enough


def test_how_many_repeats_would_do() -> None:
    # Differences 0, 30, 0, 30, 0 ms: standard deviation 16.432. 5 ms on either side need n with
    # t(n − 1) × 16.432 / √n ≤ 5: for 43 t is 2.0181 and the width 5.057; for 44, 2.0167 and 4.996.
    found = seen([0, 30, 0, 30, 0])
    assert (found.is_enough, found.needed_blocks) == (False, 44)


def test_too_few_blocks_or_nothing_measured_is_never_enough() -> None:
    assert not seen([10] * 6).is_enough  # two blocks, two looks ago
    assert seen([10] * 7).is_enough
    nothing = seen([])
    assert (nothing.is_enough, nothing.share, nothing.num_blocks) == (False, None, 0)


def test_a_level_that_is_never_measured_is_not_waited_for() -> None:
    assert seen([10] * 7, levels=(512, 2048, 4096)).is_enough


def test_a_design_says_what_it_was_told() -> None:
    told = {"until": {"share": 0.02, "metric": "tpot_s", "most_repeats": 30}}
    design = design_row("context_limit", definition=told)
    found = stated_precision(design, [])
    assert found is not None
    assert (found.asked_share, found.metric, found.most_blocks, found.is_enough) == (0.02, "tpot_s", 30, False)
    assert stated_precision(design_row("context_limit"), []) is None


def test_intervals_of_a_design_that_could_end_early_are_wider() -> None:
    # The quantile of 96 % instead of 95 %: t(2) is 4.8487 instead of 4.3027.
    widths = []
    for told in ({}, {"until": {"share": 0.02, "metric": "ttft_s", "most_repeats": 30}}):
        design = design_row("context_limit", definition=told)
        rows = [(512, block, 0.1) for block in range(3)] + [(2048, block, 0.11 + 0.001 * block) for block in range(3)]
        found = [attempt(trial_row(design, x, b), design=design, **answered(ttft_s=t)) for x, b, t in rows]
        widths.append(level_rows(design, found, ("ttft_s",))[1].effects["ttft_s"].half_width)
    assert widths == [
        pytest.approx(4.3027 * 0.001 / 3**0.5, rel=1e-4),
        pytest.approx(4.8487 * 0.001 / 3**0.5, rel=1e-4),
    ]
    assert (FIXED.interval, STOPPED.interval) == (0.05, 0.04)
