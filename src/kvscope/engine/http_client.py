"""A small HTTP client that stamps every read of the socket before anything else happens to it.

Latency of a streamed answer is a difference of two moments: when the last byte of the request was handed to the
operating system, and when the bytes of an event were read. Both are taken in ``http_connection.py``, on
``time.perf_counter``'s clock, in the transport's callbacks; parsing happens afterwards, outside of them. One connection
per request; redirects are not followed; nothing is decompressed; and what a server may send is bounded.
"""

import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from kvscope.engine.api_key import ApiKey
from kvscope.engine.event_loop import run as run
from kvscope.engine.http_connection import Endpoint, Wire, connect, endpoint, not_plain, speaks_tls
from kvscope.engine.http_request import request_bytes
from kvscope.errors import ConnectionLost, EngineReplyError, EngineStalled, EngineTimeout

CONNECT_TIMEOUT_S = 10.0
PLAIN_TIMEOUT_S = 60.0
# A reply of 2 million token ids, which is the longest that is asked for, has 16 MB.
MOST_REPLY_BYTES = 16 * 1024 * 1024
_MOST_HEADER_BYTES = 64 * 1024
_MOST_FAILURE_BYTES = 1024 * 1024
_VERBATIM_CHARACTERS = 2048
_EVIDENCE_BYTES = 64 * 1024

_SECRET_NAMES = ("auth", "key", "token", "secret", "cookie")


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
    """Seconds: for the connection, for the whole request, and the longest silence once the answer has begun (before
    that, ``timeout_s`` alone counts). ``max_bytes``: the most that is read of an answer, headers included."""

    timeout_s: float = PLAIN_TIMEOUT_S
    stall_s: float = PLAIN_TIMEOUT_S
    connect_s: float = CONNECT_TIMEOUT_S
    max_bytes: int = MOST_REPLY_BYTES


