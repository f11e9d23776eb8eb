"""Whole trials on an Ollama stand-in, one for each way to fail: what is recorded, and that the next trial runs."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ollama_standin import BYTES_PER_TOKEN, StandIn, count, render, running
from ollama_store_files import write_store

from kvscope.engine.base import ChatRequest
from kvscope.engine.ollama import OllamaEngine
from kvscope.engine.registry import EngineChoice
from kvscope.experiment.design import Condition, Trial
from kvscope.experiment.own_count import OwnCount, OwnCounter
from kvscope.experiment.request_counts import Expected
from kvscope.experiment.subject import Subject, predict_condition
from kvscope.experiment.trial import run_trial
from kvscope.model.load import load_model
from kvscope.record.rows import TrialResult, TrialRow

ROW = TrialRow(
    trial_id="t",
    attempt=1,
    design_id="d",
    run_id="r",
    role="measured",
    levels={},
    level=300,
    repeat=0,
    block=0,
    position=0,
    started_at="2026-01-01T00:00:00.000+00:00",
    settings={},
)
GIB = 1024**3
EXPECTED = Expected()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    store = write_store(tmp_path_factory.mktemp("ollama"), "tiny:latest")
    with running(store) as standin:
        yield standin


@pytest.fixture(autouse=True)
def store_of_the_server(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(server.store))


def measured(server: StandIn, *, expected: Expected = EXPECTED, **changes: Any) -> TrialResult:
    values: dict[str, Any] = {"settings": {"num_ctx": 1024}, "prompt_tokens": 300, "output_tokens": 16, **changes}
    point = Condition(**values)
    trial = Trial(trial_id="t", role="measured", levels={}, level=300, repeat=0, block=0, position=0, condition=point)
    return run_trial(
        lambda: OllamaEngine(url=server.url, served_model="tiny", settings=point.settings),
        trial,
        ROW,
        seed=1,
        expected=expected,
        sleep=lambda _: None,  # the stand-in's runners take no more memory once they are up
    )


def test_a_plain_trial(server: StandIn) -> None:
    before = len(server.did)
    result = measured(server, requests=2)
    assert (result.trial.outcome, result.trial.error_message) == ("ok", None)
    assert [mark.phase for mark in result.marks][:2] == ["launched", "loaded"]
    marks = {mark.phase: mark for mark in result.marks}
    held = 1024 * BYTES_PER_TOKEN
    assert marks["loaded"].anon_bytes - marks["launched"].anon_bytes >= held
    assert marks["loaded"].anon_bytes - marks["unloaded"].anon_bytes >= held
    asked = [request for request in result.requests if request.role == "measured"]
    assert [(r.prompt_tokens_ours, r.prompt_tokens_server, r.output_tokens) for r in asked] == [(300, 300, 16)] * 2
    assert {r.cached_tokens for r in asked} == {None}
    assert {s.name: s.value for s in result.statistics if s.name.startswith("engine_")}["engine_device_bytes"] == 0
    assert server.did[before:] == ["load tiny:latest", "unload tiny:latest"]


def test_an_answer_that_ends_by_itself_is_shorter_than_asked_and_measured(server: StandIn) -> None:
    result = measured(server, output_tokens=64)
    assert result.trial.outcome == "stopped_early"
    assert [r.output_tokens for r in result.requests if r.role == "measured"] == [40]


def test_a_prompt_that_does_not_fit_is_found_before_it_is_sent_and_refused_when_it_is(server: StandIn) -> None:
    assert measured(server, prompt_tokens=1500).trial.error_slug == "prompt-does-not-fit"
    result = measured(server, prompt_tokens=1500, expected=Expected(try_anyway=True))
    assert (result.trial.outcome, result.trial.error_slug) == ("context_overflow", "context-overflow")
    assert "1500 tokens; the engine's context holds 1024" in str(result.trial.error_message)


class CountsAsTheServer(OwnCounter):
    """Our own count, by the stand-in's stated rule: as if from the model's file, given with --model."""

    def count(self, requests: Sequence[ChatRequest]) -> list[OwnCount | None]:
        texts = [render([{"role": m.role, "content": m.content} for m in r.messages], []) for r in requests]
        return [OwnCount(tokens=count(text), counted_by="files", leading_bos=1) for text in texts]


class CountsByAnotherTemplate(CountsAsTheServer):
    """As the GGUF's own template would, which Ollama does not use: it renders with one in its own language."""

    def count(self, requests: Sequence[ChatRequest]) -> list[OwnCount | None]:
        return [replace(each, tokens=each.tokens + 32) for each in super().count(requests) if each is not None]


def test_files_that_count_otherwise_than_the_server_accuse_it_of_nothing(server: StandIn) -> None:
    result = measured(server, expected=Expected(counter=CountsByAnotherTemplate("unused")))
    assert (result.trial.outcome, result.trial.error_message) == ("ok", None)
    assert {request.prompt_tokens_ours_from for request in result.requests} == {"engine"}


