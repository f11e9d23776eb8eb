"""Writes the folder of the smallest model that transformers makes of a config alone, its weights random."""

import json
from collections.abc import Mapping
from pathlib import Path

from kvscope.model.spec import DenseFfn, FullAttention, ModelSpec

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


# Wider than that it is no tiny model: its two layers have 20 MB in float32 for each 1,000 × 1,000 of them.
MOST_WIDTH = 8192


def widths_of(model: ModelSpec) -> Mapping[str, int]:
    """The keys of a config that say how wide the layers of ``model`` are; none of a model whose layers are not a
    Llama's, or too wide. What the library's matrix products keep for themselves depends on that."""
    layer = model.layers[0] if model.layers else None
    if layer is None or not isinstance(layer.ffn, DenseFfn) or not isinstance(layer.cache, FullAttention):
        return {}
    widths = {
        "hidden_size": model.hidden_size,
        "intermediate_size": layer.ffn.width,
        "num_attention_heads": layer.num_q_heads,
        "num_key_value_heads": layer.cache.num_kv_heads,
        "head_dim": layer.cache.key_dim,
    }
    return widths if max(widths.values()) <= MOST_WIDTH and min(widths.values()) > 0 else {}


def write_tiny_config(folder: Path, widths: Mapping[str, int] | None = None) -> None:
    """Write its config.json into ``folder``, with other ``widths`` where they are given. Raises OSError."""
    (folder / "config.json").write_text(json.dumps({**CONFIG, **(widths or {})}), encoding="utf-8")
