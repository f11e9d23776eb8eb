"""An answer of a load that is looked at while it comes, and put aside again."""

import asyncio

import pytest
from scripted_server import END, HEAD, chunk, finish, talking, token

from kvscope.engine import load_sending
from kvscope.engine.base import ChatRequest, Load, Message
from kvscope.engine.load_client import send_load
from kvscope.engine.openai_http import prepare_chat


def test_an_answer_that_was_put_aside_in_between_leaves_nothing_for_the_loop_to_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop ends what was begun while it ran, and says so where that is still waiting: on stderr, of every run."""
    monkeypatch.setattr(load_sending, "QUIET_S", 0.05)

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(token("a")))
        await writer.drain()
        await asyncio.sleep(0.2)  # several looks at what has come so far
        writer.write(chunk(finish(completion_tokens=1, prompt_tokens=7)) + END)
        await writer.drain()

    async def answer(path: str, body: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await slow(reader, writer)

    request = ChatRequest(messages=(Message(role="user", content="hi"),), max_output_tokens=1)
    with talking(answer) as server:
        result = send_load(Load(requests=(request,) * 2, concurrency=2), lambda chat: prepare_chat(server.url, chat))
    assert [one.error for one in result.answers] == [None, None]
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []
