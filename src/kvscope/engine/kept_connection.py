"""One connection for many small requests, one after another: a fidelity study asks thousands, and to open a connection
for each costs more than the question.

Servers close such a connection when they like: after so many requests, or after some seconds. Where that shows before
anything of an answer came, the request is sent once more over a new one, so only questions that change nothing may be
asked here.
"""

import asyncio
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from kvscope.engine.http_client import Exchange, Limits, Reply, hidden_in_errors
from kvscope.engine.http_connection import Wire, connect, endpoint
from kvscope.engine.http_request import request_bytes
from kvscope.errors import ConnectionLost


class KeptConnection:
    """To ``base_url``, with ``headers`` (keys) in every request, shown nowhere. ``async with`` closes it."""

    def __init__(self, base_url: str, headers: Mapping[str, str] | None = None) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers: Mapping[str, str] = headers or {}
        self._transport: asyncio.Transport | None = None
        self._wire: Wire | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    async def post(self, path: str, payload: object, limits: Limits) -> Reply:
        """The reply, its body read whole, whatever its status. Raises as ``http_client.request``."""
        with hidden_in_errors(self._headers):
            is_used = self._wire is not None
            try:
                return await self._sent(path, payload, limits)
            except ConnectionLost:
                if not is_used or (self._wire is not None and self._wire.num_received):
                    raise
                self._drop()
                return await self._sent(path, payload, limits)
            except BaseException:
                self._drop()
                raise

    async def _sent(self, path: str, payload: object, limits: Limits) -> Reply:
        where = endpoint(self._base_url + path)
        sent = request_bytes("POST", where, self._headers, payload, keeps_alive=True)
        started_s = time.perf_counter()
        if self._wire is None or self._wire.closed:
            self._drop()
            self._transport, self._wire = await connect(where, limits.connect_s, Wire)
        wire = self._wire
        wire.num_received, wire.sent_s = 0, None
        wire.send(sent, is_tls=where.is_tls)
        running = Exchange(wire, where, limits, started_s)
        await running.begin()
        reply = await running.whole()
        if not _stays_open(reply):
            self._drop()
        return reply

    def _drop(self) -> None:
        transport, self._transport, self._wire = self._transport, None, None
        if transport is not None:
            transport.abort()


def _stays_open(reply: Reply) -> bool:
    """Whether the next answer may come over the same connection (RFC 9112, 9.3). A failure's body may not have been
    read to its end."""
    has_end = "content-length" in reply.headers or "transfer-encoding" in reply.headers
    return reply.status == 200 and has_end and reply.headers.get("connection", "").strip().lower() != "close"
