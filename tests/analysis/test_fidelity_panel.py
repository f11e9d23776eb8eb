"""Levels by fidelity: intervals over documents, floors, order and verdicts, on attempts whose distributions are made
here, and on the divergences of real documents."""

import itertools
import json
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import study_rows
from numpy.random import Generator
from scored_rows import Logits, attempt, position

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.fidelity import NO_REFERENCE, OTHER_PATTERN
from kvscope.analysis.fidelity_panel import FidelityPanel, design_fidelity, fidelity_panel, mean_divergence
from kvscope.record.rows import AnswerRow, TrialResult

REAL = json.loads((Path(__file__).parent / "real_divergences.json").read_text(encoding="utf-8"))
BASE = np.random.default_rng(0).normal(0, 2, (8, 20, 30))  # documents × positions × vocabulary


def scored(noise: float, *, seed: int = 1, documents: int = 8, pattern: str = "one by one") -> TrialResult:
    """Every distribution moved by so much noise, other noise for each seed."""
    random = np.random.default_rng(seed)
    moved = BASE[:documents] + (random.normal(0, noise, BASE[:documents].shape) if noise else 0.0)
    items = {(f"d{number}", f"d{number}/a"): [(row, 3) for row in each] for number, each in enumerate(moved)}
    return attempt(items, trial_id=f"{noise}/{seed}", pattern=pattern)


def with_floor(reference: TrialResult, noise: float) -> TrialResult:
    """The reference with a position of each document in passes of another shape, moved by so much noise."""
    random = np.random.default_rng(9)
    answers, tokens = list(reference.answers), list(reference.scored_tokens)
    for number, each in enumerate(BASE):
        index = 100 + number
        logits: Logits = each[19] + random.normal(0, noise, each[19].shape)
        facts = {"floor": "batch_shape", "of_item": f"d{number}/a"}
        answers.append(
            AnswerRow(
                index=index,
                task="fidelity",
                item=f"d{number}/a/batch_shape",
                document=f"d{number}",
                language="en",
                reading="scored",
                score=None,
                facts=facts,
            )
        )
        tokens.append(position(logits, 3, num_top=50, answer_index=index, position=19, pattern="in one pass"))
    return replace(reference, answers=tuple(answers), scored_tokens=tuple(tokens))


def panel(**levels: list[TrialResult]) -> FidelityPanel:
    found = fidelity_panel(list(levels.items()))
    assert found is not None
    return found


def test_the_order_of_levels_comes_out_with_intervals_apart() -> None:
    reference = with_floor(scored(0), 0.001)
    found = panel(f16=[reference, scored(0)], small=[scored(0.05)], middle=[scored(0.15)], large=[scored(0.5)])
    assert [row.level for row in found.levels] == ["f16", "small", "middle", "large"]
    assert [row.verdict for row in found.levels] == ["reference", "loss", "loss", "loss"]
    limits = [(row.together.low or 0.0, row.together.high or 0.0) for row in found.levels[1:]]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(limits))
    assert [(order.less, order.more) for order in found.orders] == [
        ("small", "middle"),
        ("small", "large"),
        ("middle", "large"),
    ]
    assert all(order.is_certain and order.num_documents_more == 8 for order in found.orders)
    # Noise three times as large is nine times the divergence, to second order.
    assert found.orders[0].ratio.value == pytest.approx(9, rel=0.1)
    assert found.floors.same_pattern is not None
    assert (found.floors.same_pattern.value, found.floors.same_pattern.high) == (0.0, 0.0)


def test_two_levels_alike_are_not_ordered() -> None:
    found = panel(f16=[scored(0)], first=[scored(0.1, seed=1)], second=[scored(0.1, seed=2)])
    (order,) = found.orders
    assert not order.is_certain
    assert order.ratio.contains(1.0)


def test_a_loss_lies_above_all_that_the_floor_can_be() -> None:
    floored = with_floor(scored(0), 0.1)
    found = panel(f16=[floored, scored(0)], below=[scored(0.01)], near=[scored(0.1)], above=[scored(0.5)])
    assert [(row.verdict, row.reason) for row in found.levels[1:]] == [
        ("no_loss_larger_than_floor", None),
        ("cannot_tell", "near_floor"),
        ("loss", None),
    ]


def test_without_a_floor_or_with_few_documents_nothing_can_be_told() -> None:
    assert [row.reason for row in panel(f16=[scored(0)], q=[scored(0.5)]).levels[1:]] == ["floor_unknown"]
    few = panel(f16=[scored(0, documents=2)] * 2, q=[scored(0.5, documents=2)], same=[scored(0, documents=2)])
    for level in few.levels[1:]:
        assert (level.verdict, level.reason, level.divergence.low) == ("cannot_tell", "too_few", None)
        assert level.divergence.value is not None


