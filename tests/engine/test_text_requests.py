"""Texts that are sent without a chat template, and texts at which an answer ends, in each interface's own words; the
connection that many small requests share."""

import asyncio
import json
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))
from ollama_standin import StandIn, running
from ollama_store_files import write_store
from openai_proxy import CHAT, TEXT, proxy
from running_llama import Running, running_llama
from scripted_server import read_request

from kvscope.engine.api_key import ApiKey
from kvscope.engine.base import ChatRequest, Message, ScoreRequest
from kvscope.engine.http_client import Limits, run
from kvscope.engine.kept_connection import KeptConnection
from kvscope.engine.ollama import OllamaEngine
from kvscope.engine.openai_server import OpenAIServer
from kvscope.engine.openai_text import prepare_request
from kvscope.engine.served_facts import LLAMA_CPP, UNKNOWN, ServedFacts
from kvscope.engine.server_address import ServerAddress
from kvscope.engine.server_texts import score_served, tokenize_served
from kvscope.engine.stop_texts import StopTexts, cut_at_stop
from kvscope.engine.vllm import VllmEngine, request_fields
from kvscope.errors import ConnectionLost, EngineReplyError, KvscopeError, UsageError

KEY = "sk-never-shown-0123456789"
LIMITS = Limits(timeout_s=10.0, stall_s=10.0)
TEXT_REQUEST = ChatRequest(messages=(), text="The capital of France is", max_output_tokens=6)


# --- stop texts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "stops", "left"),
    [
        (["The ", "end", " of"], ["end"], ["The ", ""]),
        (["The e", "nd of"], ["end"], ["The ", ""]),
        (["a", "b", "c", "d"], ["bcd"], ["a", "", "", ""]),
        (["one. two. three."], ["three", "."], ["one"]),
        (["", "x", "", "stop"], ["stop"], ["", "x", "", ""]),
        (["The ", "end"], ["ends", ""], None),
        (["The ", "end"], [], None),
        ([], ["x"], None),
    ],
)
def test_an_answer_is_cut_where_its_stop_text_begins(
    pieces: list[str], stops: list[str], left: list[str] | None
) -> None:
    assert cut_at_stop(pieces, stops) == left
    watch = StopTexts(stops)
    seen = [watch.add(piece) for piece in pieces]
    assert any(seen) is (left is not None)
    assert left is None or seen.index(True) == len(left) - 1


# --- what is sent -----------------------------------------------------------------------------------------------------


def test_a_text_goes_to_completions_and_a_chat_to_chat() -> None:
    text = prepare_request("http://localhost:1", replace(TEXT_REQUEST, stop=("\n", "Q:")), model="m")
    assert text.url.endswith(TEXT)
    assert isinstance(text.payload, dict)
    assert (text.payload["prompt"], text.payload["stop"]) == ("The capital of France is", ["\n", "Q:"])
    assert "messages" not in text.payload
    hello = ChatRequest(messages=(Message(role="user", content="Hello."),), max_output_tokens=6)
    chat = prepare_request("http://localhost:1", hello)
    assert chat.url.endswith(CHAT)
    assert isinstance(chat.payload, dict)
    assert "stop" not in chat.payload  # which some servers refuse when it is null
    assert "prompt" not in chat.payload


