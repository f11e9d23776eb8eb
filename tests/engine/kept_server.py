"""A server that keeps its connections open, and notes what came over each, and how many requests were there at once."""

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import trustme
from scripted_server import read_request


@dataclass
class Asked:
    """One request: the how-manieth of its connection, from 0; of which connection; what was sent."""

    number: int
    connection: int
    body: Any
    head: str
    at_s: float


Talk = Callable[["KeptServer", Asked, asyncio.StreamWriter], Awaitable[bool]]


@dataclass
class KeptServer:
    """``talk`` answers a request and says whether the connection stays."""

    talk: Talk
    certificate: trustme.LeafCert | None = None
    reads_after_s: float = 0.0
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    under_way: int = 0
    most_under_way: int = 0
    writers: dict[asyncio.StreamWriter, asyncio.StreamReader] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def close(self) -> None:
        """Listen no more. To be called by ``talk``."""
        self._server.close()

    def reader_of(self, writer: asyncio.StreamWriter) -> asyncio.StreamReader:
        return self.writers[writer]

    async def _listen(self) -> None:
        context = None
        if self.certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self.certificate.configure_cert(context)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, self.connections = self.connections, self.connections + 1
        self.writers[writer] = reader
        try:
            stays, number = True, 0
            await asyncio.sleep(self.reads_after_s)
            while stays:
                head, body = await read_request(reader)
                asked = Asked(number, connection, json.loads(body), head, time.perf_counter())
                self.asked.append(asked)
                self.under_way += 1
                self.most_under_way = max(self.most_under_way, self.under_way)
                try:
                    stays = await self.talk(self, asked, writer)
                finally:
                    self.under_way -= 1
                number += 1
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


@contextmanager
def kept(
    talk: Talk, certificate: trustme.LeafCert | None = None, *, reads_after_s: float = 0.0
) -> Iterator[KeptServer]:
    """Such a server, in a thread of its own. ``reads_after_s``: it leaves a new connection unread for so long."""
    server = KeptServer(talk, certificate, reads_after_s)
    server.start()
    try:
        yield server
    finally:
        server.stop()
