"""Static, quantised and other caches of transformers, as they were measured (tests/golden/transformers_caches.json)."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvscope.errors import UnknownName, UsageError
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.predict.memory import predict

GOLDEN = Path(__file__).parent.parent / "golden" / "transformers_caches.json"
MEASURED = json.loads(GOLDEN.read_text(encoding="utf-8"))["measurements"]


def settings_of(cache: str, prompt_tokens: int) -> dict[str, Any]:
    """The settings that make the cache that a measurement names."""
    if cache.startswith("DynamicCache() without config"):
        return {"cache_implementation": "dynamic_full"}
    static = re.search(r"StaticCache\(max_cache_len=(\d+)", cache)
    if static:
        kind = "offloaded_static" if "offloading" in cache else "static"
        return {"cache_implementation": kind, "max_cache_len": int(static[1])}
    if cache.startswith("DynamicCache"):
        return {"cache_implementation": "offloaded"} if "offloading" in cache else {}
    found: dict[str, Any] = {"cache_implementation": "quantized", "prompt_tokens": prompt_tokens}
    backend = re.search(r"QuantizedCache\((\w+)", cache)
    assert backend is not None
    found["backend"] = backend[1]
    for name in ("nbits", "residual_length", "q_group_size"):
        value = re.search(rf"{name}=(\d+)", cache)
        if value:
            found[name] = int(value[1])
    return found


def _ask(measured: dict[str, Any]) -> Any:
    return predict(
        load_model(measured["config"]),
        engine="transformers",
        tokens=measured["prompt_tokens"] + measured["decode_tokens"],
        sequences=measured["batch"],
        phase="decode" if measured["decode_tokens"] else "prefill",
        dtype=measured["dtype"],
        settings=settings_of(measured["cache"], measured["prompt_tokens"]),
    )


def _name(measured: dict[str, Any]) -> str:
    lengths = f"{measured['batch']}-{measured['prompt_tokens']}-{measured['decode_tokens']}"
    return f"{measured['cache']}-{measured['dtype']}-{lengths}"


HELD = [m for m in MEASURED if m["cache_bytes_total"] is not None and "nbits=3" not in m["cache"]]


@pytest.mark.parametrize("measured", HELD, ids=_name)
def test_bytes_equal_what_the_library_held(measured: dict[str, Any]) -> None:
    predicted = _ask(measured)
    assert predicted.cache_bytes == measured["cache_bytes_total"]
    assert predicted.status == "exact"


def test_three_bits_break_at_the_first_decode_step_and_are_refused() -> None:
    for measured in (m for m in MEASURED if "nbits=3" in m["cache"]):
        with pytest.raises(UsageError, match="3 bits"):
            _ask(measured)


@pytest.fixture
def llama() -> ModelSpec:
    return load_model(next(m["config"] for m in MEASURED if m["config"]["model_type"] == "llama"))


def test_what_the_library_refuses_is_refused(llama: ModelSpec) -> None:
    sliding = load_model(next(m["config"] for m in MEASURED if m["config"]["model_type"] == "mistral"))
    with pytest.raises(UsageError, match="only full attention"):
        predict(sliding, engine="transformers", tokens=8, settings={"cache_implementation": "quantized"})
    with pytest.raises(UsageError, match="whole number of groups"):
        predict(llama, engine="transformers", tokens=1, settings={
            "cache_implementation": "quantized", "q_group_size": 96, "prompt_tokens": 1,
        })  # fmt: skip


def test_without_the_prompts_length_a_quantised_cache_is_an_estimate(llama: ModelSpec) -> None:
    settings = {"cache_implementation": "quantized"}
    predicted = predict(llama, engine="transformers", tokens=1000, dtype="float32", settings=settings)
    assert predicted.status == "estimated"
    assert any("0 to 127 tokens" in entry.why for entry in predicted.unknown)
    # 3 layers × 2 sides × (873 × 2 × 64 × (4 / 8 + 2 × 4 / 64) B + 127 × 2 × 64 × 4 B)
    assert predicted.cache_bytes == 3 * 2 * (873 * 2 * 64 * 5 // 8 + 127 * 2 * 64 * 4)
    # One more token: 3 × 2 × 2 × 64 × (4 / 8 + 2 × 4 / 64) B once it is packed
    assert predicted.bytes_per_token == 3 * 2 * 2 * 64 * 5 // 8


def test_offloaded_caches_are_estimates_of_the_same_size(llama: ModelSpec) -> None:
    plain = predict(llama, engine="transformers", tokens=50)
    offloaded = predict(llama, engine="transformers", tokens=50, settings={"cache_implementation": "offloaded"})
    assert offloaded.cache_bytes == plain.cache_bytes
    assert offloaded.status == "estimated"


def test_a_static_cache_too_short_for_the_tokens_says_so(llama: ModelSpec) -> None:
    settings = {"cache_implementation": "static", "max_cache_len": 100}
    assert "do not fit" in predict(llama, engine="transformers", tokens=101, settings=settings).notes[0]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"cache_implementaton": "static"}, UnknownName),
        ({"cache_implementation": "dynamik"}, UnknownName),
        ({"cache_implementation": "static"}, UsageError),
        ({"cache_implementation": "quantized", "backend": "quantro"}, UnknownName),
        ({"cache_implementation": "quantized", "nbits": 5}, UsageError),
        ({"cache_implementation": "quantized", "nbits": True}, UsageError),
        ({"nbits": 4}, UsageError),
        ({"max_cache_len": 5}, UsageError),
        ({"cache_implementation": "quantized", "prompt_tokens": 9}, UsageError),
    ],
)
def test_wrong_settings_are_refused(llama: ModelSpec, settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        predict(llama, engine="transformers", tokens=8, settings=settings)


def test_a_format_that_nobody_named_is_no_silent_guess(llama: ModelSpec) -> None:
    assert llama.dtype is None
    predicted = predict(llama, engine="transformers", tokens=50)
    assert predicted.status == "estimated"
    assert any("Give dtype" in entry.why for entry in predicted.unknown)
    assert predict(llama, engine="transformers", tokens=50, dtype="float32").status == "exact"


def tiny(name: str) -> ModelSpec:
    """The golden model of that name with 512 words."""
    case = json.loads((GOLDEN.parent / "transformers" / f"{name}.json").read_text(encoding="utf-8"))
    return load_model({"model_type": case["model_type"], **case["config"], "vocab_size": 512})


@pytest.mark.parametrize(
    ("name", "settings", "by_shape", "by_storage"),
    [
        # Counted in transformers 5.24.0 with 113 tokens held (110 of the prompt and three steps), float32.
        ("llama4_text", {"cache_implementation": "dynamic_full"}, 347_136, 347_136),
        ("deepseek_v3", {"cache_implementation": "quantized", "backend": "fp8"}, 27_168, 27_168),
        ("deepseek_v2", {"cache_implementation": "quantized", "backend": "fp8"}, 27_168, 27_168),
        # The convolution's columns have one more column behind them after a step, in a static cache too.
        ("recurrent_gemma", {"cache_implementation": "static", "max_cache_len": 256}, 8_192, 9_216),
        ("jamba", {"cache_implementation": "static", "max_cache_len": 256}, 159_744, 159_744),
        ("lfm2", {"cache_implementation": "static", "max_cache_len": 256}, 134_144, 134_144),
    ],
)
def test_caches_counted_on_tiny_models(name: str, settings: dict[str, Any], by_shape: int, by_storage: int) -> None:
    found = predict(tiny(name), engine="transformers", settings=settings, tokens=113, phase="decode", dtype="float32")
    totals = found.to_dict()["totals"]
    assert (totals["cache_bytes"], totals["kv_cache_storage_bytes"]) == (by_shape, by_storage)
    assert found.status == "exact"


@pytest.mark.parametrize("name", ["jamba", "lfm2", "mamba", "qwen3_next", "deepseek_v32", "deepseek_v4", "zamba2"])
def test_a_plain_cache_is_refused_where_the_library_fails_on_it(name: str) -> None:
    """IndexError, ValueError or AttributeError in the first forward of each, transformers 5.24.0."""
    with pytest.raises(UsageError, match="holds keys and values alone"):
        predict(tiny(name), engine="transformers", settings={"cache_implementation": "dynamic_full"}, tokens=64)


@pytest.mark.parametrize("settings", [{"cache_implementation": "static", "max_cache_len": 64},
                                      {"cache_implementation": "dynamic_full"}])  # fmt: skip
@pytest.mark.parametrize("name", ["minimax", "xlstm"])
def test_models_with_a_cache_of_their_own_take_no_other(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="a cache of its own"):
        predict(tiny(name), engine="transformers", settings=settings, tokens=64)
