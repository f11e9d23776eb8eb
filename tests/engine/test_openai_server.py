"""A running server with OpenAI's interface that can do less than llama.cpp's: what is told, asked, and never sent."""

import functools
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from openai_proxy import CHAT, TEXT, proxy
from running_llama import Running, running_llama

from kvscope.engine import server_process
from kvscope.engine.base import ChatRequest, Engine, Message
from kvscope.engine.listening import ProcessIdentity
from kvscope.engine.registry import EngineChoice
from kvscope.errors import (
    EngineDied,
    EngineError,
    EngineReplyError,
    EngineStartFailed,
    InvalidSettings,
    KvscopeError,
    ServerError,
    UnknownName,
    UsageError,
)

pytestmark = pytest.mark.engine

HELLO = (Message(role="user", content="Hello, what is 17 + 4?"),)
OPENAIS_OWN = {"model", "messages", "max_tokens", "temperature", "seed", "stream", "stream_options"}
KEY = "sk-a/very+secret_key=="


@pytest.fixture(scope="module")
def llama() -> Iterator[Running]:
    with running_llama(slots=2, n_ctx=1024) as running:
        yield running


def loaded(url: str, name: str = "openai", **chosen: object) -> Engine:
    choice = EngineChoice(name=name, url=url, **chosen)  # type: ignore[arg-type]
    choice.check()
    engine = choice.create(None, {})
    engine.launch()
    engine.load()
    return engine


def test_a_server_of_which_nothing_is_known_is_sent_openais_own_fields_alone(llama: Running) -> None:
    with proxy(llama.url) as server:
        engine = loaded(server.url)
        answer = engine.generate(ChatRequest(messages=HELLO, max_output_tokens=3))
        assert answer.output_tokens == 3
        assert all(set(body) <= OPENAIS_OWN for body in server.bodies)
        assert {body["model"] for body in server.bodies} == {"small"}
        can = engine.capabilities
        assert not can.forces_length
        assert not can.owns_process
        assert can.reports_prompt_tokens
        assert not can.reports_timings
        assert engine.statistics() == {}
        assert engine.active_requests() is None


def test_it_counts_by_being_sent_the_prompt_and_agrees_with_the_servers_own_tokenizer(llama: Running) -> None:
    by_tokenizer = loaded(llama.url, "llama.cpp").count_prompt_tokens(HELLO)
    with proxy(llama.url) as server:
        engine = loaded(server.url)
        sent = len(server.bodies)
        assert engine.count_prompt_tokens(HELLO) == by_tokenizer
        assert len(server.bodies) == sent + 1
        assert server.bodies[-1]["max_tokens"] == 1
        assert engine.capabilities.counts_by_requests
    with proxy(llama.url, states_usage=False) as server:
        engine = loaded(server.url)
        assert not engine.capabilities.counts_prompt_tokens
        assert not engine.capabilities.reports_prompt_tokens
        answer = engine.generate(ChatRequest(messages=HELLO, max_output_tokens=2))
        assert (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens) == (None, None, None)
        with pytest.raises(EngineReplyError, match="does not state how many tokens"):
            engine.count_prompt_tokens(HELLO)


def test_where_there_is_no_chat_the_text_is_continued(llama: Running) -> None:
    with proxy(llama.url, paths=(TEXT,)) as server:
        engine = loaded(server.url)
        answer = engine.generate(ChatRequest(messages=HELLO, max_output_tokens=2))
        assert answer.output_tokens == 2
        assert server.bodies[-1]["prompt"] == HELLO[0].content
        counted = engine.count_prompt_tokens(HELLO)
        with pytest.raises(UsageError, match="has no chat"):
            engine.generate(ChatRequest(messages=HELLO, tools=({"type": "function"},), max_output_tokens=2))
    assert counted < loaded(llama.url).count_prompt_tokens(HELLO)  # by the chat template
    with proxy(llama.url, paths=()) as server, pytest.raises(EngineReplyError, match="has neither") as caught:
        loaded(server.url)
    assert caught.value.evidence["http_status"] == 404


