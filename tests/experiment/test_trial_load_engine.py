"""Several requests at once on a real llama.cpp: started, running already, and killed in the middle."""

import os
import re
import signal
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from running_llama import running_llama

from kvscope.experiment.measure import measure
from kvscope.record.metrics import LoadMetrics, metrics_of
from kvscope.record.rows import DesignRow, RequestRow, TrialResult
from kvscope.record.store import open_records

pytestmark = pytest.mark.engine

# SmolLM2 135M: 30 layers × 2 (keys and values) × 3 KV heads × 64 wide × 2 bytes (f16).
BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2
MIB = 1024 * 1024


def results(path: Path) -> tuple[DesignRow, list[TrialResult]]:
    with open_records(path) as records:
        (design,) = records.designs()
        return design, [records.result(row) for row in records.trials() if row.role == "measured"]


def measured(result: TrialResult) -> list[RequestRow]:
    return [request for request in result.requests if request.role == "measured"]


def load_of(result: TrialResult) -> LoadMetrics:
    found = metrics_of(result).load
    assert found is not None
    return found


def overlap(one: RequestRow, other: RequestRow) -> bool:
    assert one.completed_s is not None
    assert other.completed_s is not None
    return max(one.sent_at_s, other.sent_at_s) < min(
        one.sent_at_s + one.completed_s, other.sent_at_s + other.completed_s
    )


def test_memory_stays_in_a_fixed_pool_and_a_shared_beginning_is_reused(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    summary = measure(
        "concurrency",
        levels=[1, 3],
        repeats=1,
        requests=6,
        input_tokens=96,
        output_tokens=8,
        shared_prefix_tokens=64,
        settings={"n_threads": 1},
        records=path,
    )
    assert (summary.measured, summary.failed) == (3, 0)
    design, (one, three) = results(path)
    # Three slots of 768 tokens, at both levels.
    for result in (one, three):
        assert result.effective["slots"] == [768] * 3
        assert result.effective["n_ctx"] == 3 * 768
        (cache,) = [row for row in result.reported if row.component == "kv_cache" and row.phase == "loaded"]
        assert float(cache.printed_mib) == pytest.approx(BYTES_PER_TOKEN * 3 * 768 / MIB, abs=0.0051)
    # Two more slots of their own would take 34 MiB.
    held = [metrics_of(result).memory_after_bytes for result in (one, three)]
    assert held[0] is not None
    assert held[1] is not None
    assert abs(held[1] - held[0]) < 2 * MIB
    # Streams, and which were under way together.
    assert [row.stream for row in measured(one)] == [0] * 6
    assert {row.stream for row in measured(three)} == {0, 1, 2}
    assert all(overlap(measured(three)[0], other) for other in measured(three)[1:3])
    assert not any(overlap(a, b) for a, b in zip(measured(one), measured(one)[1:], strict=False))
    # What all begin with is computed once in each slot, and the template's opening was left there by the warm-up.
    for result, slots in ((one, 1), (three, 3)):
        cached = sorted(row.cached_tokens or 0 for row in measured(result))
        assert result.trial.client["shared_prefix_tokens"] == 64
        assert cached[slots:] == [64] * (6 - slots)
        assert all(tokens < 64 for tokens in cached[:slots])
        assert all(row.prompt_tokens_ours == row.prompt_tokens_server == 96 for row in measured(result))
    assert design.held["settings"]["n_parallel"] == 3
    for result in (one, three):
        assert load_of(result).output_tokens_per_s_all == pytest.approx(
            6 * 8 / load_of(result).load_wall_s  # type: ignore[operator]  # it is there
        )


def test_at_a_rate_requests_are_sent_when_they_are_due(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    measure(
        "concurrency",
        rate_per_s=20.0,
        arrival="constant",
        repeats=1,
        requests=4,
        input_tokens=64,
        output_tokens=4,
        settings={"n_threads": 1},
        records=path,
    )
    design, (result,) = results(path)
    assert design.factor == "rate_per_s"
    rows = measured(result)
    due = [row.due_s for row in rows]
    assert [late - due[0] for late in due if late is not None and due[0] is not None] == pytest.approx(
        [0.0, 0.05, 0.1, 0.15]
    )
    assert all(row.due_s is not None and row.sent_at_s >= row.due_s for row in rows)
    assert overlap(rows[0], rows[-1])  # it did not wait for answers


def test_a_running_server_is_used_with_the_slots_it_has(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with running_llama("--metrics", n_ctx=1024, slots=2) as server:
        measure(
            "concurrency",
            engine="llama.cpp",
            url=server.url,
            levels=[1, 4],
            repeats=1,
            requests=4,
            input_tokens=64,
            output_tokens=4,
            records=path,
        )
    _, (_, four) = results(path)
    assert four.trial.outcome == "ok"
    assert four.effective["slots"] == [512] * 2
    assert "more-than-slots" in {warning.slug for warning in four.warnings}
    assert four.trial.settings == {}
    assert len({row.stream for row in measured(four)}) == 4


def test_a_server_that_is_killed_in_the_middle_ends_what_was_under_way(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with running_llama("--metrics", n_ctx=1024, slots=2) as server:
        server.test_ends_it = True

        def kill_when_busy() -> None:
            """In the load, which is the only one with long answers: a warm-up takes no twenty steps."""
            while _steps(server.url) < 60:
                time.sleep(0.05)
            os.kill(server.process.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill_when_busy)
        killer.start()
        summary = measure(
            "concurrency",
            engine="llama.cpp",
            url=server.url,
            levels=[2],
            repeats=1,
            requests=4,
            input_tokens=64,
            output_tokens=400,
            records=path,
        )
        killer.join()
    assert summary.failed
    with open_records(path) as records:
        found = [records.result(row) for row in records.trials()]
    died = next(result for result in found if result.trial.outcome == "engine_died")
    rows = measured(died)
    assert len(rows) == 4
    assert [row.error_slug for row in rows] == ["engine-died"] * 4
    assert "requests-failed" in {warning.slug for warning in died.warnings}


def _steps(url: str) -> int:
    """Calls of llama_decode so far, by the server's own counter."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as reply:
        found = re.search(rb"^llamacpp:n_decode_total (\d+)", reply.read(), re.MULTILINE)
    assert found is not None
    return int(found[1])