@dataclass(slots=True)
class _Parsed:
    """What httptools has found so far; it calls the ``on_`` methods."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    headers_done: bool = False
    pieces: list[bytes] = field(default_factory=list)
    done: bool = False
    parser: Any = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.headers_done:  # what comes after a chunked body is nothing that anybody asks for
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.done:  # the begin of an answer that nobody asked for
            return
        self.status = self.parser.get_status_code()
        self.headers_done = not self._is_interim()

    def on_body(self, body: bytes) -> None:
        if not self.done:
            self.pieces.append(body)

    def on_message_complete(self) -> None:
        self.done = self.done or not self._is_interim()
        if not self.done:
            self.headers = {}

    def _is_interim(self) -> bool:
        """100 Continue and its like: the answer is still to come (RFC 9110, 15.2)."""
        return self.status is not None and 100 <= self.status < 200 and self.status != 101


class Reads(Protocol):
    """What an exchange reads from: a ``Wire``, as its bytes come, or what a load kept of one (``load_wire.py``)."""

    reads: deque[tuple[float, bytes]]
    num_received: int
    sent_s: float | None
    closed: bool
    failure: Exception | None

    def take(self) -> tuple[float, bytes]: ...

    async def wait(self, timeout_s: float) -> None: ...


class Exchange:
    """One request on its way: ``reply`` has its status once ``begin`` returned; ``chunks`` gives the body.

    Silence counts from the last read on. Whoever knows better which reads are a sign of life sets ``quiet_since_s``
    itself, with ``keeps_quiet_clock``; None: the answer has not begun, and may take as long as the time limit."""

    def __init__(self, wire: Reads, where: Endpoint, limits: Limits, started_s: float) -> None:
        import httptools

        self.reply: Reply
        self.quiet_since_s: float | None = None
        self.keeps_quiet_clock = False
        self._wire = wire
        self._where = where
        self._limits = limits
        self._deadline_s = started_s + limits.timeout_s
        self._parsed = _Parsed()
        self._parser: Any = httptools.HttpResponseParser(self._parsed)
        self._parsed.parser = self._parser
        self._parser_error: type[Exception] = httptools.HttpParserError
        self._early: list[Chunk] = []  # body that came with the headers

    async def begin(self) -> None:
        """Wait for the status and headers. Raises EngineReplyError for an answer in a compressed form."""
        while not self._parsed.headers_done:
            self._early.append(await self._next_chunk())
        sent_s = self._wire.sent_s
        # A server may refuse a request before it has read all of it; it was then never wholly sent.
        self.reply = Reply(
            status=self._parsed.status or 0,
            headers=self._parsed.headers,
            sent_s=self._early[0].at_s if sent_s is None else sent_s,
        )
        encoding = self.reply.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise EngineReplyError(
                f"{self._where.shown} answered ({self.reply.status}) compressed as {encoding[:40]!r}, though it was "
                "asked not to.",
                hint="Times of a compressed answer mean nothing. Turn compression off in the server, or in the proxy "
                "before it.",
                evidence=self.evidence(),
            )

    async def chunks(self) -> AsyncIterator[Chunk]:
        """The body, one item per read of the socket; headers alone give an empty one."""
        for chunk in self._early:
            yield chunk
        ends_with_connection = self._ends_with_connection()
        while not self._parsed.done:
            if ends_with_connection and await self._closed_quietly():
                return
            yield await self._next_chunk()

    async def whole(self) -> Reply:
        """The reply with its whole body; of a failure's, the first MiB, which says what it is."""
        body = bytearray()
        try:
            async for chunk in self.chunks():
                body += chunk.body
                if self.reply.status >= 300 and len(body) > _MOST_FAILURE_BYTES:
                    break
        except EngineReplyError as error:
            error.evidence.setdefault("body", body_evidence(bytes(body[:_EVIDENCE_BYTES])))
            raise
        self.reply.body = bytes(body)
        return self.reply

    def evidence(self, **more: Any) -> dict[str, Any]:
        """What is known of the answer, for an error about it."""
        status = {} if self._parsed.status is None else {"http_status": self._parsed.status}
        return {"known_by": "message", **status, **more}

    async def _next_chunk(self) -> Chunk:
        if not self._wire.reads:
            await self._await_read()
        at_s, data = self._wire.take()
        if at_s > self._deadline_s:
            raise self._too_late()
        if self._wire.num_received > self._limits.max_bytes:
            raise self._too_much(f"more than {self._limits.max_bytes:,} bytes")
        try:
            self._parser.feed_data(data)
        except self._parser_error as error:
            raise self._not_http(data, error) from error
        if not self._parsed.headers_done and self._wire.num_received > _MOST_HEADER_BYTES:
            raise self._too_much(f"more than {_MOST_HEADER_BYTES:,} bytes of headers")
        if self._parsed.headers_done and not self.keeps_quiet_clock:
            self.quiet_since_s = at_s
        body, self._parsed.pieces = b"".join(self._parsed.pieces), []
        return Chunk(at_s, len(data), body, self._parsed.done)

    def _not_http(self, data: bytes, error: Exception) -> EngineReplyError:
        if not self._parsed.headers_done and speaks_tls(data):
            return not_plain(self._where)
        if self._parsed.headers_done:
            what, hint = "broke the form of HTTP in its answer", "The engine, or a proxy before it, sends broken HTTP."
        else:
            what, hint = "did not answer in HTTP", "Is it the engine that listens on this port?"
        return EngineReplyError(
            f"{self._where.shown} {what} ({error}): {verbatim(data)}",
            hint=hint,
            evidence=self.evidence(body=body_evidence(data)),
        )

    def _too_much(self, what: str) -> EngineReplyError:
        return EngineReplyError(
            f"{self._where.shown} sent {what}; reading was stopped.",
            hint="Is it the engine that listens there? No answer that was asked for is that long.",
            evidence=self.evidence(),
        )

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
        while not self._wire.reads:
            if self._wire.closed:
                raise self._lost()
            now = time.perf_counter()
            left_s = self._deadline_s - now
            if left_s <= 0:
                raise self._too_late()
            if self.quiet_since_s is not None:
                quiet_left_s = self.quiet_since_s + self._limits.stall_s - now
                if quiet_left_s <= 0:
                    raise self._stalled()
                left_s = min(left_s, quiet_left_s)
            await self._wire.wait(left_s)

    def _too_late(self) -> EngineTimeout:
        return EngineTimeout(
            f"{self._where.shown} did not finish within {self._limits.timeout_s:g} s.",
            hint="Ask for less (a shorter input or output), or allow more time.",
            evidence=self.evidence(),
        )

    def _stalled(self) -> EngineStalled:
        return EngineStalled(
            f"{self._where.shown} sent nothing for {self._limits.stall_s:g} s in the middle of its answer.",
            hint="The engine may hang, or be busy with other requests.",
            evidence=self.evidence(),
        )

    def _lost(self) -> ConnectionLost:
        why = f" ({self._wire.failure})" if self._wire.failure else ""
        read = self._wire.num_received
        hint = "The engine may have crashed or been restarted; its log says more."
        if not read and not self._where.is_tls:
            hint += " A server that speaks https hangs up like this too."
        return ConnectionLost(
            f"{self._where.shown} closed the connection{why} after {read:,} bytes, before the answer was complete.",
            hint=hint,
            evidence=self.evidence(),
        )


