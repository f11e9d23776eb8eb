"""The exported table has the contract's columns, one row per attempt, and no invented zero."""

import csv
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner
from rows_for_tests import design_row, full_result, request_row, run_row, trial_row

from kvscope.analysis.table import request_rows, table_rows
from kvscope.cli.main import cli
from kvscope.record.export import export_requests, export_row, write_csv, write_jsonl
from kvscope.record.rows import PredictionRow, StatisticRow, TokenRow, TrialResult, TrialRow
from kvscope.record.store import create_records, open_records
from kvscope.record.table_columns import TABLES

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
        recorder.start_trial(good, PredictionRow(created_at="", prediction=prediction))
        recorder.finish_trial(full_result(replace(good, outcome="ok")))
        recorder.start_trial(bad, None)
        failed = replace(bad, outcome="engine_died", error_slug="engine-died", error_message='It died,\n"badly".')
        recorder.finish_trial(TrialResult(trial=failed))
    with open_records(path) as records:
        return list(table_rows(records))


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
    assert good["kv_cache_mib_engine"] == "11.25"
    assert good["is_baseline"] is True
    assert good["warnings"] == ["noisy-machine"]
    assert failed["outcome"] == "engine_died"
    assert failed["is_baseline"] is False
    for name in ("ttft_s", "memory_peak_bytes", "output_tokens", "kv_cache_bytes_engine", "total_bytes_predicted"):
        assert failed[name] is None


def test_every_column_is_described() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "record.md").read_text(encoding="utf-8")
    attempts, requests = page.split("## A row for each request")
    result = full_result(trial_row(outcome="ok"))
    columns = list(export_row(result, design_row(), run_row(), None))
    told = [name for line in attempts.splitlines() if line.startswith("| `") for name in _names(line)]
    assert told == sorted(told, key=told.index)
    assert set(told) == set(columns)
    assert len(told) == len(columns)
    requests, parts = requests.split("## A row for each token")
    of_token, of_sample = parts.split("and of a sample:")
    of_sample, of_answer = of_sample.split("## A row for each answer")
    for text, table in ((of_token, "tokens"), (of_sample, "samples"), (of_answer, "answers")):
        own = [name for line in text.splitlines() if line.startswith("| `") for name in _names(line)]
        of_attempt = set(re.findall(r"`(\w+)`", parts.split("as above")[0]))
        assert {column.name for column in TABLES[table]} == {*own, *of_attempt}
    more = [name for line in requests.splitlines() if line.startswith("| `") for name in _names(line)]
    assert set(export_requests(result, design_row())[0]) <= {*columns, *more}
    assert set(more) <= set(export_requests(result, design_row())[0])


def _names(line: str) -> list[str]:
    return re.findall(r"`(\w+)`", line.split("|")[1])


def test_the_engines_own_digits_are_kept_beside_the_bytes_made_of_them() -> None:
    """SmolLM2 with q8_0 and two slots of 1,024: 12,533,760 B = 11.953125 MiB, of which the log prints 11.95."""
    result = full_result(trial_row(outcome="ok"))
    printed = [replace(row, printed_mib="11.95") if row.component == "kv_cache" else row for row in result.reported]
    row = export_row(replace(result, reported=tuple(printed)), design_row(), run_row(), None)
    assert (row["kv_cache_mib_engine"], row["kv_cache_bytes_engine"]) == ("11.95", 12_530_483)
    assert f"{12_533_760 / 2**20:.2f}" == row["kv_cache_mib_engine"]


def test_a_cache_that_the_engine_counted_is_its_kv_cache_where_it_holds_nothing_else(tmp_path: Path) -> None:
    counted = StatisticRow(phase="after_request", at_s=1.0, name="cache_tensor_bytes", value=72_704.0, request_index=1)
    earlier = replace(counted, phase="before_request", value=28_672.0, request_index=None)
    result = replace(full_result(trial_row(outcome="ok")), reported=(), statistics=(earlier, counted))

    def engines(totals: dict[str, int | None]) -> object:
        return export_row(result, design_row(), run_row(), {"totals": totals})["kv_cache_bytes_engine"]

    assert engines({"kv_cache_bytes": 70_000, "cache_bytes": 70_000}) == 72_704
    assert engines({"kv_cache_bytes": 70_000, "cache_bytes": 90_000}) is None
    assert engines({}) is None


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


# Measured with llama.cpp b11549, SmolLM2: turns of 120 and 60 tokens in a slot of 256. The second turn has 281 tokens,
# and was not sent.
TURNS = (
    request_row(index=0, role="warmup", prompt_tokens_ours=32, prompt_tokens_server=32),
    request_row(
        index=1,
        role="earlier_turn",
        prompt_tokens_asked=None,
        prompt_tokens_ours=120,
        prompt_tokens_server=120,
        cached_tokens=24,
        output_tokens_limit=60,
        output_tokens=60,
    ),
    request_row(
        index=2,
        role="earlier_turn",
        completed_s=None,
        prompt_tokens_asked=None,
        prompt_tokens_ours=281,
        prompt_tokens_ours_from="files",
        prompt_tokens_server=None,
        cached_tokens=None,
        output_tokens_limit=60,
        output_tokens=None,
        finish_reason=None,
        error_slug="prompt-does-not-fit",
    ),
)


def overflowed(path: Path) -> Path:
    trial: TrialRow = trial_row(level=3, levels={"turns": 3}, prompt_tokens_asked=None)
    with create_records(path) as recorder:
        recorder.add_run(run_row())
        recorder.add_design(design_row(name="turns", factor="turns", levels=(1, 3), baseline_level=1))
        recorder.start_trial(trial, None)
        ended = replace(trial, outcome="context_overflow", error_slug="prompt-does-not-fit")
        tokens = tuple(TokenRow(request_index=1, index=n, at_s=0.5 + n * 0.1, text="word") for n in range(60))
        recorder.finish_trial(TrialResult(trial=ended, requests=TURNS, tokens=tokens))
    return path