def test_one_floor_alone_is_none() -> None:
    """An engine that repeats itself exactly says nothing of passes of another shape, nor they of it."""
    floored = with_floor(scored(0), 0.001)
    for reference in ([scored(0), scored(0)], [floored]):
        found = panel(f16=reference, same=[scored(0)], q=[scored(0.5)])
        assert [(row.verdict, row.reason) for row in found.levels[1:]] == [("cannot_tell", "floor_unknown")] * 2
        assert (found.floors.high, found.floors.low) == (None, None)
    found = panel(f16=[floored, scored(0)], same=[scored(0)], q=[scored(0.5)])
    assert [row.verdict for row in found.levels[1:]] == ["no_loss_larger_than_floor", "loss"]
    # The same of a repeat that holds too few documents for an interval, though all of it is zero.
    found = panel(f16=[floored, scored(0, documents=2)], same=[scored(0)], q=[scored(0.5)])
    assert [row.reason for row in found.levels[1:]] == ["floor_unknown"] * 2


def without(result: TrialResult, *documents: str, keeps_row: bool) -> TrialResult:
    """The same, of which some documents failed: as a row that says so, or as none."""
    lost = {row.index for row in result.answers if row.document in documents}
    rows = [replace(row, reading="failed") if row.index in lost else row for row in result.answers]
    return replace(
        result,
        answers=tuple(row for row in rows if keeps_row or row.index not in lost),
        scored_tokens=tuple(each for each in result.scored_tokens if each.answer_index not in lost),
    )


@pytest.mark.parametrize("keeps_row", [True, False])
def test_texts_that_a_level_lost_are_named_and_may_hide_a_loss(keeps_row: bool) -> None:
    whole = [with_floor(scored(0), 0.001), scored(0)]
    same, worse = (without(scored(noise), "d1", "d4", keeps_row=keeps_row) for noise in (0, 0.5))
    found = panel(f16=whole, same=[same], worse=[worse])
    assert [(row.verdict, row.reason) for row in found.levels[1:]] == [("cannot_tell", "lost_texts"), ("loss", None)]
    for row in found.levels[1:]:
        assert row.comparison.lost == ("d1/a", "d4/a")
        assert (row.comparison.num_items, len(row.comparison.documents)) == (6, 6)
    assert found.levels[0].comparison.lost == ()


@pytest.mark.parametrize("keeps_row", [True, False])
def test_the_most_complete_attempt_of_the_baseline_is_the_reference(keeps_row: bool) -> None:
    part = without(with_floor(scored(0), 0.001), "d1", "d2", keeps_row=keeps_row)
    for attempts in ([part, scored(0, seed=2)], [scored(0, seed=2), part]):
        found = panel(f16=attempts, q=[scored(0.5)])
        assert len(found.levels[0].comparison.documents) == 8
        assert (len(found.levels[1].comparison.documents), found.levels[1].verdict) == (8, "loss")
        assert found.floors.batch_shape is not None
        assert found.floors.same_pattern is not None
        assert (found.floors.batch_shape.num, found.floors.same_pattern.num) == (6, 6)


def test_levels_are_ordered_on_the_texts_that_both_have() -> None:
    """Of a document with two texts one level lost the one in which both lose ten times as much."""

    def made(noise: float, places: tuple[str, ...]) -> TrialResult:
        random = np.random.default_rng(3)
        items = {}
        for number, each in enumerate(BASE):
            for place, factor in (("a", 1), ("b", 10)):
                moved = each[:10] + noise * factor * random.normal(0, 1, each[:10].shape)
                if place in places:
                    items[f"d{number}", f"d{number}/{place}"] = [(row, 3) for row in moved]
        return attempt(items, trial_id=f"{noise}/{places}")

    found = panel(f16=[made(0, ("a", "b"))], less=[made(0.01, ("a", "b"))], more=[made(0.02, ("a",))])
    assert [row.level for row in found.levels] == ["f16", "less", "more"]
    (order,) = found.orders
    # Noise twice as large is four times the divergence; the one with all texts looks worse by its mean alone.
    ratio = order.ratio.value if order.more == "more" else 1 / (order.ratio.value or 1)
    assert ratio == pytest.approx(4, rel=0.05)


