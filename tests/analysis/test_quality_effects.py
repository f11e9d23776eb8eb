"""Memory, time and quality side by side: who beats whom, worked out by hand, and who is not told."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from answer_rows import answers, turned
from study_rows import attempt, design_row, trial_row

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.effects import paired_effect
from kvscope.analysis.fit import Estimate
from kvscope.analysis.quality_effects import Relation, beats, of_effect, quality_effects, together
from kvscope.record.rows import AnswerRow, DesignRow
from kvscope.units import MIB


def effect(baseline: float, changed: Sequence[float]) -> Relation:
    return of_effect(paired_effect("memory_peak_bytes", [(baseline, value) for value in changed]))


def test_less_is_better_and_within_a_twentieth_is_no_worse() -> None:
    base = 1000.0 * MIB
    assert effect(base, [900.0 * MIB, 901.0 * MIB, 899.0 * MIB]) == "better"
    assert effect(base, [1100.0 * MIB, 1101.0 * MIB, 1099.0 * MIB]) == "worse"
    assert effect(base, [1000.5 * MIB, 999.5 * MIB, 1000.1 * MIB]) == "not_worse"
    assert effect(base, [1300.0 * MIB, 700.0 * MIB, 1000.0 * MIB]) == "unknown"
    assert effect(base, [900.0 * MIB]) == "unknown"


@pytest.mark.parametrize(
    ("memory", "time", "quality", "is_beating"),
    [
        ("better", "not_worse", "not_worse", True),
        ("better", "better", "better", True),
        ("not_worse", "not_worse", "not_worse", False),
        ("better", "not_worse", "unknown", False),
        ("better", "worse", "better", False),
    ],
)
def test_one_beats_another_only_where_all_three_are_known(
    memory: Relation, time: Relation, quality: Relation, is_beating: bool
) -> None:
    assert beats({"memory": memory, "time": time, "quality": quality}) is is_beating


def test_several_measures_of_quality_are_one() -> None:
    assert together(["unknown", "worse", "not_worse"]) == "worse"
    assert together(["better", "worse"]) == "unknown"
    assert together(["better", "unknown"]) == "better"
    assert together(["not_worse", "unknown"]) == "not_worse"
    assert together(["unknown"]) == together([]) == "unknown"


LEVELS = ("f16", "q8_0", "q4_0")


def _design(name: str = "kv_dtype") -> DesignRow:
    return replace(design_row("context_limit"), name=name, factor=name, levels=LEVELS, baseline_level="f16")


def _attempts(
    design: DesignRow, rows: dict[str, list[AnswerRow]], memory_mib: dict[str, float], time_s: dict[str, float]
) -> list[Attempt]:
    """Three repeats of each level, that scatter by a thousandth."""
    made = []
    for level in LEVELS:
        for repeat in range(3):
            wiggle = 1 + (repeat - 1) / 1000
            base = attempt(trial_row(design, level, repeat, block=repeat), design=design)
            metrics = replace(
                base.metrics,
                memory_peak_bytes=round(memory_mib[level] * MIB * wiggle),
                completion_s=time_s[level] * wiggle,
            )
            result = replace(base.result, answers=tuple(rows.get(level, ())))
            made.append(replace(base, metrics=metrics, result=result))
    return made


SMALLER = {"f16": 1000.0, "q8_0": 800.0, "q4_0": 700.0}
SAME_TIME = dict.fromkeys(LEVELS, 10.0)


def test_what_loses_nothing_and_is_smaller_beats_and_what_loses_answers_does_not() -> None:
    base = answers(150, 4, 0.7, seed=1)
    rows = {"f16": base, "q8_0": base, "q4_0": turned(base, lost=0.3, gained=0.0)}
    found = quality_effects(_design(), _attempts(_design(), rows, SMALLER, SAME_TIME))
    assert found is not None
    by_level = {each.level: each for each in found.levels}
    assert by_level["f16"].beaten_by == ("q8_0",)
    assert by_level["q8_0"].beaten_by == ()
    assert by_level["q4_0"].beaten_by == ()
    assert found.not_beaten == ("q8_0", "q4_0")
    assert by_level["q4_0"].comparisons[0].judged.verdict == "loss"
    assert by_level["q4_0"].effects["memory_peak_bytes"].verdict == "less"
    assert all(not each.unknown_against for each in found.levels)


def test_unknown_quality_beats_nothing_and_says_so() -> None:
    base = answers(8, 1, 0.7, seed=1)
    found = quality_effects(_design(), _attempts(_design(), dict.fromkeys(LEVELS, base), SMALLER, SAME_TIME))
    assert found is not None
    assert found.not_beaten == LEVELS
    assert found.levels[0].unknown_against == (("q8_0", ("quality",)), ("q4_0", ("quality",)))


def test_levels_that_are_different_work_do_not_beat_each_other() -> None:
    base = answers(150, 4, 0.7, seed=1)
    design = _design("input_length")
    found = quality_effects(design, _attempts(design, dict.fromkeys(LEVELS, base), SMALLER, SAME_TIME))
    assert found is not None
    assert not found.is_choice
    assert found.not_beaten == LEVELS


def test_without_answers_there_is_nothing_to_set_beside() -> None:
    assert quality_effects(_design(), _attempts(_design(), {}, SMALLER, SAME_TIME)) is None


def test_an_effect_without_a_baseline_value_is_unknown() -> None:
    known = paired_effect("completion_s", [(1.0, 1.0), (1.0, 1.0)])
    assert of_effect(replace(known, baseline=None)) == "unknown"
    assert of_effect(replace(known, difference=Estimate(value=0.0))) == "unknown"
