"""Many requests at once against real sockets: how many, in which order, over which connections, and what fails."""

import asyncio
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from kept_server import Asked, KeptServer, kept
from scripted_server import END, HEAD, Script, chunk, event, finish, plain, scripted, token

from kvscope.engine import load_client, load_sending
from kvscope.engine.base import ChatRequest, Load, LoadResult, Message
from kvscope.engine.http_client import Exchange, Limits
from kvscope.engine.load_client import due_times, explained, send_load
from kvscope.engine.load_wire import LoadWire, Recording
from kvscope.engine.openai_http import prepare_chat, stream_chat
from kvscope.engine.prepared import Prepared, ask
from kvscope.errors import (
    ConnectionLost,
    ConnectionRefused,
    ContextOverflow,
    EngineDied,
    EngineError,
    EngineReplyError,
    EngineStalled,
    EngineTimeout,
    KvscopeError,
    ServerError,
    UsageError,
)

ANSWER = HEAD + chunk(token("a")) + chunk(token("b")) + chunk(finish(completion_tokens=2, prompt_tokens=7)) + END


def chat(text: str = "hi", timeout_s: float = 20.0, stall_s: float = 20.0) -> ChatRequest:
    return ChatRequest(
        messages=(Message(role="user", content=text),), max_output_tokens=4, timeout_s=timeout_s, stall_s=stall_s
    )


def chats(number: int) -> tuple[ChatRequest, ...]:
    return tuple(chat(str(index)) for index in range(number))


def sent(url: str, load: Load) -> LoadResult:
    return send_load(load, lambda request: prepare_chat(url, request))


def texts(result: LoadResult) -> list[str]:
    return ["".join(event.text for event in a.generation.events) for a in result.answers if a.generation is not None]


