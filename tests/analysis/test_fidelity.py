"""Divergence from scored positions, against scipy on whole distributions and against sums done by hand."""

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
from scipy.special import rel_entr
from scored_rows import Logits, attempt, log_softmax, position

from kvscope.analysis.fidelity import (
    NO_REFERENCE,
    NOT_SCORED,
    OTHER_BUILD,
    OTHER_PATTERN,
    OTHER_TOKENS,
    compare_floor,
    compare_scores,
    divergence,
    with_fidelity,
)
from kvscope.record.quality_metrics import quality_metrics
from kvscope.record.rows import AnswerRow, TrialResult

RANDOM = np.random.default_rng(5)


def pair(size: int, noise: float) -> tuple[Logits, Logits]:
    """Two distributions over ``size`` tokens, the second the first one moved by noise; peaked as a model's are."""
    logits = RANDOM.normal(0, 3, size)
    return logits, logits + RANDOM.normal(0, noise, size)


def whole_kl(before: Logits, after: Logits) -> float:
    return float(rel_entr(np.exp(log_softmax(before)), np.exp(log_softmax(after))).sum())


@pytest.mark.parametrize("noise", [0.01, 0.1, 1.0])
def test_with_the_whole_vocabulary_it_is_the_divergence_itself(noise: float) -> None:
    for _ in range(50):
        before, after = pair(400, noise)
        rows = [position(logits, 7, num_top=400) for logits in (before, after)]
        assert divergence(*rows) == pytest.approx(whole_kl(before, after), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("noise", [0.01, 0.1, 1.0])
def test_with_few_tokens_it_is_a_lower_bound_that_more_tokens_tighten(noise: float) -> None:
    sums = np.zeros(4)
    for _ in range(200):
        before, after = pair(3000, noise)
        whole = whole_kl(before, after)
        seen = [
            divergence(*(position(logits, 2999, num_top=num) for logits in (before, after))) for num in (5, 50, 500)
        ]
        assert all(0 <= each <= whole + 1e-12 for each in seen)
        sums += [*seen, whole]
    assert sums[0] < sums[1] < sums[2] <= sums[3]


def test_by_hand() -> None:
    # p = 1/2, 1/4, 1/4 and q = 1/4, 1/4, 1/2: 1/2 ln 2 + 1/4 ln 1/2 = 1/4 ln 2.
    before, after = np.log([0.5, 0.25, 0.25]), np.log([0.25, 0.25, 0.5])
    assert divergence(position(before, 0, num_top=3), position(after, 0, num_top=3)) == pytest.approx(log(2) / 4)
    # One token kept (the text's own, 0, is the likeliest before and not after): buckets 1/2, 1/2 against 1/4, 3/4.
    two = 0.5 * log(2) + 0.5 * log(0.5 / 0.75)
    assert divergence(position(before, 0, num_top=1), position(after, 0, num_top=1)) == pytest.approx(two)


def test_a_distribution_against_itself_is_nothing_and_sums_that_are_off_make_no_loss() -> None:
    before, _ = pair(5000, 0.1)
    row = position(before, 3, num_top=100)
    assert divergence(row, row) == 0
    # An engine's float32 sums are off by 2e-4: all log-probabilities of a reply shifted by as much.
    shifted = replace(
        row, logprob=row.logprob + 2e-4, top_logprobs=tuple(logprob + 2e-4 for logprob in row.top_logprobs)
    )
    assert divergence(row, shifted) < 2e-7
    peaked = position(np.array([30.0, 0.0, -1.0, -2.0]), 0, num_top=2)
    off = replace(peaked, logprob=peaked.logprob + 2e-4, top_logprobs=tuple(x + 2e-4 for x in peaked.top_logprobs))
    assert divergence(peaked, off) < 1e-6
    assert divergence(off, peaked) < 1e-6


A, B, C = np.log([0.7, 0.2, 0.1]), np.log([0.6, 0.3, 0.1]), np.log([0.3, 0.6, 0.1])


def items(first: Logits, second: Logits) -> dict[tuple[str, str], list[tuple[Logits, int]]]:
    return {("d0", "d0/a"): [(A, 0), (first, 1)], ("d1", "d1/a"): [(second, 2)]}


def test_documents_flips_the_worst_position_and_the_texts_own_tokens() -> None:
    reference, setting = attempt(items(A, A), trial_id="f16"), attempt(items(B, C), trial_id="q8_0")
    found = compare_scores(setting, reference)
    b = 0.7 * log(0.7 / 0.6) + 0.2 * log(0.2 / 0.3)
    c = 0.7 * log(0.7 / 0.3) + 0.2 * log(0.2 / 0.6)
    assert [each.divergence for each in found.documents] == pytest.approx([b / 2, c])
    assert [(each.num_positions, each.num_flips) for each in found.documents] == [(2, 0), (1, 1)]
    assert found.worst is not None
    assert (found.worst.item, found.worst.position) == ("d1/a", 0)
    assert [each.logprob_change for each in found.documents] == pytest.approx([log(0.3 / 0.2) / 2, 0.0])
    before, after = found.perplexities or (0.0, 0.0)
    assert before == pytest.approx((0.7 * 0.2 * 0.1) ** (-1 / 3))
    assert after == pytest.approx((0.7 * 0.3 * 0.1) ** (-1 / 3))
    assert after < before  # perplexity improved, and a flip and a divergence were seen all the same


def test_the_records_score_is_the_panels_mean_over_documents() -> None:
    def scored(name: str, long: Logits, short: Logits) -> TrialResult:
        texts = {("d0", "d0/long"): [(long, 0)] * 9, ("d0", "d0/short"): [(short, 0)], ("d1", "d1/a"): [(short, 0)]}
        found = attempt(texts, trial_id=name)
        counted = [
            replace(row, facts={"num_positions": len(each)})
            for row, each in zip(found.answers, texts.values(), strict=True)
        ]
        return replace(found, answers=tuple(counted))

    setting, reference = scored("q8_0", A, C), scored("f16", A, A)
    c = 0.7 * log(0.7 / 0.3) + 0.2 * log(0.2 / 0.6)
    assert [each.divergence for each in compare_scores(setting, reference).documents] == pytest.approx([c / 10, c])
    score = quality_metrics(with_fidelity(setting, reference).answers)["quality_score"]
    assert score == pytest.approx((c / 10 + c) / 2)


def with_other_tokens(result: TrialResult) -> TrialResult:
    return replace(result, scored_tokens=tuple(replace(each, token=1) for each in result.scored_tokens))


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        (attempt(items(B, C), pattern="another"), OTHER_PATTERN),
        (attempt(items(B, C), build="b2"), OTHER_BUILD),
        (with_other_tokens(attempt(items(B, C))), OTHER_TOKENS),
        (replace(attempt(items(B, C)), scored_tokens=()), NOT_SCORED),
    ],
    ids=[OTHER_PATTERN, OTHER_BUILD, OTHER_TOKENS, NOT_SCORED],
)
def test_what_does_not_compare_is_unknown_and_not_nothing(setting: TrialResult, why: str) -> None:
    setting = replace(setting, trial=replace(setting.trial, trial_id="other"))
    reference = attempt(items(A, A), trial_id="f16")
    found = compare_scores(setting, reference)
    assert found.positions == ()
    assert found.perplexities is None
    assert found.worst is None
    assert found.left_out == {why: 2}
    assert [(row.score, row.facts["not_compared"]) for row in with_fidelity(setting, reference).answers] == [
        (None, why)
    ] * 2


