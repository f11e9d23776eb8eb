"""The whole loop on real llama.cpp with a real model, through the command line, killed and resumed."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvscope.probe.proc import process_exists
from kvscope.record.store import open_records

pytestmark = pytest.mark.engine

KVSCOPE = [sys.executable, "-m", "kvscope"]
DESIGN = ["measure", "input_length", "--levels", "64,128", "--repeats", "2", "--output-tokens", "8"]


def kvscope(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*KVSCOPE, *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=300)


def children(pid: int) -> set[int]:
    """Child processes of a process: the engine that kvscope started, and nobody else's."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text().split()}


def test_measure_killed_and_run_again(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*KVSCOPE, *DESIGN], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert process.stderr is not None
    with process.stderr:
        # Opening lines, then an entry per finished trial, of a line or two: killed inside the third.
        assert any(line.startswith("  [2/5]") for line in iter(process.stderr.readline, ""))
        deadline = time.monotonic() + 60
        while not (started := children(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert started
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    while any(map(process_exists, started)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(process_exists, started)), "the engine outlived the kvscope that started it"

    with open_records(tmp_path / "kvscope.db") as records:
        first = records.trials()
    assert [trial.outcome for trial in first[:2]] == ["ok", "ok"]

    done = kvscope(*DESIGN, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["trial_id"] for row in rows[:2]} == {trial.trial_id for trial in first[:2]}
    finished = [row for row in rows if row["outcome"] == "ok"]
    assert len(finished) == 5
    assert len({row["trial_id"] for row in finished}) == 5
    assert [row["outcome"] for row in rows].count("interrupted") == len(rows) - 5 <= 1
    for row in finished:
        assert row["prompt_tokens_asked"] == row["prompt_tokens_ours"] == row["prompt_tokens_server"] == row["level"]
        assert row["output_tokens"] == row["output_tokens_limit"] == 8
        assert row["cached_tokens"] == 0
        assert 0 < row["ttft_s"] < row["completion_s"]
        assert row["memory_baseline_bytes"] < row["memory_loaded_bytes"] < row["memory_after_bytes"]
        assert row["memory_peak_bytes"] >= row["memory_after_bytes"]
        # 30 layers × (K + V) × 3 heads × 64 × 2 B × 256 cells (128 + 8 tokens, rounded up to 256).
        assert row["kv_cache_bytes_predicted"] == 23_040 * 256
        # The log prints two decimals of a MiB.
        assert abs(row["kv_cache_bytes_engine"] - 23_040 * 256) <= 0.005 * 1024**2 + 1
        # Loading filled the KV cache: what grew is at least that.
        assert row["memory_loaded_bytes"] - row["memory_baseline_bytes"] > 23_040 * 256

    again = kvscope(*DESIGN, cwd=tmp_path)
    assert again.returncode == 0
    assert "0 measured, 0 failed, 5 kept from before" in again.stderr


def test_an_input_over_the_context_limit(tmp_path: Path) -> None:
    words = "measure input_length --levels 64,600 --repeats 1 --set n_ctx=256 --set n_threads=1".split()
    done = kvscope(*words, "--json", cwd=tmp_path)
    assert done.returncode == 1
    rows = json.loads(done.stdout)
    assert [row["outcome"] for row in rows] == ["ok", "ok", "refused"]
    assert "the context limit is 256" in rows[-1]["error_message"]

    # What was not run, as predicted, is no failure of what ran, and a warm-up is no measurement.
    told = kvscope(*words, "--seed", "2", cwd=tmp_path)
    assert told.returncode == 1
    assert "1 measured, 0 failed, 1 refused, 1 warm-up, 0 kept from before" in told.stderr

    tried = kvscope(*words, "--json", "--try-anyway", "--seed", "1", cwd=tmp_path)
    assert tried.returncode == 1
    last = json.loads(tried.stdout)[-1]
    assert (last["outcome"], last["error_slug"]) == ("context_overflow", "context-overflow")
    assert "600" in last["error_message"]


def test_a_port_in_use(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = ["measure", "input_length", "--levels", "64", "--repeats", "1", "--port", port, "--fail-fast"]
        done = kvscope(*words, "--json", cwd=tmp_path)
    assert done.returncode == 1
    (row,) = json.loads(done.stdout)
    assert row["outcome"] == "invalid_settings"
    assert port in row["error_message"]


def test_turns_of_a_conversation_with_and_without_reuse(tmp_path: Path) -> None:
    words = "measure turns --levels 3 --repeats 1 --input-tokens 64 --output-tokens 4 --set n_threads=1".split()
    for reuse in ("--reuse-prefix", "--no-reuse-prefix"):
        done = kvscope(*words, reuse, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    with open_records(tmp_path / "kvscope.db") as records:
        designs = records.designs()
        kept, anew = (records.result(records.trials(each.design_id)[-1]) for each in designs)
    for result in (kept, anew):
        turns = result.requests[1:]
        assert [turn.role for turn in turns] == ["earlier_turn", "earlier_turn", "measured"]
        assert [turn.prompt_tokens_server for turn in turns] == [turn.prompt_tokens_ours for turn in turns]
        assert turns[0].prompt_tokens_ours == 64
    assert [turn.cached_tokens for turn in anew.requests] == [0, 0, 0, 0]
    for before, now in itertools.pairwise(kept.requests[1:]):
        assert before.prompt_tokens_server is not None
        assert now.cached_tokens is not None
        # All of the prompt before, and of its answer of 4 tokens what was fed back, as far as it reads the same again.
        assert before.prompt_tokens_server <= now.cached_tokens <= before.prompt_tokens_server + 3
