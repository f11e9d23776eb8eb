"""A server between kvscope and a real llama.cpp server, that takes away what other servers do not have: endpoints,
usage, chat, fields; or asks for a key. Answers are the real engine's."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


class Proxy(ThreadingHTTPServer):
    """``paths``: what it has besides the list of models. ``states_usage``: whether its answers do. ``refuses``: fields
    that it answers with 400, as OpenAI does. ``key``: what it asks for, and quotes when it refuses another.
    ``fails_after``: requests until it fails, quoting the key. ``gets``: further paths and what they answer."""

    daemon_threads = True

    def __init__(self, upstream: str, **ways: Any) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = urlsplit(upstream).netloc
        self.paths: tuple[str, ...] = ways.pop("paths", (CHAT, TEXT))
        self.models: list[dict[str, Any]] = ways.pop("models", [{"id": "small"}])
        self.states_usage: bool = ways.pop("states_usage", True)
        self.refuses: tuple[str, ...] = ways.pop("refuses", ())
        self.key: str | None = ways.pop("key", None)
        self.fails_after: int | None = ways.pop("fails_after", None)
        self.gets: dict[str, Any] = ways.pop("gets", {})
        assert not ways
        self.bodies: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def proxy(upstream: str, **ways: Any) -> Iterator[Proxy]:
    server = Proxy(upstream, **ways)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Proxy

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self._is_let_in():
            if self.path == "/v1/models":
                self._say(200, {"object": "list", "data": self.server.models})
            elif self.path in self.server.gets:
                self._say(200, self.server.gets[self.path])
            else:
                self._say(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._is_let_in():
            return
        if self.path not in self.server.paths:
            self._say(404, {"detail": "Not Found"})
            return
        self.server.bodies.append(body)
        for name in self.server.refuses:
            if name in body:
                words = {"message": f"Unsupported parameter: '{name}'.", "type": "invalid_request_error", "param": name}
                self._say(400, {"error": words})
                return
        if self.server.fails_after is not None and len(self.server.bodies) > self.server.fails_after:
            self._say(500, {"error": {"message": f"failed with {self.headers['Authorization']}", "code": 500}})
            return
        self._pass_on(body)

    def _is_let_in(self) -> bool:
        given = self.headers["Authorization"]
        if self.server.key is None or given == f"Bearer {self.server.key}":
            return True
        self._say(401, {"error": {"message": f"Incorrect API key provided: {given}", "type": "invalid_request_error"}})
        return False

    def _pass_on(self, body: dict[str, Any]) -> None:
        # The real server's own fields: so that every answer has the length that was asked for.
        body = {**body, "ignore_eos": True, "cache_prompt": False}
        body.setdefault("max_tokens", body.get("max_completion_tokens"))
        connection = http.client.HTTPConnection(self.server.upstream)
        connection.request("POST", self.path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.headers["Content-Type"])
        self.end_headers()
        for line in reply:
            self.wfile.write(self._line(line))
            self.wfile.flush()
        connection.close()

    def _line(self, line: bytes) -> bytes:
        if not line.startswith(b"data: {"):
            return line
        event = json.loads(line[6:])
        event.pop("timings", None)
        if not self.server.states_usage:
            event.pop("usage", None)
        return b"data: " + json.dumps(event).encode() + b"\n"

    def _say(self, status: int, body: object) -> None:
        content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
