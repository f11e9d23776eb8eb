"""A server that sends exactly the bytes it is told to, for what no real server does on demand."""

import asyncio
import json
import queue
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


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """The URL of a server, in a thread of its own, that sends what ``answer`` makes of each request's path and JSON."""
    ready: queue.SimpleQueue[tuple[str, Callable[[], None]]] = queue.SimpleQueue()

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head, body = await read_request(reader)
            writer.write(answer(head.split()[1], json.loads(body) if body else None))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def serve() -> None:
        over = asyncio.Event()
        server = await asyncio.start_server(reply, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        loop = asyncio.get_running_loop()
        ready.put((f"http://{host}:{port}", lambda: loop.call_soon_threadsafe(over.set)))
        async with server:
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    url, stop = ready.get(timeout=30)
    try:
        yield url
    finally:
        stop()
        thread.join()
