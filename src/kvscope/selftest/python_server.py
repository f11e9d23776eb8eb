"""The truth server in Python, where there is no compiler: the same requests, the same schedule, the same log.

Its limits: one answer's event costs it some 20 µs of its processor, so that it falls behind its own schedule from some
10,000 tokens a second on; and Python pauses now and then. How late it was stands in its log as in that of the
server in C, event by event, and whoever compares with the log is not misled by it.
"""

import asyncio
import contextlib
import heapq
import itertools
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvscope.selftest.wire_form import (
    HEAD,
    Asked,
    ending,
    first_events,
    later_event,
    read_asked,
    whole_reply,
)

# asyncio wakes up to a millisecond late; so it wakes this much before something is due, and stays awake.
AWAKE_BEFORE_S = 0.002
_IDLE_S = 0.05
_MOST_NOTED = 10_000_000
_MOST_REQUEST_BYTES = 64 * 1024 * 1024
_SENDS_PER_ROUND = 64
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,12})", re.IGNORECASE)


@dataclass(slots=True)
class _Answer:
    asked: Asked
    received_s: float
    sent_s: list[float] = field(default_factory=list)
    blocked: int = 0

    @property
    def is_complete(self) -> bool:
        return len(self.sent_s) == self.asked.tokens

    def due_s(self) -> float:
        """When its next write is due."""
        steps = len(self.sent_s) if self.asked.stream else self.asked.tokens - 1
        return self.received_s + self.asked.ttft_s + steps * self.asked.gap_s

    def line(self) -> str:
        """Of the log. There is no stamp of the kernel here: ``arrived_s`` is null."""
        asked = self.asked
        return json.dumps(
            {
                "id": asked.id,
                "ttft_s": asked.ttft_s,
                "gap_s": asked.gap_s,
                "tokens": asked.tokens,
                "group": asked.group,
                "stream": asked.stream,
                "complete": self.is_complete,
                "blocked": self.blocked,
                "received_s": round(self.received_s, 9),
                "arrived_s": None,
                "sent_s": [round(at_s, 9) for at_s in self.sent_s],
            }
        )


class _Server:
    """What all connections share: the queue of what is due, and the log."""

    def __init__(self, defaults: Mapping[str, float], log: str | None, about: dict[str, Any], awake_s: float) -> None:
        self.defaults = defaults
        self.about = about
        self.finished: list[_Answer] = []
        self.num_noted = 0
        self.num_under_way = 0
        self._numbers = itertools.count()
        self.num_answered = 0
        self._log = None if log is None else Path(log).open("a", encoding="utf-8")  # noqa: SIM115  # while it serves
        self._queue: list[tuple[float, int, _Peer]] = []
        self._timer: asyncio.Handle | None = None
        self._awake_s = awake_s
        self._is_driving = False

    @property
    def has_file(self) -> bool:
        return self._log is not None

    def enqueue(self, peer: "_Peer", answer: _Answer) -> None:
        heapq.heappush(self._queue, (answer.due_s(), next(self._numbers), peer))

    def wake(self) -> None:
        """After something was put into the queue, or ended: what is due next may be something else."""
        if self._is_driving:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._drive()

    def _drive(self) -> None:
        self._is_driving = True
        for _ in range(_SENDS_PER_ROUND):
            if not self._queue or self._queue[0][0] > time.perf_counter():
                break
            heapq.heappop(self._queue)[2].send_due()
        self._is_driving = False
        self._timer = self._next_look()

    def _next_look(self) -> asyncio.Handle | None:
        loop = asyncio.get_running_loop()
        if not self._queue:
            return loop.call_later(_IDLE_S, self.write_log) if self.finished else None
        early_s = self._queue[0][0] - time.perf_counter() - self._awake_s
        return loop.call_later(early_s, self._drive) if early_s > 0 else loop.call_soon(self._drive)

    def end(self, answer: _Answer) -> None:
        self.num_under_way -= 1
        self.num_answered += 1
        self.finished.append(answer)

    def take_log(self) -> str:
        answers, self.finished = self.finished, []
        self.num_noted -= sum(answer.asked.tokens for answer in answers)
        return "".join(answer.line() + "\n" for answer in answers)

    def write_log(self) -> None:
        if self._log is not None:
            self._log.write(self.take_log())
            self._log.flush()


