"""An answer read from what was kept of it: however its bytes were cut into reads, it says the same."""

import asyncio
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from scripted_server import END, HEAD, chunk, event, finish, token

from kvscope.engine.base import ChatRequest, Generation, Message
from kvscope.engine.http_connection import endpoint
from kvscope.engine.load_playback import Playback
from kvscope.engine.load_wire import LoadWire, Recording
from kvscope.engine.openai_http import prepare_chat

CHAT = ChatRequest(messages=(Message(role="user", content="hi"),), max_output_tokens=64, timeout_s=1e9)
PREPARED = prepare_chat("http://127.0.0.1:9", CHAT)
WHERE = endpoint("http://127.0.0.1:9")


class Nowhere(asyncio.Transport):
    """A transport that takes all that is sent."""

    def write(self, data: Any) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def abort(self) -> None:
        pass


def played(stream: bytes, cuts: list[int], *, reads_on: bool, ends: bool = False) -> tuple[Generation, Recording]:
    """The answer out of a stream cut at these places. ``reads_on``: it is read as far as it has come after each."""

    async def go() -> tuple[Generation, Recording]:
        wire, recording = LoadWire(), Recording(asyncio.get_running_loop().create_future())
        wire.connection_made(Nowhere())
        wire.begin(b"POST / HTTP/1.1\r\n\r\n", recording, is_tls=False)
        playback = Playback(PREPARED, WHERE, recording, started_s=recording.sent_s or 0.0)
        places = [0, *sorted({cut % len(stream) for cut in cuts} - {0}), len(stream)]
        for begin, end in pairwise(places):
            assert not recording.over.done()
            wire.data_received(stream[begin:end])
            if reads_on:
                playback.advance()
        assert recording.over.done() != ends  # the end was seen with the last read, and not before
        if ends:
            wire.connection_lost(None)
        assert playback.advance()
        assert playback.generation is not None, playback.error
        return playback.generation, recording

    return asyncio.run(go())


WORDS = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=12)
CUTS = st.lists(st.integers(min_value=0, max_value=1 << 20), max_size=30)
ENDS = st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r", b"\n: still here\n\n"])


@given(words=WORDS, cuts=CUTS, line_end=ENDS, per_chunk=st.integers(1, 4), reads_on=st.booleans())
def test_whatever_the_reads(words: list[str], cuts: list[int], line_end: bytes, per_chunk: int, reads_on: bool) -> None:
    """Texts with line ends, colons and characters of several bytes; events end in each way the form allows, several to
    a chunk of HTTP or one."""
    events = [token(word) for word in words] + [finish("length", completion_tokens=len(words))]
    whole = b"".join(events).replace(b"\n\n", line_end)
    size = max(1, len(whole) // per_chunk)
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    stream = HEAD + b"".join(chunk(piece) for piece in pieces) + END
    in_one, _ = played(stream, [], reads_on=False)
    cut, _ = played(stream, cuts, reads_on=reads_on)
    for found in (in_one, cut):
        assert [piece.text for piece in found.events] == words
        assert sum(read.num_events for read in found.reads) == len(words)
        assert sum(read.num_bytes for read in found.reads) == len(stream)
        assert (found.finish_reason, found.output_tokens) == ("length", len(words))
    times = [piece.at_s for piece in cut.events]
    assert times == sorted(times)
    assert set(times) <= {read.at_s for read in cut.reads}
    assert len({piece.at_s for piece in in_one.events}) == 1


@given(cuts=CUTS, has_length=st.booleans())
def test_bodies_of_a_stated_length_and_until_the_end(cuts: list[int], has_length: bool) -> None:
    body = token("a") + token("b") + finish()
    head = b"HTTP/1.1 200 OK\r\n" + (b"Content-Length: %d\r\n" % len(body) if has_length else b"") + b"\r\n"
    found, recording = played(head + body, cuts, reads_on=False, ends=not has_length)
    assert [piece.text for piece in found.events] == ["a", "b"]
    assert recording.closed


@given(cuts=CUTS)
def test_an_event_that_looks_like_the_end_of_the_body_is_none(cuts: list[int]) -> None:
    """A chunk whose data ends in what a last chunk is: 0, two line ends."""
    body = event({"choices": [{"delta": {"content": "a"}}]}).rstrip() + b"\r\n\r\n:0\r\n\r\n"
    stream = HEAD + chunk(body) + chunk(token("b")) + chunk(finish()) + END
    found, _ = played(stream, [*cuts, stream.index(b":0\r\n\r\n") + 6], reads_on=False)
    assert [piece.text for piece in found.events] == ["a", "b"]
