"""What may be set for a model on an Ollama server, what is the server's, and where the server is."""

from typing import Any

import pytest

from kvscope.engine.ollama_settings import load_options, server_url
from kvscope.errors import InvalidSettings, UsageError


def test_options_of_loading() -> None:
    asked = {"num_ctx": "8k", "num_batch": 512, "num_gpu": -1, "num_thread": 0, "use_mmap": False}
    assert load_options(asked) == {**asked, "num_ctx": 8192}


def test_the_name_that_designs_vary_is_ollamas_too() -> None:
    assert load_options({"n_ctx": "2k"}) == {"num_ctx": 2048}
    with pytest.raises(InvalidSettings, match="num_ctx is given twice"):
        load_options({"n_ctx": 512, "num_ctx": 512})


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("kv_cache_type", "OLLAMA_KV_CACHE_TYPE"),
        ("cache_type_v", "OLLAMA_KV_CACHE_TYPE"),
        ("OLLAMA_FLASH_ATTENTION", "OLLAMA_FLASH_ATTENTION"),
        ("num_parallel", "OLLAMA_NUM_PARALLEL"),
    ],
)
def test_what_the_server_is_started_with_cannot_be_set(name: str, variable: str) -> None:
    with pytest.raises(InvalidSettings, match=f"setting of the Ollama server .{variable}"):
        load_options({name: "q8_0"})


@pytest.mark.parametrize(("name", "near"), [("ctx_size", "num_ctx"), ("num_ctxx", "num_ctx"), ("mmap", "use_mmap")])
def test_a_name_that_is_none_is_refused_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(InvalidSettings, match=name) as caught:
        load_options({name: 1})
    assert str(caught.value.hint).startswith(f"Did you mean {near}?")


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_ctx", 0), ("num_ctx", "many"), ("num_ctx", True), ("num_batch", 1.5), ("num_gpu", -2), ("use_mmap", "no")],
)
def test_a_value_of_the_wrong_kind(name: str, value: Any) -> None:
    with pytest.raises(InvalidSettings, match=name):
        load_options({name: value})


@pytest.mark.parametrize(
    ("host", "url"),
    [
        # envconfig/config_test.go of Ollama has these cases of OLLAMA_HOST, and what Host() makes of them.
        ("", "http://127.0.0.1:11434"),
        ("1.2.3.4", "http://1.2.3.4:11434"),
        ("1.2.3.4:1234", "http://1.2.3.4:1234"),
        ("http://1.2.3.4", "http://1.2.3.4:80"),
        ("https://1.2.3.4", "https://1.2.3.4:443"),
        ("https://1.2.3.4:1234", "https://1.2.3.4:1234"),
        ("example.com", "http://example.com:11434"),
        ("[::1]", "http://[::1]:11434"),
        ("[::1]:1337", "http://[::1]:1337"),
        ("::1", "http://[::1]:11434"),
        ("https://example.com/ollama", "https://example.com:443/ollama"),
        # A server that listens to all is asked on this machine.
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080"),
    ],
)
def test_where_the_server_is(monkeypatch: pytest.MonkeyPatch, host: str, url: str) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    assert server_url(None) == url
    assert server_url("http://other:1") == "http://other:1"


@pytest.mark.parametrize("text", ["ftp://1.2.3.4", "http://1.2.3.4:port", "http://[::1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="is no address of an Ollama server"):
        server_url(text)
