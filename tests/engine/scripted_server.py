"""A server that sends exactly the bytes it is told to, for what no real server does on demand."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[str]:
    """The URL of a server that runs ``script`` on each connection, once the request has been read whole."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await read_request(reader)
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}"
    finally:
        server.close()


async def read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next((int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-le")), 0)
    return head, await reader.readexactly(length)


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(value: object) -> bytes:
    """One server-sent event."""
    text = value if isinstance(value, str) else json.dumps(value)
    return f"data: {text}\n\n".encode()


def token(text: str, **delta: object) -> bytes:
    return event({"choices": [{"index": 0, "finish_reason": None, "delta": {"content": text, **delta}}]})


def finish(reason: str = "length", **usage: object) -> bytes:
    done = event({"choices": [{"index": 0, "finish_reason": reason, "delta": {}}]})
    return done + (event({"choices": [], "usage": usage}) if usage else b"") + event("[DONE]")


def plain(status: str, body: bytes, *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(head).encode() + body


Answer = Callable[[str, Any], bytes]
Talk = Callable[[str, Any, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """The URL of a server, in a thread of its own, that sends what ``answer`` makes of each request's path and JSON."""

    async def talk(path: str, body: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(path, body))
        await writer.drain()

    with talking(talk) as server:
        yield server.url


class TalkingServer:
    """A server in a thread of its own. ``deaf``: it listens no more, and its port is free."""

    def __init__(self, talk: Talk) -> None:
        self.url = ""
        self._talk = talk
        self._port = 0
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever)

    def start(self) -> None:
        self._thread.start()
        self.listen()
        self.url = f"http://127.0.0.1:{self._port}"

    def listen(self) -> None:
        """From now on it takes connections; nothing happens where it does already."""
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def go_deaf(self) -> None:
        """To be called in the server's own thread: by ``talk``."""
        assert self._server is not None
        self._server.close()
        self._server = None

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._answer, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head, body = await read_request(reader)
            await self._talk(head.split()[1], json.loads(body) if body else None, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


@contextmanager
def talking(talk: Talk) -> Iterator[TalkingServer]:
    """A server, in a thread of its own, that does as ``talk`` does with each request."""
    server = TalkingServer(talk)
    server.start()
    try:
        yield server
    finally:
        server.stop()
