"""Embeddings from a server, stood in for by a real HTTP server whose answers are known, and from a local model."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kvscope.errors import (
    ConnectionLost,
    ConnectionRefused,
    ContextOverflow,
    EngineReplyError,
    KvscopeError,
    MissingDependency,
    ModelNotFound,
    RateLimited,
    ServerError,
    UsageError,
)
from kvscope.quality.retrieval import server_embedder
from kvscope.quality.retrieval.index import make_index
from kvscope.quality.retrieval.local_embedder import BUNDLED_MODEL, LocalEmbedder
from kvscope.quality.retrieval.passages import Passage
from kvscope.quality.retrieval.server_embedder import ServerEmbedder

Answer = tuple[int, bytes, dict[str, str]]


class Server:
    """Answers with ``answer(body)``; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any], str | None]] = []
        self.answer: Callable[[dict[str, Any]], Answer | None] = vectors
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append((self.path, body, self.headers.get("Authorization")))
                found = outer.answer(body)
                if found is None:
                    self.connection.close()
                    return
                status, raw, headers = found
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def vectors(body: dict[str, Any]) -> Answer:
    """Of each text its length and a one; entries in another order than asked, as the interface allows."""
    data = [{"index": at, "embedding": [len(text), 1]} for at, text in enumerate(body["input"])]
    return 200, json.dumps({"data": data[::-1]}).encode(), {}


def refusing(status: int, text: str, **headers: str) -> Callable[[dict[str, Any]], Answer]:
    return lambda body: (status, text.encode(), headers)


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr(server_embedder.time, "sleep", waited.append)
    return waited


def passages(*texts: str) -> list[Passage]:
    return [
        Passage(document=f"{at}", index=0, text=text, start=0, end=len(text), tokens=1) for at, text in enumerate(texts)
    ]


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/", "/v1/embeddings"])
def test_the_interface_is_openais(server: Server, ending: str) -> None:
    found = ServerEmbedder(server.url + ending, model="m").embed(["a", "bcd", ""])
    assert found == [[1, 1], [3, 1], [0, 1]]
    assert server.asked == [
        ("/v1/embeddings", {"input": ["a", "bcd", ""], "encoding_format": "float", "model": "m"}, None)
    ]


@pytest.mark.parametrize(
    ("stated", "name"),
    [("BAAI/bge-m3", "BAAI/bge-m3"), ("/home/me/models/bge.gguf", "bge.gguf"), ("D:\\m\\bge.gguf", "bge.gguf")],
)
def test_its_name_is_what_the_server_says(server: Server, stated: str, name: str) -> None:
    server.answer = lambda body: (200, json.dumps({**json.loads(vectors(body)[1]), "model": stated}).encode(), {})
    embedder = ServerEmbedder(server.url)
    assert embedder.name == embedder.url
    embedder.embed(["a"])
    assert embedder.name == name
    asked = ServerEmbedder(server.url, model="mine")
    asked.embed(["a"])
    assert asked.name == "mine"


@pytest.mark.parametrize("stated", [None, "", 7])
def test_a_server_that_names_no_model_is_called_by_its_address(server: Server, stated: object) -> None:
    server.answer = lambda body: (200, json.dumps({**json.loads(vectors(body)[1]), "model": stated}).encode(), {})
    embedder = ServerEmbedder(server.url)
    embedder.embed(["a"])
    assert embedder.name == embedder.url


@pytest.mark.parametrize("part", ["?api_key=abc", "#abc"])
def test_an_address_with_a_key_in_it_is_refused(part: str) -> None:
    with pytest.raises(UsageError) as caught:
        ServerEmbedder("http://127.0.0.1:9" + part)
    assert "abc" not in str(caught.value)


