"""The prediction as a whole: the contract's JSON, totals as sums, nothing unknown as 0."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvscope
from kvscope.errors import UnknownName, UsageError
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.predict.memory import predict
from kvscope.predict.solve import fit

SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=80)
llama_settings = st.fixed_dictionaries(
    {
        "n_ctx": st.integers(2, 40_000),
        "n_parallel": st.integers(1, 8),
        "kv_unified": st.booleans(),
        "n_batch": st.integers(1, 4096),
        "n_ubatch": st.integers(1, 4096),
        "cache_type_k": st.sampled_from(["f16", "bf16", "q8_0", "q4_0", "iq4_nl"]),
        "cache_type_v": st.sampled_from(["f16", "bf16", "q8_0", "q5_1"]),
        "swa_full": st.booleans(),
        "load_mode": st.sampled_from(["mmap", "none"]),
    }
)


def test_contract_fields(smollm2: ModelSpec) -> None:
    """Field by field what contract kvscope.prediction/1 promises, with SmolLM2's numbers."""
    found = predict(smollm2, engine="llama.cpp", tokens=8192, settings={"n_ctx": 8192}).to_dict()
    assert found == json.loads(json.dumps(found))
    assert list(found) == [
        "schema", "model", "scenario", "effective", "status", "unknown", "notes", "totals", "growth", "layers",
        "buffers", "pool", "items",
    ]  # fmt: skip
    assert found["schema"] == "kvscope.prediction/1"
    assert found["model"] | {"sources": None, "fingerprint": None} == {
        "name": "Smollm2 135M 8k Lc100K Mix1 Ep2",
        "architecture": "llama",
        "fingerprint": None,
        "num_layers": 30,
        "parameters": 134_515_008,
        "trained_context_tokens": 8192,
        "sources": None,
    }
    assert found["scenario"] == {
        "engine": "llama.cpp",
        "engine_version": "xllamacpp 2026.10.11549 (llama.cpp b11549), CPU",
        "tokens": 8192,
        "sequences": 1,
        "phase": "decode",
        "settings": {"n_ctx": 8192},
    }
    promised = ("context_tokens", "context_per_sequence_tokens", "batch_tokens", "microbatch_tokens")
    assert [found["effective"][key] for key in promised] == [8192, 8192, 2048, 512]
    assert found["status"] == "exact"
    assert found["totals"] == {
        "weights_bytes": 96_576_768,
        "kv_cache_bytes": 188_743_680,
        "kv_cache_storage_bytes": 188_743_680,
        "recurrent_state_bytes": 0,
        "index_cache_bytes": 0,
        "cache_bytes": 188_743_680,
        "compute_buffer_bytes": 23_742_496,
        "output_buffer_bytes": 196_608,
        "runtime_bytes": None,
        "host_cache_bytes": 0,
        "total_bytes": 96_576_768 + 188_743_680 + 23_742_496 + 196_608,
    }
    assert found["growth"] == {"bytes_per_token": 23_040, "bytes_per_sequence": 0, "knees": []}
    assert found["layers"][0] == {
        "index": 0,
        "kind": "full_attention",
        "cache_bytes": 8192 * 768,
        "tensors": [
            {"name": "keys", "shape": [1, 3, 8192, 64], "dtype": "float16", "bytes": 8192 * 384},
            {"name": "values", "shape": [1, 3, 8192, 64], "dtype": "float16", "bytes": 8192 * 384},
        ],
    }
    assert found["pool"] is None
    cache = next(buffer for buffer in found["buffers"] if buffer["name"] == "kv_cache")
    assert cache == {
        "name": "kv_cache", "kind": "full", "cells": 8192, "streams": 1, "layers": 30, "k_bytes": 94_371_840,
        "v_bytes": 94_371_840, "bytes": 188_743_680, "device": "cpu", "backing": "anonymous",
    }  # fmt: skip


