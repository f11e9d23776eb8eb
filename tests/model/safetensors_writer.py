"""Writes small safetensors files for tests: by the format's description, apart from the reader under test."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1, "F8_E4M3": 1, "I32": 4, "I64": 8}


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> Path:
    """``tensors``: name → (element format, shape); all zeros."""
    header, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = at + math.prod(shape) * _BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(at))
    return path


TINY_CONFIG = {
    "model_type": "llama", "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 16, "max_position_embeddings": 64, "tie_word_embeddings": False,
    "dtype": "bfloat16",
}  # fmt: skip


def tiny_tensors(dtype: str = "BF16", layers: int = 2) -> dict[str, tuple[str, tuple[int, ...]]]:
    """A Llama of TINY_CONFIG. Elements: 16 × 8 twice, 8, and in each layer 8 × 8 twice, 4 × 8 twice, 12 × 8 three
    times, 8 twice = 128 × 2 + 8 + 2 × 496 = 1,256."""
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (16, 8),
        "model.norm.weight": (8,),
        "lm_head.weight": (16, 8),
    }
    for index in range(layers):
        layer = f"model.layers.{index}"
        found |= {
            f"{layer}.self_attn.q_proj.weight": (8, 8),
            f"{layer}.self_attn.k_proj.weight": (4, 8),
            f"{layer}.self_attn.v_proj.weight": (4, 8),
            f"{layer}.self_attn.o_proj.weight": (8, 8),
            f"{layer}.mlp.gate_proj.weight": (12, 8),
            f"{layer}.mlp.up_proj.weight": (12, 8),
            f"{layer}.mlp.down_proj.weight": (8, 12),
            f"{layer}.input_layernorm.weight": (8,),
            f"{layer}.post_attention_layernorm.weight": (8,),
        }
    return {name: (dtype, shape) for name, shape in found.items()}


TINY_PARAMETERS = 1_256
