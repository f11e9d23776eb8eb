"""Public reports of memory that somebody could not explain (tests/golden/public_reports.json, with their threads), and
the library's answers: the numbers that are in the reports must come out, with ==.

The expected numbers were worked out by hand from the reports; where a report names no model, a config with its sizes
stands for it.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from kvscope.analysis.explain import explain
from kvscope.errors import MissingField
from kvscope.model.load import load_model
from kvscope.model.load_stated import load_model_with_layers
from kvscope.model.spec import ModelSpec
from kvscope.predict.memory import predict
from kvscope.predict.prediction import Prediction

REPORTS = {
    report["id"]: report
    for report in json.loads((Path(__file__).parent.parent / "golden" / "public_reports.json").read_text("utf-8"))
}


def expected(report: str) -> dict[str, Any]:
    found = REPORTS[report]["expected"]
    assert isinstance(found, dict)
    return found


def llama(layers: int, kv_heads: int, head_dim: int, **more: Any) -> ModelSpec:
    config = {
        "model_type": "llama", "num_hidden_layers": layers, "num_attention_heads": 32, "num_key_value_heads": kv_heads,
        "head_dim": head_dim, "hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 32000, **more,
    }  # fmt: skip
    return load_model(config)


def gemma3(**more: Any) -> ModelSpec:
    """Gemma 3 27B's sizes: 62 layers, every sixth full, 16 KV heads of 128, window 1,024."""
    config = {
        "model_type": "gemma3_text", "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
        "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504, "sliding_window": 1024,
        "max_position_embeddings": 131072, **more,
    }  # fmt: skip
    return load_model(config)