def test_every_item_has_a_reason_with_its_number(gemma3: ModelSpec) -> None:
    found = predict(gemma3, engine="llama.cpp", tokens=1000, settings={"n_ctx": 8192}).to_dict()
    for item in found["items"]:
        assert "llama.cpp b11549" in item["because"]
        if item["component"] in ("kv_cache", "compute_buffer", "output_buffer"):
            assert f"{item['allocated_bytes']} B" in item["because"]
    assert "8192 MiB" in next(i["because"] for i in found["items"] if i["component"] == "host_cache")


def test_what_is_not_known_is_null_and_said(smollm2: ModelSpec) -> None:
    found = predict(smollm2, engine="llama.cpp").to_dict()
    assert found["totals"]["runtime_bytes"] is None
    (entry,) = found["unknown"]
    assert entry["what"] == "runtime"
    assert "total_bytes leaves it out" in entry["why"]


def test_a_bare_config_has_no_weights_to_place() -> None:
    model = kvscope.load_model({"model_type": "llama", "num_key_value_heads": 8})
    found = predict(model, engine="llama.cpp", settings={"n_ctx": 2048}).to_dict()
    assert found["totals"]["weights_bytes"] is None
    assert found["totals"]["kv_cache_bytes"] == 32 * 2048 * 8 * 256 * 2
    assert found["status"] == "partial"
    assert {entry["what"] for entry in found["unknown"]} >= {"weights", "output_buffer", "compute_buffer", "runtime"}


def test_growth_of_gemma3(gemma3: ModelSpec) -> None:
    """18 layers × 1,024 B until the window of 512 is full, then 3 × 1,024 B."""
    slopes = {}
    for tokens in (100, 511, 512, 8192):
        found = predict(gemma3, engine="llama.cpp", tokens=tokens, settings={"n_ctx": 16_384})
        slopes[tokens] = found.bytes_per_token
    assert slopes == {100: 18_432, 511: 18_432, 512: 3072, 8192: 3072}
    assert [(knee.tokens, knee.why) for knee in found.knees] == [(512, "sliding window full")]


def test_a_family_whose_window_llama_cpp_ignores(golden_model: Any) -> None:
    """phi3 (window 300): the tokens need at most 300 places a layer, llama.cpp reserves all cells."""
    model = golden_model("tiny-phi3")
    found = predict(model, engine="llama.cpp", tokens=1000, settings={"n_ctx": 2048})
    cache = [item for item in found.items if item.component == "kv_cache"]
    per_token = 2 * (16 + 16) * 2
    assert {item.needed.bytes_at(1000) for item in cache} == {300 * per_token}
    assert {item.allocated.bytes_at(1000) for item in cache} == {2048 * per_token}


def test_tokens_default_to_all_that_fit(smollm2: ModelSpec) -> None:
    found = predict(smollm2, engine="llama.cpp", settings={"n_ctx": 1000})
    assert found.scenario.workload.tokens == 1024  # padded to 256
    assert "1024" in found.notes[0]
    beyond = predict(smollm2, engine="llama.cpp", settings={"n_ctx": 131_072})
    assert beyond.scenario.workload.tokens == 8192  # a slot is capped at the trained context
    assert any("beyond the trained 8192" in note for note in beyond.notes)


def test_tokens_that_do_not_fit_are_said(smollm2: ModelSpec) -> None:
    found = predict(smollm2, engine="llama.cpp", tokens=5000, settings={"n_ctx": 4096})
    assert any("do not fit" in note and "4096" in note for note in found.notes)
    item = next(item for item in found.items if item.component == "kv_cache")
    assert item.needed.bytes_at(5000) > item.allocated.bytes_at(5000)
    shared = predict(
        smollm2, engine="llama.cpp", tokens=3000, sequences=2, settings={"n_ctx": 4096, "kv_unified": True}
    )
    assert any("share 4096 cells" in note for note in shared.notes)
    assert predict(smollm2, engine="llama.cpp", tokens=4096, settings={"n_ctx": 4096}).notes == ()


