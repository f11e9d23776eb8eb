"""Streamed answers in the forms that servers send them."""

import asyncio
import json
from typing import Any

import pytest
from scripted_server import END, HEAD, Script, chunk, event, finish, plain, read_request, scripted, token

from kvscope.engine.base import ChatRequest, Generation, Message
from kvscope.engine.event_stream import EventStream
from kvscope.engine.openai_http import chat_payload, stream_chat, stream_completion
from kvscope.errors import (
    ContextOverflow,
    EngineError,
    EngineReplyError,
    EngineStalled,
    EngineTimeout,
    OutOfMemory,
    ServerError,
)

APART_S = 0.05
HELLO = (Message(role="user", content="hi"),)


def chat(**more: Any) -> ChatRequest:
    return ChatRequest(messages=HELLO, max_output_tokens=4, **{"timeout_s": 10.0, "stall_s": 10.0, **more})


def writing(*pieces: bytes) -> Script:
    """Each piece as a write of its own, apart in time."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number, piece in enumerate(pieces):
            await asyncio.sleep(APART_S if number else 0)
            writer.write(piece)
            await writer.drain()

    return script


def ask(script: Script, request: ChatRequest | None = None) -> Generation:
    async def go() -> Generation:
        async with scripted(script) as url:
            return await stream_chat(url, request or chat())

    return asyncio.run(go())


def streamed(*data: bytes) -> Generation:
    return ask(writing(HEAD + chunk(b"".join(data)) + END))


def failing(script: Script, request: ChatRequest | None = None) -> EngineError:
    with pytest.raises(EngineError) as caught:
        ask(script, request)
    assert caught.value.hint
    assert caught.value.evidence["known_by"] == "message"
    return caught.value


def test_whose_answer_it_is_by_the_servers_own_words() -> None:
    named = event({"model": "small", "choices": [{"index": 0, "finish_reason": None, "delta": {"content": "a"}}]})
    assert streamed(named, token("b"), finish()).model == "small"
    assert streamed(token("a"), finish()).model is None
    assert streamed(event({"model": 5, "choices": []}), token("a"), finish()).model is None


def delta(finish_reason: str | None = None, **fields: object) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]})


ROLE = delta(role="assistant", content="")


class TestTheFirstToken:
    """What comes before it is none: OpenAI's, vLLM's and llama.cpp's first event names the role alone."""

    @pytest.mark.parametrize(
        "first",
        [ROLE, delta(role="assistant"), delta(role="assistant", content=None), event({"choices": []}), b": ping\n\n",
         b": OPENROUTER PROCESSING\n\n", b"\n\n", b"data:\n\n", b"event: message\nid: 1\nretry: 5\n\n",
         event({"id": "x", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]})],
        ids=["role and empty text", "role", "role and null", "no choice", "comment", "OpenRouter", "blank lines",
             "empty data", "other fields", "Azure"],
    )  # fmt: skip
    def test_an_event_without_text_is_none(self, first: bytes) -> None:
        answer = ask(writing(HEAD + chunk(first), chunk(token("a") + finish()) + END))
        assert [each.text for each in answer.events] == ["a"]
        assert answer.events[0].at_s == answer.reads[1].at_s > answer.reads[0].at_s
        assert answer.reads[0].num_events == 0

    @pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
    def test_thinking_is_one(self, name: str) -> None:
        """``reasoning`` is vLLM's since 0.11 and OpenRouter's; ``reasoning_content`` DeepSeek's and llama.cpp's."""
        answer = streamed(ROLE, delta(**{name: "hm"}), delta(content="x"), finish())
        assert [(each.kind, each.text) for each in answer.events] == [("reasoning", "hm"), ("content", "x")]

    def test_thinking_under_both_names_is_one_piece(self) -> None:
        assert len(streamed(delta(reasoning="hm", reasoning_content="hm"), finish()).events) == 1

    def test_a_refusal_is_text(self) -> None:
        assert [each.text for each in streamed(delta(refusal="No."), finish("stop")).events] == ["No."]


