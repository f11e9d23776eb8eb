"""The numbers of a small decoder, and what a model read from such a config needs."""

from typing import Any

from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.predict.memory import predict

TOKENS = 32_768
TINY: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def load(model_type: str, **keys: Any) -> ModelSpec:
    return load_model({"model_type": model_type, **keys})


def needed_bytes(model: ModelSpec, tokens: int = TOKENS) -> int | None:
    """The cache in 16 bits, on no engine."""
    return predict(model, engine="logical", tokens=tokens, dtype="bfloat16").cache_bytes