@pytest.mark.parametrize("version", ["2026.10.11549", "b11549", "xllamacpp 2026.10.11549 (llama.cpp b11549), CPU"])
def test_the_known_engine_version_in_any_spelling(smollm2: ModelSpec, version: str) -> None:
    assert predict(smollm2, engine="llama.cpp", engine_version=version).status == "exact"


def test_another_engine_version_is_an_estimate(smollm2: ModelSpec) -> None:
    found = predict(smollm2, engine="llama.cpp", engine_version="b9000")
    assert found.status == "estimated"
    assert any(entry.what == "engine_version" for entry in found.unknown)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"engine": "vllm"}, UsageError, "no GGUF"),
        ({"engine": "llamacpp"}, UnknownName, "llamacpp"),
        ({"phase": "warmup"}, UnknownName, "warmup"),
        ({"tokens": -1}, UsageError, "tokens"),
        ({"tokens": 1.5}, UsageError, "tokens"),
        ({"sequences": 0}, UsageError, "sequences"),
        ({"sequences": True}, UsageError, "sequences"),
        ({"available_bytes": 1}, UsageError, "pool"),
        ({"dtype": "float16"}, UsageError, "dtype"),
        ({"engine": "logical", "settings": {"n_ctx": 1}}, UsageError, "no settings"),
        ({"engine": "logical", "dtype": "floaty"}, UnknownName, "floaty"),
    ],
)
def test_questions_that_cannot_be_asked(
    smollm2: ModelSpec, arguments: dict[str, Any], error: type[UsageError], message: str
) -> None:
    with pytest.raises(error, match=message):
        predict(smollm2, **{"engine": "llama.cpp", **arguments})


def test_logical_needs_no_engine(smollm2: ModelSpec) -> None:
    found = predict(smollm2, engine="logical", tokens=100, sequences=3).to_dict()
    assert found["totals"]["cache_bytes"] == 3 * 100 * 23_040
    assert found["totals"]["weights_bytes"] == 96_576_768
    assert found["totals"]["compute_buffer_bytes"] is None
    assert found["buffers"] == []
    assert found["growth"]["bytes_per_token"] == 23_040
    assert found["layers"][0]["tensors"][0]["shape"] == [3, 3, 100, 64]
    assert "float16" in found["notes"][0]  # a GGUF names no single format: the assumption is stated


def test_logical_tokens_default_to_the_trained_context(smollm2: ModelSpec) -> None:
    assert predict(smollm2, engine="logical").scenario.workload.tokens == 8192


@SHARED
@given(asked=llama_settings, tokens=st.integers(0, 50_000), gemma=st.booleans())
def test_totals_are_sums_of_items(
    smollm2: ModelSpec, gemma3: ModelSpec, asked: dict[str, Any], tokens: int, gemma: bool
) -> None:
    found = predict(gemma3 if gemma else smollm2, engine="llama.cpp", tokens=tokens, settings=asked).to_dict()
    totals, items = found["totals"], found["items"]
    for component in ("weights", "kv_cache", "compute_buffer", "output_buffer", "host_cache"):
        parts = [item["allocated_bytes"] for item in items if item["component"] == component]
        assert totals[f"{component}_bytes"] == sum(parts)
    assert totals["total_bytes"] == sum(item["allocated_bytes"] for item in items)
    assert totals["kv_cache_bytes"] == sum(layer["cache_bytes"] for layer in found["layers"])
    assert totals["kv_cache_bytes"] == sum(b["bytes"] for b in found["buffers"] if b["name"] == "kv_cache")
    for buffer in found["buffers"]:
        if buffer["name"] == "kv_cache":
            assert buffer["k_bytes"] + buffer["v_bytes"] == buffer["bytes"]


