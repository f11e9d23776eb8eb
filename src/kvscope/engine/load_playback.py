"""An answer read from the bytes that were kept of it, gone on with by hand.

The code that reads waits for more bytes where it has read all; here waiting means to be put aside until somebody asks
again. So an answer can be read when it is over (a load), some reads at a time (``live_wire.py``), and also as far as it
has come: to see whether it hangs, or to free its bytes.
"""

import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvscope.engine.base import Generation
from kvscope.engine.http_client import Exchange, Reads, hidden_in_errors
from kvscope.engine.http_connection import Endpoint
from kvscope.errors import EngineError

if TYPE_CHECKING:
    from kvscope.engine.prepared import Prepared


@contextmanager
def _apart_from_the_loop() -> Iterator[None]:
    """A running event loop ends every generator that is begun while it runs; those of an answer that is put aside are
    not its own."""
    first, last = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(first, last)


class Playback:
    """``advance`` until ``is_done``; then ``generation`` or ``error`` is there, the error as ``ask`` would have raised
    it."""

    def __init__(self, prepared: "Prepared", where: Endpoint, recording: Reads, started_s: float) -> None:
        self.generation: Generation | None = None
        self.error: EngineError | None = None
        self._prepared = prepared
        self._exchange = Exchange(recording, where, prepared.limits, started_s)
        self._reading: Coroutine[Any, Any, Generation] = self._read()

    @property
    def is_done(self) -> bool:
        """Whether all is known of the answer that ever will be."""
        return self.generation is not None or self.error is not None

    @property
    def quiet_since_s(self) -> float | None:
        """The last sign of life in the answer, as far as it was read; None: it has not begun."""
        return self._exchange.quiet_since_s

    def advance(self) -> bool:
        """Read what there is. Whether that is all."""
        if self.is_done:
            return True
        try:
            with _apart_from_the_loop(), hidden_in_errors(self._prepared.headers):
                self._reading.send(None)
        except StopIteration as end:
            self.generation = end.value
        except EngineError as error:
            error.evidence.setdefault("pieces_received", 0)
            self.error = error
        return self.is_done

    def close(self) -> None:
        """Read no further."""
        self._reading.close()

    async def _read(self) -> Generation:
        await self._exchange.begin()
        return await self._prepared.read(self._exchange)
