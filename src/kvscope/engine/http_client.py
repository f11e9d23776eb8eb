"""A small HTTP client that stamps every read of the socket before anything else happens to it.

Latency of a streamed answer is a difference of two moments: when the last byte of the request was handed to the
operating system, and when the bytes of an event were read. Both are taken here, on ``time.perf_counter``'s clock, in
the transport's callbacks; parsing happens afterwards, outside of them. One connection per request.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from kvscope.errors import (
    ConnectionLost,
    ConnectionRefused,
    EngineReplyError,
    EngineStalled,
    EngineTimeout,
)

CONNECT_TIMEOUT_S = 10.0
PLAIN_TIMEOUT_S = 60.0
_VERBATIM_CHARACTERS = 2048

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Chunk:
    """One read of the socket, or the end of the answer (``last``). ``body`` is what it held of the answer's body."""

    at_s: float
    num_bytes: int
    body: bytes
    last: bool


@dataclass(slots=True)
class Reply:
    """``sent_s``: when the last byte of the request was handed to the operating system."""

    status: int
    headers: Mapping[str, str]
    sent_s: float
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds: for the connection, for the whole request, and the longest silence."""

    timeout_s: float = PLAIN_TIMEOUT_S
    stall_s: float = PLAIN_TIMEOUT_S
    connect_s: float = CONNECT_TIMEOUT_S


class _Wire(asyncio.Protocol):
    """Stamps and keeps; nothing else happens in these callbacks."""

    def __init__(self) -> None:
        self.reads: list[tuple[float, bytes]] = []
        self.sent_s: float | None = None
        self.closed = False
        self.failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._blocked = False

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.reads.append((now, data))
        self._wake()

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        now = time.perf_counter()
        if self._blocked:
            self.sent_s = now
            self._blocked = False
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.failure = exc
        self._wake()

    def send(self, transport: asyncio.Transport, request: bytes) -> None:
        """Write; ``sent_s`` is set now, or when the rest of a long request has left our buffer."""
        transport.set_write_buffer_limits(high=0)  # tell us as soon as anything is held back, and when nothing is
        transport.write(request)
        if not self._blocked:
            self.sent_s = time.perf_counter()

    async def wait(self) -> None:
        """Until something happens."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