async def answering(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
    writer.write(ANSWER)
    await writer.drain()
    return True


def text_of(asked: Asked) -> str:
    return str(asked.body["messages"][0]["content"])


class TestClosedLoop:
    def test_so_many_at_once_and_no_more(self) -> None:
        """The server answers only when four are there, so fewer would hang; a fifth is never there."""
        gate = asyncio.Event()

        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            if server.under_way == 4:
                gate.set()
            await gate.wait()
            return await answering(server, asked, writer)

        with kept(talk) as server:
            result = sent(server.url, Load(requests=chats(12), concurrency=4))
        assert texts(result) == ["ab"] * 12
        assert server.most_under_way == 4
        assert {answer.stream for answer in result.answers} == {0, 1, 2, 3}
        assert result.wall_s > 0

    def test_it_began_when_all_was_ready_and_before_anything_arrived(self) -> None:
        prepared_s: list[float] = []
        arrived_s: list[float] = []

        def prepare(request: ChatRequest) -> Prepared:
            prepared_s.append(time.perf_counter())
            return prepare_chat(server.url, request)

        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            arrived_s.append(time.perf_counter())
            return await answering(server, asked, writer)

        with kept(talk) as server:
            result = send_load(Load(requests=chats(5), concurrency=1), prepare)
        assert result.begin_s is not None
        assert max(prepared_s) <= result.begin_s < arrived_s[0]
        sent_s = [result.begin_s + answer.sent_s for answer in result.answers]
        assert all(sent < arrived < after for sent, arrived, after in zip(sent_s, arrived_s, sent_s[1:], strict=False))

    def test_in_the_order_of_the_list_each_when_its_stream_is_free(self) -> None:
        with kept(answering) as server:
            result = sent(server.url, Load(requests=chats(9), concurrency=1))
        assert [text_of(asked) for asked in server.asked] == [str(index) for index in range(9)]
        assert [answer.index for answer in result.answers] == list(range(9))
        times = [answer.sent_s for answer in result.answers]
        assert times == sorted(times)
        ends = [a.sent_s + a.generation.completed_s for a in result.answers if a.generation is not None]
        assert all(end <= begin for end, begin in zip(ends, times[1:], strict=False))
        assert all(answer.due_s is None for answer in result.answers)

    def test_a_slow_answer_holds_up_its_own_stream_alone(self) -> None:
        others_done = asyncio.Event()

        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            if text_of(asked) == "0":
                await others_done.wait()
            if text_of(asked) == "7":
                others_done.set()
            return await answering(server, asked, writer)

        with kept(talk) as server:
            result = sent(server.url, Load(requests=chats(8), concurrency=2))
        assert [answer.stream for answer in result.answers[1:]] == [1 - result.answers[0].stream] * 7

    def test_fewer_requests_than_streams_and_none(self) -> None:
        with kept(answering) as server:
            assert texts(sent(server.url, Load(requests=chats(2), concurrency=5))) == ["ab"] * 2
            assert server.connections == 2
            assert sent(server.url, Load(requests=(), concurrency=3)).answers == ()

    @pytest.mark.parametrize(
        "load",
        [
            Load(requests=(), concurrency=0),
            Load(requests=(), arrival="poisson"),
            Load(requests=(), arrival="constant", rate_per_s=0.0),
            Load(requests=(), arrival="constant", rate_per_s=float("nan")),
        ],
    )
    def test_a_load_that_cannot_be(self, load: Load) -> None:
        with pytest.raises(UsageError) as caught:
            sent("http://127.0.0.1:9", load)
        assert caught.value.hint


class TestOpenLoop:
    def test_the_schedule(self) -> None:
        """Constant: every 1 ÷ rate. Poisson: the seed's, with exponential gaps whose mean is 1 ÷ rate (of 20,000, the
        standard error of the mean is 0.7 % of it, and of the share below the mean, 1 − 1/e, 0.34 %)."""
        constant = Load(requests=chats(4), arrival="constant", rate_per_s=8.0)
        assert due_times(constant) == (0.0, 0.125, 0.25, 0.375)
        poisson = Load(requests=(chat(),) * 20_000, arrival="poisson", rate_per_s=50.0, seed=3)
        dues = due_times(poisson)
        gaps = [later - earlier for earlier, later in zip((0.0, *dues), dues, strict=False)]
        assert dues == due_times(poisson)
        assert sum(gaps) / len(gaps) == pytest.approx(1 / 50, rel=0.035)
        assert sum(gap < 1 / 50 for gap in gaps) / len(gaps) == pytest.approx(1 - 2.718281828**-1, abs=0.017)
        assert dues != due_times(Load(requests=(chat(),) * 20_000, arrival="poisson", rate_per_s=50.0, seed=4))

    @pytest.mark.parametrize("arrival", ["constant", "poisson"])
    def test_each_is_sent_when_it_is_due_or_later_and_how_late_is_told(self, arrival: str) -> None:
        load = Load(requests=chats(12), arrival=arrival, rate_per_s=100.0, seed=1)  # type: ignore[arg-type]
        with kept(answering) as server:
            result = sent(server.url, load)
        assert [text_of(asked) for asked in server.asked] == [str(index) for index in range(12)]
        for answer, due_s in zip(result.answers, due_times(load), strict=True):
            assert answer.due_s == pytest.approx(due_s, abs=1e-9)
            assert answer.sent_s >= answer.due_s
            assert answer.generation is not None
            assert answer.generation.health is not None
            assert answer.generation.health.late_p99_s == pytest.approx(answer.sent_s - answer.due_s, abs=1e-9)
        assert result.health.late_p99_s == pytest.approx(max(a.sent_s - (a.due_s or 0) for a in result.answers))

    def test_answers_that_do_not_come_delay_nobody(self) -> None:
        """The server answers none until all eight are there: a client that waited would hang."""
        gate = asyncio.Event()

        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            if len(server.asked) == 8:
                gate.set()
            await gate.wait()
            return await answering(server, asked, writer)

        with kept(talk) as server:
            result = sent(server.url, Load(requests=chats(8), arrival="constant", rate_per_s=200.0))
        assert texts(result) == ["ab"] * 8
        assert sorted(answer.stream for answer in result.answers) == list(range(8))

    def test_a_client_that_was_held_up_catches_up_and_its_schedule_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The loop is blocked for 0.2 s at the first read: those due meanwhile are sent at once afterwards, late, and
        what is due later is due when it was."""
        hold_up_once(monkeypatch, 0.2)
        with kept(answering) as server:
            result = sent(server.url, Load(requests=chats(40), arrival="constant", rate_per_s=100.0))
        assert [answer.due_s for answer in result.answers] == pytest.approx([index / 100 for index in range(40)])
        late = [answer.sent_s - (answer.due_s or 0.0) for answer in result.answers]
        assert max(late) > 0.1
        assert (result.health.late_p99_s or 0) > 0.1
        assert any("was sent" in words for words in result.health.limited_by)


def hold_up_once(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The client's own loop does nothing for so long, at the first read."""
    received, left = LoadWire.data_received, [seconds]

    def slow(self: LoadWire, data: bytes) -> None:
        received(self, data)
        time.sleep(left.pop() if left else 0.0)

    monkeypatch.setattr(LoadWire, "data_received", slow)


class TestConnections:
    def test_one_for_each_stream_used_again(self) -> None:
        with kept(answering) as server:
            result = sent(server.url, Load(requests=chats(30), concurrency=3))
        assert server.connections == 3
        assert result.health.num_resent == 0
        assert all("Connection: keep-alive" in asked.head for asked in server.asked)

    def test_an_open_loop_uses_them_again_too(self) -> None:
        with kept(answering) as server:
            sent(server.url, Load(requests=chats(30), arrival="constant", rate_per_s=300.0))
        assert server.connections < 15

    def test_a_server_that_says_it_closes(self) -> None:
        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            writer.write(ANSWER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
            return False

        with kept(talk) as server:
            result = sent(server.url, Load(requests=chats(6), concurrency=2))
        assert texts(result) == ["ab"] * 6
        assert (server.connections, result.health.num_resent) == (6, 0)

    def test_a_server_that_closes_when_the_next_request_comes(self) -> None:
        """Nothing of an answer had come, and the connection had served before: sent once more, counted, no error."""

        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            return asked.number == 0 and await answering(server, asked, writer)

        with kept(talk) as server:
            result = sent(server.url, Load(requests=chats(5), concurrency=1))
        assert texts(result) == ["ab"] * 5
        assert result.health.num_resent == 4
        healths = [answer.generation.health for answer in result.answers if answer.generation is not None]
        assert [health.num_resent for health in healths if health is not None] == [0, 1, 1, 1, 1]

    def test_a_server_that_closes_a_new_connection_gets_no_second_request(self) -> None:
        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            return False

        with kept(talk) as server:
            result = sent(server.url, Load(requests=chats(3), concurrency=1))
        assert [type(answer.error) for answer in result.answers] == [ConnectionLost] * 3
        assert len(server.asked) == 3

    def test_a_server_that_closes_in_mid_answer_gets_no_second_request(self) -> None:
        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            if asked.number == 0:
                return await answering(server, asked, writer)
            writer.write(HEAD + chunk(token("a")))
            return False

        with kept(talk) as server:
            result = sent(server.url, Load(requests=chats(2), concurrency=1))
        error = result.answers[1].error
        assert type(error) is ConnectionLost
        assert error.evidence["pieces_received"] == 1
        assert len(server.asked) == 2

    def test_closing_each_where_the_adapter_says_so(self) -> None:
        def prepare(request: ChatRequest) -> Prepared:
            ready = prepare_chat(server.url, request)
            return Prepared(
                url=ready.url, payload=ready.payload, limits=ready.limits, read=ready.read, keeps_alive=False
            )

        with kept(answering) as server:
            result = send_load(Load(requests=chats(6), concurrency=2), prepare)
        assert texts(result) == ["ab"] * 6
        assert server.connections == 6
        assert all("Connection: close" in asked.head for asked in server.asked)

    def test_what_comes_after_an_answer_is_not_the_next_one(self) -> None:
        """A second answer that nobody asked for: the connection is given up, and the next request gets its own."""

        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            writer.write(ANSWER + (ANSWER.replace(b'"a"', b'"z"') if asked.connection == 0 else b""))
            await writer.drain()
            return True

        with kept(talk) as server:
            result = sent(server.url, Load(requests=chats(3), concurrency=1))
        assert "z" not in "".join(texts(result))
        assert texts(result)[1:] == ["ab"] * 2

    def test_an_interim_answer_is_no_answer(self) -> None:
        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.02)
            return await answering(server, asked, writer)

        with kept(talk) as server:
            assert texts(sent(server.url, Load(requests=chats(3), concurrency=1))) == ["ab"] * 3
        assert server.connections == 1

    def test_over_tls(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(tmp_path / "trust.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "trust.pem"))
        with kept(answering, authority.issue_cert("localhost")) as server:
            big = tuple(chat(str(index) * 300_000) for index in range(4))
            result = sent(server.url.replace("127.0.0.1", "localhost"), Load(requests=big, concurrency=2))
        assert texts(result) == ["ab"] * 4
        assert server.connections == 2
        assert [len(text_of(asked)) for asked in server.asked] == [300_000] * 4

    def test_a_long_request_is_sent_when_its_last_byte_is(self) -> None:
        """Larger than what the sockets hold: the server reads on after 0.2 s, and only then is it sent."""
        with kept(answering, reads_after_s=0.2) as server:
            result = sent(server.url, Load(requests=(chat("x" * 32_000_000),), concurrency=1))
        assert texts(result) == ["ab"]
        assert result.answers[0].sent_s > 0.2


class TestHealth:
    def test_every_answer_and_the_load_have_it(self) -> None:
        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            await asyncio.sleep(0.1)
            return await answering(server, asked, writer)

        with kept(talk) as server:
            result = sent(server.url, Load(requests=chats(4), concurrency=2))
        for health in [result.health, *(a.generation.health for a in result.answers if a.generation is not None)]:
            assert health is not None
            assert health.loop_lag_p99_s is not None
            assert health.loop_lag_max_s is not None
            assert 0 <= health.loop_lag_p99_s <= health.loop_lag_max_s
            assert health.cpu_share is not None
            assert 0 <= health.cpu_share < 1.5
            assert health.send_to_wire_s is not None
            assert health.send_to_wire_s > 0
            assert health.late_p99_s is None
            assert health.first_late_s is not None
            assert health.last_late_s is not None
            assert 0 <= health.first_late_s <= health.last_late_s
            assert health.waited_share is None or health.waited_share >= 0

    def test_a_loop_that_is_held_up_is_a_limited_client(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hold_up_once(monkeypatch, 0.3)
        with kept(answering) as server:
            result = sent(server.url, Load(requests=chats(2), concurrency=2))
        assert (result.health.loop_lag_max_s or 0) > 0.2
        assert any("stood still" in words for words in result.health.limited_by)

    def test_an_answers_health_is_of_its_own_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first of four is held up; the third and the fourth, later, know nothing of it."""
        hold_up_once(monkeypatch, 0.3)

        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            await asyncio.sleep(0.05)
            return await answering(server, asked, writer)

        with kept(talk) as server:
            result = sent(server.url, Load(requests=chats(4), concurrency=1))
        lags = [a.generation.health.loop_lag_max_s or 0 for a in result.answers if a.generation and a.generation.health]
        assert lags[0] > 0.25
        assert max(lags[2:]) < 0.25
        assert result.health.loop_lag_max_s == lags[0]

    def test_sent_means_handed_over(self) -> None:
        """A long request waits in our buffer until the server reads, after 0.2 s."""
        with kept(answering, reads_after_s=0.2) as server:
            result = sent(server.url, Load(requests=(chat("x" * 32_000_000),), concurrency=1))
        (answer,) = result.answers
        assert answer.generation is not None
        assert answer.generation.health is not None
        assert (answer.generation.health.send_to_wire_s or 0) > 0.1
        assert (result.health.send_to_wire_s or 0) > 0.1

    def test_one_request_alone_too(self) -> None:
        """Its reader blocks the loop for 0.3 s, as an adapter's own code might."""

        def prepare(url: str, seconds: float) -> Prepared:
            ready = prepare_chat(url, chat())

            async def read(running: Exchange) -> object:
                time.sleep(seconds)
                return await ready.read(running)

            return Prepared(url=ready.url, payload=ready.payload, limits=ready.limits, read=read)  # type: ignore[arg-type]

        async def slowly(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            writer.write(HEAD)
            await writer.drain()
            await asyncio.sleep(0.1)
            writer.write(ANSWER.removeprefix(HEAD))
            return True

        with kept(slowly) as server:
            held_up = asyncio.run(ask(prepare(server.url, 0.3))).health
            free = asyncio.run(stream_chat(server.url, chat())).health
        assert held_up is not None
        assert (held_up.loop_lag_max_s or 0) > 0.2
        assert held_up.limited_by
        assert free is not None
        assert free.loop_lag_p99_s is not None
        assert free.send_to_wire_s is not None
        assert free.coalesced_fraction == 0.5  # both pieces in one read

    @pytest.mark.parametrize(("group", "fraction"), [(1, 0.0), (2, 0.5), (4, 0.75)])
    def test_pieces_in_groups_are_counted(self, group: int, fraction: float) -> None:
        """Written in groups of known size, far enough apart that no two are one read."""

        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            writer.write(HEAD)
            for _ in range(8 // group):
                writer.write(b"".join(chunk(token("x")) for _ in range(group)))
                await writer.drain()
                await asyncio.sleep(0.05)
            writer.write(chunk(finish()) + END)
            return True

        with kept(talk) as server:
            result = sent(server.url, Load(requests=chats(2), concurrency=2))
        for answer in result.answers:
            assert answer.generation is not None
            assert len(answer.generation.events) == 8
            assert [read.num_events for read in answer.generation.reads if read.num_events] == [group] * (8 // group)
            assert answer.generation.health is not None
            assert answer.generation.health.coalesced_fraction == fraction
        assert result.health.coalesced_fraction == fraction

    def test_thinking_and_answer_are_told_apart(self) -> None:
        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            writer.write(HEAD + chunk(event({"choices": [{"delta": {"reasoning_content": "hm"}}]})))
            await writer.drain()
            await asyncio.sleep(0.1)
            writer.write(chunk(token("a") + finish()) + END)
            return True

        with kept(talk) as server:
            generation = sent(server.url, Load(requests=chats(1))).answers[0].generation
        assert generation is not None
        assert [piece.kind for piece in generation.events] == ["reasoning", "content"]
        assert generation.events[1].at_s - generation.events[0].at_s > 0.05

    def test_rubbish_is_collected_again_afterwards(self) -> None:
        import gc

        assert gc.isenabled()
        with kept(answering) as server:
            sent(server.url, Load(requests=chats(1)))
        assert gc.isenabled()


def writing(*pieces: bytes) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number, piece in enumerate(pieces):
            if number:
                await asyncio.sleep(0.03)
            writer.write(piece)
            await writer.drain()

    return script


def hanging(begin: bytes, again: bytes = b"") -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        while again:
            writer.write(again)
            await writer.drain()
            await asyncio.sleep(0.02)
        await reader.read()  # until the client gives up

    return script


def error_body(status: str, body: object) -> Script:
    return writing(plain(status, body if isinstance(body, bytes) else json.dumps(body).encode()))


OVERFLOW = {"error": {"type": "exceed_context_size_error", "n_prompt_tokens": 3031, "n_ctx": 1024}}
CASES: dict[str, tuple[Script, ChatRequest]] = {
    "an answer": (writing(ANSWER), chat()),
    "an answer in reads": (writing(ANSWER[:90], ANSWER[90:200], ANSWER[200:]), chat()),
    "until it closes": (writing(b"HTTP/1.1 200 OK\r\n\r\n" + token("a"), finish()), chat()),
    "overflow": (error_body("400 Bad Request", OVERFLOW), chat()),
    "rate": (error_body("429 Too Many Requests", {"error": {"message": "slow down"}}), chat()),
    "a failure": (error_body("500 Internal Server Error", b"stack trace"), chat()),
    "a page": (error_body("404 Not Found", b"<h1>nothing here</h1>"), chat()),
    "a long failure": (error_body("500 Internal Server Error", b"x" * 3_000_000), chat()),
    "another protocol": (writing(b"SSH-2.0-OpenSSH_9.6\r\n"), chat()),
    "tls": (writing(b"\x15\x03\x01\x00\x02\x02\x0a"), chat()),
    "compressed": (
        writing(HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n") + chunk(b"x") + END),
        chat(),
    ),
    "no json": (writing(HEAD + chunk(b"data: {oops\n\n") + END), chat()),
    "a 200 in one piece": (error_body("200 OK", {"choices": [{"message": {"content": "hello"}}]}), chat()),
    "foreign": (writing(HEAD + chunk(token("a")), chunk(b"<html>502 Bad Gateway</html>") + END), chat()),
    "another form": (writing(HEAD + chunk(token("a") + event({"choices": 7})) + END), chat()),
    "an error in mid-stream": (
        writing(HEAD + chunk(token("a")) + chunk(event({"error": {"code": 500, "message": "Compute error."}})) + END),
        chat(),
    ),
    "no end": (writing(HEAD + chunk(token("a")) + END), chat()),
    "nothing": (writing(HEAD + END), chat()),
    "lost": (writing(HEAD + chunk(token("a")), b""), chat()),
    "lost at once": (writing(b""), chat()),
    "lost in its body": (writing(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf"), chat()),
    "broken chunks": (writing(HEAD + chunk(token("a")) + b"no chunk"), chat()),
    "a stall": (hanging(HEAD + chunk(token("a"))), chat(stall_s=0.2)),
    "a stall behind comments": (hanging(HEAD + chunk(token("a")), chunk(b": ping\n\n")), chat(stall_s=0.2)),
    "a timeout": (hanging(HEAD), chat(timeout_s=0.3, stall_s=0.1)),
    "a timeout in mid-stream": (hanging(HEAD + chunk(token("a"))), chat(timeout_s=0.3)),
    "a timeout behind comments": (hanging(HEAD, chunk(b": ping\n\n")), chat(timeout_s=0.3, stall_s=0.1)),
    "too many pieces": (writing(HEAD, chunk(token("a") * 200) + chunk(finish()) + END), chat()),
    "too long a line": (writing(HEAD + chunk(b"data: " + b"x" * 1_100_000) + END), chat()),
}


def both_ways(script: Script, request: ChatRequest, headers: dict[str, str] | None = None) -> tuple[object, object]:
    """What one request ends in alone, and in a load."""
    headers = headers or {}

    async def alone() -> object:
        async with scripted(script) as url:
            try:
                return await stream_chat(url, request, headers=headers)
            except KvscopeError as error:
                return error

    async def in_a_load() -> object:
        async with scripted(script) as url:
            work = lambda: send_load(Load(requests=(request,)), lambda r: prepare_chat(url, r, headers=headers))  # noqa: E731
            answer = (await asyncio.get_running_loop().run_in_executor(None, work)).answers[0]
            return answer.error or answer.generation

    return asyncio.run(alone()), asyncio.run(in_a_load())


def without_port(text: str) -> str:
    return re.sub(r"127\.0\.0\.1:\d+", "HERE", text)


class TestEachFails:
    @pytest.mark.parametrize("case", CASES)
    def test_the_same_alone_and_in_a_load(self, case: str) -> None:
        one, other = both_ways(*CASES[case])
        assert type(one) is type(other)
        if isinstance(one, EngineError):
            assert isinstance(other, EngineError)
            assert without_port(one.message) == without_port(other.message)
            assert (one.hint, one.slug) == (other.hint, other.slug)
            # How much of a long failure was read before reading stopped depends on the reads.
            assert re.sub(r"of [\d,]+ bytes\)", "", str(one.evidence)) == re.sub(
                r"of [\d,]+ bytes\)", "", str(other.evidence)
            )
            return
        assert [(e.text, e.kind) for e in one.events] == [(e.text, e.kind) for e in other.events]  # type: ignore[attr-defined]
        assert sum(read.num_bytes for read in one.reads) == sum(read.num_bytes for read in other.reads)  # type: ignore[attr-defined]

    def test_an_error_after_which_the_server_hangs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its cause is found long before the silence would be a stall."""
        monkeypatch.setattr(load_sending, "QUIET_S", 0.1)
        failed = chunk(token("a")) + chunk(event({"error": {"code": 500, "message": "Compute error."}}))
        for found in both_ways(hanging(HEAD + failed), chat(stall_s=100, timeout_s=100)):
            assert type(found) is ServerError
            assert found.evidence["pieces_received"] == 1

    def test_the_cases_are_of_every_kind(self) -> None:
        """So that comparing them says something."""
        kinds = {type(both_ways(*CASES[name])[1]) for name in ("overflow", "a failure", "lost", "a stall", "a timeout")}
        assert kinds == {ContextOverflow, ServerError, ConnectionLost, EngineStalled, EngineTimeout}

    @pytest.mark.parametrize("is_streamed", [False, True])
    def test_a_key_that_the_server_quotes_is_shown_nowhere(self, is_streamed: bool) -> None:
        key = "sk-a-secret-of-some-length"
        said = {"error": {"message": f"Incorrect API key provided: {key}", "code": 401}}
        script = writing(HEAD + chunk(event(said)) + END) if is_streamed else error_body("401 Unauthorized", said)
        for found in both_ways(script, chat(), {"Authorization": f"Bearer {key}"}):
            assert isinstance(found, EngineError)
            assert key not in found.message + found.hint + json.dumps(found.evidence)
            assert "[the key]" in found.message

    def test_a_key_in_an_answer_is_hidden(self) -> None:
        key = "sk-a-secret-of-some-length"
        script = writing(HEAD + chunk(token(key[:9])) + chunk(token(key[9:]) + finish()) + END)
        for found in both_ways(script, chat(), {"Authorization": f"Bearer {key}"}):
            assert key not in "".join(piece.text for piece in found.events)  # type: ignore[attr-defined]

    def test_one_error_is_that_requests_alone(self) -> None:
        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            if text_of(asked) in ("2", "5"):
                writer.write(plain("400 Bad Request", json.dumps(OVERFLOW).encode()))
                return True
            return await answering(server, asked, writer)

        with kept(talk) as server:
            result = sent(server.url, Load(requests=chats(8), concurrency=2))
        assert [answer.index for answer in result.answers if answer.error is not None] == [2, 5]
        assert all(type(answer.error) in (ContextOverflow, type(None)) for answer in result.answers)
        assert texts(result) == ["ab"] * 6
        assert server.connections == 2  # an answer in error ends no connection

    def test_nothing_listens(self) -> None:
        with kept(answering) as server:
            url = server.url
        result = sent(url, Load(requests=chats(5), concurrency=2))
        assert [type(answer.error) for answer in result.answers] == [ConnectionRefused] * 5
        assert all(answer.error.evidence["pieces_received"] == 0 for answer in result.answers if answer.error)  # type: ignore[attr-defined]
        assert result.health.coalesced_fraction is None

    def test_what_cannot_be_prepared_is_that_requests_error(self) -> None:
        def prepare(request: ChatRequest) -> Prepared:
            if request.messages[0].content == "1":
                raise UsageError("A picture cannot be sent.", hint="Leave it out.")
            return prepare_chat(server.url, request)

        with kept(answering) as server:
            result = send_load(Load(requests=chats(3), concurrency=1), prepare)
        assert [type(answer.error) for answer in result.answers] == [type(None), UsageError, type(None)]
        assert len(server.asked) == 2

    def test_a_server_that_dies_on_the_way(self) -> None:
        """Those under way are lost, the others refused; each is a row."""

        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            if len(server.asked) < 5:
                return await answering(server, asked, writer)
            server.close()
            for other in server.writers:
                other.transport.abort()
            return False

        with kept(talk) as server:
            result = sent(server.url, Load(requests=chats(10), concurrency=2))
        kinds = [type(answer.error) for answer in result.answers]
        assert kinds[:3] == [type(None)] * 3
        assert set(kinds) <= {type(None), ConnectionLost, ConnectionRefused}
        assert kinds.count(ConnectionRefused) >= 4
        died = explained(result, lambda error: EngineDied("It died.", hint="Look at its log."))
        assert {type(answer.error) for answer in died.answers} == {type(None), EngineDied}

    def test_an_answer_without_end_is_stopped_in_bounded_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is held beyond a bound is read, and reading finds that it does not end; the others go on."""
        monkeypatch.setattr(load_sending, "MOST_HELD_BYTES", 2_000_000)
        most: list[int] = []
        watch = load_sending.Senders.watch

        def watched(self: load_sending.Senders, now: float) -> None:
            watch(self, now)
            most.append(self._unread_bytes + sum(one.recording.num_held for one in self._running.values()))  # type: ignore[union-attr]

        monkeypatch.setattr(load_sending.Senders, "watch", watched)

        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            if text_of(asked) != "0":
                return await answering(server, asked, writer)
            writer.write(HEAD)
            for _ in range(100_000):
                writer.write(chunk(event({"choices": [{"delta": {}}]}) * 500))
                await writer.drain()
            return True

        with kept(talk) as server:
            result = sent(server.url, Load(requests=chats(20), concurrency=2))
        error = result.answers[0].error
        assert type(error) is EngineReplyError
        assert "sent more than" in error.message
        assert len(texts(result)) == 19
        assert max(most) <= 2_000_000

    @pytest.mark.parametrize("some_reads", [None, 1, 2, 1000])
    def test_held_answers_are_read_early_and_come_out_the_same(
        self, some_reads: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All at once, or some with each tick."""
        if some_reads is None:
            monkeypatch.setattr(load_sending, "MOST_HELD_BYTES", 0)
        else:
            monkeypatch.setattr(load_sending, "MUCH_HELD_BYTES", -1)
            monkeypatch.setattr(load_sending, "SOME_READS", some_reads)

        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            writer.write(HEAD + chunk(token("a")))
            await writer.drain()
            await asyncio.sleep(0.1)
            writer.write(chunk(token("b") + finish()) + END)
            return True

        with kept(talk) as server:
            assert texts(sent(server.url, Load(requests=chats(6), concurrency=3))) == ["ab"] * 6

    def test_no_more_than_some_is_read_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Answers of 200 reads each: with every tick no more than 12, and more than that are left for the end."""
        monkeypatch.setattr(load_sending, "MUCH_HELD_BYTES", 0)
        monkeypatch.setattr(load_sending, "SOME_READS", 12)
        watch, read_some, taken = load_sending.Senders.watch, load_sending.Senders._read_some, []

        def watched(self: load_sending.Senders, now: float) -> None:
            before = sum(one.recording.num_received for one in self.sendings if one.recording)
            watch(self, now)
            taken.append(sum(one.recording.num_received for one in self.sendings if one.recording) - before)

        asked: list[int] = []

        def some(self: load_sending.Senders, most_reads: int) -> None:
            asked.append(most_reads)
            read_some(self, most_reads)

        monkeypatch.setattr(load_sending.Senders, "watch", watched)
        monkeypatch.setattr(load_sending.Senders, "_read_some", some)
        piece = chunk(token("a"))

        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            writer.write(HEAD)
            for _ in range(200):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.0003)
            writer.write(chunk(finish()) + END)
            return True

        request = ChatRequest(messages=(Message(role="user", content="a"),), max_output_tokens=200)
        with kept(talk) as server:
            result = sent(server.url, Load(requests=(request,) * 6, concurrency=3))
        assert texts(result) == ["a" * 200] * 6
        assert set(asked) == {12}
        assert max(taken) > 0
        assert max(taken) <= 12 * 512 + len(HEAD)  # or fewer reads, where several pieces came in one

    def test_of_an_answer_so_many_reads_are_given_and_no_end(self) -> None:
        async def go() -> None:
            kept = Recording(asyncio.get_running_loop().create_future())
            kept.reads.extend((float(k), b"x") for k in range(5))
            kept.num_kept, kept.closed = 5, True
            with kept.first(2):
                assert (len(kept.reads), kept.closed) == (2, False)
                assert kept.take() == (0.0, b"x")
            assert [at_s for at_s, _ in kept.reads] == [1.0, 2.0, 3.0, 4.0]
            assert (kept.closed, kept.num_held) == (True, 4)
            with kept.first(4):
                assert (len(kept.reads), kept.closed) == (4, True)

        asyncio.run(go())


class TestOpenFiles:
    @pytest.mark.parametrize("arrival", ["closed", "constant"])
    def test_room_is_made_for_a_load_and_given_back(self, arrival: str) -> None:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        few = sum(1 for _ in Path("/proc/self/fd").iterdir()) + 10
        during: list[int] = []

        async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
            during.append(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
            return await answering(server, asked, writer)

        with kept(talk) as server:
            resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
            try:
                asked = {"concurrency": 20} if arrival == "closed" else {"arrival": arrival, "rate_per_s": 5000.0}
                result = sent(server.url, Load(requests=chats(20), **asked))  # type: ignore[arg-type]
                assert resource.getrlimit(resource.RLIMIT_NOFILE) == (few, before[1])
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert texts(result) == ["ab"] * 20
        assert min(during) >= few + 20

    def test_where_there_is_no_room_the_server_is_not_blamed(self) -> None:
        """In a process of its own that may not raise its limit."""
        code = """
import os, resource, sys
sys.path.insert(0, sys.argv[2])
from test_load_client import Load, chats, sent
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
for answer in sent(sys.argv[1], Load(requests=chats(100), concurrency=100)).answers:
    print(answer.error.message + " " + answer.error.hint if answer.error else "ok")
"""
        with kept(answering) as server:
            here = str(Path(__file__).parent)
            done = subprocess.run(
                (sys.executable, "-c", code, server.url, here), capture_output=True, text=True, timeout=120, check=False
            )
        said = set(done.stdout.splitlines())
        assert "ok" in said, done.stderr
        (error,) = said - {"ok"}
        assert "a process may have 60 files open here" in error
        assert "ulimit -n" in error
        assert "Nothing answers" not in error


@pytest.fixture
def _ctrl_c_is_heard() -> Iterator[None]:
    """A shell that starts the tests in its background has them ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_is_heard")
@pytest.mark.parametrize("arrival", ["closed", "constant"])
@pytest.mark.parametrize("is_in_a_loop", [False, True])
def test_ctrl_c_ends_all_at_once(arrival: str, is_in_a_loop: bool) -> None:
    """The server answers nothing; both connections are closed when it has been heard. A notebook has a loop that runs,
    and leaves Ctrl-C to Python's own handler."""
    closed = threading.Semaphore(0)

    async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        if len(server.asked) == 2:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            await server.reader_of(writer).read()
        finally:
            closed.release()
        return False

    load = Load(requests=(chat(timeout_s=100),) * 2, concurrency=2, arrival=arrival, rate_per_s=1000.0)  # type: ignore[arg-type]

    async def cell() -> LoadResult:
        return sent(server.url, load)

    def notebook() -> None:
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(cell())
        finally:
            loop.close()

    with kept(talk) as server:
        with pytest.raises(KeyboardInterrupt):
            notebook() if is_in_a_loop else sent(server.url, load)
        assert closed.acquire(timeout=10)
        assert closed.acquire(timeout=10)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_with_and_without_uvloop(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []

    def factory() -> asyncio.AbstractEventLoop:
        made = asyncio.new_event_loop() if loop == "asyncio" else load_client_loop()
        used.append(type(made).__module__)
        return made

    load_client_loop: Callable[[], asyncio.AbstractEventLoop] = load_client.fast_loop
    monkeypatch.setattr(load_client, "fast_loop", factory)
    with kept(answering) as server:
        result = sent(server.url, Load(requests=chats(40), concurrency=8))
    assert texts(result) == ["ab"] * 40
    assert used[0].startswith(loop)


def test_where_uvloop_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with kept(answering) as server:
        assert texts(sent(server.url, Load(requests=chats(4), concurrency=2))) == ["ab"] * 4


def test_limits_are_those_of_each_request() -> None:
    """A short one's time is over while a long one goes on, beside it and after it."""

    async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(0.6)
        return await answering(server, asked, writer)

    requests = (chat("0", timeout_s=0.1), chat("1"), chat("2"))
    with kept(talk) as server:
        result = sent(server.url, Load(requests=requests, concurrency=2))
    assert [type(answer.error) for answer in result.answers] == [EngineTimeout, type(None), type(None)]
    assert Limits().timeout_s > 1


def test_a_random_load_is_answered_whole() -> None:
    """Answers of random sizes cut into random writes, on eight connections: every byte comes out where it belongs."""
    chance = random.Random(5)
    words = {str(index): [f"{index}:{chance.random()}" for _ in range(chance.randrange(1, 60))] for index in range(120)}

    async def talk(server: KeptServer, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        stream = HEAD + b"".join(chunk(token(word)) for word in words[text_of(asked)]) + chunk(finish()) + END
        while stream:
            size = chance.randrange(1, 4000)
            writer.write(stream[:size])
            await writer.drain()
            stream = stream[size:]
        return True

    with kept(talk) as server:
        result = send_load(
            Load(requests=chats(120), concurrency=8),
            lambda request: prepare_chat(
                server.url, ChatRequest(messages=request.messages, max_output_tokens=100, timeout_s=60)
            ),
        )
    assert [answer.error for answer in result.answers] == [None] * 120
    for answer in result.answers:
        assert answer.generation is not None
        assert [piece.text for piece in answer.generation.events] == words[str(answer.index)]
        times = [piece.at_s for piece in answer.generation.events]
        assert times == sorted(times)
        assert times[0] > 0
