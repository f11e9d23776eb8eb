"""The panel from rows whose chances are known: what it says, and what it refuses to say."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from answer_rows import answer, answers, turned
from study_rows import design_row

from kvscope.analysis.fit import Estimate
from kvscope.analysis.items_needed import items_needed
from kvscope.analysis.proportions import paired_counts, share_clustering, wilson
from kvscope.analysis.quality_cell import cell_of
from kvscope.analysis.quality_comparison import compare
from kvscope.analysis.quality_gate import gate_of, judge
from kvscope.analysis.quality_items import items_of
from kvscope.analysis.quality_panel import LevelAnswers, panel_of, quality_panel
from kvscope.record.rows import AnswerRow


def levels(*rows: list[AnswerRow], repeats: int = 1) -> list[LevelAnswers]:
    return [LevelAnswers(level=index, rows=tuple(each), repeats=repeats) for index, each in enumerate(rows)]


# --- items and what is left out ---------------------------------------------------------------------------------------


def test_repeats_are_no_new_items_and_those_that_disagree_are_counted() -> None:
    once = answers(20, 1, 0.7, seed=1, twin_right=None)
    thrice = [*once, *once, *once]
    one, three = cell_of(once, 1), cell_of(thrice, 1, repeats=3)
    assert (three.num_items, three.share, three.gate) == (one.num_items, one.share, one.gate)
    assert three.num_unsteady == 0
    flipped = replace(thrice[0], reading="wrong" if thrice[0].reading == "right" else "right")
    unsteady = cell_of([*thrice[1:], flipped], 1, repeats=3)
    assert (unsteady.num_items, unsteady.num_unsteady) == (20, 1)
    assert unsteady.share.value is not None
    assert one.share.value is not None
    assert abs(unsteady.share.value - one.share.value) == pytest.approx(1 / 3 / 20)


def test_what_was_not_read_is_in_no_share_and_counted() -> None:
    rows = [answer(f"d{n}/0", document=f"d{n}", is_right=n < 8) for n in range(10)]
    for reading in ("truncated_input", "cut_output", "no_answer", "failed"):
        rows.append(answer(f"x{reading}/0", document=f"x{reading}", reading=reading))
    cell = cell_of(rows, 1)
    assert (cell.num_items, cell.right, cell.num_left_out) == (10, 8, 4)
    assert (cell.share.low, cell.share.high) == (wilson(8, 10).low, wilson(8, 10).high)
    assert cell.readings["truncated_input"] == 1


def test_a_cell_of_cut_prompts_alone_has_no_share_and_is_unread_and_keeps_its_chance() -> None:
    """More items would not help, and who guesses is right as often as ever."""
    cut = [answer(f"d{n}/0", document=f"d{n}", reading="truncated_input", chance=0.2) for n in range(10)]
    cell = cell_of(cut, 1)
    assert (cell.num_items, cell.share.value, cell.gate, cell.chance) == (0, None, "unread", 0.2)


def test_right_without_the_evidence_in_the_prompt_is_a_guess() -> None:
    rows = [answer(f"d{n}/0", document=f"d{n}", evidence=n < 6) for n in range(10)]
    cell = cell_of(rows, 1)
    assert cell.share.value == 1
    assert cell.useful is not None
    assert cell.useful.value == pytest.approx(0.6)
    assert cell.right_without_evidence == 4


def test_thirds_are_by_depth() -> None:
    rows = [answer(f"d{n}/0", document=f"d{n}", depth=10 * n + 5, is_right=n < 4) for n in range(10)]
    thirds = cell_of(rows, 1).thirds
    assert {name: (each.value, each.num) for name, each in thirds.items()} == {
        "head": (1.0, 3),
        "middle": (pytest.approx(1 / 4), 4),
        "tail": (0.0, 3),
    }


# --- the gate ---------------------------------------------------------------------------------------------------------


def gate(right: float, *, documents: int = 40, chance: float = 0.0, twin: float | None = 0.0) -> str:
    return cell_of(answers(documents, 1, right, seed=3, chance=chance, twin_right=twin), 1).gate


def test_the_gate_lets_through_only_between_floor_and_ceiling() -> None:
    assert gate(0.7) == "measured"
    assert gate(1.0) == "ceiling"
    assert gate(0.0) == "floor"
    assert gate(0.25, chance=0.25) == "guessing"
    assert gate(0.05, chance=0.5) == "floor"
    assert gate(0.6, twin=0.6) == "guessing"
    assert gate(0.7, documents=1) == "too_few"


def test_a_few_documents_do_not_show_that_answers_are_guessed() -> None:
    """8 of 9 right with the fact and 0 of 9 without is no guessing, though 9 documents do not prove the contrary."""
    rows = [answer(f"d{n // 3}/{n}", document=f"d{n // 3}", is_right=n < 8) for n in range(9)]
    twins = [replace(row, is_twin=True, reading="wrong", evidence_in_prompt=False) for row in rows]
    cell = cell_of([*rows, *twins], 1)
    assert (cell.right, cell.above_twin and cell.above_twin.low is not None and cell.above_twin.low <= 0) == (8, True)
    assert cell.gate == "too_few"
    by_chance = cell_of([answer(f"d{n}/0", document=f"d{n}", is_right=n < 3, chance=0.25) for n in range(6)], 1)
    assert by_chance.gate == "too_few"


def test_the_twin_is_held_against_the_same_items() -> None:
    """Right on the half of the items that are guessed too, and on no other: nothing is above the twin."""
    rows = answers(30, 1, 0.5, seed=5, twin_right=None)
    twins = [replace(row, is_twin=True, evidence_in_prompt=False) for row in rows]
    cell = cell_of([*rows, *twins], 1)
    assert cell.above_twin is not None
    assert cell.above_twin.value == 0
    assert cell.gate == "guessing"


def test_an_interval_that_holds_chance_and_all_is_too_few() -> None:
    assert (
        gate_of(Estimate(value=0.9, low=0.2, high=1.0, num=3), chance=0.25, above_twin=None, num_documents=3)
        == "too_few"
    )


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_a_loss_a_gain_and_the_same() -> None:
    base = answers(200, 2, 0.7, seed=1)
    panel = panel_of(levels(base, base, turned(base, lost=0.3, gained=0.0), turned(base, lost=0.0, gained=0.5)), 0)
    verdicts = [each.judged.verdict for each in panel.comparisons]
    assert verdicts == ["no_loss_beyond", "loss", "gain"]
    same, lost, _ = panel.comparisons
    assert same.judged.bound is not None
    assert same.judged.bound < 0.05
    assert (same.losses, same.gains, same.p_value) == (0, 0, 1.0)
    assert lost.gains == 0
    assert lost.difference.value == pytest.approx(-(lost.losses or 0) / 400)
    assert lost.p_value is not None
    assert lost.p_value < 1e-9


def test_few_items_cannot_tell_and_say_how_many_would() -> None:
    base = answers(10, 1, 0.7, seed=2)
    panel = panel_of(levels(base, base), 0)
    (found,) = panel.comparisons
    assert (found.judged.verdict, found.judged.reason) == ("cannot_tell", "too_few")
    assert found.needed is not None
    assert found.needed.items > 10
    assert found.needed.documents == found.needed.items


def test_at_the_floor_nothing_is_told_whatever_the_level_does() -> None:
    base = answers(100, 1, 0.0, seed=2)
    better = answers(100, 1, 0.3, seed=2)
    (found,) = panel_of(levels(base, better), 0).comparisons
    assert (found.judged.verdict, found.judged.reason) == ("cannot_tell", "floor")


def test_at_the_ceiling_no_loss_is_not_told_but_a_fall_is() -> None:
    base = answers(100, 1, 1.0, seed=2)
    same, fell = panel_of(levels(base, base, turned(base, lost=0.4, gained=0.0)), 0).comparisons
    assert (same.judged.verdict, same.judged.reason) == ("cannot_tell", "ceiling")
    assert fell.judged.verdict == "loss"
    assert fell.gate == "ceiling"


def test_answers_that_only_this_level_left_unread_may_hide_a_loss() -> None:
    base = answers(200, 1, 0.7, seed=4)
    rambles = [replace(row, reading="cut_output") if index % 5 == 0 else row for index, row in enumerate(base)]
    (found,) = panel_of(levels(base, rambles), 0).comparisons
    assert (found.judged.verdict, found.judged.reason) == ("cannot_tell", "unread")
    assert found.num_unread == 40
    assert found.judged.bound is not None
    assert found.judged.bound > 0.2


@pytest.mark.parametrize("reading", ["cut_output", "truncated_input"])
@pytest.mark.parametrize("share", [0.6, 1.0])
def test_what_is_not_read_is_said_and_not_that_items_are_missing(reading: str, share: float) -> None:
    base = answers(40, 5, 0.7, seed=4)
    lost = [replace(row, reading=reading) if index % 10 < 10 * share else row for index, row in enumerate(base)]
    (found,) = panel_of(levels(base, lost), 0).comparisons
    assert (found.judged.verdict, found.judged.reason, found.needed) == ("cannot_tell", "unread", None)


def test_other_items_that_are_all_unread_are_counted() -> None:
    base, other = answers(40, 5, 0.7, seed=4), answers(40, 5, 0.7, seed=5, tokens=4000, twin_right=None)
    cut = [replace(row, reading="truncated_input") for row in other]
    (found,) = panel_of(levels(base, cut), 0).comparisons
    assert (found.method, found.num_unread, found.judged.reason) == ("none", 200, "unread")


def test_answers_of_one_judge_are_not_compared_with_those_of_another_or_none() -> None:
    """A judge that says right to everything, and goes away before the second level is read."""
    strict = answers(60, 1, 0.5, seed=1)
    judged = [
        row if row.is_twin else replace(row, reading="right", facts={"judge": "j", "strict_score": row.score})
        for row in strict
    ]
    found = panel_of(levels(judged, strict), 0)
    assert found.read_strictly == (("keys", "en"),)
    assert (found.comparisons[0].losses, found.comparisons[0].gains) == (0, 0)
    assert found.cells[0].right == found.cells[1].right < 60
    alike = panel_of(levels(judged, judged), 0)
    assert (alike.read_strictly, alike.cells[0].right) == ((), 60)
    within = panel_of(levels([*judged[:30], *strict[30:]]), 0)
    assert within.cells[0].right == found.cells[0].right


# --- where facts are never found --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1000, None])
@pytest.mark.parametrize(
    ("right", "slug"),
    [
        (lambda depth: 1.0 if depth > 60 else 0.0, "head_never_arrives"),
        (lambda depth: 1.0 if depth < 40 else 0.0, "tail_never_arrives"),
        (lambda depth: 1.0 if depth < 42 or depth > 92 else 0.0, "middle_ignored"),
        (lambda depth: 1.0 if depth < 20 or depth > 50 else 0.0, "middle_ignored"),
    ],
)
def test_a_part_that_is_never_found_is_no_loss_and_no_score_to_judge_by(
    right: Callable[[float], float], slug: str, tokens: int | None
) -> None:
    whole, cut = (
        [replace(row, document_tokens=tokens) for row in answers(10, 5, each, seed=2)]
        for each in (lambda _depth: 0.9, right)
    )
    found = panel_of(levels(whole, cut), 0)
    assert (found.cells[0].gate, found.cells[1].gate) == ("measured", "maybe_cut")
    sign = found.cells[1].sign
    assert sign is not None
    assert sign.slug == slug
    assert sign.lost_wrong >= 15
    assert sign.of_tokens == (None if slug == "middle_ignored" else tokens or 100)
    for panel in (found, panel_of(levels(cut, whole), 0)):
        (compared,) = panel.comparisons
        assert (compared.judged.verdict, compared.judged.reason) == ("cannot_tell", "maybe_cut")
        assert compared.needed is None


def test_a_part_that_is_never_found_in_a_prompt_known_to_be_whole_is_the_levels_loss() -> None:
    """As of a sliding window that forgets the head: the engine's own count shows that it read all of the prompt."""
    whole, lost = (
        [replace(row, facts={**row.facts, "prompt_whole": True}) for row in answers(10, 5, each, seed=2)]
        for each in (lambda _depth: 0.9, lambda depth: 0.9 if depth > 60 else 0.0)
    )
    found = panel_of(levels(whole, lost), 0)
    assert found.cells[1].sign is not None
    assert found.cells[1].gate == "measured"
    assert found.comparisons[0].judged.verdict == "loss"
    one_unknown = [replace(lost[0], reading="right", score=1.0, facts={}), *lost[1:]]
    assert panel_of(levels(whole, one_unknown), 0).cells[1].gate == "maybe_cut"


