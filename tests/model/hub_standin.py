"""A web server on this machine that stands in for a hub or any other host of model files. Counts what it is asked for
and every byte of content it sends; misbehaves on request."""

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Asked:
    path: str
    range: str | None
    authorization: str | None


@dataclass
class Standin:
    """``files``: path → content. ``statuses``: path → the status it is answered with. ``redirects``: path → address.
    ``change``: called with the handler's answer (status, headers, body) before it is sent."""

    files: dict[str, bytes] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    sent_bytes: int = 0
    ranges: bool = True
    change: Callable[[int, dict[str, str], bytes], tuple[int, dict[str, str], bytes]] | None = None
    url: str = ""
    stall_s: float = 0.0

    def hub(self, repository: str, files: dict[str, bytes], revision: str = "main", sha: str | None = COMMIT) -> None:
        """Serves a repository as the hub does: its listing, and its files at the commit."""
        listing: dict[str, Any] = {"id": repository, "siblings": [{"rfilename": name} for name in files]}
        if sha is not None:
            listing["sha"] = sha
        self.files[f"/api/models/{repository}/revision/{revision}"] = json.dumps(listing).encode()
        for name, content in files.items():
            self.files[f"/{repository}/resolve/{sha or revision}/{name}"] = content

    def forget(self) -> None:
        self.asked.clear()
        self.sent_bytes = 0

    def answer(
        self, path: str, range_header: str | None, if_none_match: str | None
    ) -> tuple[int, dict[str, str], bytes]:
        if path in self.redirects:
            return 302, {"Location": self.redirects[path]}, b""
        if path in self.statuses:
            return self.statuses[path], {}, b"refused"
        content = self.files.get(path)
        if content is None:
            return 404, {}, b"not here"
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()[:16]}"'}
        if if_none_match == headers["ETag"]:
            return 304, headers, b""
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", range_header or "")
        if match is None or not self.ranges:
            return 200, headers, content
        first, last = int(match[1]), min(int(match[2]), len(content) - 1)
        if first >= len(content):
            return 416, {**headers, "Content-Range": f"bytes */{len(content)}"}, b""
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        return 206, headers, content[first : last + 1]


@contextmanager
def serving() -> Iterator[Standin]:
    standin = Standin()
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = Asked(self.path, self.headers.get("Range"), self.headers.get("Authorization"))
            standin.asked.append(asked)
            ended.wait(standin.stall_s)
            path = self.path.partition("?")[0]
            status, headers, body = standin.answer(path, asked.range, self.headers.get("If-None-Match"))
            if standin.change is not None:
                status, headers, body = standin.change(status, headers, body)
            self.send_response(status)
            headers.setdefault("Content-Length", str(len(body)))
            for name, value in headers.items():
                if value:
                    self.send_header(name, value)
            self.end_headers()
            try:
                for start in range(0, len(body), 65536):
                    if status in (200, 206):  # before the write: whoever has the bytes must find them counted
                        standin.sent_bytes += len(body[start : start + 65536])
                    self.wfile.write(body[start : start + 65536])
            except OSError:  # the reader had enough
                return

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # its threads are waited for, so none outlives a test
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    standin.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield standin
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
