"""One request made ready: where it goes, what is sent, and how its answer is read. Sent alone, or in a load.

An adapter says this once for each request, and the same words serve ``Engine.generate`` (one request, read as it
comes) and ``Engine.generate_many`` (``load_client.py``: many at once, read when the times have been taken). An error
has the same cause either way.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvscope.engine.base import Generation
from kvscope.engine.client_health import Ticker, coalesced, seen_of
from kvscope.engine.event_loop import no_collection
from kvscope.engine.http_client import Exchange, Limits, hidden_in_errors
from kvscope.engine.http_connection import connect, endpoint
from kvscope.engine.http_request import request_bytes
from kvscope.engine.live_wire import LiveRecording, LiveWire
from kvscope.engine.load_playback import Playback
from kvscope.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A POST of ``payload`` as JSON to ``url``. ``headers`` (keys) are shown nowhere. ``limits``: of its time and size.

    ``read`` makes the answer of the exchange, whose status and headers are there: it judges the status, then reads the
    body through ``running.chunks()`` or ``running.whole()``. It may await nothing else, since in a load it runs after
    the bytes have come. It raises an EngineError for every way in which an answer can fail.

    ``keeps_alive``: in a load, the connection is used again for the next request; False for servers that give each
    connection a thread of its own and let others wait for one."""

    url: str
    payload: object
    limits: Limits
    read: Callable[[Exchange], Coroutine[Any, Any, Generation]]
    headers: Mapping[str, str] = field(default_factory=dict)
    keeps_alive: bool = True


async def ask(prepared: Prepared) -> Generation:
    """Send one request over a connection of its own and read its answer to the end. The answer has its ``health``.

    Raises an EngineError for every way in which that can fail, with the number of pieces until then in its evidence,
    and UsageError for an address or a header that cannot be."""
    where, limits = endpoint(prepared.url), prepared.limits
    request = request_bytes("POST", where, prepared.headers, prepared.payload)
    try:
        with no_collection(), Ticker() as ticker:
            with hidden_in_errors(prepared.headers):
                transport, wire = await connect(where, limits.connect_s, lambda: LiveWire(ticker.slow_down))
            try:
                kept = LiveRecording()
                wire.begin(request, kept, is_tls=where.is_tls)
                answer = await wire.read_with(Playback(prepared, where, kept, ticker.begin_s), kept)
            finally:
                transport.abort()
    except EngineError as error:
        error.evidence.setdefault("pieces_received", 0)
        raise
    sent_s = ticker.begin_s if kept.sent_s is None else kept.sent_s
    health = ticker.health(
        send_to_wire_s=sent_s - ticker.begin_s,
        coalesced_fraction=coalesced(answer.reads),
        seen=seen_of(answer, sent_s),
    )
    return replace(answer, health=health)
