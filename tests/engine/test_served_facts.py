"""What a running server says of itself, how far it is believed, and what makes two of them different ones.

The answers are llama.cpp's own, as llama-server (b0-unknown of xllamacpp) gave them for SmolLM2 135M Q4_1.
"""

import contextlib
import functools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from openai_proxy import proxy

from kvscope.engine.registry import EngineChoice, Served
from kvscope.errors import EngineError, InvalidSettings, UsageError

NOWHERE = "http://127.0.0.1:1"
SMOLLM2 = {
    "vocab_type": 2,
    "n_vocab": 49152,
    "n_ctx": 8192,
    "n_ctx_train": 8192,
    "n_embd": 576,
    "n_params": 134515008,
    "size": 96576768,
    "ftype": "Q4_1",
}


def llama(meta: dict[str, Any] | None = None, *, n_ctx: int = 1024, slots: int = 1, path: str = "/a/model.gguf") -> Any:
    """Ways of a proxy that answers as llama.cpp does."""
    entry = {"id": path, "owned_by": "llamacpp", "created": time.time_ns(), "meta": meta or SMOLLM2}
    props = {
        "build_info": "b9000-abc",
        "total_slots": slots,
        "model_path": path,
        "default_generation_settings": {"n_ctx": n_ctx},
    }
    return {"models": [entry], "gets": {"/props": props, "/slots": [{"n_ctx": n_ctx}]}}


def served(**ways: Any) -> Served:
    with proxy(NOWHERE, **ways) as server:
        return EngineChoice(name="llama.cpp", url=server.url).served()


def test_what_is_stated_of_the_model_is_kept_with_its_file() -> None:
    found = served(**llama())
    assert found.model_facts == {name: value for name, value in SMOLLM2.items() if name not in ("vocab_type", "n_ctx")}
    assert found.model_path == "/a/model.gguf"
    assert (found.version, found.is_chosen) == ("b9000-abc", False)
    assert found.for_prediction == {"n_ctx": 1024, "n_parallel": 1}


def test_a_slot_as_large_as_the_trained_context_does_not_say_how_large_the_cache_is() -> None:
    """llama-server -c 16384 -np 1 answers 8192, its cap: the cache it reserved is 16384 cells, 377,487,360 bytes."""
    found = served(**llama(n_ctx=8192))
    assert found.for_prediction is None
    assert "n_ctx" not in found.settings
    assert found.settings["n_ctx_seq"] == 8192
    without = {name: value for name, value in SMOLLM2.items() if name != "n_ctx_train"}
    assert served(**llama(without, n_ctx=4096)).for_prediction is None


def test_more_slots_than_llama_cpp_can_have_are_none() -> None:
    found = served(**llama(slots=10**8))  # a tuple of so many numbers takes 800 MB
    assert "n_parallel" not in found.settings
    assert found.for_prediction is None


@pytest.mark.parametrize(
    ("other", "names"),
    [
        (llama(n_ctx=512), "context_limit_tokens was 1024 and is 512"),
        (llama({**SMOLLM2, "n_params": 268098176}), "n_params was 134515008 and is 268098176"),
        (llama(path="/b/model.gguf"), "model_path was /a/model.gguf and is /b/model.gguf"),
    ],
)
def test_a_server_that_is_another_meanwhile_is_not_measured_as_the_same(other: Any, names: str) -> None:
    before = served(**llama())
    with proxy(NOWHERE, **other) as server:
        choice = EngineChoice(name="llama.cpp", url=server.url, as_served=before)
        with pytest.raises(InvalidSettings, match="not what it was when this design was begun") as caught:
            choice.create(None, {}).launch()
        assert names in caught.value.message
    with proxy(NOWHERE, **llama()) as same:
        EngineChoice(name="llama.cpp", url=same.url, as_served=before).create(None, {}).launch()


def test_what_is_not_stated_at_both_times_is_no_difference() -> None:
    before = Served(model="m", version="unknown", settings={})
    assert before.changed(replace(before, version="1.0", settings={"context_limit_tokens": 64})) == []
    assert replace(before, version="1.0").changed(replace(before, version="1.1")) == ["version was 1.0 and is 1.1"]