def deepseek_v3(**more: Any) -> ModelSpec:
    return load_model({"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64, **more})


def logical(model: ModelSpec, tokens: int, dtype: str = "float16", sequences: int = 1) -> int | None:
    return predict(model, engine="logical", tokens=tokens, sequences=sequences, dtype=dtype).cache_bytes


def rate(model: ModelSpec, dtype: str = "float16") -> int:
    return predict(model, engine="logical", tokens=1_000_000, dtype=dtype).bytes_per_token


def llama_cpp(model: ModelSpec, n_ctx: int, **settings: Any) -> Prediction:
    return predict(model, engine="llama.cpp", settings={"n_ctx": n_ctx, "n_parallel": 1, **settings}, tokens=1)


def test_p04_one_flat_formula_on_a_windowed_model() -> None:
    assert logical(gemma3(), 131072) == expected("P04")["kv_bytes_ideal"]
    assert llama_cpp(gemma3(), 131072).cache_bytes == expected("P04")["kv_bytes_llama_cpp_ub512"]


def test_p06_p19_latent_attention_is_one_narrow_row() -> None:
    model = deepseek_v3()
    assert rate(model) == expected("P06")["bytes_per_token"]
    assert logical(model, 163840) == expected("P06")["kv_bytes"]
    assert logical(model, 32768, "q8_0") == expected("P19")["kv_bytes"]


def test_p08_a_window_caps_a_layer_and_does_not_remove_it() -> None:
    model = load_model_with_layers(
        {"model_type": "unknown", "vocab_size": 1000, "hidden_size": 64},
        "18 x [sliding kv_heads=8 head_dim=64 window=128; full kv_heads=8 head_dim=64]",
    )
    assert logical(model, 1, "bfloat16") == expected("P08")["kv_bytes"]


def test_p13_p14_true_block_sizes_and_what_a_window_saves() -> None:
    assert (
        llama_cpp(gemma3(), 20000, cache_type_k="q8_0", cache_type_v="q8_0").cache_bytes
        == (expected("P13")["window_aware_q8_bytes"])
    )
    every_layer_full = load_model_with_layers(
        {"model_type": "unknown", "vocab_size": 1000, "hidden_size": 64}, "62 x full kv_heads=16 head_dim=128"
    )
    assert logical(every_layer_full, 20000, "q8_0") == expected("P13")["all_layers_true_q8_bytes"]
    assert llama_cpp(gemma3(), 2048, swa_full=True).cache_bytes == expected("P14")["all_layers_bytes"]
    assert llama_cpp(gemma3(), 2048).cache_bytes == expected("P14")["window_aware_bytes"]


def test_p16_p17_keys_and_values_of_different_widths() -> None:
    stated = {"model_type": "unknown", "vocab_size": 1000, "hidden_size": 64}
    expanded = load_model_with_layers(stated, "27 x full kv_heads=16 key_dim=192 value_dim=128")
    assert logical(expanded, 163840) == expected("P16")["expanded_bytes"]
    latent = deepseek_v3(num_hidden_layers=27)
    assert logical(latent, 163840) == expected("P16")["mla_bytes"]
    tensors = [
        t for layer in predict(expanded, engine="logical", tokens=40960, dtype="float16").layers for t in layer.tensors
    ]
    sides = {side: sum(t.num_bytes for t in tensors if t.name == side) for side in ("keys", "values")}
    assert (sides["keys"], sides["values"]) == (expected("P17")["k_bytes"], expected("P17")["v_bytes"])


def test_p20_attention_scores_are_named() -> None:
    match = explain(
        f"ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size {expected('P20')['kq_bytes']}"
    ).matches[0]
    assert match.numbers["bytes_per_token"] == expected("P20")["bytes_per_ctx_token"]


def test_p33_an_implausible_declared_context_is_warned_about() -> None:
    model = llama(40, 8, 128, hidden_size=5120, max_position_embeddings=1_024_000)
    assert logical(model, 1_024_000) == expected("P33")["kv_bytes_declared"]
    assert logical(model, 131_072) == expected("P33")["kv_bytes_131072"]
    assert any("1024000" in warning.replace(",", "") for warning in model.warnings)


def test_p36_p65_p61_p64_p42_p45_p66_grouped_heads() -> None:
    assert [logical(llama(80, 8, 128), n) for n in (57344, 1048576)] == expected("P36")["kv_bytes"]
    assert logical(llama(80, 8, 128), 2048) == expected("P65")["kv_bytes"]
    assert logical(llama(40, 8, 128), 131072) == expected("P61")["kv_bytes"]
    assert [logical(llama(32, 8, 128), 32768, dtype) for dtype in ("float16", "q8_0", "q4_0")] == (
        expected("P64")["kv_bytes"]
    )
    rates = [
        rate(llama(40, 8, 128, hidden_size=5120)),
        rate(llama(24, 8, 64, num_attention_heads=64, hidden_size=2880)),
    ]
    assert rates == expected("P42")["bytes_per_token"]
    assert rate(llama(32, 8, 128)) == expected("P45")["bytes_per_token"]
    assert rate(llama(28, 2, 128, hidden_size=1536, num_attention_heads=12)) == expected("P66")["bytes_per_token"]


@pytest.mark.parametrize("report", ["P25", "P26"])
def test_p25_p26_tokens_that_vllm_names_are_blocks(report: str) -> None:
    assert rate(llama(32, 32, 128)) == 524288
    if report == "P25":
        line = (
            "The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV "
            "cache (7344)."
        )
        match = explain(line).matches[0]
        assert match.numbers["blocks"] == expected("P25")["blocks"]
        assert logical(llama(32, 32, 128), 7344) == expected("P25")["pool_bytes"]
        assert logical(llama(32, 32, 128), 32768) == expected("P25")["needed_bytes"]
    else:
        found = [explain(f"{blocks} GPU blocks").matches[0].numbers["capacity_tokens"] for blocks in (229, 378)]
        assert found == expected("P26")["capacity_tokens"]
        assert logical(llama(32, 32, 128), 3664) == expected("P26")["pool_bytes_7b"]


@pytest.mark.parametrize(
    ("rope", "declared", "wrong"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}, 32768, 131072),
        ({"rope_type": "yarn", "factor": 40}, 131072, 5242880),
        ({"rope_type": "longrope", "original_max_position_embeddings": 4096}, 131072, 4194304),
    ],
)
def test_p50_p54_a_declared_context_is_already_scaled(rope: dict[str, Any], declared: int, wrong: int) -> None:
    model = llama(2, 2, 64, max_position_embeddings=declared, rope_scaling=rope)
    assert model.trained_context_tokens == declared != wrong


def test_p55_ollama_reserves_for_every_parallel_request() -> None:
    model = llama(2, 2, 64, max_position_embeddings=262144)
    predicted = predict(model, engine="ollama", settings={"gpu_memory": "24GiB", "num_parallel": 4}, tokens=1)
    assert predicted.effective["context_tokens"] == expected("P55")["allocated_tokens"]


def test_p27_two_lines_of_one_log() -> None:
    text = "GPU KV cache size: 290,864 tokens\nMaximum concurrency for 32,768 tokens per request: 33.04x"
    assert explain(text).matches[0].numbers["capacity_tokens"] == expected("P27")["tokens"]


def test_p57_p58_p59_m10_a_failed_size_is_layers_times_context() -> None:
    for model, n_ctx, total in (
        (llama(32, 8, 128), 1048576, expected("P57")["kv_bytes"][0]),
        (llama(32, 8, 128), 131072, expected("P57")["kv_bytes"][1]),
        (llama(36, 8, 128), 262144, expected("P58")["kv_bytes"]),
        (llama(28, 8, 128), 131072, expected("M10")["kv_bytes"]),
    ):
        assert llama_cpp(model, n_ctx).cache_bytes == total
        match = explain(f"failed to allocate buffer of size {total + 32}", model).matches[0]
        assert (match.kind, match.numbers["tokens"], match.is_certain) == ("kv_alloc_oom", n_ctx, True)
    buffers = llama_cpp(llama(34, 4, 256), 131072).buffers
    cache = next(buffer for buffer in buffers if buffer.name == "kv_cache")
    assert (cache.details["k_bytes"], cache.details["v_bytes"]) == (
        expected("P59")["k_bytes"], expected("P59")["v_bytes"],
    )  # fmt: skip


