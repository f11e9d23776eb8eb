"""The exported table has the contract's columns, one row per attempt, and no invented zero."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

from rows_for_tests import design_row, full_result, run_row, trial_row

from kvscope.analysis.table import table_rows
from kvscope.record.export import write_csv, write_jsonl
from kvscope.record.rows import PredictionRow, TrialResult
from kvscope.record.store import create_records, open_records

# The contract, transcribed.
CONTRACT = """
run_id trial_id attempt design factor level repeat position started_at outcome error_slug error_message
model_name model_fingerprint engine engine_version engine_build settings machine_id
prompt_tokens_asked prompt_tokens_ours prompt_tokens_server cached_tokens output_tokens_limit output_tokens
finish_reason concurrency
ttft_s tpot_s itl_p50_s itl_p99_s completion_s prefill_tokens_per_s decode_tokens_per_s
memory_baseline_bytes memory_loaded_bytes memory_peak_bytes memory_after_bytes memory_released_bytes
memory_baseline_bytes_file memory_loaded_bytes_file memory_peak_bytes_file memory_after_bytes_file
memory_released_bytes_file memory_baseline_bytes_device memory_loaded_bytes_device memory_peak_bytes_device
memory_after_bytes_device memory_released_bytes_device
kv_cache_bytes_engine kv_cache_bytes_predicted total_bytes_predicted unexplained_bytes
quality_task quality_score client_loop_lag_p99_s client_cpu_share coalesced_fraction client_limited warnings
""".split()


def exported(path: Path) -> list[dict[str, object]]:
    good = trial_row()
    bad = trial_row(trial_id="t2", position=1, level=512, levels={"prompt_tokens": 512})
    prediction = {"totals": {"kv_cache_bytes": 11796480, "total_bytes": None}}
    with create_records(path) as recorder:
        recorder.add_run(run_row())
        recorder.add_design(design_row())
        recorder.start_trial(good, PredictionRow(trial_id="t1", attempt=1, created_at="", prediction=prediction))
        recorder.finish_trial(full_result(replace(good, outcome="ok")))
        recorder.start_trial(bad, None)
        failed = replace(bad, outcome="engine_died", error_slug="engine-died", error_message='It died,\n"badly".')
        recorder.finish_trial(TrialResult(trial=failed))
    with open_records(path) as records:
        return table_rows(records)


def test_every_contract_column_is_there(tmp_path: Path) -> None:
    rows = exported(tmp_path / "r.db")
    assert len(rows) == 2
    for row in rows:
        assert set(CONTRACT) <= set(row)


def test_values_of_a_good_and_a_failed_row(tmp_path: Path) -> None:
    good, failed = exported(tmp_path / "r.db")
    assert good["kv_cache_bytes_predicted"] == 11796480
    # 11.25 MiB as the log prints it.
    assert good["kv_cache_bytes_engine"] == 11796480
    assert good["is_baseline"] is True
    assert good["warnings"] == ["noisy-machine"]
    assert failed["outcome"] == "engine_died"
    assert failed["is_baseline"] is False
    for name in ("ttft_s", "memory_peak_bytes", "output_tokens", "kv_cache_bytes_engine", "total_bytes_predicted"):
        assert failed[name] is None


def test_both_formats_hold_the_same(tmp_path: Path) -> None:
    rows = exported(tmp_path / "r.db")
    lines, table = io.StringIO(), io.StringIO()
    write_jsonl(rows, lines)
    write_csv(rows, table)
    assert [json.loads(line) for line in lines.getvalue().splitlines()] == rows
    read = list(csv.DictReader(io.StringIO(table.getvalue())))
    assert list(read[0]) == list(rows[0])
    assert read[1]["error_message"] == rows[1]["error_message"]
    assert read[1]["ttft_s"] == ""
    assert json.loads(read[0]["settings"]) == {"n_ctx": 512}