@SHARED
@given(asked=llama_settings, more=st.integers(0, 20_000), gemma=st.booleans())
def test_memory_never_shrinks_with_context(
    smollm2: ModelSpec, gemma3: ModelSpec, asked: dict[str, Any], more: int, gemma: bool
) -> None:
    model = gemma3 if gemma else smollm2
    longer = asked | {"n_ctx": asked["n_ctx"] + more}
    first, second = (predict(model, engine="llama.cpp", tokens=10, settings=s).to_dict() for s in (asked, longer))
    # The compute buffer may: ggml fills gaps, and reserves 3,459,360 B for SmolLM2 with 8 slots, one cache of 8,766
    # cells and 64 tokens at once, but 3,229,984 B with 10,045 cells (both measured).
    assert first["totals"]["kv_cache_bytes"] <= second["totals"]["kv_cache_bytes"]
    rest = [found["totals"]["total_bytes"] - found["totals"]["compute_buffer_bytes"] for found in (first, second)]
    assert rest[0] <= rest[1]


def test_the_compute_buffer_may_shrink_with_context_as_measured(smollm2: ModelSpec) -> None:
    asked = {"n_parallel": 8, "kv_unified": True, "n_ubatch": 64, "flash_attn": "on"}
    sizes = [
        predict(smollm2, engine="llama.cpp", settings={**asked, "n_ctx": n_ctx}).component_bytes("compute_buffer")
        for n_ctx in (8766, 10045)
    ]
    assert sizes == [3_459_360, 3_229_984]


@SHARED
@given(tokens=st.integers(0, 40_000))
def test_what_tokens_need_is_never_more_than_what_fits_reserves(gemma3: ModelSpec, tokens: int) -> None:
    found = predict(gemma3, engine="llama.cpp", tokens=tokens, settings={"n_ctx": max(tokens, 2)})
    if tokens <= 32_768:
        for item in found.items:
            assert item.needed.bytes_at(tokens) <= item.allocated.bytes_at(tokens)


def test_every_buffer_has_the_contracts_numbers(smollm2: ModelSpec) -> None:
    buffers = predict(smollm2, engine="llama.cpp", settings={"n_ctx": 4096}).to_dict()["buffers"]
    assert {buffer["name"] for buffer in buffers} > {"kv_cache", "weights"}
    for buffer in buffers:
        assert {"cells", "streams", "layers", "k_bytes", "v_bytes"} <= buffer.keys()
        if buffer["name"] != "kv_cache":
            assert (buffer["cells"], buffer["k_bytes"]) == (None, None)


def test_a_model_that_was_not_read_is_refused() -> None:
    with pytest.raises(UsageError, match="a model that was read was expected"):
        predict("config.json", engine="logical", tokens=1)  # type: ignore[arg-type]


# A placeholder of 1,024,000 with no rope scaling and the default rotary base (AlexsJones/llmfit, report P33).
DOUBTFUL = {
    "model_type": "llama", "hidden_size": 5120, "num_hidden_layers": 4, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 64, "vocab_size": 128,
    "max_position_embeddings": 1024000,
}  # fmt: skip


@pytest.mark.parametrize("engine", ["logical", "llama.cpp", "transformers", "vllm", "ollama", "sglang"])
def test_a_doubtful_context_is_named_where_the_answer_rests_on_it(engine: str) -> None:
    model = load_model(DOUBTFUL)
    found = predict(model, engine=engine, settings={"num_ctx": 1024000} if engine == "ollama" else {})
    assert [note for note in found.notes if "1,024,000" in note and "doubtful" in note]


def test_a_doubtful_context_is_not_named_where_another_is_reserved() -> None:
    found = predict(load_model(DOUBTFUL), engine="llama.cpp", settings={"n_ctx": 8192})
    assert not [note for note in found.notes if "doubtful" in note]


def test_fit_names_a_doubtful_context() -> None:
    found = fit(load_model({**DOUBTFUL, "torch_dtype": "bfloat16"}), budget_bytes=2**34, tokens=4096)
    assert [note for note in found.notes if "doubtful" in note]