class TestTheForm:
    def test_carriage_returns(self) -> None:
        lines = (token("a") + b": x\n\n" + token("b") + finish()).replace(b"\n", b"\r\n")
        assert [each.text for each in streamed(lines).events] == ["a", "b"]

    def test_carriage_return_and_line_feed_in_two_reads(self) -> None:
        line = token("a").replace(b"\n", b"\r\n")
        answer = ask(writing(HEAD + chunk(line[:-3]), chunk(line[-3:] + finish()) + END))
        assert [each.text for each in answer.events] == ["a"]

    def test_no_blank_between_events_and_no_space_after_the_colon(self) -> None:
        lines = token("a").replace(b"data: ", b"data:").rstrip(b"\n") + b"\n" + token("b") + finish()
        assert [each.text for each in streamed(lines).events] == ["a", "b"]

    def test_an_event_over_several_lines(self) -> None:
        """HTML, 9.2.6: data lines of one event are joined by line feeds."""
        value = json.dumps({"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}, indent=1)
        lines = b"".join(f"data: {line}\n".encode() for line in value.splitlines()) + b"\n"
        assert [each.text for each in streamed(lines).events] == ["a"]

    def test_a_byte_order_mark(self) -> None:
        assert [each.text for each in streamed(b"\xef\xbb\xbf" + token("a") + finish()).events] == ["a"]

    def test_an_end_that_is_not_marked(self) -> None:
        """finish_reason says it; [DONE] is left out by some routers."""
        answer = streamed(token("a"), delta("stop"))
        assert (answer.finish_reason, len(answer.events)) == ("stop", 1)

    @pytest.mark.parametrize(
        "said", [b"", ROLE, event({"choices": [], "usage": {"completion_tokens": 0}})], ids=["nothing", "role", "zero"]
    )
    def test_a_mark_that_ends_nothing(self, said: bytes) -> None:
        error = failing(writing(HEAD + chunk(said + event("[DONE]")) + END))
        assert type(error) is EngineReplyError
        assert "nothing at all" in error.message

    def test_an_answer_without_a_piece_that_is_stated(self) -> None:
        """A model that ends at once, and tokens without text."""
        assert streamed(ROLE, finish("stop")).events == ()
        assert streamed(event({"choices": [], "usage": {"completion_tokens": 1}}), event("[DONE]")).output_tokens == 1

    def test_counts_of_zero_that_the_pieces_contradict(self) -> None:
        """Some gateways send usage with every count 0: there was a prompt, and there are pieces."""
        details = {"cached_tokens": 0}
        answer = streamed(
            token("a"), finish(prompt_tokens=0, completion_tokens=0, total_tokens=0, prompt_tokens_details=details)
        )
        assert (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens) == (None, None, None)
        assert answer.prompt_tokens_from is None
        answer = streamed(token("a"), finish(prompt_tokens=9, completion_tokens=0, prompt_tokens_details=details))
        assert (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens) == (9, 0, None)
        answer = streamed(ROLE, finish("stop", prompt_tokens=9, completion_tokens=0))
        assert (answer.prompt_tokens, answer.output_tokens) == (9, 0)

    def test_a_mark_without_a_reason(self) -> None:
        assert streamed(token("a"), event("[DONE]")).finish_reason is None

    def test_the_last_line_without_its_end(self) -> None:
        last = delta("stop", content="b").rstrip(b"\n")
        answer = streamed(token("a"), last)
        assert [each.text for each in answer.events] == ["a", "b"]
        assert sum(read.num_events for read in answer.reads) == 2

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
    def test_however_it_is_cut(self, size: int) -> None:
        data = ROLE + token("é😀") + b": ping\r\n\r\n" + delta(reasoning="x") + finish(completion_tokens=2)
        stream = EventStream()
        found = [each for start in range(0, len(data), size) for each in stream.feed(data[start : start + size])]
        whole = EventStream()
        assert found + stream.finish() == list(whole.feed(data)) + whole.finish()
        assert stream.ended
        assert not stream.foreign

    def test_error_null_beside_an_answer_is_no_error(self) -> None:
        answer = streamed(event({"error": None, "choices": [{"delta": {"content": "a"}}]}), finish())
        assert len(answer.events) == 1

    def test_a_code_that_is_no_failure_is_none(self) -> None:
        answer = streamed(event({"code": 0, "choices": [{"delta": {"content": "a"}}]}), finish())
        assert len(answer.events) == 1


class TestUsage:
    def test_in_the_last_event_without_a_choice(self) -> None:
        answer = streamed(token("a"), delta("length"), event({"choices": [], "usage": {"prompt_tokens": 7}}))
        assert (answer.prompt_tokens, answer.output_tokens, answer.finish_reason) == (7, None, "length")

    def test_in_each_event_the_last_counts(self) -> None:
        """vLLM's continuous_usage_stats, and TGI."""

        def counted(text: str, done: int) -> bytes:
            choice = {"delta": {"content": text}, "finish_reason": None}
            return event({"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": done}})

        answer = streamed(counted("", 0), counted("a", 1), counted("b", 2), finish())
        assert (answer.prompt_tokens, answer.output_tokens) == (7, 2)

    def test_null_in_each_event_but_the_last(self) -> None:
        """OpenAI's include_usage."""
        null = event({"choices": [{"delta": {"content": "a"}}], "usage": None})
        answer = streamed(null, delta("stop"), event({"choices": [], "usage": {"completion_tokens": 1}}))
        assert answer.output_tokens == 1

    def test_groqs_place_for_it(self) -> None:
        last = event({"choices": [{"delta": {}, "finish_reason": "stop"}], "x_groq": {"usage": {"prompt_tokens": 3}}})
        assert streamed(token("a"), last).prompt_tokens == 3

    def test_none_is_none(self) -> None:
        answer = streamed(token("a"), finish())
        assert (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens) == (None, None, None)


class TestNoAnswer:
    def test_no_token_at_all_is_an_answer_without_a_first_token(self) -> None:
        answer = streamed(ROLE, finish("stop", prompt_tokens=7, completion_tokens=0))
        assert (answer.events, answer.output_tokens, answer.finish_reason) == ((), 0, "stop")

    def test_a_content_filter_is_an_end(self) -> None:
        assert streamed(token("a"), finish("content_filter")).finish_reason == "content_filter"

    @pytest.mark.parametrize("reason", ["error", "abort"])
    def test_an_end_in_error_is_an_error(self, reason: str) -> None:
        error = failing(writing(HEAD + chunk(token("a") + delta(reason)) + END))
        assert type(error) is ServerError
        assert error.evidence["pieces_received"] == 1

    def test_openrouters_error_in_mid_stream(self) -> None:
        """openrouter.ai/docs, Handling Errors During Streaming: the error beside a choice that ends in it."""
        body = {
            "id": "gen-1",
            "object": "chat.completion.chunk",
            "provider": "x",
            "error": {"code": 502, "message": "Provider disconnected"},
            "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
        }
        error = failing(writing(HEAD + chunk(token("a") + event(body)) + END))
        assert type(error) is ServerError
        assert "(502): Provider disconnected" in error.message
        assert error.evidence["pieces_received"] == 1

    @pytest.mark.parametrize(
        ("body", "kind", "part"),
        [
            (b'{"error": {"message": "CUDA out of memory. Tried"}}', OutOfMemory, "CUDA out of memory"),
            (b'{"error": {\n "message": "maximum context length is 8 tokens"}}', ContextOverflow, "8 tokens"),
            (b'{"object": "error", "message": "no", "code": 500}', ServerError, "no"),
            (b'{"choices": [{"message": {"content": "hello"}}]}', EngineReplyError, "in one piece"),
            (b"<html><title>Welcome</title><body>Log in</body></html>", EngineReplyError, "Welcome Log in"),
            (b"hello", EngineReplyError, "not an event stream: hello"),
            (b"", EngineReplyError, "nothing at all"),
            (b"\n\n\n", EngineReplyError, "nothing at all"),
            (b"data: [DONE", EngineReplyError, "not JSON"),
        ],
        ids=["error", "error over lines", "old vLLM", "not streamed", "page", "text", "empty", "blank", "broken"],
    )  # fmt: skip
    @pytest.mark.parametrize("kind_of_body", ["application/json", "text/event-stream"])
    def test_a_200_that_holds_no_stream(
        self, body: bytes, kind: type[EngineError], part: str, kind_of_body: str
    ) -> None:
        error = failing(writing(plain("200 OK", body, f"Content-Type: {kind_of_body}")))
        assert type(error) is kind
        assert part in error.message
        assert (error.evidence["http_status"], error.evidence["pieces_received"]) == (200, 0)

    def test_a_stream_that_turns_into_a_page(self) -> None:
        error = failing(writing(HEAD + chunk(token("a")), chunk(b"<html>502 Bad Gateway</html>") + END))
        assert "turned into something else after 1 pieces" in error.message
        assert "502 Bad Gateway" in error.evidence["body"]

    @pytest.mark.parametrize(
        "value",
        [{"choices": [7]}, {"choices": 7}, {"choices": [{"delta": 7}]}, {"choices": [{"delta": {"content": 7}}]},
         {"choices": [{"delta": {"content": ["a"]}}]}, {"choices": [{"delta": {}, "finish_reason": 7}]},
         {"choices": [{"delta": {"tool_calls": [7]}}]}, {"usage": 7}, {"choices": [], "timings": "soon"},
         {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": {"a": 1}}}]}}]}],
    )  # fmt: skip
    def test_an_event_of_another_form(self, value: object) -> None:
        error = failing(writing(HEAD + chunk(token("a") + event(value)) + END))
        assert type(error) is EngineReplyError
        assert "unexpected form" in error.message
        assert json.loads(error.evidence["body"]) == value
        assert error.evidence["pieces_received"] == 1


def test_pieces_before_a_broken_one_in_the_same_read_are_counted() -> None:
    error = failing(writing(HEAD + chunk(token("a") + token("b") + b"data: {broken\n\n" + token("c")) + END))
    assert error.evidence["pieces_received"] == 2
    assert error.evidence["body"] == "{broken"


class TestSilence:
    """Before the first piece, the server works on the prompt: only the time limit counts. After it, silence does."""

    def test_a_slow_first_token_is_no_stall(self) -> None:
        slow = writing(*[HEAD + chunk(ROLE), *[b""] * 5, chunk(token("a") + finish()) + END])
        assert len(ask(slow, chat(stall_s=3 * APART_S)).events) == 1

    @pytest.mark.parametrize("begin", [b"", HEAD, HEAD + chunk(ROLE)], ids=["nothing", "headers", "role"])
    def test_a_first_token_that_never_comes_is_a_timeout(self, begin: bytes) -> None:
        error = failing(hanging(begin), chat(timeout_s=0.3, stall_s=0.1))
        assert type(error) is EngineTimeout
        assert error.evidence["pieces_received"] == 0

    def test_silence_after_a_piece_is_a_stall(self) -> None:
        error = failing(hanging(HEAD + chunk(ROLE + token("a") + token("b"))), chat(stall_s=0.1))
        assert type(error) is EngineStalled
        assert (error.evidence["pieces_received"], error.evidence["http_status"]) == (2, 200)

    def test_comments_do_not_hide_a_stall(self) -> None:
        async def pinging(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(HEAD + chunk(token("a")))
            for _ in range(200):
                writer.write(chunk(b": ping\n\n"))
                await writer.drain()
                await asyncio.sleep(0.02)

        error = failing(pinging, chat(stall_s=0.2))
        assert type(error) is EngineStalled

    def test_events_without_text_are_signs_of_life(self) -> None:
        """A call of a tool is held back until it can be read; the server goes on sending empty deltas."""
        begin = HEAD + chunk(token("a"))
        busy = writing(begin, *[chunk(delta())] * 6, chunk(token("b") + finish()) + END)
        assert len(ask(busy, chat(stall_s=4 * APART_S)).events) == 2


def hanging(begin: bytes) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        await reader.read()  # until the client gives up

    return script


def request_sent(work: Any, answer: bytes) -> tuple[str, dict[str, Any], Generation]:
    """The head and the JSON that ``work(url)`` sends, and what it makes of the answer."""
    seen: list[tuple[str, bytes]] = []

    async def go() -> Generation:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(await read_request(reader))
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        async with server:
            found: Generation = await work(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            return found

    generation = asyncio.run(go())
    return seen[0][0], json.loads(seen[0][1]), generation


class TestRequests:
    PLAIN = HEAD + chunk(token("a") + finish()) + END

    def test_a_hosted_server_is_sent_no_field_of_llama_cpps(self) -> None:
        head, body, _ = request_sent(
            lambda url: stream_chat(url, chat(), model="gpt-x", headers={"Authorization": "Bearer k"}, fields={}),
            self.PLAIN,
        )
        assert "\r\nAuthorization: Bearer k\r\n" in head
        assert body == {
            "model": "gpt-x",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 4,
            "temperature": 0,
            "seed": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def test_a_field_of_ours_can_be_replaced_or_left_out(self) -> None:
        """OpenAI's newer models: no max_tokens, no temperature."""
        body = chat_payload(chat(), fields={"max_completion_tokens": 4, "max_tokens": None, "temperature": None})
        assert body["max_completion_tokens"] == 4
        assert not {"max_tokens", "temperature", "model", "ignore_eos"} & body.keys()

    def test_llama_cpps_own_where_nothing_is_said(self) -> None:
        body = chat_payload(chat(ignore_end=False, reuse_prefix=True))
        assert (body["ignore_eos"], body["cache_prompt"]) == (False, True)

    @pytest.mark.parametrize("prompt", ["Once upon", [1, 2, 3]])
    def test_completions(self, prompt: str | list[int]) -> None:
        """The form of vLLM's and llama.cpp's /v1/completions: the text stands in the choice itself."""
        pieces = [
            event({"choices": [{"index": 0, "text": "", "finish_reason": None}]}),
            event({"choices": [{"index": 0, "text": " a", "logprobs": None, "finish_reason": None}]}),
            event({"choices": [{"index": 0, "text": " time", "finish_reason": "length"}]}),
            event({"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 2}}),
            event("[DONE]"),
        ]
        head, body, answer = request_sent(
            lambda url: stream_completion(f"{url}/x/", chat(), prompt, model="m", fields={}),
            HEAD + chunk(b"".join(pieces)) + END,
        )
        assert head.startswith("POST /x/v1/completions HTTP/1.1\r\n")
        assert body["prompt"] == prompt
        assert "messages" not in body
        assert [each.text for each in answer.events] == [" a", " time"]
        assert (answer.prompt_tokens, answer.output_tokens, answer.finish_reason) == (2, 2, "length")


@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 7, 4096])
def test_lines_may_end_in_any_of_the_three_ways_and_be_cut_anywhere(ends: bytes, size: int) -> None:
    # WHATWG, HTML, 9.2.5: end-of-line = ( cr lf / cr / lf ).
    data = (token("a") + b": ping\n\n" + token("b") + finish()).replace(b"\n", ends)
    stream = EventStream()
    found = [each for start in range(0, len(data), size) for each in stream.feed(data[start : start + size])]
    found += stream.finish()
    assert [each["choices"][0]["delta"].get("content") for each in found] == ["a", "b", None]
    assert stream.ended
    assert not stream.foreign


def test_what_is_no_stream_keeps_its_line_ends() -> None:
    stream = EventStream()
    assert list(stream.feed(b"<html>\r\n<p>no\r")) + list(stream.feed(b"\n</p>\n")) + stream.finish() == []
    assert bytes(stream.foreign) == b"<html>\r\n<p>no\r\n</p>\n"
