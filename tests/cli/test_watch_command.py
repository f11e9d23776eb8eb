"""kvscope watch: a look as text and as JSON, a record of it, and what it says of wrong targets."""

import json
import os
from pathlib import Path

import pytest
from click import BadParameter
from click.testing import CliRunner

from kvscope.cli.watch import watch
from kvscope.errors import ConnectionRefused, UsageError
from kvscope.record.metrics import metrics_of
from kvscope.record.store import open_records


def run(*arguments: str) -> str:
    result = CliRunner().invoke(watch, arguments, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    assert result.return_value == 0
    return result.output


def test_a_process_that_is_no_engine_has_its_memory_told_apart_by_kind() -> None:
    pid = os.getpid()
    text = run("--pid", str(pid), "--once")
    assert f"process {pid}" in text
    assert "heap, stacks, libraries" in text
    assert "Requests: not stated running, not stated waiting" in text
    assert "Not known:" in text


def test_one_line_of_json_a_look_whose_causes_sum_to_the_memory() -> None:
    (line,) = run("--pid", str(os.getpid()), "--once", "--json").splitlines()
    found = json.loads(line)
    assert found["schema"] == "kvscope.watch/1"
    memory = found["memory"]
    # What is shared with other processes is in no file and not of its own.
    held = memory["anon_bytes"] + memory["swap_bytes"] + memory["file_bytes"] + memory["shmem_bytes"]
    assert sum(cause["num_bytes"] for cause in found["causes"]) == held
    assert found["kv_cache"]["used_tokens"] is None
    assert found["rates"] is None


def test_what_was_seen_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "watch.db"
    run("--pid", str(os.getpid()), "--once", "--record", str(path))
    with open_records(path) as records:
        (design,) = records.designs()
        (trial,) = records.trials()
        result = records.result(trial)
    assert design.name == "watch"
    assert trial.outcome == "ok"
    assert [mark.phase for mark in result.marks] == ["watched"]
    memory = metrics_of(result)
    held = result.marks[0].anon_bytes + result.marks[0].swap_bytes
    assert (memory.memory_after_bytes, memory.memory_peak_bytes) == (held, held)
    assert memory.memory_baseline_bytes is None  # it was running before


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((), UsageError, "Nothing to watch"),
        (("--pid", "4194301"), UsageError, "no process"),
        (("--port", "8080", "http://127.0.0.1:8081"), UsageError, "An address and --port"),
        (("not a url",), UsageError, "not an address"),
        (("--port", "1"), ConnectionRefused, "Nothing answers"),
    ],
)
def test_wrong_targets(arguments: tuple[str, ...], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        run(*arguments, "--once")


@pytest.mark.parametrize("interval", ["inf", "1e300", "nan", "0"])
def test_an_interval_that_cannot_be_waited_for_is_refused(interval: str) -> None:
    with pytest.raises(BadParameter):
        run("--pid", str(os.getpid()), "--interval", interval, "--once")