class _Peer(asyncio.Protocol):
    def __init__(self, server: _Server) -> None:
        self._server = server
        self._transport: Any = None
        self._unread = b""
        self._answer: _Answer | None = None
        self._event = b""
        self._blocked = False
        self._closes = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=0)
        with contextlib.suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            self._server.end(answer)
            self._server.wake()

    def pause_writing(self) -> None:
        self._blocked = True
        if self._answer is not None:
            self._answer.blocked += 1

    def resume_writing(self) -> None:
        self._blocked = False
        if self._answer is not None:
            self._server.enqueue(self, self._answer)
            self._server.wake()

    def data_received(self, data: bytes) -> None:
        received_s = time.perf_counter()
        self._unread += data
        self._take_requests(received_s)

    def _take_requests(self, received_s: float) -> None:
        while self._answer is None and not self._closes:
            head, found, rest = self._unread.partition(b"\r\n\r\n")
            length = int(match[1]) if (match := _LENGTH.search(head)) else 0
            if not found or len(rest) < length:
                if max(length, len(self._unread)) > _MOST_REQUEST_BYTES:
                    self._transport.abort()
                elif found and b"100-continue" in head.lower() and not rest:
                    self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            self._unread = rest[length:]
            self._take(head, rest[:length], received_s)

    def _take(self, head: bytes, body: bytes, received_s: float) -> None:
        line = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        method, path = (*line, "", "")[:2]
        self._closes = b"\r\nconnection: close" in head.lower() or line[-1] == "HTTP/1.0"
        if method == "POST" and "/completions" in path.partition("?")[0]:
            self._begin(read_asked(path, head, body, self._server.defaults), received_s)
        elif method == "GET":
            self._get(path.partition("?")[0])
        else:
            self._refuse("404 Not Found", "there is no such path here")

    def _begin(self, asked: Asked, received_s: float) -> None:
        server = self._server
        if server.num_noted + asked.tokens > _MOST_NOTED:
            self._refuse("503 Service Unavailable", "the log in memory is full: GET /truth/log empties it")
            return
        if not asked.id:
            asked.id = f"n{server.num_answered + server.num_under_way}"
        server.num_noted += asked.tokens
        server.num_under_way += 1
        self._answer = _Answer(asked, received_s)
        self._event = later_event(asked)
        if asked.stream and asked.ttft_s >= 0.001:
            self._transport.write(HEAD)
        if not self._blocked:
            server.enqueue(self, self._answer)
            server.wake()

    def send_due(self) -> None:
        """The next write of the answer under way."""
        answer = self._answer
        if answer is None or self._blocked:
            return  # the peer has gone, or does not read: then it is put into the queue again when it does
        asked = answer.asked
        count = min(asked.group if asked.stream else asked.tokens, asked.tokens - len(answer.sent_s))
        data = self._event * count
        if not asked.stream:
            data = whole_reply(asked, self._closes)
        elif not answer.sent_s:
            data = (HEAD if asked.ttft_s < 0.001 else b"") + first_events(asked, count)
        at_s = time.perf_counter()
        self._transport.write(data)
        answer.sent_s += [at_s] * count
        if not answer.is_complete:
            if not self._blocked:
                self._server.enqueue(self, answer)
            return
        if asked.stream:
            self._transport.write(ending(asked))
        self._answer = None
        self._server.end(answer)
        self._close_or_go_on()

    def _close_or_go_on(self) -> None:
        if self._closes:
            self._transport.close()
        elif self._unread:
            self._take_requests(time.perf_counter())

    def _get(self, path: str) -> None:
        server = self._server
        if path == "/truth/log" and not server.has_file:
            self._reply("200 OK", server.take_log())
        elif path == "/truth/about":
            self._reply("200 OK", json.dumps(server.about))
        elif path in ("/v1/models", "/models"):
            model = {"id": "truth", "object": "model", "created": 1700000000, "owned_by": "kvscope"}
            self._reply("200 OK", json.dumps({"object": "list", "data": [{**model, "max_model_len": 1048576}]}))
        elif path in ("/health", "/ping", "/"):
            self._reply("200 OK", '{"status":"ok"}')
        else:
            self._refuse("404 Not Found", "there is no such path here")

    def _refuse(self, status: str, why: str) -> None:
        self._closes = True
        self._reply(status, json.dumps({"error": {"message": why, "type": "truth_server"}}))

    def _reply(self, status: str, text: str) -> None:
        body = text.encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._transport.write(f"{head}{'Connection: close' + chr(13) + chr(10) if self._closes else ''}\r\n".encode())
        self._transport.write(body)
        if self._closes:
            self._transport.close()


def serve(
    host: str,
    port: int,
    defaults: Mapping[str, float],
    *,
    log: str | None,
    core: int,
    why: str,
    awake_s: float = AWAKE_BEFORE_S,
) -> int:
    """Serve until SIGTERM or Ctrl-C; the exit code. ``why``: the reason for Python, shown by /truth/about.
    ``awake_s``: how long before something is due it stays awake (0 where the client needs the same processor)."""
    pinned = _pinned(core)
    about = {"server": "python", "core": pinned, "kernel_stamps": False, "why": why}
    try:
        return asyncio.run(_serve(host, port, _Server(defaults, log, about, awake_s)))
    except OSError as error:
        sys.stderr.write(f"truth server: {error}\n")
        return 2


async def _serve(host: str, port: int, server: _Server) -> int:
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: _Peer(server), host, port, backlog=4096, reuse_address=True)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    sys.stdout.write(f"http://{host}:{listening.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await ended.wait()
    listening.close()
    server.write_log()
    return 0


def _pinned(core: int) -> int:
    if core < 0:
        return -1
    try:
        os.sched_setaffinity(0, {core})
    except (OSError, AttributeError) as error:
        sys.stderr.write(f"truth server: cannot be kept on core {core}: {error}\n")
        return -1
    return core
