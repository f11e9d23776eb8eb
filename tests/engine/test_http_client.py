"""The HTTP client against a server that sends exactly what a test says, in the pieces it says."""

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from scripted_server import END, HEAD, Script, chunk, event, finish, plain, read_request, scripted, token

from kvscope.engine.base import ChatRequest, Generation, Message
from kvscope.engine.http_client import Limits, exchange, request, run
from kvscope.engine.openai_http import get_text, post_json, stream_chat
from kvscope.errors import (
    ConnectionLost,
    ConnectionRefused,
    ContextOverflow,
    EngineError,
    EngineReplyError,
    EngineStalled,
    EngineTimeout,
    OutOfMemory,
    RateLimited,
    ServerError,
)

# Long enough that two writes are two reads, on a loaded machine too.
APART_S = 0.05


def chat(timeout_s: float = 10.0, stall_s: float = 10.0, text: str = "hi") -> ChatRequest:
    return ChatRequest(
        messages=(Message(role="user", content=text),), max_output_tokens=4, timeout_s=timeout_s, stall_s=stall_s
    )


def writing(*pieces: bytes) -> Script:
    """Each piece as a write of its own, APART_S apart."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number, piece in enumerate(pieces):
            if number:
                await asyncio.sleep(APART_S)
            writer.write(piece)
            await writer.drain()

    return script


def ask(script: Script, request: ChatRequest | None = None) -> Generation:
    async def go() -> Generation:
        async with scripted(script) as url:
            return await stream_chat(url, request or chat())

    return asyncio.run(go())


def reply(status: str, body: object, *headers: str) -> Script:
    return writing(plain(status, body if isinstance(body, bytes) else json.dumps(body).encode(), *headers))


class TestEvents:
    def test_events_in_separate_reads_have_their_own_times(self) -> None:
        answer = ask(writing(HEAD + chunk(token("a")), chunk(token("b")), chunk(token("c")) + chunk(finish()) + END))
        assert [event.text for event in answer.events] == ["a", "b", "c"]
        first, second, third = (event.at_s for event in answer.events)
        assert first + APART_S * 0.2 <= second
        assert second + APART_S * 0.2 <= third
        assert [read.num_events for read in answer.reads] == [1, 1, 1]

    def test_events_in_one_read_share_its_time(self) -> None:
        answer = ask(writing(HEAD + chunk(token("a") + token("b")) + chunk(token("c")), chunk(finish()) + END))
        assert len({event.at_s for event in answer.events}) == 1
        assert [read.num_events for read in answer.reads] == [3, 0]

    def test_an_event_split_over_reads_has_the_time_of_the_read_that_completed_it(self) -> None:
        whole = chunk(token("a"))
        answer = ask(writing(HEAD + whole[:25], whole[25:], chunk(finish()) + END))
        assert [read.num_events for read in answer.reads] == [0, 1, 0]
        assert answer.events[0].at_s == answer.reads[1].at_s

    def test_every_byte_apart(self) -> None:
        """However the bytes fall, the text is the same (a two-byte character is split too)."""
        stream = HEAD + chunk(token("é") + b": keep alive\n\n" + token("b")) + chunk(finish(completion_tokens=2)) + END

        async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for at in range(len(stream)):
                writer.write(stream[at : at + 1])
                await writer.drain()
                await asyncio.sleep(0)

        answer = ask(drip)
        assert [event.text for event in answer.events] == ["é", "b"]
        assert answer.output_tokens == 2
        assert sum(read.num_bytes for read in answer.reads) == len(stream)
        assert sum(read.num_events for read in answer.reads) == len(answer.events)

    def test_times_count_from_the_request_and_lie_between_the_servers_own(self) -> None:
        """The server notes, on the same clock, when it had the request and when it wrote; the client must agree."""
        noted: list[float] = []

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            noted.append(time.perf_counter())
            await asyncio.sleep(0.1)
            noted.append(time.perf_counter())
            writer.write(HEAD + chunk(token("a") + finish()) + END)

        at_s = ask(script).events[0].at_s
        server_side_s = noted[1] - noted[0]
        assert server_side_s <= at_s < server_side_s + 1.0

    def test_reasoning_counts_as_tokens_and_empty_pieces_do_not(self) -> None:
        role = event({"choices": [{"delta": {"role": "assistant", "content": None}}]})
        thought = event({"choices": [{"delta": {"reasoning_content": "hm"}}]})
        answer = ask(writing(HEAD + chunk(role + token("") + thought + token("x") + finish()) + END))
        assert [event.text for event in answer.events] == ["hm", "x"]

    def test_thinking_answer_and_tool_calls_are_told_apart(self) -> None:
        """The pieces as llama.cpp's server streams them: a call opens with its id and name, its arguments follow."""

        def call(index: int, **fields: object) -> bytes:
            return event({"choices": [{"delta": {"tool_calls": [{"index": index, **fields}]}}]})

        pieces = [
            event({"choices": [{"delta": {"reasoning_content": "hm "}}]}),
            event({"choices": [{"delta": {"reasoning_content": "so", "content": "I look."}}]}),
            call(0, id="c1", type="function", function={"name": "f", "arguments": ""}),
            call(0, function={"arguments": '{"a": '}),
            call(1, id="c2", type="function", function={"name": "g", "arguments": "{}"}),
            call(0, function={"arguments": "1}"}),
        ]
        answer = ask(writing(HEAD + chunk(b"".join(pieces) + finish("tool_calls")) + END))
        assert [(each.kind, each.text) for each in answer.events] == [
            ("reasoning", "hm "),
            ("reasoning", "so"),
            ("content", "I look."),
            ("tool_call", "f"),
            ("tool_call", '{"a": '),
            ("tool_call", "g{}"),
            ("tool_call", "1}"),
        ]
        assert answer.tool_calls == (
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
            {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        )

    def test_what_the_server_states_is_taken_and_what_it_does_not_is_none(self) -> None:
        usage = {"prompt_tokens": 7, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
        timings = event(
            {
                "choices": [],
                "timings": {"prompt_ms": 3, "predicted_ms": 2.5, "note": "x", "total_ms": 10**400, "of the vault": 1},
            }
        )
        full = ask(writing(HEAD + chunk(token("a") + timings + finish("stop", **usage)) + END))
        assert (full.prompt_tokens, full.cached_tokens, full.output_tokens) == (7, 0, 1)
        assert full.finish_reason == "stop"
        assert full.engine_timings == {"prompt_ms": 3.0, "predicted_ms": 2.5}
        bare = ask(writing(HEAD + chunk(token("a") + finish()) + END))
        assert (bare.prompt_tokens, bare.cached_tokens, bare.output_tokens) == (None, None, None)
        assert bare.engine_timings == {}

    def test_a_body_that_ends_with_the_connection(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        answer = ask(writing(head + token("a"), token("b") + finish()))
        assert [event.text for event in answer.events] == ["a", "b"]

    def test_the_request_that_is_sent(self) -> None:
        seen: list[tuple[str, bytes]] = []

        async def go() -> None:
            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                seen.append(await read_request(reader))
                writer.write(HEAD + chunk(token("a") + finish()) + END)
                writer.close()

            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            await stream_chat(f"http://127.0.0.1:{port}", chat(text="안녕 😀"))
            server.close()

        asyncio.run(go())
        head, body = seen[0]
        assert head.startswith("POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:")
        assert json.loads(body) == {
            "messages": [{"role": "user", "content": "안녕 😀"}],
            "max_tokens": 4,
            "temperature": 0,
            "seed": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "cache_prompt": False,
        }

    def test_a_request_larger_than_the_socket_buffer_is_sent_when_its_last_byte_is(self) -> None:
        """The server lets 0.2 s pass before it reads 32 MB; the request cannot have been sent before that."""
        noted: list[float] = []

        async def go() -> float:
            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await asyncio.sleep(0.2)
                noted.append(time.perf_counter())
                await read_request(reader)
                writer.write(plain("200 OK", b"{}"))
                writer.close()

            server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=1 << 16)
            port = server.sockets[0].getsockname()[1]
            async with exchange("POST", f"http://127.0.0.1:{port}/", "x" * 32_000_000) as running:
                await running.whole()
            server.close()
            return running.reply.sent_s

        assert asyncio.run(go()) > noted[0]


class TestFailures:
    @pytest.mark.parametrize(
        ("script", "error", "part"),
        [
            (
                reply(
                    "400 Bad Request",
                    {"error": {"type": "exceed_context_size_error", "n_prompt_tokens": 3031, "n_ctx": 1024}},
                ),
                ContextOverflow,
                "3031 tokens; the engine's context holds 1024",
            ),
            (reply("429 Too Many Requests", {"error": {"message": "slow down"}}), RateLimited, "slow down"),
            (reply("500 Internal Server Error", b"stack trace"), ServerError, "stack trace"),
            (reply("503 Service Unavailable", {"error": {"message": "Loading model"}}), ServerError, "Loading model"),
            (reply("500 Oops", {"error": {"message": "failed to allocate buffer"}}), OutOfMemory, "failed to allocate"),
            (reply("404 Not Found", b"<h1>nothing here</h1>"), EngineReplyError, "nothing here"),
            (reply("400 Bad Request", b"[1]"), EngineReplyError, "[1]"),
            (writing(b"SSH-2.0-OpenSSH_9.6\r\n"), EngineReplyError, "SSH-2.0"),
            (writing(HEAD + chunk(b"data: {oops\n\n") + END), EngineReplyError, "{oops"),
            (writing(HEAD + chunk(b"data: [1]\n\n") + END), EngineReplyError, "[1]"),
            (writing(HEAD + chunk(b"<html>\n") + END), EngineReplyError, "<html>"),
            (writing(HEAD + chunk(event({"choices": "no"})) + END), EngineReplyError, "no"),
            (writing(HEAD + chunk(event({"choices": [], "usage": {"prompt_tokens": "7"}}) + finish()) + END),
             EngineReplyError, "prompt_tokens"),
            (writing(HEAD + chunk(token("a")) + END), EngineReplyError, "after 1 pieces"),
            (writing(HEAD + chunk(event({"error": {"code": 500, "message": "Compute error."}})) + END),
             ServerError, "Compute error."),
            (writing(HEAD + chunk(event({"error": {"code": 500, "message": "Context size has been exceeded."}})) + END),
             ContextOverflow, "exceeded"),
            (writing(HEAD + chunk(token("a")), b""), ConnectionLost, "before the answer was complete"),
            (writing(b""), ConnectionLost, "after 0 bytes"),
            (writing(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf"), ConnectionLost, "closed the connection"),
        ],
    )  # fmt: skip
    def test_each_becomes_its_own_error(self, script: Script, error: type[EngineError], part: str) -> None:
        with pytest.raises(error) as caught:
            ask(script)
        assert part in caught.value.message
        assert caught.value.hint
        assert type(caught.value) is error

    def test_a_reset_in_the_middle(self) -> None:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(HEAD + chunk(token("a")))
            await writer.drain()
            await asyncio.sleep(APART_S)
            transport = writer.transport
            # Linger zero: the kernel sends a reset instead of an orderly end.
            sock = transport.get_extra_info("socket")
            sock.setsockopt(1, 13, b"\x01\x00\x00\x00\x00\x00\x00\x00")  # SOL_SOCKET, SO_LINGER on Linux
            transport.abort()

        with pytest.raises(ConnectionLost, match=r"reset|before the answer"):
            ask(script)

    def test_nothing_listens(self) -> None:
        async def free_port() -> int:
            server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
            port: int = server.sockets[0].getsockname()[1]
            server.close()
            await server.wait_closed()
            return port

        port = asyncio.run(free_port())
        with pytest.raises(ConnectionRefused, match=f"127.0.0.1:{port}"):
            asyncio.run(stream_chat(f"http://127.0.0.1:{port}", chat()))

    def test_silence_is_a_stall_and_the_time_limit_is_a_timeout(self) -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(HEAD + chunk(token("a")))
            await reader.read()  # until the client gives up

        with pytest.raises(EngineStalled, match=r"nothing for 0\.2 s"):
            ask(silent, chat(stall_s=0.2))
        with pytest.raises(EngineTimeout, match=r"within 0\.2 s"):
            ask(silent, chat(timeout_s=0.2))

    def test_a_slow_answer_is_no_stall_but_has_a_time_limit(self) -> None:
        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(HEAD)
            for _ in range(100):
                writer.write(chunk(b": still here\n\n"))
                await writer.drain()
                await asyncio.sleep(0.02)

        # Without the limit it would be an answer that stopped without its end, after 2 s.
        with pytest.raises(EngineTimeout):
            ask(slow, chat(timeout_s=0.4, stall_s=0.2))

    def test_a_long_wrong_reply_is_cut(self) -> None:
        with pytest.raises(EngineReplyError) as caught:
            ask(writing(HEAD + chunk(b"data: " + b"x" * 10_000 + b"\n\n") + END))
        assert len(caught.value.message) < 2300
        assert caught.value.message.endswith("(cut)")

    def test_plain_requests(self) -> None:
        async def go() -> tuple[dict[str, object], str, int]:
            async with scripted(reply("200 OK", {"tokens": [1, 2]})) as url:
                return (
                    await post_json(f"{url}/tokenize", {}),
                    await get_text(f"{url}/x?y=1"),
                    (await request("GET", url)).status,
                )

        assert asyncio.run(go()) == ({"tokens": [1, 2]}, '{"tokens": [1, 2]}', 200)


@pytest.fixture
def _ctrl_c_is_heard() -> Iterator[None]:
    """A shell that starts the tests in its background has them ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class TestRun:
    def test_from_ordinary_code_and_from_a_running_loop(self) -> None:
        async def work() -> int:
            return 7

        assert run(work()) == 7

        async def notebook() -> int:
            return run(work())

        assert asyncio.run(notebook()) == 7

    @pytest.mark.usefixtures("_ctrl_c_is_heard")
    @pytest.mark.parametrize("in_a_loop", [False, True])
    def test_ctrl_c_gets_through_at_once_and_closes_the_socket(self, in_a_loop: bool) -> None:
        closed = threading.Event()
        listening = threading.Event()
        urls: list[str] = []

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            await reader.read()
            closed.set()

        async def serve() -> None:
            async with scripted(silent) as url:
                urls.append(url)
                listening.set()
                while not closed.is_set():
                    await asyncio.sleep(0.01)

        thread = threading.Thread(target=asyncio.run, args=(serve(),))
        thread.start()
        listening.wait()

        def blocking() -> None:
            run(request("GET", urls[0], limits=Limits(timeout_s=20, stall_s=20)))

        def notebook() -> None:
            """As a notebook does it: a loop that runs and leaves Ctrl-C to Python's own handler."""

            async def cell() -> None:
                blocking()

            loop = asyncio.new_event_loop()
            try:
                loop.run_until_complete(cell())
            finally:
                loop.close()

        started_s = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            notebook() if in_a_loop else blocking()
        assert time.perf_counter() - started_s < 5
        assert closed.wait(5)
        thread.join(5)