def test_scores_in_the_rows() -> None:
    reference, setting = attempt(items(A, A), trial_id="f16"), attempt(items(B, C), trial_id="q8_0")
    first, second = with_fidelity(setting, reference).answers
    assert first.score == pytest.approx((0.7 * log(0.7 / 0.6) + 0.2 * log(0.2 / 0.3)) / 2)
    assert second.facts["flips"] == 1
    assert second.facts["reference"] == "f16/1"
    assert second.facts["worst_divergence"] == pytest.approx(second.score)
    for row in with_fidelity(reference, reference).answers:
        assert row.score is None
        assert row.facts["is_reference"] is True
    for row in with_fidelity(setting, None).answers:
        assert row.score is None
        assert row.facts["not_compared"] == NO_REFERENCE


def test_the_reference_scored_again_lost_nothing() -> None:
    reference, again = attempt(items(A, A), trial_id="f16"), attempt(items(A, A), trial_id="f16 again")
    assert [row.score for row in with_fidelity(again, reference).answers] == [0.0, 0.0]


def floor_row(index: int) -> AnswerRow:
    return AnswerRow(
        index=index,
        task="fidelity",
        item="d0/a/batch_shape",
        document="d0",
        language="en",
        reading="scored",
        score=None,
        facts={"floor": "batch_shape", "of_item": "d0/a"},
    )


def test_the_floor_is_held_against_the_same_attempts_own_position_and_is_in_no_mean() -> None:
    reference = attempt(items(A, A), trial_id="f16")
    fresh = position(B, 1, num_top=3, answer_index=2, position=1, pattern="in one pass")
    reference = replace(
        reference,
        answers=(*reference.answers, floor_row(2)),
        scored_tokens=(*reference.scored_tokens, fresh),
    )
    (found,) = compare_floor(reference).positions
    assert found.divergence == pytest.approx(0.7 * log(0.7 / 0.6) + 0.2 * log(0.2 / 0.3))
    assert found.logprob_change == pytest.approx(log(0.3) - log(0.2))
    assert exp(found.logprob) == pytest.approx(0.3)
    assert len(compare_scores(reference, reference).positions) == 3
    rows = with_fidelity(reference, reference).answers
    assert [row.score is None for row in rows] == [True, True, False]
    assert rows[2].score == pytest.approx(found.divergence)
    assert "is_reference" not in rows[2].facts


def test_a_failed_item_stays_as_it_was_read() -> None:
    setting = attempt(items(B, C), trial_id="q8_0")
    failed = replace(setting.answers[0], reading="failed", facts={"error_slug": "context-overflow"})
    setting = replace(setting, answers=(failed, setting.answers[1]))
    found = with_fidelity(setting, attempt(items(A, A), trial_id="f16"))
    assert found.answers[0] == failed
    assert found.answers[1].score is not None
    assert compare_scores(setting, attempt(items(A, A), trial_id="f16")).left_out == {NOT_SCORED: 1}