def test_a_web_server_is_no_such_server(tmp_path: Path) -> None:
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            with pytest.raises(EngineReplyError, match="does not list its models") as caught:
                EngineChoice(name="openai", url=url).check()
            assert "--served-model" in str(caught.value.hint)
            with pytest.raises(EngineReplyError, match="has neither") as refused:  # 501: it knows no POST
                loaded(url, served_model="small")
            assert refused.value.evidence["http_status"] == 501
        finally:
            server.shutdown()
            thread.join()


def test_fields_that_are_refused_are_left_out_and_told(llama: Running) -> None:
    with proxy(llama.url, refuses=("max_tokens", "temperature", "seed")) as server:
        choice = EngineChoice(name="openai", url=server.url)
        engine = choice.create(None, {})
        engine.launch()
        report = engine.load()
        assert [slug for slug, _, _ in report.warnings] == ["not-repeatable"]
        answer = engine.generate(ChatRequest(messages=HELLO, max_output_tokens=3))
        assert answer.output_tokens == 3
        assert server.bodies[-1]["max_completion_tokens"] == 3
        assert not {"max_tokens", "temperature", "seed"} & set(server.bodies[-1])
    with proxy(llama.url, refuses=("messages",)) as server, pytest.raises(EngineError, match="Unsupported parameter"):
        loaded(server.url)


def test_which_of_several_models(llama: Running) -> None:
    models = [{"id": "small", "max_model_len": 512}, {"id": "large", "context_length": 4096}, {"id": "tiny:latest"}]
    with proxy(llama.url, models=models) as server:
        engine = EngineChoice(name="openai", url=server.url).create(None, {})
        engine.launch()
        report = engine.load()
        assert report.context_limit is not None
        assert (report.context_limit.tokens, report.context_limit.source) == (512, "GET /v1/models: max_model_len")
        (warning,) = report.warnings
        assert warning[0] == "first-of-several-models"
        assert "small" in warning[1]
        assert "large" in warning[1]
        assert "--served-model" in warning[2]
        chosen = EngineChoice(name="openai", url=server.url, served_model="tiny").create(None, {})
        chosen.launch()
        report = chosen.load()
        assert report.warnings == ()
        assert report.context_limit is None
        assert server.bodies[-1]["model"] == "tiny:latest"
        with pytest.raises(UnknownName, match="called 'larg'") as caught:
            EngineChoice(name="openai", url=server.url, served_model="larg").check()
        assert "Did you mean large?" in str(caught.value.hint)
    with proxy(llama.url, models=[]) as server, pytest.raises(EngineReplyError, match="lists no model"):
        EngineChoice(name="openai", url=server.url).check()


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://h", "http://", "http://h:99999", "http://h:x", "file:///etc"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(UsageError):
        EngineChoice(name="openai", url=url).check()


@pytest.mark.parametrize("url", ["http://me:pass-word@h:1", "http://h:1/?key=pass-word", "http://h:1/#pass-word"])
def test_an_address_that_holds_more_than_an_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        EngineChoice(name="openai", url=url).check()
    assert "pass-word" not in f"{caught.value.message} {caught.value.hint}"