def test_other_items_are_compared_by_their_shares() -> None:
    short, long = answers(100, 1, 0.9, seed=1, tokens=500), answers(100, 1, 0.4, seed=2, tokens=4000)
    (found,) = panel_of(levels(short, long), 0).comparisons
    assert (found.method, found.losses, found.p_value) == ("newcombe_unpaired", None, None)
    assert found.judged.verdict == "loss"


def test_more_levels_and_tasks_make_what_is_called_wider_and_not_the_interval_itself() -> None:
    base = answers(60, 1, 0.7, seed=1)
    changed = turned(base, lost=0.1, gained=0.05, seed=3)
    alone = panel_of(levels(base, changed), 0)
    many = panel_of(levels(base, changed, base, base, base), 0)
    other = answers(60, 1, 0.7, seed=8, task="needle")
    tasks = panel_of(levels([*base, *other], [*changed, *other]), 0)
    assert (alone.num_comparisons, many.num_comparisons, tasks.num_comparisons) == (1, 4, 2)
    first, second = alone.comparisons[0], many.comparisons[0]
    assert first.difference == second.difference
    assert second.together.low is not None
    assert first.together.low is not None
    assert second.together.low < first.together.low
    assert second.needed is not None
    assert first.needed is not None
    assert second.needed.items > first.needed.items


