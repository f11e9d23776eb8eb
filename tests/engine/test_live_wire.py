"""One request alone: how often its answer is read on, and what is found out in the middle of it."""

import asyncio
import time
from typing import Any

import pytest
from kept_server import Asked, KeptServer, kept
from scripted_server import END, HEAD, chunk, event, finish, token

from kvscope.engine.base import ChatRequest, Generation, Message
from kvscope.engine.client_health import Ticker
from kvscope.engine.event_loop import run
from kvscope.engine.http_client import Exchange, Limits
from kvscope.engine.http_connection import Wire, endpoint
from kvscope.engine.live_wire import MOST_KEPT_READS, LiveRecording, LiveWire
from kvscope.engine.load_playback import Playback
from kvscope.engine.openai_http import prepare_chat, stream_chat
from kvscope.engine.prepared import Prepared, ask
from kvscope.errors import ConnectionLost, EngineReplyError, EngineTimeout, ServerError

ANSWER = [HEAD, *[chunk(token("a"))] * 200, chunk(finish(completion_tokens=200, prompt_tokens=7)), END]


def chat(tokens: int = 200, timeout_s: float = 30.0) -> ChatRequest:
    return ChatRequest(
        messages=(Message(role="user", content="hi"),), max_output_tokens=tokens, timeout_s=timeout_s, stall_s=30.0
    )


class Transport(asyncio.Transport):
    """Takes what is written; its bytes are given to the wire by hand."""

    aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: Any) -> None: ...

    def abort(self) -> None:
        self.aborted = True


def given(reads: list[bytes], prepared: Prepared, lost: bool = False) -> tuple[Generation, list[int], Transport]:
    """The answer made of these reads, one after another; after how many of them it was read on."""
    looked: list[int] = []
    num_given = 0

    class Noted(Playback):
        def advance(self) -> bool:
            looked.append(num_given)
            return super().advance()

    async def go() -> tuple[Generation, list[int], Transport]:
        nonlocal num_given
        wire, transport, recording = LiveWire(lambda: None), Transport(), LiveRecording()
        wire.connection_made(transport)
        wire.begin(b"asked", recording, is_tls=False)
        playback = Noted(prepared, endpoint(prepared.url), recording, time.perf_counter())
        reading = asyncio.create_task(wire.read_with(playback, recording))
        await asyncio.sleep(0)
        for read in reads:
            num_given += 1
            before_s = time.perf_counter()
            wire.data_received(read)
            stamps.append((before_s, time.perf_counter()))
        if lost:
            wire.connection_lost(None)
        answer = await reading
        assert recording.sent_s is not None
        for read, (before_s, after_s) in zip(answer.reads, stamps, strict=True):
            assert before_s <= recording.sent_s + read.at_s <= after_s
        return answer, looked, transport

    stamps: list[tuple[float, float]] = []
    return asyncio.run(go())


PREPARED = prepare_chat("http://127.0.0.1:9", chat(), fields={})


def test_it_is_read_some_at_a_time_and_every_read_has_its_own_time() -> None:
    answer, looked, _ = given(ANSWER, PREPARED)
    assert looked == [0, *range(MOST_KEPT_READS, len(ANSWER), MOST_KEPT_READS), len(ANSWER)]
    assert [read.num_events for read in answer.reads] == [0, *[1] * 200, 0, 0]
    times = [event.at_s for event in answer.events]
    assert times == sorted(set(times))
    assert answer.completed_s >= times[-1]
    assert answer.output_tokens == 200


def test_much_at_once_is_not_held() -> None:
    comment = b": " + b"x" * 600_000 + b"\n\n"
    held = [HEAD, chunk(comment), chunk(comment), chunk(comment), chunk(token("a")), chunk(finish()), END]
    _, looked, _ = given(held, PREPARED)
    assert looked == [0, 3, len(held)]  # the second comment is the first that makes it more than 1 MiB


def test_an_answer_that_does_not_end_is_left() -> None:
    # 4 tokens were asked for: 8 pieces for each and 64 more are read. The connection goes on and on.
    with pytest.raises(EngineReplyError, match="does not end: 97 pieces"):
        given([HEAD, *[chunk(token("a"))] * 127], prepare_chat("http://127.0.0.1:9", chat(4), fields={}))


def test_a_connection_that_ends_in_the_middle() -> None:
    with pytest.raises(ConnectionLost) as caught:
        given(ANSWER[:50], PREPARED, lost=True)
    assert caught.value.evidence["pieces_received"] == 49


def test_an_answer_that_has_said_done_is_whole_though_the_last_chunk_is_missing() -> None:
    answer, _, _ = given([*ANSWER[:-1]], PREPARED, lost=True)
    assert (len(answer.events), answer.finish_reason, answer.output_tokens) == (200, "length", 200)
    with pytest.raises(ConnectionLost):  # of an answer that has not, nobody knows
        given(
            [*ANSWER[:-2], chunk(event({"choices": [{"delta": {}, "finish_reason": "length"}]}))], PREPARED, lost=True
        )


def test_a_wire_stamps_a_read_before_anything_else() -> None:
    wire = Wire()
    wire.connection_made(Transport())
    before_s = time.perf_counter()
    wire.data_received(b"x")
    at_s, _ = wire.take()
    assert before_s <= at_s <= time.perf_counter()


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        (chunk(event({"error": {"message": "out of paper", "code": 500}})), ServerError, "out of paper"),
        (chunk(token("a")) * 200, EngineReplyError, "does not end"),
    ],
)
def test_what_has_failed_and_hangs_is_found_out_before_it_counts_as_silent(
    said: bytes, error: type[Exception], words: str
) -> None:
    """The server keeps the connection open and says nothing more; a silence may last for 30 s."""
    left = asyncio.Event()

    async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        writer.write(HEAD + chunk(token("a")))
        await writer.drain()
        writer.write(said)
        await writer.drain()
        await server.reader_of(writer).read()  # until the client hangs up
        left.set()
        return False

    with kept(talk) as server:
        with pytest.raises(error, match=words):
            run(stream_chat(server.url, chat(4)))
        server_left = asyncio.run_coroutine_threadsafe(left.wait(), server._loop)
        server_left.result(20)


def test_a_time_limit_is_kept_though_nothing_comes() -> None:
    async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        await server.reader_of(writer).read()
        return False

    with kept(talk) as server, pytest.raises(EngineTimeout, match=r"within 0\.2 s"):
        run(stream_chat(server.url, chat(timeout_s=0.2)))


def test_a_fault_of_ours_is_raised_and_the_connection_closed() -> None:
    async def broken(running: Exchange) -> Generation:
        async for _ in running.chunks():
            raise ZeroDivisionError("ours")
        raise AssertionError

    prepared = Prepared(url="http://127.0.0.1:9", payload={}, limits=Limits(), read=broken)
    with pytest.raises(ZeroDivisionError, match="ours"):
        given(ANSWER[:100], prepared)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_on_either_loop(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slowed: list[Ticker] = []
    monkeypatch.setattr(Ticker, "slow_down", lambda self: slowed.append(self))

    async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"".join(ANSWER))
        await writer.drain()
        return True

    with kept(talk) as server:
        asked = ask(prepare_chat(server.url, chat(), fields={}))
        answer = run(asked) if loop == "uvloop" else asyncio.run(asked)
    assert len(answer.events) == 200
    assert answer.health is not None
    assert (answer.health.send_to_wire_s or 0) > 0
    assert len(slowed) == 1  # from the first piece on, once
