"""What no engine takes: settings that JSON cannot state, or that are no settings at all."""

import math
from typing import Any

import pytest

from kvscope.errors import UsageError
from kvscope.model.load import load_model
from kvscope.predict.memory import READY_ENGINES, predict
from kvscope.predict.solve import fit


@pytest.mark.parametrize("engine", READY_ENGINES)
@pytest.mark.parametrize(
    "settings", [{"seed": math.nan}, {"seed": math.inf}, {"n_ctx": [1]}, {"revision": {}}, {7: 1}, {"seed": 1j}]
)
def test_a_setting_that_is_no_plain_finite_value_is_refused(engine: str, settings: Any) -> None:
    model = load_model({"model_type": "llama", "torch_dtype": "bfloat16"})
    with pytest.raises(UsageError, match="expected"):
        predict(model, engine=engine, tokens=1, settings=settings)


@pytest.mark.parametrize("engine", READY_ENGINES)
@pytest.mark.parametrize("name", ["tokens", "sequences", "available_bytes"])
@pytest.mark.parametrize("value", [-1, 2**63, 10**40, 1.0, True, "8", math.nan])
def test_a_count_that_no_counter_holds_is_refused(engine: str, name: str, value: Any) -> None:
    model = load_model({"model_type": "llama", "torch_dtype": "bfloat16"})
    with pytest.raises(UsageError, match=f"{name} is"):
        predict(model, engine=engine, **{"tokens": 1, name: value})


@pytest.mark.parametrize("engine", ["transformers", "vllm", "sglang"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "q4_0", "float8_e4m3fn", "int64"])
def test_a_format_that_no_model_is_loaded_in_is_refused(engine: str, dtype: str) -> None:
    """torch takes floating point formats it can compute in; a cache of q4_0 elements is no cache of transformers."""
    with pytest.raises(UsageError, match=r"dtype|loads no model|runs no model"):
        predict(load_model({"model_type": "llama"}), engine=engine, tokens=1, dtype=dtype)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(("ranks", "runs"), [(1, True), (32, True), (3, False), (64, False), (10**6, False)])
def test_attention_heads_are_shared_out_evenly(engine: str, ranks: int, runs: bool) -> None:
    """Llama's class defaults: 32 heads, as many of keys and values."""
    model = load_model({"model_type": "llama", "torch_dtype": "bfloat16"})
    settings = {"tensor_parallel_size": ranks}
    if runs:
        assert predict(model, engine=engine, tokens=1, settings=settings).needed_at(1) == 32 * 2 * 32 // ranks * 128 * 2
        return
    with pytest.raises(UsageError, match=f"32 attention heads .* over {ranks} ranks"):
        predict(model, engine=engine, tokens=1, settings=settings)


@pytest.mark.parametrize(
    "wrong", [{"sequences": 2**20 + 1}, {"budget_bytes": 0}, {"budget_bytes": 2**63}, {"reserve_bytes": 10**9}]
)
def test_a_budget_nothing_is_left_of_and_sequences_beyond_counting_are_refused(wrong: dict[str, int]) -> None:
    model = load_model({"model_type": "llama", "torch_dtype": "bfloat16"})
    with pytest.raises(UsageError, match=f"{next(iter(wrong))} is .* was expected"):
        fit(model, **{"budget_bytes": 10**9, **wrong})


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_two_formats_that_disagree_are_refused(engine: str) -> None:
    model = load_model({"model_type": "llama", "torch_dtype": "bfloat16"})
    predict(model, engine=engine, tokens=1, dtype="half", settings={"dtype": "float16"})
    with pytest.raises(UsageError, match="given twice, as float32 and float16"):
        predict(model, engine=engine, tokens=1, dtype="float32", settings={"dtype": "float16"})


def test_a_model_without_a_trained_context_has_the_engine_s_limit_alone() -> None:
    model = load_model({"model_type": "mamba", "torch_dtype": "float32"})
    assert model.trained_context_tokens is None
    assert predict(model, engine="llama.cpp", tokens=1, settings={"n_ctx": 2048}).limit_tokens == 2048


@pytest.mark.parametrize("engine", [engine for engine in READY_ENGINES if engine != "ollama"])
def test_what_an_engine_does_not_have_is_null_not_absent(engine: str) -> None:
    """The four names of the contract's effective, on every engine."""
    found = predict(load_model({"model_type": "llama", "torch_dtype": "bfloat16"}), engine=engine, tokens=1).to_dict()
    names = ("context_tokens", "context_per_sequence_tokens", "batch_tokens", "microbatch_tokens")
    assert list(found["effective"])[:4] == list(names)
    assert all(found["effective"][name] is None or found["effective"][name] > 0 for name in names)


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm", "sglang"])
def test_rules_of_another_version_are_no_exact_answer(engine: str) -> None:
    model = load_model({"model_type": "llama", "torch_dtype": "bfloat16"})
    found = predict(model, engine=engine, engine_version="0.0.1", tokens=1)
    assert found.status != "exact"
    assert any(entry.what == "engine_version" and "0.0.1" in entry.why for entry in found.unknown)
