"""The truth server, in C and in Python: it keeps to its schedule, and its log is what really happened.

What a plain socket read, and when, is the outside truth here. Both processes read CLOCK_MONOTONIC, so for each event
must hold: due ≤ sent (by the log) ≤ read (by us). A log of planned times, or of times taken after the fact, breaks one
of the two.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

PROGRAM = (sys.executable, "-P", "-m", "kvscope.selftest.truth_server")
HAS_COMPILER = shutil.which("cc") is not None
KINDS = [pytest.param("native", marks=pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler")), "python"]


@dataclass
class Running:
    process: subprocess.Popen[str]
    port: int
    log: Path

    def end(self) -> list[dict[str, Any]]:
        """Ask it to end; the lines of its log."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == 0
        return [json.loads(line) for line in self.log.read_text().splitlines()]


def start(tmp_path: Path, kind: str, *words: str, **environment: str) -> Running:
    log = tmp_path / "sent.jsonl"
    extra = ("--python",) if kind == "python" else ()
    process = subprocess.Popen(
        (*PROGRAM, "--log", str(log), *extra, *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert address.startswith("http://127.0.0.1:"), address
    return Running(process, int(address.rpartition(":")[2]), log)


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    running = start(tmp_path, request.param, "--ttft-s", "0.02", "--gap-s", "0.002", "--tokens", "5")
    yield running
    running.process.kill()
    running.process.communicate()


class Reader:
    """A connection of its own: what came, and the moment of the read that completed each event."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.unread = b""
        self.read_s = 0.0

    def ask(self, body: object, path: str = "/v1/chat/completions", header: str = "") -> float:
        """Send; the moment before that."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{header}Content-Length: {len(data)}\r\n\r\n"
        before_s = time.perf_counter()
        self.socket.sendall(head.encode() + data)
        return before_s

    def get(self, path: str) -> tuple[int, str]:
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return self.whole()

    def take(self, until: bytes) -> bytes:
        while until not in self.unread:
            self.more()
        found, _, self.unread = self.unread.partition(until)
        return found

    def more(self) -> None:
        read = self.socket.recv(65536)
        self.read_s = time.perf_counter()
        assert read, "the server hung up"
        self.unread += read

    def whole(self) -> tuple[int, str]:
        """Status and body of an answer of a stated length."""
        head = self.take(b"\r\n\r\n").decode()
        length = int(head.lower().partition("content-length: ")[2].split("\r\n")[0])
        while len(self.unread) < length:
            self.more()
        body, self.unread = self.unread[:length], self.unread[length:]
        return int(head.split()[1]), body.decode()

    def events(self) -> list[tuple[float, str]]:
        """Each event with its moment, to the end of a chunked answer."""
        head = self.take(b"\r\n\r\n").decode()
        assert head.startswith("HTTP/1.1 200 OK\r\n")
        assert "text/event-stream" in head
        found = []
        while size := int(self.take(b"\r\n"), 16):
            while len(self.unread) < size + 2:
                self.more()
            chunk, self.unread = self.unread[:size], self.unread[size + 2 :]
            assert chunk.startswith(b"data: ")
            assert chunk.endswith(b"\n\n")
            found.append((self.read_s, chunk[6:-2].decode()))
        assert self.take(b"\r\n") == b""
        return found

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def reader(server: Running) -> Iterator[Reader]:
    connection = Reader(server.port)
    yield connection
    connection.close()


def marked(**values: object) -> dict[str, Any]:
    """A streamed request that says in its message what is wanted."""
    mark = " ".join(f"{name}={value}" for name, value in values.items())
    return {"messages": [{"role": "user", "content": f"Hello. [truth {mark}] Thanks."}], "stream": True}


def texts(events: list[tuple[float, str]]) -> list[str]:
    """The tokens' texts among the events."""
    choices = [c for _, event in events if event != "[DONE]" for c in json.loads(event)["choices"]]
    found = [choice["delta"].get("content") if "delta" in choice else choice["text"] for choice in choices]
    return [text for text in found if text]


def test_the_clocks_are_one() -> None:
    """What both servers stamp with is what Python's perf_counter reads, on Linux."""
    assert time.get_clock_info("perf_counter").implementation == "clock_gettime(CLOCK_MONOTONIC)"
    assert time.get_clock_info("monotonic").implementation == "clock_gettime(CLOCK_MONOTONIC)"


@pytest.mark.parametrize("ttft_s", [0.0, 0.03])
def test_no_token_is_sent_before_it_is_due_nor_logged_after_it_was_read(
    server: Running, reader: Reader, ttft_s: float
) -> None:
    before_s = reader.ask(marked(id="one", ttft_s=ttft_s, gap_s=0.003, tokens=20))
    events = reader.events()
    assert texts(events) == ["one", *[" tok"] * 19]
    (line,) = server.end()
    read_s = [at_s for at_s, event in events if '" tok"' in event or '"one"' in event]
    assert (line["id"], line["tokens"], line["complete"], line["blocked"]) == ("one", 20, True, 0)
    asked_s = line["received_s"] if line["arrived_s"] is None else line["arrived_s"]
    assert before_s - 1e-4 < asked_s <= line["received_s"] < read_s[0]  # the kernel's stamp is on another clock
    for k, (sent_s, seen_s) in enumerate(zip(line["sent_s"], read_s, strict=False)):
        due_s = line["received_s"] + ttft_s + k * 0.003
        assert due_s - 1e-6 <= sent_s <= seen_s, k  # both are rounded to a nanosecond
    assert len(line["sent_s"]) == 20


def test_a_group_is_one_write(server: Running, reader: Reader) -> None:
    reader.ask(marked(id="g", ttft_s=0.01, gap_s=0.002, tokens=10, group=4))
    assert len(texts(reader.events())) == 10
    (line,) = server.end()
    writes = sorted(set(line["sent_s"]))
    assert [line["sent_s"].count(at_s) for at_s in writes] == [4, 4, 2]
    begin_s = line["received_s"] + 0.01
    assert all(at_s >= begin_s + k * 4 * 0.002 - 1e-6 for k, at_s in enumerate(writes))


def test_who_does_not_read_delays_what_is_sent_and_the_log_says_so(server: Running, reader: Reader) -> None:
    """The sockets between hold some megabytes at most; 100,000 events are 17 MB, all due at once."""
    reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    reader.ask(marked(id="slow", ttft_s=0.0, gap_s=0.0, tokens=100_000, group=1000))
    reader.more()
    other = Reader(server.port)
    other.ask(marked(id="other", ttft_s=0.2, tokens=1))  # it answers others meanwhile
    assert texts(other.events()) == ["other"]
    other.close()
    began_s, answer = time.perf_counter(), bytearray(reader.unread)
    while not answer.endswith(b"0\r\n\r\n"):
        answer += reader.socket.recv(1 << 20)
    assert answer.count(b'" tok"') == 99_999
    line = next(line for line in server.end() if line["id"] == "slow")
    assert line["blocked"] > 0
    assert line["complete"]
    assert line["sent_s"][-1] > began_s
    assert all(earlier <= later for earlier, later in pairwise(line["sent_s"]))


def test_what_is_said_nearest_to_the_request_counts(server: Running, reader: Reader) -> None:
    """The server's own words < max_tokens < the query < the header < the mark."""
    streamed = {"messages": [], "stream": True}
    asked = [
        ({**streamed}, "", "", 5),
        ({**streamed, "max_tokens": 3}, "", "", 3),
        ({**streamed, "max_tokens": 3, "max_completion_tokens": 4}, "", "", 4),
        ({**streamed, "max_completion_tokens": 4, "max_tokens": 3}, "", "", 4),
        ({**streamed, "max_completion_tokens": None, "max_tokens": 3}, "", "", 3),
        ({**streamed, "max_tokens": 3}, "?tokens=6", "", 6),
        ({**streamed, "max_tokens": 3}, "?tokens=6", "X-Truth: tokens=7\r\n", 7),
        ({**marked(tokens=8), "max_tokens": 3}, "?tokens=6", "x-truth: tokens=7\r\n", 8),
        # Keys inside strings and further down are no keys of the request.
        ({**streamed, "note": 'say "max_tokens": 9', "more": {"max_tokens": 9, "stream": False}}, "", "", 5),
    ]
    for body, query, header, tokens in asked:
        reader.ask(body, "/v1/chat/completions" + query, header)
        assert len(texts(reader.events())) == tokens, (body, query, header)
    assert [line["tokens"] for line in server.end()] == [tokens for *_, tokens in asked]


def test_the_end_of_an_answer_is_as_other_clients_expect_it(server: Running, reader: Reader) -> None:
    reader.ask({**marked(id="u", tokens=3), "stream_options": {"include_usage": True}})
    events = [event for _, event in reader.events()]
    assert events[-1] == "[DONE]"
    usage, end = json.loads(events[-2]), json.loads(events[-3])
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert usage["usage"]["total_tokens"] == usage["usage"]["prompt_tokens"] + 3
    assert end["choices"][0]["finish_reason"] == "length"
    assert {json.loads(event)["id"] for event in events[:-1]} == {"u"}
    reader.ask(marked(id="v", tokens=3))  # without: no usage
    assert [json.loads(event)["choices"] != [] for _, event in reader.events()[:-1]] == [True] * 4


def test_completions_and_an_answer_in_one_piece(server: Running, reader: Reader) -> None:
    reader.ask({"prompt": "[truth id=c tokens=3]", "stream": True}, "/v1/completions")
    events = reader.events()
    assert [json.loads(e)["object"] for _, e in events[:-1]] == ["text_completion"] * 4
    assert texts(events) == ["c", " tok", " tok"]
    reader.ask({"messages": [{"role": "user", "content": "[truth id=w tokens=3 ttft_s=0.01 gap_s=0.01]"}]})
    status, body = reader.whole()
    assert status == 200
    assert json.loads(body)["choices"][0]["message"]["content"] == "w tok tok"
    assert json.loads(body)["usage"]["completion_tokens"] == 3
    whole = server.end()[1]
    assert not whole["stream"]
    assert min(whole["sent_s"]) == max(whole["sent_s"]) >= whole["received_s"] + 0.03 - 1e-6


def test_the_paths_around_it(server: Running, reader: Reader) -> None:
    assert json.loads(reader.get("/v1/models")[1])["data"][0]["id"] == "truth"
    assert reader.get("/health")[0] == 200
    assert json.loads(reader.get("/truth/about")[1])["server"] in ("native", "python")
    status, body = reader.get("/nothing")
    assert status == 404
    assert json.loads(body)["error"]["message"]
    assert reader.socket.recv(1) == b""  # after a refusal it hangs up


def test_two_requests_at_once_on_one_connection_are_answered_in_turn(server: Running, reader: Reader) -> None:
    reader.ask(marked(id="first", ttft_s=0.01, tokens=3))
    reader.ask(marked(id="second", ttft_s=0.01, tokens=2))
    assert texts(reader.events())[0] == "first"
    assert texts(reader.events())[0] == "second"


def test_a_client_that_hangs_up_leaves_a_line(server: Running, reader: Reader) -> None:
    reader.ask(marked(id="left", ttft_s=0.001, gap_s=0.005, tokens=100_000))
    reader.take(b" tok")
    reader.close()
    other = Reader(server.port)
    while other.ask(marked(id="x", tokens=1)) and not server.log.exists():
        other.events()
    while '"left"' not in server.log.read_text():  # written when nothing is under way
        time.sleep(0.01)
    other.close()
    line = next(line for line in server.end() if line["id"] == "left")
    assert not line["complete"]
    assert 0 < len(line["sent_s"]) < 100_000


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler")
def test_both_servers_say_the_same(tmp_path: Path) -> None:
    bodies = [
        {**marked(id="same", tokens=4, ttft_s=0, gap_s=0), "stream_options": {"include_usage": True}},
        {**marked(tokens="x", group="2x", gap_s=-1, myid=3, ttft_s="0.01"), "max_tokens": 2, "stream": False},
        marked(id="a" * 100, tokens=2.9, ttft_s=1e9, group=1e9, gap_s=""),
        {"messages": [{"role": "user", "content": "[truth tokens=1 and no end"}], "max_tokens": 2, "stream": True},
    ]
    said, logged = [], []
    for kind in ("native", "python"):
        (tmp_path / kind).mkdir()
        running = start(tmp_path / kind, kind)
        reader = Reader(running.port)
        answers = []
        for body in bodies:
            reader.ask(body)
            events = [e for _, e in reader.events()] if body["stream"] else [reader.whole()[1]]
            answers.append([event if event == "[DONE]" else json.loads(event) for event in events])
        reader.close()
        said.append(answers)
        logged.append(
            [
                {k: v for k, v in line.items() if not k.endswith("_s") or k in ("ttft_s", "gap_s")}
                for line in running.end()
            ]
        )
        running.process.communicate()
    assert said[0] == said[1]
    assert logged[0] == logged[1]


def run_briefly(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (*PROGRAM, *words), capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment}
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_port_in_use_and_a_log_that_cannot_be_written_are_said(kind: str, tmp_path: Path) -> None:
    extra = ("--python",) if kind == "python" else ()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run_briefly("--port", str(taken.getsockname()[1]), *extra)
    assert done.returncode == 2
    assert "in use" in done.stderr
    done = run_briefly("--log", str(tmp_path / "no" / "folder"), *extra)
    assert done.returncode == 2
    assert "No such file" in done.stderr


def test_without_a_compiler_it_serves_in_python_and_says_why(tmp_path: Path) -> None:
    running = start(tmp_path, "native", PATH=str(tmp_path), CC="")
    reader = Reader(running.port)
    about = json.loads(reader.get("/truth/about")[1])
    assert about["server"] == "python"
    assert "no C compiler" in about["why"]
    reader.close()
    running.end()
    running.process.communicate()


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho first >&2\necho 'out of paper' >&2\nexit 1\n")
    broken.chmod(0o755)
    running = start(tmp_path, "native", CC=str(broken))
    reader = Reader(running.port)
    assert "out of paper" in json.loads(reader.get("/truth/about")[1])["why"]
    reader.close()
    running.end()
    running.process.communicate()


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler")
def test_nothing_is_left_of_it_however_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    running = start(tmp_path, "native", TMPDIR=str(folder))
    assert list(folder.iterdir()) == []
    running.process.kill()
    running.process.communicate()
    assert list(folder.iterdir()) == []


def test_a_processor_that_there_is_not_is_said(tmp_path: Path) -> None:
    running = start(tmp_path, "python", "--core", "4095")
    reader = Reader(running.port)
    assert json.loads(reader.get("/truth/about")[1])["core"] == -1
    reader.close()
    running.end()
    running.process.communicate()
