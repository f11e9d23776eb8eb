"""Random studies with planted faults, a sample of the 500 of tools/find_planted_faults.py: what has to be told is told
by its name, and nothing is told that is not there. What a leak, a swap or a miscount is to look like is derived by
hand below."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from planted_faults import FAULTS, Fault, Scenario, draw_scenario, run_scenario
from planted_verdicts import MISSED, TOLD, judge, told

from kvscope.analysis.drift import trend_within
from kvscope.analysis.study import Study
from kvscope.report.text import study_lines
from kvscope.units import KIB, MIB

# Of the first 120 of the 500 those with the fewest trials: each kind of fault alone, two of two faults, two clean ones.
SAMPLE = (13, 17, 49, 57, 58, 96, 100, 110, 113, 53, 62, 55, 104)


def run(scenario: Scenario, folder: Path) -> Study:
    return run_scenario(scenario, folder).study


@pytest.mark.parametrize("number", SAMPLE)
def test_what_is_planted_is_named_and_nothing_else(number: int, tmp_path: Path) -> None:
    verdict = judge(run_scenario(draw_scenario(number), tmp_path))
    assert MISSED not in verdict.of_faults.values()
    assert verdict.copies != MISSED
    assert verdict.false == ()


def test_the_sample_holds_clean_studies_and_every_kind_of_fault() -> None:
    scenarios = [draw_scenario(number) for number in SAMPLE]
    assert sum(not scenario.faults for scenario in scenarios) == 2
    assert {fault.kind for scenario in scenarios for fault in scenario.faults} == set(FAULTS)


def quiet(number: int = 4, **law: float) -> Scenario:
    """A clean scenario without noise, and the law changed."""
    scenario = draw_scenario(number)
    silence = {"noise_share": 0.0, "noise_bytes": 0, "heap_noise_bytes": 0, "slow_share": 0.0}
    return replace(scenario, law={**scenario.law, **silence, **law}, faults=(), kv_factor=1.0, late_share=0.0)


def test_scenario_4_is_clean_and_keeps_no_copies(tmp_path: Path) -> None:
    scenario = quiet()
    assert draw_scenario(4).faults == ()
    assert told(run(scenario, tmp_path)) == set()


def test_a_leak_of_a_mebibyte_is_growing_by_a_mebibyte(tmp_path: Path) -> None:
    study = run(quiet(leak_bytes=MIB), tmp_path)
    (finding,) = [f for f in study.findings if f.slug.startswith("release_growing")]
    assert finding.size is not None
    assert finding.size.value == pytest.approx(MIB)
    assert "allocator_keeps" in finding.also_possible


def test_memory_is_trouble_while_it_grows_without_a_limit(tmp_path: Path) -> None:
    # 20 MiB with each conversation: what was free less what was taken at the peak, by 20 MiB each.
    study = run(quiet(leak_bytes=20 * MIB), tmp_path)
    growth = study.pressure.growth
    assert growth is not None
    assert study.pressure.slug == "growing"
    assert growth.step_bytes == pytest.approx(20 * MIB)
    assert growth.left_bytes is not None
    assert growth.conversations == growth.left_bytes // (20 * MIB)
    lines = study_lines(study)
    (first,) = [n for n, line in enumerate(lines) if "memory grows by 20.0" in line]
    assert first < next(n for n, line in enumerate(lines) if line.startswith("- "))
    assert "Nothing needs to be changed" not in " ".join(lines)
    assert not any(line.startswith("→ Nothing") for line in lines)


def test_a_leak_below_the_limit_is_not_called_and_its_size_is_said(tmp_path: Path) -> None:
    # A quarter of a MiB: below the half from one conversation to the next that a heap's own steps may be.
    study = run(quiet(leak_bytes=256 * KIB), tmp_path)
    assert "leak" not in told(study)
    (release,) = study.releases
    assert release.step.value == pytest.approx(256 * KIB)


def test_swapped_memory_is_told_with_its_size_and_contradicts_nothing(tmp_path: Path) -> None:
    study = run(quiet(swapped_bytes=2 * MIB, swaps_at_request=0), tmp_path)
    (check,) = [c for c in study.checks if c.slug == "swap"]
    assert (check.passed, check.values["most_bytes"]) == (False, 2 * MIB)
    assert not any(f.is_contradiction for f in study.findings)


@pytest.mark.parametrize(("size_mib", "at_request"), [(10, 0), (30, 0), (30, 2), (200, 0)])
def test_swapped_memory_has_a_name_however_much_it_is(size_mib: int, at_request: int, tmp_path: Path) -> None:
    # Up to the whole cache, two thirds of what the load adds.
    study = run(quiet(swapped_bytes=size_mib * MIB, swaps_at_request=at_request), tmp_path)
    assert not any(f.is_contradiction for f in study.findings)
    assert "kv_paid_at_load" not in {f.slug for f in study.findings}
    for row in study.identities:
        assert all(abs(moment.unexplained_bytes) < MIB / 100 for moment in row.moments)


def test_a_server_that_counts_three_tokens_more(tmp_path: Path) -> None:
    study = run(quiet(counts_more_tokens=3), tmp_path)
    (check,) = [c for c in study.checks if c.slug == "own_counts"]
    assert (check.passed, check.values["fewest"], check.values["most"]) == (False, 3, 3)
    assert [f.slug for f in study.findings if f.is_contradiction] == ["tokens_mismatch"]


def test_a_cache_of_another_size_contradicts_first(tmp_path: Path) -> None:
    scenario = replace(draw_scenario(4), kv_factor=1.25, faults=(Fault(kind="other_kv", size=0.25),))
    outcome = run_scenario(scenario, tmp_path)
    assert outcome.study.findings[0].is_contradiction
    assert judge(outcome).of_faults == {"other_kv": TOLD}


def test_a_line_through_noise_alone_is_as_steep_as_its_chance_says() -> None:
    # Of 2,000 studies of two levels and six repeats without a change, one in twenty has a chance below 5 %: binomial,
    # outside 60 … 140 with probability 5e-5.
    drawn = Random(8)
    low = 0
    for _ in range(2000):
        groups = [[(float(2 * n + level), drawn.gauss(10 * (level + 1), 1)) for n in range(6)] for level in range(2)]
        _, chance = trend_within(groups, of_each=False)
        assert chance is not None
        low += chance < 0.05
    assert 60 <= low <= 140


def test_memory_that_is_held_in_addition_is_as_many_bytes_at_every_level() -> None:
    # 10 bytes more with each trial, at a level of 100 and at one of 1,000: a line without a residue. From the first
    # trial to the sixth 50 bytes, of a mean of all six of 550 + 25.
    levels = {0: 100.0, 1: 1000.0}
    groups = [[(float(n), levels[level] + 10 * n) for n in range(level, 6, 2)] for level in levels]
    trend, chance = trend_within(groups, of_each=False)
    assert trend.value == pytest.approx(50 / 575)
    assert chance == pytest.approx(0, abs=1e-9)
