"""Servers that send without end: the client's memory stays small, and the error says what happened.

The memory is the kernel's own count of this process's peak, set back before each.
"""

import asyncio
import gzip
import json
from collections.abc import Callable, Coroutine, Iterator
from itertools import chain, repeat
from pathlib import Path

import pytest
from scripted_server import END, HEAD, Script, chunk, event, finish, plain, scripted, token

from kvscope.engine.base import ChatRequest, Message
from kvscope.engine.http_client import Limits, exchange, request
from kvscope.engine.openai_http import get_text, post_json, stream_chat
from kvscope.errors import EngineError, EngineReplyError, EngineTimeout, ServerError

MIB = 1024 * 1024
GROWTH_LIMIT = 64 * MIB
CLEAR_REFS = Path("/proc/self/clear_refs")
CHAT = ChatRequest(
    messages=(Message(role="user", content="hi"),), max_output_tokens=4, timeout_s=60, stall_s=60
)  # at most 8 x 4 + 64 = 96 pieces
PADDING = b"x" * (64 * 1024)


def memory(name: str) -> int:
    """A field of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


def growth(work: Callable[[], None]) -> int:
    """How far the peak of this process's memory rises above what it holds now."""
    if not CLEAR_REFS.exists():
        pytest.skip("needs Linux's /proc")
    CLEAR_REFS.write_text("5")  # proc(5): the peak is set back to what is held now
    before = memory("VmRSS")
    work()
    return memory("VmHWM") - before


