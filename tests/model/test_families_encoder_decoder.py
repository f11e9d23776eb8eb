"""Whisper against transformers 5.24.0: tests/golden/whisper.json has a tiny model's tensors, and the bytes of its
EncoderDecoderCache (both halves) after a prefill and decode steps on the CPU."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.errors import MalformedFile
from kvscope.model.load import load_model
from kvscope.model.spec import CrossAttention, FullAttention
from kvscope.predict.memory import predict

MEASURED: dict[str, Any] = json.loads((Path(__file__).parent.parent / "golden" / "whisper.json").read_text("utf-8"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_both_halves_of_the_cache_equal_what_the_library_held(dtype: str) -> None:
    model = load_model(MEASURED["config"])
    for seen in MEASURED["observations"][dtype]:
        predicted = predict(
            model,
            engine="transformers",
            tokens=seen["prompt_tokens"] + seen["decode_tokens"],
            sequences=seen["batch"],
            phase="decode" if seen["decode_tokens"] else "prefill",
            dtype=dtype,
        )
        assert predicted.cache_bytes == seen["cache_bytes"]
        assert predicted.kv_cache_storage_bytes == seen["storage_bytes"]
        logical = predict(
            model,
            engine="logical",
            tokens=seen["prompt_tokens"] + seen["decode_tokens"],
            sequences=seen["batch"],
            dtype=dtype,
        )
        assert logical.cache_bytes == seen["cache_bytes"]


def test_every_tensor_is_the_librarys() -> None:
    model = load_model(MEASURED["config"])
    predicted = {
        group.name.replace("{}", str(layer)): (group.shape, group.kind in ("linear", "head"))
        for group in model.weights
        for layer in group.layers or (None,)
    }
    expected = {
        name.replace("{}", str(layer)): (tuple(shape), is_linear)
        for name, shape, is_linear, layers in MEASURED["tensors"]
        for layer in layers or (None,)
    }
    assert predicted == expected
    assert model.num_parameters == MEASURED["parameters"]


def test_whisper_tiny() -> None:
    """The class's defaults are whisper-tiny: 6 heads of 64, 1,500 places of sound, 4 layers; the published checkpoint
    has 37,760,640 elements. In float16 a layer keeps 2 × 6 × 64 × 2 = 1,536 B a token: the sound's 4 × 1,500 × 1,536,
    the text's 4 × 1,536 a token."""
    model = load_model({"model_type": "whisper"})
    assert [layer.cache for layer in model.layers[:2]] == [
        FullAttention(num_kv_heads=6, key_dim=64, value_dim=64),
        CrossAttention(num_kv_heads=6, key_dim=64, value_dim=64, source_tokens=1500),
    ]
    assert len(model.layers) == 8
    assert model.num_parameters == 37_760_640
    for tokens in (1, 448):
        assert predict(model, engine="logical", tokens=tokens, dtype="float16").cache_bytes == 9_216_000 + 6144 * tokens


def test_heads_that_do_not_divide_the_width() -> None:
    with pytest.raises(MalformedFile, match="d_model"):
        load_model({"model_type": "whisper", "decoder_attention_heads": 7})