@dataclass(slots=True)
class _Parsed:
    """What httptools has found so far; it calls the ``on_`` methods."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    headers_done: bool = False
    pieces: list[bytes] = field(default_factory=list)
    done: bool = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.headers_done = True

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        self.done = True


class Exchange:
    """One request on its way: ``reply`` has its status once ``begin`` returned; ``chunks`` gives the body."""

    def __init__(self, wire: _Wire, where: str, limits: Limits, started_s: float) -> None:
        import httptools

        self.reply: Reply
        self._wire = wire
        self._where = where
        self._limits = limits
        self._deadline_s = started_s + limits.timeout_s
        self._next_read = 0
        self._parsed = _Parsed()
        self._parser: Any = httptools.HttpResponseParser(self._parsed)
        self._parser_error: type[Exception] = httptools.HttpParserError
        self._early: list[Chunk] = []  # body that came with the headers

    async def begin(self) -> None:
        """Wait for the status and headers."""
        while not self._parsed.headers_done:
            self._early.append(await self._next_chunk())
        sent_s = self._wire.sent_s
        # A server may refuse a request before it has read all of it; it was then never wholly sent.
        self.reply = Reply(
            status=self._parser.get_status_code(),
            headers=self._parsed.headers,
            sent_s=self._early[0].at_s if sent_s is None else sent_s,
        )

    async def chunks(self) -> AsyncIterator[Chunk]:
        """The body, one item per read of the socket; headers alone give an empty one."""
        for chunk in self._early:
            yield chunk
        while not self._parsed.done:
            if self._ends_with_connection() and await self._closed_quietly():
                return
            yield await self._next_chunk()

    async def whole(self) -> Reply:
        """The reply with its whole body."""
        self.reply.body = b"".join([chunk.body async for chunk in self.chunks()])
        return self.reply

    async def _next_chunk(self) -> Chunk:
        await self._await_read()
        at_s, data = self._wire.reads[self._next_read]
        self._next_read += 1
        try:
            self._parser.feed_data(data)
        except self._parser_error as error:
            raise EngineReplyError(
                f"{self._where} did not answer in HTTP ({error}): {verbatim(data)}",
                hint="Is it the engine that listens on this port?",
            ) from error
        body, self._parsed.pieces = b"".join(self._parsed.pieces), []
        return Chunk(at_s, len(data), body, self._parsed.done)

    def _ends_with_connection(self) -> bool:
        """Whether the body has no stated end, and so lasts until the server closes (RFC 9112, 6.3)."""
        stated = self._parsed.headers.keys() & {"content-length", "transfer-encoding"}
        return self._parsed.headers_done and not stated

    async def _closed_quietly(self) -> bool:
        try:
            await self._await_read()
        except ConnectionLost:
            if self._wire.failure is None:
                return True
            raise
        return False

    async def _await_read(self) -> None:
        """Until a read is there that was not parsed yet."""
        quiet_since_s = time.perf_counter()
        while self._next_read >= len(self._wire.reads):
            if self._wire.closed:
                raise self._lost()
            now = time.perf_counter()
            total_left_s, quiet_left_s = self._deadline_s - now, quiet_since_s + self._limits.stall_s - now
            if total_left_s <= 0:
                raise EngineTimeout(
                    f"{self._where} did not finish within {self._limits.timeout_s:g} s.",
                    hint="Ask for less (a shorter input or output), or allow more time.",
                )
            if quiet_left_s <= 0:
                raise EngineStalled(
                    f"{self._where} sent nothing for {self._limits.stall_s:g} s.",
                    hint="The engine may hang, or be busy with other requests.",
                )
            try:
                async with asyncio.timeout(min(total_left_s, quiet_left_s)):
                    await self._wire.wait()
            except TimeoutError:
                continue

    def _lost(self) -> ConnectionLost:
        why = f" ({self._wire.failure})" if self._wire.failure else ""
        read = sum(len(data) for _, data in self._wire.reads)
        return ConnectionLost(
            f"{self._where} closed the connection{why} after {read:,} bytes, before the answer was complete.",
            hint="The engine may have crashed or been restarted; its log says more.",
        )


@asynccontextmanager
async def exchange(
    method: str, url: str, payload: object = None, *, limits: Limits | None = None
) -> AsyncIterator[Exchange]:
    """Send a request and give the exchange once the status is there; the connection closes with the block, also when
    it is left by an exception or a cancellation. ``payload`` is sent as JSON.

    Raises ConnectionRefused, ConnectionLost, EngineTimeout, EngineStalled, EngineReplyError.
    """
    limits = limits or Limits()
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    where = f"{host}:{port}{parts.path}"
    started_s = time.perf_counter()
    transport, wire = await _connect(host, port, limits)
    try:
        wire.send(transport, _request_bytes(method, parts.netloc, _target(url), payload))
        running = Exchange(wire, where, limits, started_s)
        await running.begin()
        yield running
    finally:
        transport.abort()


async def _connect(host: str, port: int, limits: Limits) -> tuple[asyncio.Transport, _Wire]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(limits.connect_s):
            transport, wire = await loop.create_connection(_Wire, host, port)
    except TimeoutError as error:
        raise EngineTimeout(
            f"{host}:{port} did not accept a connection within {limits.connect_s:g} s.",
            hint="Check the address, and whether the machine can be reached.",
        ) from error
    except OSError as error:
        raise ConnectionRefused(
            f"Nothing answers at {host}:{port} ({error.strerror or error}).",
            hint="Start the engine, or check its address and port.",
        ) from error
    return transport, wire


def _target(url: str) -> str:
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _request_bytes(method: str, host: str, target: str, payload: object) -> bytes:
    body = b"" if payload is None else json.dumps(payload, ensure_ascii=False).encode()
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close", "Accept: */*"]
    if payload is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def request(method: str, url: str, payload: object = None, *, limits: Limits | None = None) -> Reply:
    """A plain request, its body read whole. The status is the caller's to judge. Raises as ``exchange``."""
    async with exchange(method, url, payload, limits=limits) as running:
        return await running.whole()


def verbatim(data: bytes | str) -> str:
    """What was received, as it was, cut at 2,048 characters."""
    text = data if isinstance(data, str) else data.decode(errors="replace")
    return text if len(text) <= _VERBATIM_CHARACTERS else text[:_VERBATIM_CHARACTERS] + " … (cut)"


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end from ordinary code, also where a loop is running already (a notebook). Ctrl-C cancels
    it, which closes its socket."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []

    async def tracked() -> T:
        started.append((asyncio.get_running_loop(), asyncio.ensure_future(work)))
        return await started[0][1]

    with ThreadPoolExecutor(max_workers=1) as thread:
        future = thread.submit(asyncio.run, tracked())
        try:
            return future.result()
        except BaseException:
            if started and not future.done():
                loop, task = started[0]
                loop.call_soon_threadsafe(task.cancel)
            raise