def test_the_key_is_sent_where_it_was_asked_for_and_shown_nowhere(
    llama: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("MY_KEY", KEY)
    with proxy(llama.url, key=KEY, fails_after=1) as server:
        with pytest.raises(KvscopeError, match="Incorrect API key provided: None") as refused:
            loaded(server.url)  # OPENAI_API_KEY alone is no order to send it
        assert "--api-key-env" in str(refused.value.hint)
        choice = EngineChoice(name="openai", url=server.url, api_key_env="MY_KEY")
        engine = choice.create(None, {})
        engine.launch()
        engine.load()
        assert KEY not in repr(choice) + repr(engine) + repr(vars(engine))
        with pytest.raises(ServerError) as caught:
            engine.generate(ChatRequest(messages=HELLO, max_output_tokens=1))
        error = caught.value
        told = "".join(traceback.format_exception(error)) + repr((error.message, error.hint, error.evidence))
        assert KEY not in told
        assert "failed with Bearer [the key]" in told
    with proxy(llama.url, key="another") as server, pytest.raises(KvscopeError) as caught_too:
        loaded(server.url, api_key_env="MY_KEY")
    assert KEY not in "".join(traceback.format_exception(caught_too.value)) + repr(caught_too.value.evidence)


@pytest.mark.parametrize("value", ["", "  ", "two words", "line\nbreak", 'quo"te', "ключ"])
def test_what_is_no_key_is_neither_sent_nor_shown(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(UsageError, match="MY_KEY") as caught:
        EngineChoice(name="openai", url="http://127.0.0.1:1", api_key_env="MY_KEY").check()
    if value.strip():
        assert value not in f"{caught.value.message} {caught.value.hint}"


def test_the_process_is_the_one_that_listens_or_the_one_that_was_named(llama: Running) -> None:
    assert loaded(llama.url).pids() == (llama.process.pid,)
    with proxy(llama.url) as server:
        assert loaded(server.url).pids() == (os.getpid(),)  # the proxy is in this process
        engine = EngineChoice(name="openai", url=server.url, pid=llama.process.pid).create(None, {})
        engine.launch()
        report = engine.load()
        assert engine.pids() == (llama.process.pid,)
        # This test started the server, so its process is in line with the proxy's.
        assert report.warnings == ()


def test_a_process_that_has_nothing_to_do_with_the_address(llama: Running) -> None:
    with running_llama(n_ctx=256) as other:
        engine = EngineChoice(name="openai", url=llama.url, pid=other.process.pid).create(None, {})
        engine.launch()
        (warning,) = engine.load().warnings
        assert warning[0] == "not-the-listener"
        assert f"process {llama.process.pid}" in warning[1]
        assert f"--pid {llama.process.pid}" in warning[2]


def test_a_process_that_is_not_there_or_not_the_same_any_more(llama: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in (2**22 + 1, 0, -1):  # above the largest that Linux gives (PID_MAX_LIMIT)
        with pytest.raises(UsageError, match=f"no process {pid} here"):
            EngineChoice(name="openai", url=llama.url, pid=pid).check()
    pid = llama.process.pid
    # As if the number had belonged to another process when it was named.
    monkeypatch.setitem(server_process._named, pid, ProcessIdentity(pid, 1))
    with pytest.raises(EngineDied, match=f"process {pid} has ended"):
        EngineChoice(name="openai", url=llama.url, pid=pid).create(None, {}).launch()


def test_a_server_that_dies_meanwhile_is_told_by_its_process() -> None:
    with running_llama(n_ctx=256) as running:
        engine = loaded(running.url, "llama.cpp")
        assert engine.pids() == (running.process.pid,)
        running.test_ends_it = True
        running.process.send_signal(signal.SIGKILL)
        running.process.wait(30)
        with pytest.raises(EngineDied, match="did not end it"):
            engine.generate(ChatRequest(messages=HELLO, max_output_tokens=1))
        assert engine.pids() == ()
        with pytest.raises(EngineDied):
            engine.active_requests()


# Speaks as much of the interface as is needed, and ends itself in mid-answer, whose end is that of the connection.
_ENDS_ITSELF = """
import json, os, signal
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        body = json.dumps({"data": [{"id": "m"}]}).encode()
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b'data: {"choices": [{"delta": {"content": "w"}}]}\\n\\n')
        self.wfile.flush()
        os.kill(os.getpid(), signal.SIGKILL)

server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_a_server_that_is_killed_in_an_answer_that_ends_with_the_connection_has_died() -> None:
    with subprocess.Popen([sys.executable, "-c", _ENDS_ITSELF], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            engine = EngineChoice(name="openai", url=f"http://127.0.0.1:{int(process.stdout.readline())}").create(
                None, {}
            )
            engine.launch()
            with pytest.raises(EngineDied, match=f"process {process.pid} has ended"):
                engine.generate(ChatRequest(messages=HELLO, max_output_tokens=4))
        finally:
            process.kill()


def test_what_llama_cpp_says_of_itself_is_read_back(llama: Running) -> None:
    engine = EngineChoice(name="llama.cpp", url=llama.url + "/v1/").create(None, {})
    engine.launch()
    report = engine.load()
    assert report.slots == (512, 512)
    assert report.effective["n_parallel"] == 2
    assert report.effective["n_ctx_seq"] == 512
    assert report.build.startswith("llama.cpp ")
    served = EngineChoice(name="llama.cpp", url=llama.url).served()
    assert served.settings == {"context_limit_tokens": 512, "n_ctx_seq": 512, "n_parallel": 2}
    # Two slots of 512 are a context of 1,024, or, where they share it, of 512: the server does not say which.
    assert served.for_prediction is None
    assert engine.statistics() == {}  # it was not told --metrics
    with pytest.raises(EngineStartFailed, match="keeps its model"):
        engine.unload()


def test_nothing_can_be_set_and_another_program_is_not_taken_for_it(llama: Running) -> None:
    with pytest.raises(InvalidSettings, match="cannot be set: n_ctx, n_parallel"):
        EngineChoice(name="llama.cpp", url=llama.url).create(None, {"n_parallel": 1, "n_ctx": 1})
    for name in ("sglang", "llama.cpp"):
        url = llama.url if name == "sglang" else None
        with proxy(llama.url, paths=(CHAT,)) as server, pytest.raises(EngineReplyError, match=f"that it is {name}"):
            EngineChoice(name=name, url=url or server.url).check()


# One line of each kind, in the form of SGLang's documentation (docs/references/production_metrics.md).
SGLANG_METRICS = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="small"} 2.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="small"} 1.0
"""


def test_an_sglang_server_is_known_by_its_own_words_and_kept_from_reusing_what_it_was_sent(llama: Running) -> None:
    """A stand-in: /v1/models and /server_info as python/sglang/srt/entrypoints writes them."""
    gets = {"/server_info": {"version": "0.5.9", "max_total_num_tokens": 4096}, "/metrics": SGLANG_METRICS}
    models = [{"id": "small", "owned_by": "sglang", "root": "small", "max_model_len": 1024}]
    with proxy(llama.url, models=models, gets=gets) as server:
        assert EngineChoice(name="sglang", url=server.url).version() == ("0.5.9", "sglang 0.5.9")
        engine = loaded(server.url, "sglang")
        assert engine.capabilities.forces_length
        assert engine.capabilities.counts_by_requests
        engine.generate(ChatRequest(messages=HELLO, max_output_tokens=1))
        engine.generate(ChatRequest(messages=HELLO, max_output_tokens=1))
        first, second = server.bodies[-2:]
        assert first["ignore_eos"] is True
        assert first["cache_salt"] != second["cache_salt"]
        engine.generate(ChatRequest(messages=HELLO, max_output_tokens=1, ignore_end=False, reuse_prefix=True))
        assert "cache_salt" not in server.bodies[-1]
        assert server.bodies[-1]["ignore_eos"] is False
        assert engine.active_requests() == 3
        assert EngineChoice(name="sglang", url=server.url).served().for_prediction == {"context_length": 1024}


@pytest.mark.parametrize(
    ("gets", "version", "build", "limit"),
    [
        # GET /info of Text Generation Inference 3 (its OpenAPI schema, Info), the fields that matter here.
        ({"/info": {"model_id": "m", "max_total_tokens": 2048, "version": "3.3.4"}}, "3.3.4", "text-generation", 2048),
        # docs/api.md of Ollama: GET /api/version.
        ({"/api/version": {"version": "0.12.6"}}, "0.12.6", "ollama 0.12.6", None),
        # LM Studio's REST API v0: GET /api/v0/models.
        (
            {"/api/v0/models": {"data": [{"id": "small", "state": "loaded", "loaded_context_length": 4096}]}},
            "unknown",
            "LM Studio",
            4096,
        ),
        ({}, "unknown", "unknown", None),
    ],
)
def test_other_servers_are_known_by_what_else_they_answer(
    llama: Running, gets: dict[str, object], version: str, build: str, limit: int | None
) -> None:
    with proxy(llama.url, gets=gets) as server:
        engine = EngineChoice(name="openai", url=server.url).create(None, {})
        engine.launch()
        report = engine.load()
        assert report.version == version
        assert report.build.startswith(build)
        assert (None if report.context_limit is None else report.context_limit.tokens) == limit
