"""Writes the folder of the smallest model that transformers makes of a config alone, its weights random."""

import json
from pathlib import Path

# Two layers, so that what comes once for a model and what comes with each layer are both there.
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


def write_tiny_config(folder: Path) -> None:
    """Write its config.json into ``folder``. Raises OSError."""
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