def sending(begin: bytes, pieces: Iterator[bytes] | None = None, total: int = 1024**3) -> Script:
    """``begin``, then ``pieces`` until ``total`` bytes (1 GB) are sent or the client has gone."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = 0
        for piece in chain((begin,), repeat(PADDING) if pieces is None else pieces):
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
            if sent >= total:
                return

    return script


def failure_of(script: Script, ask: Callable[[str], Coroutine[None, None, object]]) -> EngineError:
    found: list[EngineError] = []

    def work() -> None:
        async def go() -> None:
            async with scripted(script) as url:
                await ask(url)

        with pytest.raises(EngineError) as caught:
            asyncio.run(go())
        found.append(caught.value)

    assert growth(work) < GROWTH_LIMIT
    assert len(found[0].message) <= 2100
    assert len(json.dumps(found[0].evidence)) < 70 * 1024
    assert found[0].hint
    return found[0]


def get(url: str) -> Coroutine[None, None, object]:
    return request("GET", url)


def chatting(url: str) -> Coroutine[None, None, object]:
    return stream_chat(url, CHAT)


BIG = b"Content-Length: 1073741824\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"
EMPTY = chunk(event({"choices": [{"delta": {}}]}) * 500)


@pytest.mark.parametrize(
    ("script", "ask", "part"),
    [
        (sending(OK + BIG), get, "sent more than 16,777,216 bytes"),
        (sending(OK + b"\r\n"), get, "sent more than 16,777,216 bytes"),
        (sending(OK + BIG), chatting, "a line of more than 1,048,576 bytes"),
        (sending(HEAD, repeat(chunk(token("a") * 100))), chatting, "does not end: "),
        (sending(HEAD, repeat(chunk(token("a" * 60_000)))), chatting, "characters so far"),
        (sending(HEAD, repeat(EMPTY)), chatting, "sent more than"),
        (sending(HEAD, repeat(chunk(b": ping\n\n" * 5000))), chatting, "sent more than"),
        (sending(HEAD + chunk(b"data: "), repeat(chunk(PADDING))), chatting, "a line of more than 1,048,576 bytes"),
        (sending(HEAD + chunk(b": "), repeat(chunk(PADDING))), chatting, "a line of more than 1,048,576 bytes"),
        (sending(HEAD, repeat(chunk(b"data: x\n" * 5000))), chatting, "not JSON"),
        (sending(HEAD, repeat(chunk(b"<p>page</p>\n" * 5000))), chatting, "sent more than"),
        (sending(OK, repeat(b"X-A: b\r\n" * 5000)), get, "more than 65,536 bytes of headers"),
        (sending(OK + b"X-Bomb: "), get, "more than 65,536 bytes of headers"),
        (sending(b"", repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 2000)), get, "more than 65,536 bytes of headers"),
        (sending(HEAD + b"0\r\n", repeat(b"X-Trailer: b\r\n" * 5000)), get, "sent more than"),
        (sending(HEAD + b"5;name="), get, "sent more than"),
        (sending(HEAD + b"zzzz\r\n"), get, "broke the form of HTTP"),
        (sending(HEAD + chunk(b"{}") + b"no chunk"), get, "broke the form of HTTP"),
        (sending(b"", repeat(PADDING)), get, "did not answer in HTTP"),
    ],
)  # fmt: skip
def test_one_gigabyte_is_not_kept(
    script: Script, ask: Callable[[str], Coroutine[None, None, object]], part: str
) -> None:
    error = failure_of(script, ask)
    assert part in error.message
    assert isinstance(error, EngineReplyError)


@pytest.mark.parametrize("ask", [chatting, get_text])
def test_a_failure_with_a_gigabyte_to_say_is_what_its_status_is(
    ask: Callable[[str], Coroutine[None, None, object]],
) -> None:
    error = failure_of(sending(b"HTTP/1.1 503 Oops\r\nRetry-After: 3\r\n" + BIG), ask)
    assert type(error) is ServerError
    assert (error.evidence["http_status"], error.evidence["retry_after_s"]) == (503, 3.0)
    assert "the first 64 KiB of" in error.evidence["body"]


def test_an_answer_without_end_says_how_far_it_was_read() -> None:
    error = failure_of(sending(HEAD, repeat(chunk(token("a")))), chatting)
    received = error.evidence["pieces_received"]
    assert 96 < received < 96 + MIB / len(token("a"))  # what one read held beyond them
    assert f"{received:,} pieces so far, and at most 96 pieces were expected" in error.message
    assert error.evidence["http_status"] == 200
    assert "max_completion_tokens" in str(error.hint)


def test_an_answer_without_end_that_is_slow_meets_the_time_limit() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        while True:
            writer.write(chunk(token("a")))
            await writer.drain()
            await asyncio.sleep(0.02)

    short = ChatRequest(messages=(), max_output_tokens=4, timeout_s=0.3, stall_s=60)
    error = failure_of(slow, lambda url: stream_chat(url, short))
    assert isinstance(error, EngineTimeout)
    assert error.evidence["pieces_received"] > 0


def test_a_fast_answer_without_end_meets_the_time_limit_too() -> None:
    """Reads that are there at once must not hide the clock."""
    short = ChatRequest(messages=(), max_output_tokens=1_000_000, timeout_s=0.3, stall_s=60)
    error = failure_of(sending(HEAD, repeat(EMPTY)), lambda url: stream_chat(url, short))
    assert isinstance(error, EngineTimeout)


def test_a_server_that_is_faster_than_its_reader_is_made_to_wait() -> None:
    """Of 256 MB that were sent while nobody read, little lies here; then all of it arrives."""
    total = 256 * MIB
    got: list[int] = []

    def work() -> None:
        async def go() -> None:
            head = OK + f"Content-Length: {total}\r\n\r\n".encode()
            pieces = repeat(PADDING, total // len(PADDING))
            async with (
                scripted(sending(head, pieces, 2 * total)) as url,
                exchange("GET", url, limits=Limits(max_bytes=2 * total)) as running,
            ):
                await asyncio.sleep(0.5)
                got.append(sum([len(each.body) async for each in running.chunks()]))

        asyncio.run(go())

    assert growth(work) < GROWTH_LIMIT
    assert got == [total]


class TestCompressed:
    def test_it_is_named_and_not_unpacked(self) -> None:
        bomb = gzip.compress(b"data: " + b"0" * (64 * MIB))
        reply = plain("200 OK", bomb, "Content-Encoding: gzip", "Content-Type: text/event-stream")
        error = failure_of(sending(reply, iter(())), chatting)
        assert isinstance(error, EngineReplyError)
        assert "compressed as 'gzip', though it was asked not to" in error.message
        assert error.evidence["http_status"] == 200

    def test_identity_is_no_compression(self) -> None:
        async def go() -> object:
            reply = plain("200 OK", b'{"a": 1}', "Content-Encoding: identity")
            async with scripted(sending(reply, iter(()))) as url:
                return await post_json(url, {})

        assert asyncio.run(go()) == {"a": 1}


def test_a_provisional_answer_comes_before_the_answer() -> None:
    """RFC 9110, 15.2: any number of 1xx before the final one."""

    async def go() -> object:
        begin = b"HTTP/1.1 100 Continue\r\nX-A: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        async with scripted(sending(begin + plain("200 OK", b'{"a": 1}'), iter(()))) as url:
            return (await request("GET", url)).headers, await post_json(url, {})

    headers, found = asyncio.run(go())  # type: ignore[misc]
    assert found == {"a": 1}
    assert "link" not in headers
    assert "x-a" not in headers


def test_a_long_error_body_is_kept_to_64_kib() -> None:
    body = b"e" * (100 * 1024)
    error = failure_of(sending(plain("500 Oops", body), iter(())), chatting)
    assert isinstance(error, ServerError)
    kept = error.evidence["body"]
    assert kept.startswith("e" * 65536)
    assert kept.endswith("(the first 64 KiB of 102,400 bytes)")


def test_an_answer_within_its_limits_is_whole() -> None:
    """96 pieces are the most for 4 tokens, and so many are taken."""

    async def go() -> int:
        async with scripted(sending(HEAD + chunk(token("a") * 96 + finish()) + END, iter(()))) as url:
            return len((await stream_chat(url, CHAT)).events)

    assert asyncio.run(go()) == 96
