"""The requests of a load on their way: streams, connections kept open, a schedule that never shifts.

Here nothing is read of an answer but whether it has ended; ``load_client.py`` reads them when all are over. Three
exceptions, each of which the ticker sees as lag of the loop: an answer that may hang is read as far as it has come;
where many bytes are held, some are read with each tick; and where too many are, all.
"""

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from kvscope.engine.client_health import Ticker
from kvscope.engine.http_client import hidden_in_errors
from kvscope.engine.http_connection import Endpoint, connect
from kvscope.engine.load_playback import Playback
from kvscope.engine.load_wire import SIGN_OF_LIFE, LoadWire, Recording
from kvscope.engine.loop_timer import LoopTimer
from kvscope.engine.prepared import Prepared
from kvscope.errors import EngineError, KvscopeError

# Bytes of answers that are held before they are read. A token takes about 200: 600 thousand of them.
MOST_HELD_BYTES = 128 * 1024 * 1024
# From so many on, some are read with each tick, so that it does not come to that: so many reads take about a
# millisecond, and three times as many where it is getting full. An answer that is begun counts as some more.
MUCH_HELD_BYTES = 32 * 1024 * 1024
SOME_READS, _READS_TO_BEGIN = 150, 10
_BYTES_PER_READ = 512
# To count what many connections hold takes a tenth of a millisecond.
_MANY, _HELD_EVERY_S = 64, 0.020
# An answer that says nothing for so long is read as far as it has come: it may have ended in an error and hang.
QUIET_S = 2.0


@dataclass(slots=True, kw_only=True)
class Sending:
    """One request of a load. Moments are ``time.perf_counter``'s: ``due_s`` by the schedule of an open loop,
    ``ready_s`` from when on it could have been sent, ``begun_s`` when it was taken up, ``check_s`` when to look whether
    it hangs."""

    index: int
    prepared: Prepared | None = None
    where: Endpoint | None = None
    request: bytes = b""
    due_s: float | None = None
    ready_s: float = 0.0
    begun_s: float = 0.0
    check_s: float = 0.0
    stream: int = 0
    is_resent: bool = False
    error: KvscopeError | None = None
    wire: LoadWire | None = None
    recording: Recording | None = None
    playback: Playback | None = None

    def read(self, most_reads: int | None = None) -> bool:
        """Read what there is of the answer, or its first so many reads. Whether that is all."""
        if self.playback is None:
            assert self.prepared is not None
            assert self.where is not None
            assert self.recording is not None
            self.playback = Playback(self.prepared, self.where, self.recording, self.begun_s)
        kept = self.recording
        with nullcontext() if kept is None or most_reads is None else kept.first(most_reads):
            is_over = self.playback.advance()
        if is_over and kept is not None:
            kept.drop()
        return self.playback.is_done

    @property
    def sent_s(self) -> float:
        """When its last byte was handed to the operating system; where it never was, when it was taken up."""
        sent_s = None if self.recording is None else self.recording.sent_s
        return self.begun_s if sent_s is None else sent_s


@dataclass(slots=True)
class _Stream:
    """One request at a time, over a connection that is kept for the next one. ``place``: the how-manieth to be used."""

    number: int
    place: int = -1
    wire: LoadWire | None = None
    ready_s: float = 0.0

    def __lt__(self, other: "_Stream") -> bool:
        return self.number < other.number

    async def connected(self, sending: Sending) -> LoadWire:
        """Raises ConnectionRefused or EngineTimeout."""
        if self.wire is None or self.wire.closed or not self.wire.is_reusable:
            prepared, where = sending.prepared, sending.where
            assert prepared is not None
            assert where is not None
            with hidden_in_errors(prepared.headers):
                _, self.wire = await connect(where, prepared.limits.connect_s, LoadWire)
        return self.wire


