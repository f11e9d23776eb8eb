"""The limit of one sequence, read back from what a llama.cpp server says."""

import asyncio
import json
from typing import Any

import pytest
from scripted_server import plain, scripted

from kvscope.engine.base import ContextLimit
from kvscope.engine.llama_limits import ask_context_limit, context_limit, read_slots


@pytest.mark.parametrize(
    ("slots", "props", "logged", "expected"),
    [
        # n_ctx 1024 in two slots that divide it, as the server answered (xllamacpp 2026.10).
        ([{"id": 0, "n_ctx": 512}, {"id": 1, "n_ctx": 512}], {"default_generation_settings": {"n_ctx": 512}}, (), 512),
        # Slots that differ: a request goes to whichever is free.
        ([{"id": 0, "n_ctx": 512}, {"id": 1, "n_ctx": 256}], None, (), 256),
        # --no-slots: /props says it; and without that, the log.
        (None, {"default_generation_settings": {"n_ctx": 8192}}, (16384,), 8192),
        (None, None, (4096, 4096), 4096),
        (None, {"default_generation_settings": None}, (4096,), 4096),
        ([], {"total_slots": 1}, (), None),
        ([{"id": 0}], None, (), None),
        ([{"id": 0, "n_ctx": 0}], [], (), None),
        ([{"id": 0, "n_ctx": True}], "loading", (), None),
        ({"error": {"code": 501}}, None, (), None),
        (["odd"], 12, (), None),
        (None, None, (), None),
    ],
)
def test_the_limit_of_one_sequence(slots: Any, props: Any, logged: tuple[int, ...], expected: int | None) -> None:
    found = context_limit(slots, props, logged)
    assert (None if found is None else found.tokens) == expected


def test_where_it_was_read_is_said() -> None:
    assert "/slots" in str(context_limit([{"n_ctx": 1}], None, ()))
    assert "/props" in str(context_limit(None, {"default_generation_settings": {"n_ctx": 1}}, ()))
    assert "log" in str(context_limit(None, None, (1,)))


def test_an_endpoint_that_is_turned_off_is_passed_over() -> None:
    turned_off = plain("501 Not Implemented", b'{"error": {"code": 501, "message": "no slots"}}')
    props = plain("200 OK", json.dumps({"default_generation_settings": {"n_ctx": 777}}).encode())

    async def go() -> ContextLimit | None:
        answers = [turned_off, props]

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(answers.pop(0))
            await writer.drain()

        async with scripted(script) as url:
            return await ask_context_limit(url, (9,))

    assert asyncio.run(go()) == ContextLimit(tokens=777, source="GET /props: default_generation_settings.n_ctx")


def test_slots_nested_deeper_than_can_be_read_are_none() -> None:
    assert read_slots("[" * 200_000) is None
