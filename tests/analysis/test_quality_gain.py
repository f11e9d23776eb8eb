"""Copy gain from rows of documents and twins, by hand and against scipy."""

import numpy as np
import pytest
from scipy import stats

from kvscope.analysis.quality_gain import copy_gains
from kvscope.record.rows import AnswerRow


def row(document: int, item: int, score: float | None, *, is_twin: bool, reading: str = "scored") -> AnswerRow:
    return AnswerRow(
        index=0,
        task="copy_gain",
        item=f"d{document}/{item}",
        document=f"d{document}",
        language="en",
        reading=reading,
        score=score,
        is_twin=is_twin,
    )


def rows(gains: list[list[float]], absent: float = -10.0) -> list[AnswerRow]:
    """``gains``: of each item, by document."""
    found = []
    for document, items in enumerate(gains):
        for item, gain in enumerate(items):
            found += [
                row(document, item, absent + gain, is_twin=False),
                row(document, item, absent, is_twin=True),
            ]
    return found


def test_a_gain_is_present_less_absent_by_document() -> None:
    gains = [[9.0, 7.0], [8.0, 8.0], [4.0, 6.0]]
    (cell,) = copy_gains([("f16", rows(gains))])
    means = np.array([8.0, 8.0, 5.0])
    expected = stats.t.interval(0.95, 2, loc=means.mean(), scale=stats.sem(means))
    assert cell.gain.value == pytest.approx(7.0)
    assert [cell.gain.low, cell.gain.high] == [pytest.approx(each) for each in expected]
    assert [cell.present.value, cell.absent.value] == [pytest.approx(-3.0), pytest.approx(-10.0)]
    assert (cell.num_items, cell.num_documents, cell.verdict, cell.change) == (6, 3, "used", None)


def test_a_document_of_no_use_is_not_called_used() -> None:
    (cell,) = copy_gains([("f16", rows([[0.1, -0.2], [0.2, 0.0], [-0.1, 0.1]]))])
    assert cell.verdict == "cannot_tell"
    (cell,) = copy_gains([("f16", rows([[-1.0], [-1.2], [-0.9]]))])
    assert cell.verdict == "not_used"
    (cell,) = copy_gains([("f16", rows([[5.0, 5.0]]))])
    assert (cell.verdict, cell.gain.value, cell.gain.low) == ("cannot_tell", 5.0, None)


def test_a_level_is_held_against_the_same_items_of_the_baseline() -> None:
    before = [[9.0, 7.0], [8.0, 8.0], [4.0, 6.0]]
    lost = [[value - 0.5 - 0.01 * number for value in each] for number, each in enumerate(before)]
    _, cell = copy_gains([("f16", rows(before)), ("q4_0", rows(lost))])
    assert cell.change is not None
    assert cell.change.value == pytest.approx(-0.51)
    assert cell.change_verdict == "loss"
    _, same = copy_gains([("f16", rows(before)), ("again", rows(before))])
    assert same.change is not None
    assert (same.change.value, same.change_verdict) == (0.0, "cannot_tell")


def test_items_without_their_twin_are_left_out_and_counted() -> None:
    found = rows([[5.0], [6.0], [7.0]])
    found[1] = row(0, 0, None, is_twin=True, reading="failed")
    (cell,) = copy_gains([("f16", found)])
    assert (cell.num_items, cell.num_unpaired) == (2, 1)
    assert cell.gain.value == pytest.approx(6.5)


def test_repeats_of_an_item_count_once() -> None:
    once, twice = rows([[5.0], [6.0], [7.0]]), rows([[5.0], [6.0], [7.0]]) * 2
    assert copy_gains([("f16", once)]) == copy_gains([("f16", twice)])