@dataclass(slots=True, kw_only=True)
class Senders:
    """Sends ``sendings`` in their order: those that have a ``due_s``, seconds from the begin, at that moment; otherwise
    over ``concurrency`` streams. ``begin_s``, ``end_s``: of all, once ``send_all`` has returned."""

    sendings: Sequence[Sending]
    concurrency: int
    begin_s: float = 0.0
    end_s: float = 0.0
    _waiting: deque[Sending] = field(default_factory=deque)
    _running: dict[int, Sending] = field(default_factory=dict)
    _unread: deque[Sending] = field(default_factory=deque)
    _unread_bytes: int = 0
    _held_bytes: int = 0
    _next_held_s: float = 0.0
    _num_used: int = 0
    _next_check_s: float = 0.0
    _streams: list[_Stream] = field(default_factory=list)
    _free: list[_Stream] = field(default_factory=list)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    async def send_all(self, ticker: Ticker) -> None:
        """Returns when every request has been answered or has failed; cancelled, it closes all connections."""
        self._waiting.extend(self.sendings)
        is_open = bool(self.sendings) and self.sendings[0].due_s is not None
        try:
            await asyncio.gather(*(self._new_stream() for _ in range(min(self.concurrency, len(self.sendings)))))
            with ticker:
                self.begin_s = ticker.begin_s
                await (self._send_when_due() if is_open else self._send_in_turn())
                self.end_s = time.perf_counter()
        finally:
            for task in self._tasks:
                task.cancel()
            for stream in self._streams:
                if stream.wire is not None:
                    stream.wire.abort()

    def watch(self, now: float) -> None:
        """To be called with each tick: end what hangs or is late; read some where much is held, and all where it is too
        much."""
        if now >= self._next_held_s or len(self._running) < _MANY:
            under_way = sum(one.recording.num_held for one in self._running.values() if one.recording)
            self._held_bytes, self._next_held_s = self._unread_bytes + under_way, now + _HELD_EVERY_S
        if self._held_bytes > MOST_HELD_BYTES:
            self._read_all()
        elif self._held_bytes > MUCH_HELD_BYTES:
            self._read_some(SOME_READS * (3 if self._held_bytes > MOST_HELD_BYTES / 2 else 1))
        if now < self._next_check_s:
            return
        for sending in list(self._running.values()):
            if now >= sending.check_s:
                self._check(sending, now)
        self._next_check_s = min((one.check_s for one in self._running.values()), default=float("inf"))

    # --- closed loop ----------------------------------------------------------------------------------------------

    async def _send_in_turn(self) -> None:
        await asyncio.gather(*(self._next_after_next(stream) for stream in self._streams))

    async def _next_after_next(self, stream: _Stream) -> None:
        stream.ready_s = self.begin_s
        while self._waiting:
            await self._send(self._waiting.popleft(), stream)

    # --- open loop ------------------------------------------------------------------------------------------------

    async def _send_when_due(self) -> None:
        self._free.extend(self._streams)
        for sending in self.sendings:
            assert sending.due_s is not None
            sending.due_s += self.begin_s
        all_sent = asyncio.get_running_loop().create_future()

        def send_due() -> None:
            now = time.perf_counter()
            while self._waiting and (self._waiting[0].due_s or 0.0) <= now:
                self._begin(self._waiting.popleft())
            if self._waiting:
                timer.arm(self._waiting[0].due_s or 0.0)
            elif not all_sent.done():
                all_sent.set_result(None)

        timer = LoopTimer(asyncio.get_running_loop(), send_due)
        try:
            send_due()
            await all_sent
            while self._tasks:
                await asyncio.gather(*self._tasks)
        finally:
            timer.close()

    def _begin(self, sending: Sending) -> None:
        if not self._free:
            self._free.append(_Stream(len(self._streams)))
            self._streams.append(self._free[0])
        stream = heapq.heappop(self._free)
        stream.ready_s = sending.due_s or 0.0
        self._as_task(self._send_and_free(sending, stream))
        is_kept = sending.prepared is not None and sending.prepared.keeps_alive
        if not self._free and self._waiting and is_kept:  # whoever is next finds a connection
            self._as_task(self._free_new_stream())

    async def _send_and_free(self, sending: Sending, stream: _Stream) -> None:
        await self._send(sending, stream)
        heapq.heappush(self._free, stream)

    async def _free_new_stream(self) -> None:
        heapq.heappush(self._free, await self._new_stream())

    def _as_task(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- one request ----------------------------------------------------------------------------------------------

    async def _new_stream(self) -> _Stream:
        """Connected already where that can be; where not, its first request says why."""
        stream = _Stream(len(self._streams))
        self._streams.append(stream)
        example = next((one for one in self.sendings if one.prepared is not None), None)
        if example is not None and example.prepared is not None and example.prepared.keeps_alive:
            try:
                await stream.connected(example)
            except EngineError:
                stream.wire = None
        return stream

    async def _send(self, sending: Sending, stream: _Stream) -> None:
        if stream.place < 0:  # one that was connected beforehand may never be used
            stream.place, self._num_used = self._num_used, self._num_used + 1
        sending.begun_s, sending.ready_s, sending.stream = time.perf_counter(), stream.ready_s, stream.place
        if sending.error is None:
            try:
                await self._exchange(sending, stream)
                if _met_a_closing_door(sending):
                    sending.is_resent = True
                    await self._exchange(sending, stream)
                assert sending.recording is not None
                self._unread.append(sending)
                self._unread_bytes += sending.recording.num_held
            except EngineError as error:
                error.evidence.setdefault("pieces_received", 0)
                sending.error = error
        stream.ready_s = time.perf_counter()

    async def _exchange(self, sending: Sending, stream: _Stream) -> None:
        wire = await stream.connected(sending)
        assert sending.prepared is not None
        assert sending.where is not None
        limits = sending.prepared.limits
        sending.wire = wire
        sending.recording = recording = Recording(asyncio.get_running_loop().create_future())
        sending.check_s = sending.begun_s + min(limits.timeout_s, limits.stall_s, QUIET_S)
        self._next_check_s = min(self._next_check_s, sending.check_s)
        self._running[sending.index] = sending
        wire.begin(sending.request, recording, is_tls=sending.where.is_tls)
        await recording.over
        del self._running[sending.index]
        if not sending.prepared.keeps_alive or not wire.is_reusable:
            wire.abort()
            stream.wire = None

    # --- what may hang, and what is held ----------------------------------------------------------------------------

    def _check(self, sending: Sending, now: float) -> None:
        prepared, recording = sending.prepared, sending.recording
        assert prepared is not None
        assert recording is not None
        deadline_s, stall_s = sending.begun_s + prepared.limits.timeout_s, prepared.limits.stall_s
        quiet_s = min(stall_s, QUIET_S)
        since_s = _last_life_s(recording, now - quiet_s)
        if now < deadline_s and since_s is not None:
            sending.check_s = min(deadline_s, since_s + quiet_s)
            return
        if self._read_on(sending):
            return
        assert sending.playback is not None
        since_s = sending.playback.quiet_since_s
        stalls_s = now + stall_s if since_s is None else since_s + stall_s
        sending.check_s = max(now, min(deadline_s, stalls_s, now + quiet_s))

    def _read_all(self) -> None:
        for sending in self._unread:
            sending.read()
        self._unread, self._unread_bytes, self._held_bytes = deque(), 0, 0
        for sending in list(self._running.values()):
            self._read_on(sending)

    def _read_some(self, most_reads: int) -> None:
        """Of the answers that are over, the oldest first; where all are read, of the one that holds most."""
        while self._unread and most_reads > 0:
            sending = self._unread[0]
            kept = sending.recording
            assert kept is not None
            reads, before = len(kept.reads), kept.num_held
            sending.read(_fitting(most_reads, kept))
            self._unread_bytes -= before - kept.num_held
            most_reads -= reads + _READS_TO_BEGIN
            if not kept.reads:
                self._unread.popleft()
        if most_reads > 0 and self._running:
            fullest = max(self._running.values(), key=lambda one: one.recording.num_held if one.recording else 0)
            assert fullest.recording is not None
            self._read_on(fullest, _fitting(most_reads, fullest.recording))

    def _read_on(self, sending: Sending, most_reads: int | None = None) -> bool:
        """Read what has come of an answer that goes on; it is over where that is an error."""
        if not sending.read(most_reads):
            return False
        assert sending.recording is not None
        if sending.wire is not None:
            sending.wire.abort()
        sending.recording.end()
        return True


def _fitting(most_reads: int, kept: Recording) -> int:
    """So many reads, or fewer where they are large."""
    if kept.num_held <= _BYTES_PER_READ * len(kept.reads):
        return most_reads
    return max(1, most_reads * _BYTES_PER_READ * len(kept.reads) // kept.num_held)


def _met_a_closing_door(sending: Sending) -> bool:
    """Whether the connection, used before, was closed by the server before any byte of an answer: it had given it up
    when the request came (RFC 9112, 9.3.1)."""
    wire, recording = sending.wire, sending.recording
    if wire is None or recording is None or sending.playback is not None:
        return False
    return wire.num_answers > 1 and wire.closed and recording.num_kept == 0


def _last_life_s(recording: Recording, after_s: float) -> float | None:
    """The moment of the last read after ``after_s`` that may hold a piece of an answer."""
    for at_s, data in reversed(recording.reads):
        if at_s <= after_s:
            return None
        if SIGN_OF_LIFE in data:
            return at_s
    return None