def test_a_prompt_that_an_old_release_cuts(server: StandIn) -> None:
    """Releases before 0.12.6, which cannot be told to refuse: as much as fits remains."""
    with running(server.store, release="0.12.5") as old:
        expected = Expected(counter=CountsAsTheServer("unused"), try_anyway=True)
        settings = {"num_ctx": 2048}
        result = measured(old, expected=expected, settings=settings, prompt_tokens=3000, requests=2)
    assert (result.trial.outcome, result.trial.error_slug) == ("truncated_input", "truncated-input")
    asked = [request for request in result.requests if request.role == "measured"]
    assert [(r.prompt_tokens_ours, r.prompt_tokens_server) for r in asked] == [(3000, 2048)] * 2


@pytest.mark.parametrize(("by_files", "prompt_tokens"), [(True, 3000), (True, 2060), (False, 3000)])
@pytest.mark.parametrize("release", ["0.3.0", "0.9.0"])
def test_a_prompt_over_the_context_that_kvscope_asked_for_is_not_sent(
    server: StandIn, release: str, by_files: bool, prompt_tokens: int
) -> None:
    """No release before 0.10 states its context; num_ctx was asked for, and no more is held."""
    if release == "0.3.0" and not by_files:
        return  # it counts nothing
    expected = Expected(counter=CountsAsTheServer("unused") if by_files else None)
    with running(server.store, release=release) as old:
        result = measured(old, expected=expected, settings={"num_ctx": 2048}, prompt_tokens=prompt_tokens)
    assert (result.trial.outcome, result.trial.error_slug) == ("context_overflow", "prompt-does-not-fit")
    assert "2,048 (num_ctx, as kvscope asked for it" in str(result.trial.error_message)


def test_a_cut_prompt_of_a_release_that_states_no_count(server: StandIn) -> None:
    """0.3: 3,000 tokens were answered by a context of 2,048, so they were not all read. Of 2,060, those of the chat
    template may be too many in our count: then it is a doubt."""
    expected = Expected(counter=CountsAsTheServer("unused"), try_anyway=True)
    results = {}
    with running(server.store, release="0.3.0") as old:
        for tokens in (2000, 2060, 3000):
            results[tokens] = measured(old, expected=expected, settings={"num_ctx": 2048}, prompt_tokens=tokens)
    assert {tokens: result.trial.outcome for tokens, result in results.items()} == {
        2000: "ok",
        2060: "ok",
        3000: "truncated_input",
    }
    assert "holds 2,048" in str(results[3000].trial.error_message)
    slugs = {tokens: {each.slug for each in result.warnings} for tokens, result in results.items()}
    assert "prompt-may-be-cut" in slugs[2060]
    assert "prompt-may-be-cut" not in slugs[2000]
    marked = [request.error_slug for request in results[3000].requests if request.role == "measured"]
    assert marked == ["truncated-input"]


@pytest.mark.parametrize("settings", [{"num_ctx": 2048}, {}])
def test_a_release_that_cuts_what_it_is_sent_to_count(server: StandIn, settings: dict[str, int]) -> None:
    with running(server.store, release="0.9.0") as old:
        result = measured(old, settings=settings, prompt_tokens=5000, expected=Expected(try_anyway=True))
        assert (result.trial.outcome, result.trial.error_slug) == ("truncated_input", "truncated-input")
        assert "5,000 tokens" in str(result.trial.error_message)
        # What fits is found, though drafts on the way to it were cut.
        fits = measured(old, settings={"num_ctx": 2048}, prompt_tokens=1900)
        assert (fits.trial.outcome, fits.trial.error_message) == ("ok", None)


@pytest.mark.parametrize(
    ("release", "says"),
    [
        ("0.33.0", "The prompt has 5000 tokens; the engine's context holds 4096."),
        ("0.13.0", "a prompt of 5,000 tokens"),
    ],
)
def test_what_is_refused_is_the_asked_prompt_and_no_draft_of_it(
    server: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, release: str, says: str
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))  # the server's files are not here: it counts by requests
    with running(server.store, release=release) as far:
        result = measured(far, settings={}, prompt_tokens=5000)
        assert result.trial.error_slug == "prompt-does-not-fit"
        assert "5,000 prompt tokens" in str(result.trial.error_message)
        tried = measured(far, settings={}, prompt_tokens=5000, expected=Expected(try_anyway=True))
        assert (tried.trial.outcome, tried.trial.error_slug) == ("context_overflow", "context-overflow")
        assert says in str(tried.trial.error_message)
        # A draft that is refused on the way says nothing against what was asked for.
        fits = measured(far, settings={}, prompt_tokens=3000)
        assert (fits.trial.outcome, fits.trial.error_message) == ("ok", None)


