"""A store of models in the layout that Ollama documents, for its stand-in: tiny GGUF files whose tokens are bytes."""

import hashlib
import json
from pathlib import Path
from typing import Any

from gguf_writer import GgufWriter, Tensor

WIDTH = 32
NORMAL, CONTROL = 1, 3


def byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level vocabularies (as in GPT-2's)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = iter(range(0x100, 0x200))
    return [chr(byte) if byte in shown else chr(next(hidden)) for byte in range(256)]


def tiny_gguf() -> bytes:
    """A llama of one layer whose tokens are the 256 bytes and "<s>", which begins every text. Weights are zeros."""
    tokens = ["<s>", *byte_letters()]
    keys: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.context_length": 8192,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": WIDTH,
        "llama.block_count": 1,
        "llama.attention.head_count": 1,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": WIDTH,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL] + [NORMAL] * 256,
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    }
    square = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    shapes = {
        "token_embd.weight": (WIDTH, len(tokens)),
        "output_norm.weight": (WIDTH,),
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.ffn_norm.weight": (WIDTH,),
        **{f"blk.0.{name}.weight": (WIDTH, WIDTH) for name in square},
    }
    tensors = []
    for name, shape in shapes.items():
        numbers = shape[0] * (shape[1] if len(shape) > 1 else 1)
        tensors.append(Tensor(name, shape, 0, b"\0" * 4 * numbers))
    return GgufWriter(keys, tensors).to_bytes()


def write_store(folder: Path, *names: str, model: Path | None = None) -> Path:
    """A store with models of these names (NAME:TAG); ``model``: a GGUF to put in all of them instead of a tiny one."""
    blobs = folder / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    content = tiny_gguf() if model is None else None
    hexadecimal = hashlib.sha256(content or str(model).encode()).hexdigest()
    blob = blobs / f"sha256-{hexadecimal}"
    if not blob.exists():
        if content is None:
            blob.symlink_to(model)
        else:
            blob.write_bytes(content)
    for number, name in enumerate(names):
        place = folder / "manifests" / "registry.ollama.ai" / "library" / name.partition(":")[0]
        place.mkdir(parents=True, exist_ok=True)
        kind = "application/vnd.ollama.image.model"
        layer = {"mediaType": kind, "digest": f"sha256:{hexadecimal}", "size": blob.stat().st_size}
        # Manifests differ, as those of different models do.
        manifest = {"schemaVersion": 2, "layers": [layer], "annotations": {"number": str(number)}}
        (place / name.partition(":")[2]).write_text(json.dumps(manifest))
    return folder