@pytest.mark.parametrize(
    "changed",
    [
        {"messages": (Message(role="user", content="Hello."),)},
        {"tools": ({"type": "function"},)},
        {"template_variables": {"enable_thinking": False}},
        {"stop": ("x", "")},
        {"text": ""},
    ],
)
def test_a_text_has_nothing_beside_it(changed: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as raised:
        prepare_request("http://localhost:1", replace(TEXT_REQUEST, **changed))
    assert raised.value.hint


def test_vllm_is_sent_a_text_with_its_own_fields() -> None:
    engine = VllmEngine.__new__(VllmEngine)
    engine._server, engine._served_model = ServerAddress("http://localhost:1"), "tiny"
    prepared = engine._prepare(TEXT_REQUEST)
    assert prepared.url == "http://localhost:1/v1/completions"
    assert isinstance(prepared.payload, dict)
    assert prepared.payload["prompt"] == "The capital of France is"
    assert request_fields(TEXT_REQUEST).keys() <= prepared.payload.keys()


@pytest.mark.parametrize("kind", [OllamaEngine, OpenAIServer, VllmEngine])
def test_an_engine_that_scores_nothing_says_so(kind: Any) -> None:
    """Every one that claims it cannot raises UsageError, and gives no number."""
    engine = kind.__new__(kind)
    if kind is OpenAIServer:
        engine = OpenAIServer(ServerAddress("http://localhost:1"))
        engine._facts = _unknown_facts()
    with pytest.raises(UsageError) as raised:
        engine.score(ScoreRequest(prompt=(1,), continuation=(2,)))
    assert "llama.cpp" in raised.value.hint
    with pytest.raises(UsageError):
        engine.tokenize("Hello.", with_special=True)


def _unknown_facts() -> ServedFacts:
    return ServedFacts(kind=UNKNOWN, version=UNKNOWN, build=UNKNOWN, model="m", others=(), limit=None)


# --- servers ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama() -> Iterator[Running]:
    with running_llama() as running:
        yield running


@pytest.mark.engine
def test_a_text_to_a_server_of_which_nothing_is_known(llama: Running) -> None:
    """It has /v1/completions, and the answer is the real engine's; whether it has is not known beforehand."""
    with proxy(llama.url) as server:
        engine = OpenAIServer(ServerAddress(server.url))
        engine.launch()
        engine.load()
        assert not engine.capabilities.completes_text
        assert not engine.capabilities.scores_tokens
        answer = engine.generate(replace(TEXT_REQUEST, stop=(".",)))
        assert "".join(event.text for event in answer.events) == " Paris"
        assert answer.prompt_tokens == 5
        assert server.bodies[-1]["prompt"] == TEXT_REQUEST.text
    with proxy(llama.url, paths=(TEXT,)) as server:  # without chat all goes there
        engine = OpenAIServer(ServerAddress(server.url))
        engine.launch()
        engine.load()
        assert engine.capabilities.completes_text


@pytest.mark.engine
def test_a_text_to_a_server_that_has_no_completions_is_not_sent_as_a_chat(llama: Running) -> None:
    with proxy(llama.url, paths=(CHAT,)) as server:
        engine = OpenAIServer(ServerAddress(server.url))
        engine.launch()
        engine.load()
        with pytest.raises(EngineReplyError) as raised:
            engine.generate(TEXT_REQUEST)
        assert raised.value.evidence["http_status"] == 404
        assert [body for body in server.bodies if "messages" not in body] == []
        assert engine.generate(ChatRequest(messages=(Message(role="user", content="Hi"),), max_output_tokens=1)).events


@pytest.mark.engine
def test_scores_through_a_proxy_that_wants_a_key_and_keeps_nothing(llama: Running) -> None:
    """It closes each connection with its answer, and tells the server to keep no prompt: then only what is computed
    anew can be scored. The key is shown nowhere."""
    facts = replace(_unknown_facts(), kind=LLAMA_CPP)
    with proxy(llama.url, key=KEY, paths=("/completion", "/tokenize")) as server:
        address = ServerAddress(server.url, ApiKey(KEY))
        prompt = run(tokenize_served(address, facts, "The capital of France is " * 8, with_special=True))
        assert len(prompt) > 40
        request = ScoreRequest(prompt=prompt, continuation=(7042, 30), is_fresh=True)
        assert len(run(score_served(address, facts, request)).tokens) == 2
        with pytest.raises(EngineReplyError, match="anew where only the last one was new"):
            run(score_served(address, facts, replace(request, is_fresh=False)))
    with proxy(llama.url, key="another", paths=("/completion", "/tokenize")) as server:
        address = ServerAddress(server.url, ApiKey(KEY))
        with pytest.raises(KvscopeError, match="Incorrect API key") as refused:
            run(score_served(address, facts, request))
    assert KEY not in "".join(traceback.format_exception(refused.value)) + repr(refused.value.evidence)


@pytest.fixture(scope="module")
def ollama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StandIn, Path]]:
    store = write_store(tmp_path_factory.mktemp("texts"), "tiny:latest")
    with running(store) as standin:
        yield standin, store


