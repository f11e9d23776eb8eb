"""A declared context that cannot be meant is warned about; one that is only large is not."""

from typing import Any

import pytest

from kvscope.model.hf_config import model_from_config
from kvscope.model.spec import ModelSpec
from kvscope.predict.memory import predict

LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}


def load(content: dict[str, Any]) -> ModelSpec:
    return model_from_config(content, source="test", where="config.json", name="test")


@pytest.mark.parametrize(
    "hints",
    [
        {"rope_scaling": {"rope_type": "llama3", "factor": 16.0, "original_max_position_embeddings": 8192}},
        {"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 131_072, "rope_theta": 1e6}},
        {"rope_theta": 1_000_000.0},  # 12B Mistral models declare 1,024,000 so
        {"max_sequence_length": 131_072, "rope_theta": 1e8},
        {},
    ],
)
def test_a_placeholder_is_warned_about_and_left_as_it_is(hints: dict[str, Any]) -> None:
    """Public reports lmstudio-ai#1202 and ollama#8277: 1,024,000 declared by a model of 131,072, and 156 GiB asked."""
    model = load(LLAMA | {"max_position_embeddings": 1_024_000} | hints)
    assert model.trained_context_tokens == 1_024_000
    assert len(model.warnings) == 1
    assert "1,024,000" in model.warnings[0]
    assert model.warnings[0] in predict(model, engine="logical", tokens=8).notes


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"max_position_embeddings": None},
        # Llama 3.1: twice original × factor is what Meta declares.
        {"max_position_embeddings": 131_072, "rope_theta": 5e5,
         "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}},
        # vllm#56446: the declared context of a YaRN model is already the scaled one.
        {"max_position_embeddings": 32_768,
         "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}},
        # DeepSeek-V3: 4,096 × 40.
        {"max_position_embeddings": 163_840,
         "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}},
        # llama.cpp#6849: longrope's original context only selects the factors.
        {"max_position_embeddings": 131_072, "original_max_position_embeddings": 4096,
         "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
        # Qwen2.5-1M and Seed-OSS: a rotary base of 10 million.
        {"max_position_embeddings": 1_010_000, "rope_theta": 1e7},
        {"max_position_embeddings": 524_288, "rope_parameters": {"rope_type": "default", "rope_theta": 1e7}},
        {"max_position_embeddings": 262_144, "rope_theta": 1e6},
    ],
)  # fmt: skip
def test_a_large_context_that_the_file_supports_is_not(config: dict[str, Any]) -> None:
    model = load(LLAMA | config)
    assert model.warnings == ()
    # The scaling never multiplies the declared context.
    assert model.trained_context_tokens == config.get("max_position_embeddings", 2048 if not config else None)


@pytest.mark.parametrize(
    "rope", [3, "yarn", [1], {"factor": "8"}, {"original_max_position_embeddings": -1}, {"rope_type": 3}]
)
def test_a_scaling_that_is_no_scaling_is_no_reason(rope: Any) -> None:
    assert load(LLAMA | {"max_position_embeddings": 4096, "rope_scaling": rope}).warnings == ()


def test_positions_that_are_learned_are_what_they_are() -> None:
    """GPT-2 has a tensor of so many rows: nothing to doubt."""
    assert load({"model_type": "gpt2", "n_positions": 1_024_000}).warnings == ()