def test_a_level_without_a_baseline_is_shown_and_not_judged() -> None:
    base = answers(20, 1, 0.7, seed=1)
    panel = panel_of([LevelAnswers(level="q4_0", rows=tuple(base))], "f16")
    assert len(panel.cells) == 1
    assert panel.comparisons == ()


def test_a_design_without_answers_has_an_empty_panel() -> None:
    panel = quality_panel(design_row("context_limit"), [])
    assert (panel.cells, panel.comparisons) == ((), ())


def test_judge_worked_out_by_hand() -> None:
    within = Estimate(value=-0.01, low=-0.03, high=0.01, num=900)
    assert judge("measured", within, within).bound == pytest.approx(0.03)
    assert judge("measured", within, within).verdict == "no_loss_beyond"
    below = Estimate(value=-0.1, low=-0.15, high=-0.05, num=400)
    assert judge("measured", below, below).verdict == "loss"
    hint = Estimate(value=-0.1, low=-0.21, high=0.01, num=400)
    assert judge("measured", below, hint).verdict == "cannot_tell"  # by itself outside zero, together not


# --- items needed -----------------------------------------------------------------------------------------------------


def test_items_needed_is_the_published_formula_for_independent_items() -> None:
    """Connor 1987: (a √ψ + b √(ψ − Δ²))² ÷ Δ². With a = 2.1084 (3.5 %, two-sided), b = 1.2816 (90 %), ψ unknown and so
    that of unrelated answers, at the share that needs most of those that 80 of 100 leave open: Wilson's lower limit at
    80 % (1.2816) is 0.7441, and 0.7441 · 0.3059 + 0.2559 · 0.6941 = 0.4053. A tenth is added for other items."""
    found = items_needed(0.8, clustering=share_clustering([[1.0]] * 80 + [[0.0]] * 20))
    assert found is not None
    assert found.discordance == pytest.approx(0.4053, abs=1e-4)
    assert not found.is_discordance_seen
    by_hand = (2.10836 * 0.40526**0.5 + 1.28155 * (0.40526 - 0.0025) ** 0.5) ** 2 / 0.0025
    assert found.items == pytest.approx(1.1 * by_hand, abs=2)
    least = (2.10836 * 0.05**0.5 + 1.28155 * (0.05 - 0.0025) ** 0.5) ** 2 / 0.0025
    assert found.least_items == pytest.approx(least, abs=1)


