"""Scores of answers are no numbers that repeats can tell apart: each repeat asks the same questions."""

import pytest

from kvscope.analysis.compare_metrics import METRICS
from kvscope.analysis.fail_if import parse_fail_if
from kvscope.errors import KvscopeError
from kvscope.record.table_columns import TRIAL_COLUMNS


def test_no_column_of_quality_is_compared_by_repeats() -> None:
    of_quality = {column.name for column in TRIAL_COLUMNS if column.name.startswith("quality_")}
    assert {"quality_score", "quality_truncated"} <= of_quality
    assert not of_quality & set(METRICS)


def test_a_condition_on_it_is_refused_and_not_passed_over() -> None:
    with pytest.raises(KvscopeError, match="quality_score"):
        parse_fail_if("quality_score < -5%", METRICS)