@pytest.mark.parametrize(
    ("ways", "facts"),
    [
        # vLLM's ModelCard and SGLang's (entrypoints/openai/protocol.py): root, the folder or the name in a hub.
        ({"models": [{"id": "m", "owned_by": "vllm", "root": "Qwen/Qwen3-0.6B"}]}, {"root": "Qwen/Qwen3-0.6B"}),
        # Text Generation Inference's Info and LM Studio's REST API v0.
        (
            {"gets": {"/info": {"model_id": "m", "model_sha": "abc", "model_dtype": "float16", "max_total_tokens": 9}}},
            {"model_id": "m", "model_sha": "abc", "model_dtype": "float16"},
        ),
        (
            {"gets": {"/api/v0/models": {"data": [{"id": "small", "arch": "llama", "quantization": "Q4_K_M"}]}}},
            {"arch": "llama", "quantization": "Q4_K_M"},
        ),
    ],
)
def test_what_other_servers_state_of_their_model_beside_its_name(ways: Any, facts: dict[str, str]) -> None:
    with proxy(NOWHERE, **ways) as server:
        assert EngineChoice(name="openai", url=server.url).served().model_facts == facts


class _Counting(BaseHTTPRequestHandler):
    asked: list[str]
    says: dict[str, tuple[int, bytes, float]]

    def __init__(self, *args: Any, asked: list[str], says: dict[str, tuple[int, bytes, float]]) -> None:
        self.asked, self.says = asked, says
        super().__init__(*args)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.asked.append(self.path)
        status, body, waits_s = self.says.get(self.path, (404, b"{}", 0.0))
        time.sleep(waits_s)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):  # who asked waits no longer
            self.wfile.write(body)


@contextmanager
def answering(says: dict[str, tuple[int, bytes, float]]) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    handler = functools.partial(_Counting, asked=asked, says=says)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


MODELS = json.dumps({"data": [{"id": "m"}]}).encode()


def test_the_list_of_models_is_asked_for_once_and_what_cannot_be_read_is_not_known() -> None:
    with answering({"/v1/models": (200, MODELS, 0.0), "/info": (200, b"[" * 100_000, 0.0)}) as (url, asked):
        assert EngineChoice(name="openai", url=url).version() == ("unknown", "unknown")
        assert asked.count("/v1/models") == 1


def test_a_question_that_few_servers_know_may_go_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvscope.engine import server_address
    from kvscope.engine.http_client import Limits

    monkeypatch.setattr(server_address, "_GUESS", Limits(timeout_s=0.2, stall_s=0.2))
    with answering({"/v1/models": (200, MODELS, 0.0), "/info": (200, b"{}", 1.0)}) as (url, asked):
        assert EngineChoice(name="openai", url=url).served().model == "m"
        assert "/api/version" in asked


@pytest.mark.parametrize("says", [{}, {"/v1/models": (401, b"{}", 0.0)}, {"/v1/models": (200, b"<html>", 0.0)}])
def test_a_server_that_cannot_be_measured_at_all_is_an_error_of_the_command(
    says: dict[str, tuple[int, bytes, float]],
) -> None:
    with answering(says) as (url, _):
        for ask in (EngineChoice.check, EngineChoice.served, EngineChoice.version):
            with pytest.raises(EngineError) as caught:
                ask(EngineChoice(name="openai", url=url))
            assert caught.value.exit_code == 2
    with pytest.raises(EngineError) as refused:
        EngineChoice(name="openai", url=NOWHERE).check()
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    "given",
    [{"url": 5}, {"url": b"http://h:1"}, {"pid": "abc"}, {"pid": True}, {"served_model": 5}, {"api_key_env": 5}],
)
def test_what_is_of_no_such_type_is_said(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="was expected"):
        EngineChoice(**{"name": "openai", "url": "http://127.0.0.1:1", **given})