def test_a_row_that_never_came_to_its_measured_request_has_the_numbers_of_the_one_that_ended_it(tmp_path: Path) -> None:
    with open_records(overflowed(tmp_path / "r.db")) as records:
        (row,) = table_rows(records)
    assert (row["prompt_tokens_ours"], row["prompt_tokens_ours_from"], row["output_tokens_limit"]) == (281, "files", 60)
    assert row["requests"] == 0
    assert row["prompt_tokens_server"] is row["output_tokens"] is row["ttft_s"] is None


def test_each_request_is_a_row(tmp_path: Path) -> None:
    with open_records(overflowed(tmp_path / "r.db")) as records:
        rows = list(request_rows(records))
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert [row["role"] for row in rows] == ["warmup", "earlier_turn", "earlier_turn"]
    assert [row["turn"] for row in rows] == [None, 1, 2]
    assert [row["outcome"] for row in rows] == ["ok", "ok", "context_overflow"]
    assert [row["prompt_tokens_ours"] for row in rows] == [32, 120, 281]
    assert [row["computed_tokens"] for row in rows] == [32 - 0, 120 - 24, None]
    assert [row["ttft_s"] for row in rows] == [None, 0.5, None]
    assert {row["trial_id"] for row in rows} == {"t1"}


def test_requests_of_one_length_are_no_turns(tmp_path: Path) -> None:
    exported(tmp_path / "r.db")
    with open_records(tmp_path / "r.db") as records:
        (row,) = request_rows(records)  # the failed attempt came to none
    assert (row["turn"], row["outcome"], row["ttft_s"], row["completion_s"]) == (None, "ok", 0.5, 0.8)


def test_the_command_gives_either(tmp_path: Path) -> None:
    path = str(overflowed(tmp_path / "r.db"))
    by_request = CliRunner().invoke(cli, ["export", "--records", path, "--rows", "requests", "--format", "csv"])
    assert [row["turn"] for row in csv.DictReader(io.StringIO(by_request.stdout))] == ["", "1", "2"]
    by_trial = CliRunner().invoke(cli, ["export", "--records", path])
    assert len(by_trial.stdout.splitlines()) == 1


def test_json_lines_are_json_whatever_numbers_a_record_holds(tmp_path: Path) -> None:
    def never(word: str) -> object:
        raise AssertionError(f"{word} is no JSON")

    trial = trial_row(outcome="ok", settings={"a": float("nan"), "b": [float("inf"), 1.5]})
    with create_records(tmp_path / "r.db") as recorder:
        recorder.add_run(run_row())
        recorder.add_design(design_row())
        recorder.start_trial(trial, None)
        at_s = (0.5, math.inf, -math.inf, math.nan)
        tokens = tuple(TokenRow(request_index=0, index=n, at_s=each, text="x") for n, each in enumerate(at_s))
        recorder.finish_trial(TrialResult(trial=replace(trial, duration_s=math.inf), tokens=tokens))
    for rows in ("trials", "tokens"):
        done = CliRunner().invoke(cli, ["export", "--records", str(tmp_path / "r.db"), "--rows", rows])
        lines = [json.loads(line, parse_constant=never) for line in done.stdout.splitlines()]
        if rows == "trials":
            assert lines[0]["settings"] == {"a": None, "b": [None, 1.5]}
            assert lines[0]["duration_s"] is None
        else:
            assert [line["at_s"] for line in lines] == [0.5, None, None, None]


def test_the_health_of_our_own_client_is_in_every_row() -> None:
    """Of a load of two requests, one of which was limited and sent once more, it is told which."""
    kept_up = {"loop_lag_p99_s": 0.001, "loop_lag_max_s": 0.002, "cpu_share": 0.1, "send_to_wire_s": 0.0001}
    held_up = {**kept_up, "late_p99_s": 0.02, "num_resent": 1, "limited_by": ["it was sent 20 ms late"]}
    requests = (request_row(client=kept_up), request_row(index=1, client=held_up), request_row(index=2))
    trial = trial_row(outcome="ok", client={**held_up, "client_limited": True, "first_late_s": 0.003})
    result = TrialResult(trial=trial, requests=requests)
    good, bad, unknown = export_requests(result, design_row())
    assert (good["client_limited"], good["client_limited_by"], good["client_late_p99_s"]) == (False, [], None)
    assert (good["client_loop_lag_p99_s"], good["client_cpu_share"], good["client_send_to_wire_s"]) == (
        0.001,
        0.1,
        1e-4,
    )
    assert (bad["client_limited"], bad["client_limited_by"]) == (True, ["it was sent 20 ms late"])
    assert (bad["client_num_resent"], bad["client_late_p99_s"]) == (1, 0.02)
    assert {unknown[name] for name in unknown if name.startswith("client_") and name != "client_limited_by"} == {None}
    assert unknown["client_limited_by"] is None
    row = export_row(result, design_row(), run_row(), None)
    assert (row["client_loop_lag_max_s"], row["client_first_late_s"], row["client_num_resent"]) == (0.002, 0.003, 1)
    assert row["client_limited_by"] == ["it was sent 20 ms late"]
    quiet = export_row(TrialResult(trial=trial_row(client={"client_limited": False})), design_row(), run_row(), None)
    assert quiet["client_limited_by"] == []
    assert export_row(TrialResult(trial=trial_row()), design_row(), run_row(), None)["client_limited_by"] is None
