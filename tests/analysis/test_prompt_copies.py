"""Copies of prompts as the engine's log states them."""

import pytest
from study_rows import design_row, reported, trial_row

from kvscope.analysis.prompt_copies import host_cache_bytes
from kvscope.record.rows import TrialResult

TRIAL = trial_row(design_row(), 512)


@pytest.mark.parametrize(("printed", "least"), [("40.563", 42_532_864), ("0.000", 0)])
def test_the_log_is_read_as_not_more_than_it_says(printed: str, least: int) -> None:
    line = reported("host_cache", printed, "after_request", request_index=1)
    assert host_cache_bytes(TrialResult(trial=TRIAL, reported=(line,)), 1) == least


def test_what_the_log_never_said_is_unknown() -> None:
    assert host_cache_bytes(TrialResult(trial=TRIAL), 1) is None
