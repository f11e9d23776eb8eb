"""A tiny llama model that real llama.cpp loads, made to show where a pre-tokenizer cuts.

Its vocabulary has every byte and every pair of bytes, merged in a random order: wherever a piece begins or ends
otherwise, most texts get other ids. Some whole words have tokens that no merge leads to, which only rules that look
pieces up whole ever give.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gguf_writer import GgufWriter, Tensor

WIDTH, FEED_FORWARD, F32 = 32, 32, 0
WHOLE_WORDS = ("hello", " hello", "안녕", " 안녕", "123", "\n\n", "    ", "Hello", "!!", "()")


def byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level vocabularies (as in GPT-2's)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = iter(range(0x100, 0x200))
    return [chr(byte) if byte in shown else chr(next(hidden)) for byte in range(256)]


def write_byte_pair_model(path: Path, pre: str, seed: int = 3, names: Sequence[str] = ()) -> Path:
    """A GGUF with the pre-tokenizer ``pre`` and the user-defined tokens ``names``. Weights are holes: only its
    vocabulary is meant to be used."""
    letters = byte_letters()
    pairs = [(left, right) for left in letters for right in letters]
    random.Random(seed).shuffle(pairs)
    words = ["".join(letters[byte] for byte in word.encode()) for word in WHOLE_WORDS]
    words = [word for word in words if len(word) > 2]
    tokens = ["<|end|>", *letters, *(left + right for left, right in pairs), *words, *names]
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.context_length": 128,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.block_count": 1,
        "llama.attention.head_count": 1,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] + [1] * (len(tokens) - 1 - len(names)) + [4] * len(names),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in pairs],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }
    shapes = {
        "token_embd.weight": (WIDTH, len(tokens)),
        "output_norm.weight": (WIDTH,),
        "blk.0.attn_norm.weight": (WIDTH,),
        **{f"blk.0.attn_{name}.weight": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")},
        "blk.0.ffn_norm.weight": (WIDTH,),
        "blk.0.ffn_gate.weight": (WIDTH, FEED_FORWARD),
        "blk.0.ffn_up.weight": (WIDTH, FEED_FORWARD),
        "blk.0.ffn_down.weight": (FEED_FORWARD, WIDTH),
    }
    tensors = [Tensor(name, shape, F32, 4 * shape[0] * (shape[1:] or (1,))[0]) for name, shape in shapes.items()]
    return GgufWriter(metadata, tensors).write(path)