def test_what_was_seen_to_differ_lowers_the_number_and_documents_raise_it() -> None:
    base = answers(100, 1, 0.8, seed=1)
    quiet = compare(base, turned(base, lost=0.02, gained=0.0), levels=(0, 1), gate="measured").needed
    loud = compare(base, turned(base, lost=0.15, gained=0.4), levels=(0, 1), gate="measured").needed
    assert quiet is not None
    assert loud is not None
    assert quiet.items < loud.items
    assert quiet.is_discordance_seen
    together = paired_counts([[-1.0] * 5 if n % 10 == 0 else [0.0] * 5 for n in range(60)])
    apart = paired_counts([[-1.0 if n % 10 == 0 else 0.0] for n in range(300)])
    clustered = items_needed(0.8, clustering=together.clustering, seen=together)
    alone = items_needed(0.8, clustering=apart.clustering, seen=apart)
    assert clustered is not None
    assert alone is not None
    assert clustered.items > 2 * alone.items


def test_what_is_not_there_cannot_be_lost() -> None:
    assert items_needed(0.02, clustering=share_clustering([[0.0]] * 20)) is None
    assert cell_of(answers(20, 1, 0.0, seed=1), 1).needed is None


def test_items_keep_their_order_and_skip_what_was_scored_otherwise() -> None:
    rows = [answer("a"), answer("b", reading="scored"), answer("c", is_right=False)]
    assert [item.item for item in items_of(rows)] == ["a", "c"]


def test_what_is_said_on_twins_is_counted_apart() -> None:
    asked = [answer(f"d{n}/0", document=f"d{n}") for n in range(5)]
    twins = [answer(f"d{n}/0", document=f"d{n}", is_twin=True, is_right=False) for n in range(5)]
    named = [replace(row, facts={"also_named": ["52302"]}) for row in twins[:3]]
    refused = [replace(row, facts={"refused": True}) for row in twins[3:4]]
    empty = [replace(row, reading="no_answer") for row in twins[4:]]
    cell = cell_of([*asked, *named, *refused, *empty], 1)
    assert (cell.readings, cell.twin_readings) == ({"right": 5}, {"wrong": 4, "no_answer": 1})
    assert (cell.twin_named, cell.twin_refused, cell.left_out) == (3, 1, {"no_answer": 1})


def test_a_text_that_could_not_be_scored_is_no_wrong_answer() -> None:
    failed = [answer("d0/0", reading="failed", task=task) for task in ("fidelity", "copy_gain", "markers")]
    found = panel_of(levels([*failed, answer("d1/0", document="d1")]), "f16")
    assert [cell.task for cell in found.cells] == ["keys"]