def test_p69_swa_full_costs_memory() -> None:
    # 24 of 32 layers slide, 8 heads of 128: 98,304 B a cell; the report's difference is for about 25,000 more cells
    config = {
        "model_type": "cohere2", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 256000, "sliding_window": 4096,
        "sliding_window_pattern": 4, "max_position_embeddings": 132096,
    }  # fmt: skip
    model = load_model(config)
    full, window = llama_cpp(model, 31000, swa_full=True).cache_bytes, llama_cpp(model, 31000).cache_bytes
    assert full is not None
    assert window is not None
    # 31,000 → 31,232 cells; the window 4,096 + 512 = 4,608
    assert full - window == 98304 * (31232 - 4608)
    assert 0 < full - window - expected("P69")["delta_bytes_approx"] < 98304 * 2000


def test_r06_what_one_stored_conversation_takes() -> None:
    assert logical(llama(16, 4, 256), 220000) == expected("R06")["entry_bytes"]


def test_p62_cross_attention_does_not_grow_with_the_text() -> None:
    layers = "16 x [5 x full kv_heads=8 head_dim=128; cross kv_heads=8 head_dim=128 tokens=6404]"
    model = load_model_with_layers({"model_type": "unknown", "vocab_size": 1, "hidden_size": 64}, layers)
    short, long = logical(model, 1), logical(model, 8193)
    assert short is not None
    assert long is not None
    assert long - short == expected("P62")["kv_bytes"]


def test_p03_p34_p63_only_attention_layers_grow() -> None:
    for report, groups, kv_heads, tokens, dtype in (
        ("P03", 10, 2, 1, "float16"), ("P34", 8, 4, 110000, "float16"), ("P63", 16, 4, 65536, "q8_0"),
    ):  # fmt: skip
        config = {
            "model_type": "qwen3_next", "num_hidden_layers": groups * 4, "num_key_value_heads": kv_heads,
            "num_attention_heads": 16, "head_dim": 256, "hidden_size": 2048,
        }  # fmt: skip
        model = load_model(config)
        predicted = predict(model, engine="logical", tokens=tokens, dtype=dtype if dtype != "q8_0" else None)
        if report == "P03":
            assert predicted.bytes_per_token == expected(report)["bytes_per_token"]
        elif dtype == "float16":
            assert predicted.component_bytes("kv_cache") == expected(report)["kv_bytes"]
        else:
            full = load_model_with_layers(
                {"model_type": "unknown", "vocab_size": 1, "hidden_size": 64}, "16 x full kv_heads=4 head_dim=256"
            )
            assert logical(full, tokens, dtype) == expected(report)["kv_bytes"]
        assert predicted.component_bytes("recurrent_state")


@pytest.mark.parametrize("place", ["text_config", "llm_config", "language_config", "thinker_config.text_config"])
def test_p46_a_nested_text_config_is_found(place: str) -> None:
    config: dict[str, Any] = {"architectures": ["XForConditionalGeneration"]}
    inner = config
    for key in place.split("."):
        inner[key] = {}
        inner = inner[key]
    sizes = REPORTS["P46"]["input"]["config"]["text_config"]
    inner.update(sizes, model_type="qwen3", vocab_size=1000, intermediate_size=100)
    model = load_model(config)
    # 64 layers × 4 KV heads × (256 + 256) × 2 B
    assert rate(model) == 64 * 4 * 512 * 2
    assert model.num_parameters is None
    assert model.sources["num_layers"] == f"config: {place}.num_hidden_layers"
    assert any(place in warning for warning in model.warnings)


def test_p46_without_any_model_type_nothing_is_guessed() -> None:
    with pytest.raises(MissingField, match=r"text_config\.model_type"):
        load_model(REPORTS["P46"]["input"]["config"])


def test_p20_scores_are_named_where_the_rest_is_not_known() -> None:
    predicted = llama_cpp(deepseek_v3(), 163840, flash_attn="off")
    assert predicted.component_bytes("compute_buffer") is None
    why = next(entry.why for entry in predicted.unknown if entry.what == "compute_buffer")
    assert f"{expected('P20')['kq_bytes']} B" in why
    assert f"{expected('P20')['bytes_per_ctx_token']} B for each" in why
