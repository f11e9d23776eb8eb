"""A connection that serves one request of a load after another, and what it kept of each answer.

In ``data_received`` the read is stamped and kept, and httptools finds out whether the answer has ended; it takes a
tenth of a microsecond for that, since it is asked for nothing else. What the bytes say is read later
(``load_playback.py``).
"""

import asyncio
import time
import types
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from kvscope.engine.http_connection import Wire

# No event of an answer is without one, and no line that only keeps a connection alive has one.
SIGN_OF_LIFE = b"{"


@types.coroutine
def until_more() -> Generator[None, None, None]:
    """Suspends a reader that is gone on with by hand (``load_playback.py``)."""
    yield


class Recording:
    """The reads of one answer, kept until somebody takes them, as ``http_client.Reads``. ``closed``: no more come;
    ``failure``: why, where the connection broke. ``over`` is set when the answer has ended, in whatever way."""

    def __init__(self, over: "asyncio.Future[None]") -> None:
        self.reads: deque[tuple[float, bytes]] = deque()
        self.num_received = 0
        self.num_kept = 0
        self.sent_s: float | None = None
        self.closed = False
        self.failure: Exception | None = None
        self.ended_s: float | None = None
        self.over = over

    @property
    def num_held(self) -> int:
        """Bytes that nobody has taken yet."""
        return self.num_kept - self.num_received

    def take(self) -> tuple[float, bytes]:
        """The first read that was not taken yet, and its moment."""
        at_s, data = self.reads.popleft()
        self.num_received += len(data)
        return at_s, data

    @contextmanager
    def first(self, number: int) -> Iterator[None]:
        """Inside, no more than the first so many reads are there, and it is as if others were still to come."""
        rest, closed = self.reads, self.closed
        if len(rest) > number:
            self.reads, self.closed = deque(rest.popleft() for _ in range(number)), False
        try:
            yield
        finally:
            if rest is not self.reads:
                rest.extendleft(reversed(self.reads))
                self.reads, self.closed = rest, closed

    async def wait(self, timeout_s: float) -> None:
        """Suspends whoever reads; ``Playback`` goes on when there may be more."""
        await until_more()

    def drop(self) -> None:
        """Forget what nobody has taken: nobody will."""
        self.reads.clear()
        self.num_received = self.num_kept

    def end(self) -> None:
        """No more will come."""
        self.closed = True
        self.ended_s = time.perf_counter()
        if not self.over.done():
            self.over.set_result(None)


class LoadWire(Wire):
    """``is_reusable``: the last answer ended as it should, and the server keeps the connection open. ``num_answers``:
    how many it has carried."""

    def __init__(self) -> None:
        super().__init__()
        import httptools

        self._new_parser = httptools.HttpResponseParser
        self.num_answers = 0
        self.is_reusable = True
        self._recording: Recording | None = None
        self._parser: Any = None
        self._is_over = False

    def begin(self, request: bytes, recording: Recording, *, is_tls: bool) -> None:
        """Send a request, whose answer goes to ``recording``."""
        self._recording = recording
        self._parser = self._new_parser(self)
        self._is_over = self.is_reusable = False
        self.sent_s = None
        self.send(request, is_tls=is_tls)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        recording = self._recording
        if recording is None:  # an answer to nothing
            self._transport.abort()
            return
        recording.reads.append((now, data))
        recording.num_kept += len(data)
        try:
            self._parser.feed_data(data)
        except Exception:  # what is wrong with it, whoever reads it finds out
            self._end(is_reusable=False)
        else:
            if self._is_over:
                self._end(is_reusable=self.is_reusable and recording.sent_s is not None)

    def on_message_complete(self) -> None:
        """httptools: the answer has ended, unless it was a provisional one (RFC 9110, 15.2)."""
        status = self._parser.get_status_code()
        if status >= 200 or status == 101:
            self._is_over = True
            self.is_reusable = self._parser.should_keep_alive()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.failure = exc
        if self._recording is not None:
            self._recording.failure = exc
            self._end(is_reusable=False)

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self.is_reusable = False
        self._recording = None
        self._transport.abort()

    def _send_more(self, now: float | None) -> None:
        super()._send_more(now)
        if self._recording is not None:
            self._recording.sent_s = self.sent_s

    def _end(self, *, is_reusable: bool) -> None:
        recording, self._recording, self._parser = self._recording, None, None
        self.is_reusable = is_reusable and not self.closed
        self.num_answers += 1
        if not self.is_reusable:
            self._transport.abort()
        assert recording is not None
        recording.end()