def test_a_key_in_a_broken_reply_is_not_shown(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", " sk-12345\n")  # as it is read from a file
    server.answer = refusing(200, "x" * 195 + "sk-12345")
    with pytest.raises(EngineReplyError) as caught:
        ServerEmbedder(server.url, api_key_env="MY_KEY").embed(["a"])
    assert "sk-1" not in str(caught.value)
    assert server.asked[0][2] == "Bearer sk-12345"


def test_many_texts_are_asked_for_in_batches(server: Server) -> None:
    texts = ["x" * at for at in range(100)]
    assert ServerEmbedder(server.url).embed(texts) == [[at, 1] for at in range(100)]
    assert [len(body["input"]) for _, body, _ in server.asked] == [32, 32, 32, 4]
    assert "model" not in server.asked[0][1]


def test_an_index_of_it(server: Server) -> None:
    index = make_index(passages("a", "bcd" * 100), "dense", embedder=ServerEmbedder(server.url))
    assert [hit.passage.document for hit in index.search("long question", 2)] == ["1", "0"]


def test_the_key_comes_from_the_environment_and_is_never_shown(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-12345")
    ServerEmbedder(server.url, api_key_env="MY_KEY").embed(["a"])
    assert server.asked[0][2] == "Bearer sk-12345"
    server.answer = refusing(401, "bad key sk-12345")
    with pytest.raises(ServerError) as caught:
        ServerEmbedder(server.url, api_key_env="MY_KEY").embed(["a"])
    assert "12345" not in str(caught.value)
    assert "environment variable" in str(caught.value.hint)
    monkeypatch.setenv("MY_KEY", "two\nlines")
    with pytest.raises(UsageError) as refused:
        ServerEmbedder(server.url, api_key_env="MY_KEY")
    assert "two" not in str(refused.value)
    with pytest.raises(UsageError):
        ServerEmbedder(server.url, api_key_env="NOT_SET_ANYWHERE")


def test_a_busy_server_is_asked_again(server: Server, no_waiting: list[float]) -> None:
    answers = iter([(429, b"", {"Retry-After": "7"}), (503, b"loading", {}), (429, b"", {"Retry-After": "9999"})])
    server.answer = lambda body: next(answers, None) or vectors(body)
    assert ServerEmbedder(server.url).embed(["a"]) == [[1, 1]]
    assert no_waiting == [7.0, 2.0, 60.0]


def test_a_server_that_stays_busy(server: Server) -> None:
    server.answer = refusing(429, "slow down")
    with pytest.raises(RateLimited, match="slow down"):
        ServerEmbedder(server.url).embed(["a"])
    assert len(server.asked) == 5


def test_a_batch_that_is_too_much_is_halved(server: Server) -> None:
    def at_most_three(body: dict[str, Any]) -> Answer:
        return (413, b"too many", {}) if len(body["input"]) > 3 else vectors(body)

    server.answer = at_most_three
    assert ServerEmbedder(server.url).embed(["x" * at for at in range(10)]) == [[at, 1] for at in range(10)]


def test_a_server_that_wants_a_key_is_asked_once_and_no_text_is_blamed(server: Server) -> None:
    server.answer = refusing(401, "who are you")
    with pytest.raises(ServerError, match="who are you") as caught:
        ServerEmbedder(server.url).embed(["boat"] * 10)
    assert len(server.asked) == 1
    assert "boat" not in str(caught.value)
    assert "KVSCOPE_EMBEDDINGS_KEY" in str(caught.value.hint)


def test_a_text_that_is_too_long_is_named(server: Server) -> None:
    def at_most_ten(body: dict[str, Any]) -> Answer:
        long = any(len(text) > 10 for text in body["input"])
        return (500, b'{"error": {"message": "input is too large to process"}}', {}) if long else vectors(body)

    server.answer = at_most_ten
    with pytest.raises(ContextOverflow, match="this one is too long") as caught:
        ServerEmbedder(server.url).embed(["a", "b", "this one is too long for it", "c"])
    assert "shorter" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (refusing(404, "no such model"), ServerError, "404: no such model"),
        (refusing(501, "This server does not support embeddings"), ServerError, "501"),
        (refusing(302, "", Location="http://elsewhere/"), ServerError, "302"),
        (refusing(200, "no json"), EngineReplyError, "did not give 1 embeddings: no json"),
        (refusing(200, "[]"), EngineReplyError, "did not give"),
        (refusing(200, '{"data": []}'), EngineReplyError, "did not give"),
        (refusing(200, '{"data": [{"embedding": []}]}'), EngineReplyError, "did not give"),
        (refusing(200, '{"data": [{"embedding": "AAAA"}]}'), EngineReplyError, "did not give"),
        (refusing(200, '{"data": [{"embedding": [1], "index": 5}]}'), EngineReplyError, "did not give"),
        (refusing(200, '{"data": [{"embedding": [[1, 2]]}]}'), EngineReplyError, "did not give"),
        (refusing(200, '{"data": [{"embedding": [1]}, {"embedding": [2]}]}'), EngineReplyError, "did not give"),
        (lambda body: None, ConnectionLost, "broke"),
    ],
)
def test_what_goes_wrong_is_said(
    server: Server, answer: Callable[[dict[str, Any]], Answer | None], error: type[KvscopeError], words: str
) -> None:
    server.answer = answer
    with pytest.raises(error) as caught:
        ServerEmbedder(server.url).embed(["a"])
    assert words in str(caught.value)
    assert server.url in str(caught.value)


def test_nobody_listens(server: Server) -> None:
    url = server.url
    with pytest.raises(ConnectionRefused, match="Nothing answers"):
        ServerEmbedder("http://127.0.0.1:9").embed(["a"])
    assert ServerEmbedder(url).embed([]) == []


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://x", "http://", "http://u:p@x", "http://x:99999", "http://[x"])
def test_no_address(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        ServerEmbedder(url)
    assert "u:p" not in str(caught.value)


def test_no_local_model(tmp_path: Path) -> None:
    with pytest.raises((ModelNotFound, MissingDependency)):
        LocalEmbedder(str(tmp_path / "none"))
    if not _has_sentence_transformers():
        with pytest.raises(MissingDependency) as caught:
            LocalEmbedder()
        assert "kvscope[embeddings]" in str(caught.value.hint)
        with pytest.raises(MissingDependency):
            LocalEmbedder(str(tmp_path))


def _has_sentence_transformers() -> bool:
    from importlib.util import find_spec

    return find_spec("sentence_transformers") is not None


@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not _has_sentence_transformers(), reason="needs the extra embeddings")
def test_a_local_model_finds_english_and_owns_up_to_korean(tmp_path: Path) -> None:
    embedder = LocalEmbedder()
    assert embedder.name == BUNDLED_MODEL
    english = passages("The boat leaves at noon.", "Bread is baked in an oven.", "The tower is very tall.")
    index = make_index(english, "dense", embedder=embedder)
    assert index.remarks == ()
    for question, right in (("When does the ship depart?", "0"), ("How high is it?", "2"), ("a loaf of rye", "1")):
        assert index.search(question, 1)[0].passage.document == right
    korean = passages("부산 여객선은 오후 네 시에 출발합니다. 표는 미리 사야 합니다.")
    (remark,) = make_index(korean, "dense", embedder=embedder).remarks
    assert remark.slug == "embedder-without-korean"
    (cut,) = make_index(passages("word " * 300, "short"), "dense", embedder=embedder).remarks
    assert cut.slug == "embedder-cuts-passages"
    assert "1 of 2" in cut.text
    (tmp_path / "modules.json").write_text("{}")
    with pytest.raises(ModelNotFound):
        LocalEmbedder(str(tmp_path))
