"""Tensors of transformers' cache whose presence depends on more than the number of tokens."""

import json
from pathlib import Path

import pytest

from kvscope.errors import UnsupportedArchitecture
from kvscope.model.load import load_model
from kvscope.predict.memory import predict

GOLDEN = Path(__file__).parent.parent / "golden" / "transformers"

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


def test_a_trained_prompt_is_kept_before_the_tokens() -> None:
    """cpmant: 6 positions more than tokens, each 2 × 4 heads × 8 elements × 4 B in each of 3 layers. The library itself
    cannot decode it with a cache, so what it would hold then is an estimate."""
    fields = {"hidden_size": 32, "num_attention_heads": 4, "dim_head": 8, "dim_ff": 48, "num_hidden_layers": 3}
    model = load_model({"model_type": "cpmant", "prompt_length": 6, "vocab_size": 128, **fields})
    prefill = predict(model, engine="transformers", tokens=8, dtype="float32", phase="prefill")
    assert (prefill.cache_bytes, prefill.status) == ((8 + 6) * 3 * 2 * 4 * 8 * 4, "exact")
    later = predict(model, engine="transformers", tokens=9, dtype="float32", phase="decode")
    assert later.cache_bytes == (9 + 6) * 3 * 2 * 4 * 8 * 4
    assert later.status == "estimated"
    assert [tensor.shape for tensor in prefill.layers[0].tensors] == [(1, 4, 14, 8)] * 2
    logical = predict(model, engine="logical", tokens=8, dtype="float32")
    assert (logical.cache_bytes, logical.bytes_per_token) == (prefill.cache_bytes, 3 * 2 * 4 * 8 * 4)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp"])
def test_engines_that_are_not_known_to_keep_such_a_prompt_are_refused(engine: str) -> None:
    fields = {"hidden_size": 32, "num_attention_heads": 4, "dim_head": 8, "dim_ff": 48, "num_hidden_layers": 3}
    model = load_model({"model_type": "cpmant", "prompt_length": 6, "vocab_size": 128, **fields})
    with pytest.raises(UnsupportedArchitecture):
        predict(model, engine=engine, tokens=8)  # type: ignore[arg-type]


@pytest.mark.parametrize(("tokens", "phase", "status"), [
    (1000, "prefill", "exact"),  # the whole prompt is kept
    (13, "decode", "exact"),  # at least one token is the prompt's: at most 12 after it, which a window of 13 keeps
    (14, "decode", "estimated"),  # 1 + 12 or 14: by the prompt's length. The most is said
])  # fmt: skip
def test_a_window_of_the_tokens_after_the_prompt(tokens: int, phase: str, status: str) -> None:
    """unlimited_ocr's layers: 3 × 2 × 2 heads × 8 elements × 4 B a token (run: (1, 12) holds 13 of them)."""
    case = json.loads((GOLDEN / "unlimited_ocr.json").read_text(encoding="utf-8"))
    model = load_model(case["config"])
    found = predict(model, engine="transformers", tokens=tokens, phase=phase, dtype="float32")  # type: ignore[arg-type]
    assert (found.cache_bytes, found.status) == (tokens * 3 * 2 * 2 * 8 * 4, status)
    assert any("how long it was is not said" in unknown.why for unknown in found.unknown) == (status == "estimated")
