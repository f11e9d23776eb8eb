"""The time that is left is judged level by level: hand-made times, and a study on a clock."""

import pytest

from kvscope.experiment.asked import Asked
from kvscope.experiment.plan import plan
from kvscope.experiment.time_left import SCORES, TimeLeft
from kvscope.experiment.trial_scores import timed_as


def at(level: object) -> dict[str, object]:
    return {"prompt_tokens": level}


def timed(*trials: tuple[object, float | None, str | None]) -> TimeLeft:
    times = TimeLeft()
    for level, seconds, outcome in trials:
        times.note(at(level), seconds, outcome)
    return times


def test_nothing_is_guessed_before_a_trial_was_timed() -> None:
    times = timed((100, None, None), (100, 3.0, "interrupted"))
    assert times.of(at(100)) is None
    assert times.of_all([at(100)]) is None


def test_each_level_by_its_own_trials() -> None:
    times = timed((100, 1.0, "ok"), (100, 3.0, "stopped_early"), (8000, 60.0, "ok"), (9000, 0.5, "refused"))
    assert times.of(at(100)) == 2.0
    # Two more at 100 and one at 8,000 are 64 s; by the mean of all trials they would be 48.
    assert times.of_all([at(100), at(8000), at(100)]) == 64.0
    assert times.of(at(9000)) == 0.5
    assert times.of_all([]) == 0


def test_a_level_that_was_not_timed_lies_on_the_line_of_the_others() -> None:
    # 1 s and 0.01 s per token.
    times = timed((100, 2.0, "ok"), (200, 3.0, "ok"))
    assert times.of(at(1000)) == pytest.approx(11.0)
    # Never less than the shortest that was seen.
    assert times.of(at(1)) == 2.0


def test_the_line_goes_through_what_was_measured() -> None:
    """What is refused (at once) or fails says nothing of what others take."""
    # 0.05 s per token, and two that ended before their time; by a line through all four, 2,000 would be 24 s.
    times = timed((100, 5.0, "ok"), (1000, 50.0, "ok"), (5000, 0.0, "refused"), (3000, 4.0, "oom"))
    assert times.of(at(2000)) == pytest.approx(100.0)
    assert times.of(at(5000)) == 0.0
    # Nor of its own level once one of that was measured.
    times.note(at(3000), 150.0, "ok")
    assert times.of(at(3000)) == 150.0
    # With nothing measured, they are all that is known.
    assert timed((5000, 0.5, "refused")).of(at(100)) == 0.5


def test_trials_that_score_texts_are_timed_by_themselves() -> None:
    """A warm-up of 5 s and the first of two levels, scored, of 65 s: left are one that scores and two that do not."""
    plain, scored = {"kv_dtype": "f16"}, {"kv_dtype": "f16", SCORES: True}
    others: dict[str, object] = {"kv_dtype": "q4_0"}
    times = TimeLeft()
    times.note(plain, 5.0, "ok")
    assert times.of(scored) == 5.0
    times.note(scored, 65.0, "ok")
    assert times.of_all([{**others, SCORES: True}, others, plain]) == 65.0 + 5.0 + 5.0


def test_which_trials_score_texts() -> None:
    found = plan(Asked(design="kv_dtype", engine="llama.cpp", levels=("f16", "q4_0"), quality="fidelity", repeats=3))
    scores = [(t.role, t.level, t.repeat) for t in found.design.trials("x") if SCORES in timed_as(t)]
    assert sorted(scores) == [("measured", "f16", 0), ("measured", "f16", 1), ("measured", "q4_0", 0)]
    asked = plan(Asked(design="kv_dtype", engine="llama.cpp", quality="keys"))
    assert not any(SCORES in timed_as(trial) for trial in asked.design.trials("x"))


def test_without_a_line_it_is_the_mean() -> None:
    assert timed((100, 2.0, "ok")).of(at(1000)) == 2.0
    times = timed(("f16", 2.0, "ok"), ("q8_0", 4.0, "ok"))
    assert times.of(at("q4_0")) == 3.0
    assert timed((True, 2.0, "ok"), (False, 6.0, "ok")).of(at(1)) == 4.0