@asynccontextmanager
async def exchange(
    method: str,
    url: str,
    payload: object = None,
    *,
    limits: Limits | None = None,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[Exchange]:
    """Send a request and give the exchange once the status is there; the connection closes with the block, also when
    it is left by an exception or a cancellation. ``payload`` is sent as JSON. ``headers`` are sent too, and shown
    nowhere.

    Raises UsageError for an address or a header that cannot be, ConnectionRefused, ConnectionLost, EngineTimeout,
    EngineStalled, EngineReplyError.
    """
    limits = limits or Limits()
    where = endpoint(url)
    sent = request_bytes(method, where, headers or {}, payload)
    started_s = time.perf_counter()
    with hidden_in_errors(headers or {}):
        transport, wire = await connect(where, limits.connect_s, Wire)
        try:
            wire.send(sent, is_tls=where.is_tls)
            running = Exchange(wire, where, limits, started_s)
            await running.begin()
            yield running
        finally:
            transport.abort()


def hidden_in_errors(headers: Mapping[str, str]) -> AbstractContextManager[None]:
    """Errors raised inside do not hold the keys among these headers, though servers quote what they refuse."""
    keys = keys_among(headers) if headers else ()
    return _hidden_in_errors(keys) if keys else nullcontext()


@contextmanager
def _hidden_in_errors(keys: Sequence[ApiKey]) -> Iterator[None]:
    with ExitStack() as hiding:
        for key in keys:
            hiding.enter_context(key.hidden_in_errors())
        yield


def keys_among(headers: Mapping[str, str]) -> list[ApiKey]:
    """The keys that these headers carry."""
    return [
        _key(value.split()[-1])
        for name, value in headers.items()
        if any(word in name.lower() for word in _SECRET_NAMES) and value.split()
    ]


@lru_cache(maxsize=8)
def _key(value: str) -> ApiKey:
    return ApiKey(value)


async def request(
    method: str,
    url: str,
    payload: object = None,
    *,
    limits: Limits | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """A plain request, its body read whole. The status is the caller's to judge. Raises as ``exchange``."""
    async with exchange(method, url, payload, limits=limits, headers=headers) as running:
        return await running.whole()


def verbatim(data: bytes | str) -> str:
    """What was received, as it was, cut at 2,048 characters."""
    text = data if isinstance(data, str) else data.decode(errors="replace")
    return text if len(text) <= _VERBATIM_CHARACTERS else text[:_VERBATIM_CHARACTERS] + " … (cut)"


def body_evidence(data: bytes | str) -> str:
    """What was received, as it is kept with the trial: whole up to 64 KiB."""
    data = data.encode(errors="replace") if isinstance(data, str) else data
    if len(data) <= _EVIDENCE_BYTES:
        return data.decode(errors="replace")
    return data[:_EVIDENCE_BYTES].decode(errors="replace") + f" … (the first 64 KiB of {len(data):,} bytes)"
