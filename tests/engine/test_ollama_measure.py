"""`kvscope measure --engine ollama` as a person uses it, against the stand-in for Ollama's server."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ollama_standin import BYTES_PER_TOKEN, StandIn, running
from ollama_store_files import write_store

KVSCOPE = [sys.executable, "-m", "kvscope"]
DESIGN = ["input_length", "--engine", "ollama", "--levels", "200,400", "--repeats", "1", "--output-tokens", "8"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    store = write_store(tmp_path_factory.mktemp("ollama"), "tiny:latest", "tinier:1b")
    with running(store) as standin:
        yield standin


def kvscope(server: StandIn, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OLLAMA_HOST": server.url, "OLLAMA_MODELS": str(server.store)}
    return subprocess.run([*KVSCOPE, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def rows(server: StandIn, folder: Path) -> list[dict[str, object]]:
    done = kvscope(server, folder, "export", "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("named", [["--served-model", "tiny"], ["--model", "ollama:tiny", "--set", "num_ctx=1024"]])
def test_a_design_is_measured_and_the_next_one_after_a_failure(
    server: StandIn, tmp_path: Path, named: list[str]
) -> None:
    server.tell(fail=["busy"])  # the first load
    done = kvscope(server, tmp_path, "measure", *DESIGN, *named)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    found = rows(server, tmp_path)
    assert [row["outcome"] for row in found] == ["rate_limited", "ok", "ok"]
    assert server.held() == []
    context = 1024 if "--set" in named else 4096  # what the stand-in loads where it is not told
    for row in found[1:]:
        assert (row["engine"], row["engine_version"]) == ("ollama", "0.33.0")
        assert row["prompt_tokens_server"] == row["prompt_tokens_ours"] == row["level"]
        assert row["output_tokens"] == 8
        assert row["cached_tokens"] is None
        grown = row["memory_loaded_bytes"] - row["memory_baseline_bytes"]  # type: ignore[operator]  # numbers
        assert grown >= context * BYTES_PER_TOKEN


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--served-model", "tiny", "--set", "n_batch=100"], "Did you mean num_batch?"),
        ([], "--served-model"),
    ],
)
def test_what_cannot_be_is_said_in_one_clear_message(
    server: StandIn, tmp_path: Path, words: list[str], says: str
) -> None:
    done = kvscope(server, tmp_path, "measure", *DESIGN, *words, "--fail-fast")
    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert server.held() == []
