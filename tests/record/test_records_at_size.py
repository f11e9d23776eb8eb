"""The benchmark of a large record, small: that what it times is right, and that appending writes as little at the end
as at the beginning. No clock is asked."""

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvscope.analysis.table import table_rows
from kvscope.record.metrics_table import scalar_metrics
from kvscope.record.queries import level_values, outcome_counts
from kvscope.record.rows import PredictionRow
from kvscope.record.store import create_records, open_records

ROOT = Path(__file__).parents[2]
TRIALS = 1_000
# A page of SQLite in FILE-wal, with its header.
PAGE_BYTES, FRAME_BYTES, WAL_HEADER_BYTES = 4096, 4096 + 24, 32


@pytest.fixture(scope="module")
def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("records_at_size", ROOT / "benchmarks" / "records_at_size.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def predictions(benchmark: Any) -> list[dict[str, Any]]:
    """As long as real ones, and as many."""
    count = benchmark.SETTINGS * len(benchmark.LEVELS)
    return [{"schema": "kvscope.prediction/1", "totals": {"n": n}, "padding": "x" * 30_000} for n in range(count)]


@pytest.fixture(scope="module")
def path(benchmark: Any, predictions: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("large") / "r.db"
    assert len(benchmark.fill(path, TRIALS, predictions)) == TRIALS
    return path


def test_what_the_benchmark_asks_is_answered_and_right(benchmark: Any, path: Path) -> None:
    for _, ask in benchmark.queries(path):
        ask()
    with open_records(path) as records:
        designs = records.designs()
        assert len(designs) == TRIALS // benchmark.TRIALS_PER_DESIGN
        assert sum(count.attempts for count in outcome_counts(records)) == TRIALS
        rows = list(table_rows(records, designs[3].design_id))
        assert len(rows) == benchmark.TRIALS_PER_DESIGN
        assert {row["design_id"] for row in rows} == {designs[3].design_id}
        levels = level_values(records, "ttft_s")
        assert len(levels) == len(designs) * len(benchmark.LEVELS)
        ok = sum(count.attempts for count in outcome_counts(records) if count.outcome == "ok")
        assert sum(level.trials for level in levels) == ok
        for number, trial in enumerate(records.each_trial()):
            if number % 100 == 0:
                assert records.metrics(trial) == scalar_metrics(records.result(trial))


def test_a_trial_takes_some_twenty_kibibytes_and_predictions_are_kept_once(
    benchmark: Any, path: Path, predictions: list[dict[str, Any]]
) -> None:
    with open_records(path) as records:
        (kept,) = records.select("SELECT count(*), sum(length(prediction)) FROM prediction_texts")
        used = len(records.designs()) * len(benchmark.LEVELS)
        assert kept[0] == min(used, len(predictions))
        assert (path.stat().st_size - kept[1]) / TRIALS < 20 * 1024


def test_appending_writes_as_much_to_a_large_record_as_to_an_empty_one(
    benchmark: Any, path: Path, predictions: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Counted in pages of FILE-wal, which nothing else writes: what a trial writes must not grow with the record."""
    written = {}
    shutil.copy(path, tmp_path / "large.db")
    for name, record in (("empty", tmp_path / "new.db"), ("large", tmp_path / "large.db")):
        with create_records(record) as recorder:
            if name == "empty":
                recorder.add_run(benchmark.run_row())
            design = benchmark.design_row(10_000)
            recorder.add_design(design)
            recorder._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            chance = benchmark.random.Random(5)
            for trial, _ in zip(benchmark.trial_rows(design, chance), range(20), strict=False):
                recorder.start_trial(trial, PredictionRow(created_at="now", prediction=predictions[0]))
                recorder.finish_trial(benchmark.result_of(trial, chance))
            size = Path(f"{record}-wal").stat().st_size
            written[name] = (size - WAL_HEADER_BYTES) / FRAME_BYTES / 20
    # About 14 KiB of rows, and a page or two for each of 15 tables and their indexes, at each of two commits.
    assert written["large"] < 60
    assert written["large"] < written["empty"] * 1.5
