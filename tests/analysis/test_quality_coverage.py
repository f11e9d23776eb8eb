"""What the panel promises, held against simulated comparisons whose truth is known. Few here, in seconds;
``benchmarks/quality_statistics.py`` runs a thousand of each, for docs/accuracy.md."""

import numpy as np
import pytest
from answer_rows import answers
from simulated_answers import Truth, differences, rates, study, unpaired_rates

from kvscope.analysis.proportions import clustered_share, paired_counts
from kvscope.analysis.quality_cell import cell_of

STUDIES = 300
# Chance alone leaves fewer than this of 300 one time in a thousand where the promise is 95 % (binomial).
LEAST_COVERED = 272


@pytest.mark.parametrize(("per_document", "documents"), [(1, 40), (5, 10), (5, 60)])
@pytest.mark.parametrize("correlation", [0.0, 0.2])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_intervals_hold_the_truth(per_document: int, documents: int, correlation: float, share: float) -> None:
    chance = np.random.default_rng(1)
    truth = Truth(share=share, loss=0.05, discordance=0.1, per_document=per_document, correlation=correlation)
    of_share = of_difference = 0
    for _ in range(STUDIES):
        baseline, changed = study(chance, truth, documents)
        of_share += clustered_share(baseline).contains(share)
        of_difference += paired_counts(differences(baseline, changed)).difference().contains(-0.05)
    assert of_share >= LEAST_COVERED
    assert of_difference >= LEAST_COVERED


@pytest.mark.parametrize(
    ("truth", "num_levels"),
    [
        (Truth(share=0.8, loss=0.05, discordance=0.05), 1),
        (Truth(share=0.95, loss=0.05, discordance=0.1), 1),
        (Truth(share=0.3, loss=0.05, discordance=0.2, per_document=3, correlation=0.2), 3),
        (Truth(share=0.6, loss=0.05, discordance=0.1, per_document=5, correlation=0.1), 1),
    ],
)
def test_a_null_is_seldom_called_and_five_points_are_found_with_the_items_asked_for(
    truth: Truth, num_levels: int
) -> None:
    found = rates(np.random.default_rng(2), truth, 120, first_documents=60 // truth.per_document, num_levels=num_levels)
    assert found.num == 120
    assert found.false_calls <= 10  # more than 10 of 120 happen one time in fifty where 5 % are called
    assert found.found >= 102  # fewer than 102 of 120 happen one time in twenty where 90 % are found


@pytest.mark.parametrize(
    ("truth", "documents"),
    [
        (Truth(share=0.6, loss=0.05), 10),
        (Truth(share=0.75, loss=0.05), 10),
        (Truth(share=0.3, loss=0.05, per_document=6, correlation=0.3), 10),
    ],
)
def test_five_points_are_found_of_other_items_too_whatever_the_luck_of_the_first_study(
    truth: Truth, documents: int
) -> None:
    found = unpaired_rates(np.random.default_rng(3), truth, 120, first_documents=documents)
    assert found.false_calls <= 10
    assert found.found >= 0.85 * found.num  # fewer than 102 of 120: see above


def test_clean_answers_give_no_sign() -> None:
    """600 cells of five kinds, without any dependence on the place: at most one false alarm in a hundred is allowed."""
    alarms = 0
    for number in range(600):
        documents, items, right = ((20, 1, 0.9), (20, 1, 0.5), (10, 8, 0.9), (10, 8, 0.3), (40, 1, 0.6))[number % 5]
        alarms += cell_of(answers(documents, items, right, seed=number), 1).sign is not None
    assert alarms <= 6