def test_a_level_of_which_nothing_was_scored_is_unknown() -> None:
    found = panel(f16=[scored(0)], q=[])
    assert [(row.level, row.verdict, row.reason) for row in found.levels] == [
        ("f16", "reference", None),
        ("q", "cannot_tell", "nothing_measured"),
    ]


def test_what_was_not_compared_is_unknown_and_not_zero() -> None:
    found = panel(f16=[scored(0)], q=[scored(0.5, pattern="another")])
    assert found.levels[1].divergence.value is None
    assert (found.levels[1].verdict, found.levels[1].reason) == ("cannot_tell", OTHER_PATTERN)
    alone = panel(f16=[], q=[scored(0.5)])
    assert (alone.levels[0].verdict, alone.levels[0].reason) == ("cannot_tell", NO_REFERENCE)
    assert alone.orders == ()
    assert fidelity_panel([("f16", [replace(scored(0), answers=(), scored_tokens=())])]) is None


def test_the_interval_by_hand() -> None:
    # Logarithms −1, 0, 1: variance 1, mean 0. Cox: 0 + 1/2 ± t(2 degrees, 4.30265) · √(1/3 + 1/4).
    found = mean_divergence([exp(-1), 1.0, exp(1)])
    half = 4.30265 * (1 / 3 + 1 / 4) ** 0.5
    assert found.low == pytest.approx(exp(0.5 - half), rel=1e-4)
    assert found.high == pytest.approx(exp(0.5 + half), rel=1e-4)
    assert found.value == pytest.approx((exp(-1) + 1 + exp(1)) / 3)


def test_intervals_of_documents_without_a_loss_end_at_zero() -> None:
    assert (mean_divergence([0.0] * 5).low, mean_divergence([0.0] * 5).high) == (0.0, 0.0)
    mixed = mean_divergence([0.0, 0.001, 0.002])
    assert mixed.low == 0.0
    assert mixed.high is not None
    assert mean_divergence([0.5]).low is None


def covered(values: list[float], count: int, random: Generator, rounds: int = 2000) -> float:
    """How often the interval of ``count`` documents drawn from these holds the mean of all."""
    drawn = random.choice(values, (rounds, count))
    return float(np.mean([mean_divergence(list(each)).contains(float(np.mean(values))) for each in drawn]))


@pytest.mark.parametrize("count", [4, 6, 10])
@pytest.mark.parametrize("name", sorted(REAL["documents"]))
def test_intervals_cover_on_resampled_real_documents(name: str, count: int) -> None:
    # Of a hundred 95 % intervals 92 to 96 hold the mean of all documents; Student's on the values, 90 to 95.
    assert covered(REAL["documents"][name], count, np.random.default_rng(count)) >= 0.905


def test_six_real_documents_tell_the_order_of_cache_types() -> None:
    q8_0, values, keys = (np.array(REAL["documents"][name]) for name in ("q8_0", "f16/q4_0", "q4_0/f16"))
    random, apart = np.random.default_rng(1), 0
    for _ in range(300):
        drawn = random.choice(len(keys), 6, replace=False)
        limits = [mean_divergence(list(each[drawn]), confidence=1 - 0.035 / 3) for each in (q8_0, values, keys)]
        highs, lows = [each.high or 1.0 for each in limits], [each.low or 0.0 for each in limits]
        apart += highs[0] < lows[1] and highs[1] < lows[2]
    assert apart >= 0.99 * 300


def test_a_design_has_its_baseline_first_and_only_what_was_measured() -> None:
    row = study_rows.design_row(levels=("q8_0", "f16", "q4_0"), baseline_level="f16")

    def made(level: str, result: TrialResult, repeat: int = 0, **changes: Any) -> Attempt:
        trial = study_rows.trial_row(row, level, repeat, position=repeat, **changes)
        return study_rows.attempt(
            trial,
            design=row,
            answers=result.answers,
            scored_tokens=result.scored_tokens,
            effective=result.effective,
        )

    attempts = [made("q8_0", scored(0.05)), made("f16", with_floor(scored(0), 0.001)), made("f16", scored(0), 1)]
    failed = made("q4_0", scored(0.5), outcome="out_of_memory")
    found = design_fidelity(row, [*attempts, failed])
    assert found is not None
    assert [(each.level, each.verdict, each.reason) for each in found.levels] == [
        ("f16", "reference", None),
        ("q8_0", "loss", None),
        ("q4_0", "cannot_tell", "nothing_measured"),
    ]
    assert found.floors.same_pattern is not None
    assert found.floors.same_pattern.high == 0
    assert design_fidelity(row, [failed]) is None
