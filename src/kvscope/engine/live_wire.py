"""A connection for one request alone: its reads are stamped and kept, and read some at a time.

To wake a task for every token, with a timer for each, costs several times what the token itself costs; and code that
runs once in ten milliseconds finds the processor's caches cold each time. So, as in a load, a read is stamped and kept;
what it says is read when there are some of them, right after one of them came, when the next is furthest off. An answer
that fails or never ends is found out within ``LOOK_EVERY_S`` all the same.
"""

import asyncio
import time
from collections.abc import Callable

from kvscope.engine.base import Generation
from kvscope.engine.load_playback import Playback
from kvscope.engine.load_wire import SIGN_OF_LIFE, LoadWire, Recording, until_more

# What so many events say takes half a millisecond to read: less than it is to the next one, but of the fastest streams.
MOST_KEPT_READS = 64
_MOST_KEPT_BYTES = 1024 * 1024
LOOK_EVERY_S = 0.5
# The loop's timers are exact to a millisecond.
_SHORTEST_S = 0.001


class LiveRecording(Recording):
    """``look_s``: when whoever reads wants to go on, though nothing may have come: a time limit."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop().create_future())
        self.look_s = float("inf")

    async def wait(self, timeout_s: float) -> None:
        """Suspends whoever reads, until it is gone on with by hand."""
        self.look_s = time.perf_counter() + timeout_s
        await until_more()


class LiveWire(LoadWire):
    """``begin``, then ``read_with``. ``begun`` is called with the first read that may hold a piece of the answer."""

    def __init__(self, begun: Callable[[], None]) -> None:
        super().__init__()
        self._begun: Callable[[], None] | None = begun
        self._kept: LiveRecording | None = None
        self._playback: Playback | None = None
        self._fault: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def read_with(self, playback: Playback, kept: LiveRecording) -> Generation:
        """The answer, read to its end by ``playback`` out of ``kept``. Raises the EngineError that it ended in."""
        self._kept, self._playback = kept, playback
        try:
            self._read_on()
            self._look()
            await kept.over
            if self._fault is None:
                playback.advance()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._playback = None
            playback.close()
        error = self._fault or playback.error
        if error is not None:
            raise error
        assert playback.generation is not None
        return playback.generation

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # stamped before anything else
        if self._begun is not None and SIGN_OF_LIFE in data:
            self._begun()
            self._begun = None
        kept = self._kept
        if kept is not None and (len(kept.reads) >= MOST_KEPT_READS or kept.num_held > _MOST_KEPT_BYTES):
            self._read_on()

    def _look(self) -> None:
        kept = self._kept
        assert kept is not None
        if kept.reads or time.perf_counter() >= kept.look_s:
            self._read_on()
        left_s = min(LOOK_EVERY_S, max(_SHORTEST_S, kept.look_s - time.perf_counter()))
        self._timer = asyncio.get_running_loop().call_later(left_s, self._look)

    def _read_on(self) -> None:
        """Read what has come; that is all where it is an error."""
        playback, kept = self._playback, self._kept
        if playback is None or kept is None or kept.over.done():
            return
        try:
            is_over = playback.advance()
        except Exception as fault:  # ours: whoever asked has it
            self._fault, is_over = fault, True
        if is_over:
            self.abort()
            kept.end()
