"""The ends of a share's interval in the record: never beside 0 and 1 by rounding."""

import pytest

from kvscope.record.quality_metrics import wilson


@pytest.mark.parametrize("items", range(1, 200))
def test_all_right_holds_one_and_none_right_holds_zero_exactly(items: int) -> None:
    assert wilson(items, items)[1] == 1.0
    assert wilson(0, items)[0] == 0.0
    assert 0 < wilson(items, items)[0] < 1