def test_what_another_program_has_loaded_is_what_is_predicted(server: StandIn) -> None:
    model, choice = load_model("ollama:tiny"), EngineChoice(name="ollama", url=server.url)

    def predicted(**settings: int) -> object:
        condition = Condition(prompt_tokens=100, output_tokens=8, settings=settings)
        return predict_condition(model, choice, condition).to_dict()["effective"]["num_ctx"]

    assert predicted() == 4096  # its default
    server.use("tiny", options={"num_ctx": 1024})
    assert predicted() == 1024
    assert predicted(n_ctx=512) == 512  # which will be refused
    server.use("tiny", keep_alive=0)
    while server.held():
        time.sleep(0.005)
    gone = EngineChoice(name="ollama", url="http://127.0.0.1:1")
    condition = Condition(prompt_tokens=100, output_tokens=8, settings={})
    assert predict_condition(model, gone, condition, version="0.33.0").to_dict()["effective"]["num_ctx"] == 4096


def test_memory_that_is_taken_already_or_elsewhere_refuses_nothing(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvscope.experiment.refusal.available_bytes", lambda: 1)
    subject = Subject.of(load_model("ollama:tiny"), EngineChoice(name="ollama", url=server.url))
    condition = Condition(prompt_tokens=100, output_tokens=8, settings={})
    prediction = subject.predict(condition)
    refused = subject.refusal(condition, prediction)
    assert refused is not None
    assert refused[1] == "out-of-memory"
    far = replace(subject, choice=EngineChoice(name="ollama", url="http://192.0.2.1:11434"))  # RFC 5737: nobody's
    assert far.refusal(condition, prediction) is None
    server.use("tiny")
    assert subject.refusal(condition, prediction) is None
    too_long = subject.refusal(replace(condition, prompt_tokens=5000), prediction)
    assert too_long is not None
    assert too_long[1] == "context-overflow"
    server.use("tiny", keep_alive=0)
    while server.held():
        time.sleep(0.005)


# (what fails, at the load?, outcome, slug, words of the message, evidence)
FAILURES: list[tuple[str, str, str, str, dict[str, Any]]] = [
    (
        "no_memory",
        "out_of_memory",
        "out-of-memory",
        "24.5 GiB",
        {"predicted_bytes": int(24.5 * GIB), "available_bytes": int(7.1 * GIB), "http_status": 500},
    ),
    ("cuda_memory", "out_of_memory", "out-of-memory", "CUDA error: out of memory", {"known_by": "message"}),
    ("flash", "invalid_settings", "invalid-settings", "requires flash_attn", {"known_by": "message"}),
    ("architecture", "model_error", "engine-model-error", "unknown model architecture", {}),
    ("busy", "rate_limited", "rate-limited", "server busy", {"http_status": 503}),
    ("internal", "server_error", "server-error", "something went wrong", {"http_status": 500}),
    ("not_found", "model_error", "engine-model-error", "not found", {"http_status": 404}),
]
BROKEN: list[tuple[str, str, str, str, dict[str, Any]]] = [
    ("illegal", "server_error", "server-error", "illegal memory access", {"pieces_received": 3, "http_status": 200}),
    ("runner_killed", "engine_died", "engine-died", "signal: killed", {"signal": "SIGKILL", "pieces_received": 3}),
    ("reset", "connection_lost", "connection-lost", "closed the connection", {}),
    ("no_end", "bad_reply", "bad-reply", "stopped after 3 pieces", {"pieces_received": 3}),
    ("broken", "bad_reply", "bad-reply", "not JSON", {}),
]


@pytest.mark.parametrize(("fails", "outcome", "slug", "says", "evidence"), FAILURES)
def test_a_load_that_fails(
    server: StandIn, fails: str, outcome: str, slug: str, says: str, evidence: dict[str, Any]
) -> None:
    server.tell(fail=[fails])
    check(measured(server), outcome, slug, says, evidence)
    assert server.held() == []
    assert measured(server).trial.outcome == "ok"


@pytest.mark.parametrize(("fails", "outcome", "slug", "says", "evidence"), BROKEN)
def test_an_answer_that_breaks_off(
    server: StandIn, fails: str, outcome: str, slug: str, says: str, evidence: dict[str, Any]
) -> None:
    server.tell(fail=[fails])
    check(measured(server), outcome, slug, says, evidence)
    assert server.held() == []  # also after a failure, what we loaded is unloaded
    assert measured(server).trial.outcome == "ok"


def check(result: TrialResult, outcome: str, slug: str, says: str, evidence: dict[str, Any]) -> None:
    assert (result.trial.outcome, result.trial.error_slug) == (outcome, slug), result.trial.error_message
    assert says in str(result.trial.error_message)
    assert {name: result.trial.evidence.get(name) for name in evidence} == evidence
    assert all(request.output_tokens is None for request in result.requests if request.error_slug is not None)
