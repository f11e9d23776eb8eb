"""A llama-server of one's own: what its flags set is what is predicted, recorded and run."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvscope.record.store import open_records

pytestmark = pytest.mark.engine

STANDIN = f"{sys.executable} {Path(__file__).parents[1] / 'engine' / 'llama_server_standin.py'} --threads 1"
MEASURE = "measure input_length --levels 64 --repeats 1 --output-tokens 4 --json"


def measured(flags: str, *more: str, cwd: Path) -> list[dict[str, Any]]:
    words = [*shlex.split(MEASURE), "--engine-command", f"{STANDIN} {flags}", *more]
    done = subprocess.run(
        [sys.executable, "-m", "kvscope", *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_the_commands_own_flags_are_the_settings(tmp_path: Path) -> None:
    row = measured("-ctk q8_0 -ctv q8_0 -fa on -c 2048 -np 2", cwd=tmp_path)[-1]
    assert row["settings"] == {
        "n_threads": 1, "cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attn": "on", "n_ctx": 2048,
        "n_parallel": 2,
    }  # fmt: skip
    # 30 layers, K and V of 3 heads of 64 values, q8_0: blocks of 32 values in 34 B; 2,048 cells in all.
    kv_cache = 30 * 2 * (3 * 64 // 32) * 34 * 2048
    assert row["kv_cache_bytes_predicted"] == kv_cache
    assert abs(row["kv_cache_bytes_engine"] - kv_cache) <= 0.005 * 1024**2 + 1
    with open_records(tmp_path / "kvscope.db") as records:
        result = records.result(next(t for t in records.trials() if t.trial_id == row["trial_id"]))
    assert len(result.effective["slots"]) == 2


def test_layers_on_a_gpu_that_a_build_without_one_leaves_aside_are_told(tmp_path: Path) -> None:
    rows = measured("-ngl 99", cwd=tmp_path)
    assert rows[-1]["settings"]["n_gpu_layers"] == 99
    assert "setting-not-confirmed" in rows[-1]["warnings"]
    assert rows[-1]["outcome"] == "ok"
    none = measured("", "--set", "n_gpu_layers=0", cwd=tmp_path)
    assert none[-1]["settings"]["n_gpu_layers"] == 0
    assert "setting-not-confirmed" not in none[-1]["warnings"]
