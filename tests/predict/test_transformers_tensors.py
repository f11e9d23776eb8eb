"""Tensors of transformers' cache whose presence depends on more than the number of tokens."""

import pytest

from kvscope.model.load import load_model
from kvscope.predict.memory import predict

# Two heads and hashes; chunks of 16 tokens: a prompt of 17 or more is hashed at once, in int64.
REFORMER = {
    "model_type": "reformer",
    "attn_layers": ["local", "lsh"],
    "hidden_size": 32,
    "num_attention_heads": 2,
    "attention_head_size": 12,
    "feed_forward_size": 48,
    "num_hashes": 2,
    "local_attn_chunk_length": 16,
    "lsh_attn_chunk_length": 16,
    "axial_pos_embds_dim": [8, 24],
    "axial_pos_shape": [8, 16],
    "vocab_size": 97,
}


@pytest.mark.parametrize(
    ("tokens", "phase", "bucket_bytes", "status"),
    [
        (16, "prefill", 0, "exact"),
        (17, "prefill", 17 * 2 * 2 * 8, "exact"),
        # A token after 14: not yet a chunk. After 15 or 16: all tokens are hashed, as float32.
        (15, "decode", 0, "exact"),
        (16, "decode", 16 * 2 * 2 * 4, "exact"),
        (17, "decode", 17 * 2 * 2 * 4, "exact"),
        # 18: after a prompt of 17 int64; after one of 16 float32. It is not known which.
        (18, "decode", 18 * 2 * 2 * 8, "estimated"),
    ],
)
def test_bucket_numbers_of_reformer(tokens: int, phase: str, bucket_bytes: int, status: str) -> None:
    found = predict(load_model(REFORMER), engine="transformers", tokens=tokens, phase=phase, dtype="float32")  # type: ignore[arg-type]
    assert (found.cache_bytes, found.status) == (2 * tokens * 32 * 4 + bucket_bytes, status)
    assert any("bucket numbers" in unknown.why for unknown in found.unknown) == (status == "estimated")


@pytest.mark.parametrize(("window", "kept"), [(1, 100), (2, 1), (16, 15), (101, 100), (200, 100)])
def test_a_window_of_one_token_keeps_every_token(window: int, kept: int) -> None:
    """DynamicSlidingWindowLayer slices from -window + 1 on, and -0 is the start (run: 7 of 7 kept)."""
    fields = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 8}
    model = load_model({"model_type": "llama", "vocab_size": 8, "sliding_window": window, **fields})
    found = predict(model, engine="transformers", tokens=100, dtype="float32")
    assert found.cache_bytes == 2 * 2 * 4 * 16 * kept * 4