def test_ollama_is_sent_a_text_without_its_template(
    ollama: tuple[StandIn, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The stand-in answers /api/generate where raw is true: its count is the text's bytes and one BOS."""
    standin, store = ollama
    monkeypatch.setenv("OLLAMA_MODELS", str(store))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine = OllamaEngine(url=standin.url, served_model="tiny", settings={}, sleep=lambda _: None)
    try:
        engine.launch()
        engine.load()
        answer = engine.generate(TEXT_REQUEST)
        assert answer.prompt_tokens == len("The capital of France is") + 1
        assert "".join(event.text for event in answer.events) == " w0 w1 w2 w3 w4 w5"
        ended = engine.generate(replace(TEXT_REQUEST, stop=(" w3",)))
        assert "".join(event.text for event in ended.events) == " w0 w1 w2"
        assert ended.finish_reason == "stop"
        chat = ChatRequest(messages=(Message(role="user", content="Hi"),), max_output_tokens=6, stop=(" w2",))
        assert "".join(event.text for event in engine.generate(chat).events) == " w0 w1"
        with pytest.raises(UsageError, match="only one of both"):
            engine.generate(replace(chat, text="Hello."))
    finally:
        engine.stop()


# --- the connection that many requests share --------------------------------------------------------------------------


class Connections:
    """A server that answers each request with its number, and closes a connection after so many answers: with
    Connection: close in the last one, or (``quietly``) without a word. ``status``: of the first answer."""

    def __init__(self, *, each: int, quietly: bool = False, status: int = 200, dies: bool = False) -> None:
        self.each, self.quietly, self.status, self.dies = each, quietly, status, dies
        self.num_connections = self.num_requests = self.open = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self.open += 1
        try:
            await self._answer_each(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the other side has closed
        finally:
            writer.close()
            self.open -= 1

    async def _answer_each(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for index in range(self.each):
            _, body = await read_request(reader)
            self.num_requests += 1
            if self.dies:
                return
            said = json.dumps({"number": self.num_requests, "sent": json.loads(body)}).encode()
            ends = b"Connection: close\r\n" if index == self.each - 1 and not self.quietly else b""
            head = f"HTTP/1.1 {self.status} X\r\nContent-Length: {len(said)}\r\n".encode()
            writer.write(head + ends + b"\r\n" + said)
            await writer.drain()

    def ask(self, number: int, pause_s: float = 0.0) -> list[Any]:
        async def asking() -> list[Any]:
            server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            found = []
            try:
                async with KeptConnection(f"http://127.0.0.1:{port}") as connection:
                    for index in range(number):
                        found.append((await connection.post("/ask", index, LIMITS)).body)
                        await asyncio.sleep(pause_s)
            finally:
                server.close()
                while self.open:
                    await asyncio.sleep(0.001)
            return [json.loads(each) for each in found]

        return asyncio.run(asking())


def test_one_connection_serves_many_requests() -> None:
    server = Connections(each=100)
    assert [each["sent"] for each in server.ask(50)] == list(range(50))
    assert (server.num_connections, server.num_requests) == (1, 50)


@pytest.mark.parametrize(("quietly", "pause_s"), [(False, 0.0), (True, 0.01), (True, 0.0)])
def test_a_connection_that_the_server_closes_is_opened_anew(quietly: bool, pause_s: float) -> None:
    """With a word, and without one, when it has shown already or only once the next request is sent: each request is
    answered once."""
    server = Connections(each=10, quietly=quietly)
    answers = server.ask(35, pause_s)
    assert [each["sent"] for each in answers] == list(range(35))
    assert [each["number"] for each in answers] == list(range(1, 36))
    assert server.num_connections == 4


def test_a_server_that_answers_nothing_at_all_is_not_asked_for_ever() -> None:
    server = Connections(each=10, dies=True)
    with pytest.raises(ConnectionLost):
        server.ask(1)
    assert server.num_requests == 1


def test_a_status_is_the_callers_to_judge() -> None:
    server = Connections(each=100, status=503)
    assert len(server.ask(3)) == 3
    assert server.num_connections == 3
