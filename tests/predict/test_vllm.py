"""vLLM beyond its observations: settings, refusals, public reports, growth; expected numbers are derived beside."""

import re
from pathlib import Path
from typing import Any

import pytest

from kvscope.errors import UnknownName, UnsupportedArchitecture, UsageError
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.predict.allocation.vllm import canonical_settings
from kvscope.predict.memory import predict
from kvscope.predict.prediction import Pool, Prediction

GIB = 2**30


def llama(layers: int = 32, kv_heads: int = 8, head_dim: int = 128, **more: Any) -> ModelSpec:
    return load_model(
        {
            "model_type": "llama", "num_hidden_layers": layers, "num_attention_heads": 32,
            "num_key_value_heads": kv_heads, "head_dim": head_dim, "hidden_size": 4096, "intermediate_size": 11008,
            "vocab_size": 32000, "max_position_embeddings": 131072, "torch_dtype": "bfloat16", **more,
        }
    )  # fmt: skip


def gpt_oss(**more: Any) -> ModelSpec:
    """12 layers with a window of 128, 12 without; 8 KV heads of 64."""
    return load_model({"model_type": "gpt_oss", "num_hidden_layers": 24, "torch_dtype": "bfloat16", **more})


def qwen35(value_heads: int, kv_heads: int, **more: Any) -> ModelSpec:
    """Gated delta net with 16 key heads and ``value_heads`` of 128, every fourth layer attention with heads of 256."""
    return load_model(
        {
            "model_type": "qwen3_5_text", "num_hidden_layers": 8, "num_attention_heads": 16,
            "num_key_value_heads": kv_heads, "head_dim": 256, "linear_num_value_heads": value_heads,
            "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4, "hidden_size": 2048, "intermediate_size": 4096, "vocab_size": 1024,
            "max_position_embeddings": 262144, "mamba_ssm_dtype": "float32", "torch_dtype": "bfloat16", **more,
        }
    )  # fmt: skip


def ask(model: ModelSpec, available: int | None = None, tokens: int | None = None, **settings: Any) -> Prediction:
    return predict(model, engine="vllm", settings=settings, available_bytes=available, tokens=tokens)


def pool_of(prediction: Prediction) -> Pool:
    assert prediction.pool is not None
    return prediction.pool


def test_p09_one_model_three_answers_each_with_its_mode() -> None:
    # alvarobartt/hf-mem#70: 24 layers, 8 × 64 heads, window 128 in 12, 32 sequences of 8,192, blocks of 16, bf16.
    # A block of one group: 12 layers × 16 × 8 × 128 × 2 B = 393,216 B. Full: 512 blocks. Windows: 127 + 2,048 tokens in
    # flight, 136 blocks and one more. Together 649 × 32 × 393,216 = 8,166,309,888 B; manager off: 2 × 512 × 32 blocks.
    asked = {"block_size": 16, "max_model_len": 8192, "max_num_batched_tokens": 2048}
    block = 12 * 16 * 8 * 128 * 2
    hybrid = ask(gpt_oss(), **asked)
    assert [group.blocks_per_sequence for group in pool_of(hybrid).groups] == [137, 512]
    assert hybrid.effective["sequence_bytes"] * 32 == 649 * 32 * block == 8_166_309_888
    off = ask(gpt_oss(), disable_hybrid_kv_cache_manager=True, **asked)
    assert off.effective["sequence_bytes"] * 32 == 1024 * 32 * block == 12_884_901_888
    # On a GPU scheduling is asynchronous: two batches of 2,048 may be in flight, 127 + 4,096 tokens.
    gpu = ask(gpt_oss(), device="cuda", **asked)
    assert [group.blocks_per_sequence for group in pool_of(gpu).groups] == [265, 512]
    assert gpu.status == "estimated"


@pytest.mark.parametrize(
    ("pool_gib", "blocks", "length", "fits"), [(3.81, 1950, 20000, True), (2.89, 1479, 29000, False)]
)
def test_p24_blocks_decide_which_length_starts(pool_gib: float, blocks: int, length: int, fits: bool) -> None:
    # vllm-project/vllm#10517: a block is 16 × 131,072 B = 2 MiB; its logs say 1,952 and 1,478 blocks, and GiB rounded.
    predicted = ask(llama(), int(pool_gib * GIB), block_size=16, max_model_len=length)
    assert pool_of(predicted).bytes_per_block == 2 * 2**20
    assert pool_of(predicted).num_blocks == blocks
    assert predicted.effective["fits"] is fits


@pytest.mark.parametrize(("blocks", "tokens"), [(229, 3664), (378, 6048), (459, 7344)])
def test_p25_p26_blocks_times_block_size(blocks: int, tokens: int) -> None:
    # Llama 2 7B: 32 layers × 32 heads × 256 × 2 B × 16 tokens = 8 MiB a block.
    predicted = ask(llama(kv_heads=32), blocks * 8 * 2**20, block_size=16, max_model_len=1024)
    assert pool_of(predicted).num_blocks == blocks
    assert pool_of(predicted).capacity_tokens == tokens


def test_p29_the_attention_block_is_raised_to_hold_a_state() -> None:
    # vllm-project/vllm#40696: conv 3 × 8,192 × 2 B + 32 × 128 × 128 × 4 B = 2,146,304 B; 4,096 B a token: 524 tokens,
    # in steps of 16: 528.
    predicted = ask(qwen35(value_heads=32, kv_heads=4), device="cuda")
    pool = pool_of(predicted)
    assert {group.block_tokens for group in pool.groups} == {528}
    assert {group.page_bytes for group in pool.groups} == {528 * 4096}
    states = [item for item in predicted.items if item.component == "recurrent_state" and item.layer_index is not None]
    assert {item.needed.fixed_bytes for item in states} == {2_146_304}


@pytest.mark.parametrize(
    ("settings", "block"),
    [({}, 784), ({"kv_cache_dtype": "fp8"}, 1568), ({"kv_cache_dtype": "fp8", "num_speculative_tokens": 3}, 1600)],
)
def test_p32_blocks_that_public_logs_name(settings: dict[str, Any], block: int) -> None:
    # Qwen3.5 27B, 48 value heads: 3 × 10,240 × 2 + 48 × 128 × 128 × 4 = 3,207,168 B over 4,096 B: 783, so 784; fp8
    # halves the token: 1,566, so 1,568 (talos-argocd-proxmox#1995); three more columns add 61,440 B: 1,596, so 1,600
    # (vllm#45238).
    predicted = ask(qwen35(value_heads=48, kv_heads=4), device="cuda", max_model_len=262144, **settings)
    assert pool_of(predicted).block_tokens == block
    if block == 1568:
        full = [group for group in pool_of(predicted).groups if group.kind == "full_attention"]
        assert full[0].blocks_per_sequence == 168


def test_p31_fp8_does_not_shrink_a_hybrids_page() -> None:
    plain, small = (
        pool_of(ask(qwen35(value_heads=48, kv_heads=4), device="cuda", kv_cache_dtype=dtype))
        for dtype in ("auto", "fp8")
    )
    assert small.bytes_per_block == plain.bytes_per_block
    assert small.block_tokens == 2 * plain.block_tokens
    dense = [pool_of(ask(llama(), kv_cache_dtype=dtype)).bytes_per_block for dtype in ("auto", "fp8")]
    assert dense[0] == 2 * dense[1]


def test_p28_a_short_prompt_takes_whole_pages_of_every_group() -> None:
    # vllm-project/vllm#54458: one page in each group, whatever the prompt's length.
    model = qwen35(value_heads=32, kv_heads=4)
    predicted = ask(model, tokens=12, device="cuda", max_num_batched_tokens=8192)
    pool = pool_of(predicted)
    # Two states kept in each of three groups of recurrent layers, one block of attention.
    assert [group.kind for group in pool.groups] == ["mamba", "mamba", "mamba", "full_attention"]
    assert predicted.cache_bytes == (3 * 2 + 1) * pool.bytes_per_block


def test_p74_a_host_tier_does_not_make_a_request_fit() -> None:
    block = 32 * 16 * 8 * 256 * 2
    asked = {"block_size": 16, "max_model_len": 65536, "kv_offloading_size": 40}
    predicted = ask(llama(), 100_000 // 16 * block, tokens=150_000, **asked)
    assert pool_of(predicted).capacity_tokens == 100_000
    assert any("do not fit" in note for note in predicted.notes)
    assert predicted.component_bytes("host_cache") == 40 * GIB
    longer = ask(llama(), 100_000 // 16 * block, block_size=16, max_model_len=131072, kv_offloading_size=40)
    assert longer.effective["fits"] is False


def test_a_length_that_does_not_fit_is_said_with_vllms_numbers() -> None:
    # 131,072 tokens × 131,072 B = 16 GiB; of 10 GiB one block (2 MiB) is held back: 5,119 blocks of 16.
    predicted = ask(llama(), 10 * GIB, block_size=16, max_model_len=131072)
    assert predicted.effective["fits"] is False
    assert predicted.effective["estimated_max_model_len"] == 5119 * 16
    note = next(note for note in predicted.notes if "would not start" in note)
    assert "16.0 GiB KV cache is needed" in note
    assert "available 10.0 GiB" in note
    assert f"length is {5119 * 16}" in note
    fitting = ask(llama(), 10 * GIB, block_size=16, max_model_len=5119 * 16)
    assert fitting.effective["fits"] is True
    assert ask(llama(), 10 * GIB, block_size=16, max_model_len=5119 * 16 + 1).effective["fits"] is False
    assert ask(llama(), 10 * GIB, block_size=16, max_model_len="auto").effective["context_tokens"] == 5119 * 16


def test_without_memory_the_asked_tokens_blocks_are_counted() -> None:
    # Blocks of 128: 1,000 tokens take 8; two sequences 16; a block is 16 MiB.
    predicted = predict(llama(), engine="vllm", tokens=1000, sequences=2)
    assert predicted.component_bytes("kv_cache") == 16 * 16 * 2**20
    assert pool_of(predicted).num_blocks is None
    assert predicted.effective["fits"] is None
    assert predicted.bytes_per_token == 32 * 8 * 256 * 2
    assert predict(llama(), engine="vllm", tokens=1024).component_bytes("kv_cache") == 8 * 16 * 2**20
    assert predict(llama(), engine="vllm", tokens=1025).component_bytes("kv_cache") == 9 * 16 * 2**20


def test_a_pool_takes_its_memory_whatever_is_asked() -> None:
    sizes = {ask(llama(), 5 * GIB + 12345, tokens=tokens).cache_bytes for tokens in (0, 10, 20_000)}
    assert sizes == {5 * GIB}
    assert ask(llama(), num_gpu_blocks_override=10).cache_bytes == 10 * 16 * 2**20
    assert ask(llama(), VLLM_CPU_KVCACHE_SPACE=4).cache_bytes == 4 * GIB
    assert ask(llama(), kv_cache_memory_bytes="3GiB").cache_bytes == 3 * GIB


@pytest.mark.parametrize(
    ("dtype", "row"),
    [
        ("auto", 8 * 256 * 2),
        ("fp8", 8 * 256),
        ("int8_per_token_head", 8 * (256 + 8)),
        ("int4_per_token_head", 8 * (128 + 8)),
        # Half a byte an element and one byte of scale for sixteen, keys and values each.
        ("nvfp4", 2 * 8 * (64 + 8)),
    ],
)
def test_rows_of_each_cache_format(dtype: str, row: int) -> None:
    assert pool_of(ask(llama(), device="cuda", kv_cache_dtype=dtype)).bytes_per_block == 32 * 16 * row


def test_packed_latents() -> None:
    model = load_model({"model_type": "deepseek_v3", "torch_dtype": "bfloat16"})
    assert pool_of(ask(model, device="cuda", kv_cache_dtype="fp8_ds_mla")).bytes_per_block == 61 * 16 * 656
    assert pool_of(ask(model)).block_tokens == 16  # the CPU kernel's only size, whatever the default
    assert ask(model, block_size=128, device="cpu").effective["block_tokens"] == 16
    with pytest.raises(UsageError, match="latent"):
        ask(llama(), device="cuda", kv_cache_dtype="fp8_ds_mla")


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"block_size": 16, "device": "cpu"}, "No common block size for 16"),
        ({"block_size": 8}, "No common block size for 8"),
        ({"device": "cpu", "kv_cache_dtype": "nvfp4"}, "refuses kv_cache_dtype"),
        ({"mamba_cache_mode": "all"}, "no mamba_cache_mode"),
        ({"tensor_parallel_size": 3}, "cannot be split"),
        ({"quantization": "awq"}, "cannot be predicted"),
        ({"block_size": 16, "block-size": 32}, "given twice"),
        ({"max_model_len": "long"}, "number of tokens"),
        ({"enable_prefix_caching": "maybe"}, "true or false"),
        ({"gpu_memory_utilization": 1.5}, "fraction"),
        ({"VLLM_CPU_KVCACHE_SPACE": "much"}, "number"),
        ({"kv_cache_memory_bytes": -1}, "bytes"),
        ({"decode_context_parallel_size": 2}, "must divide"),
    ],
)
def test_what_vllm_would_refuse_is_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        ask(llama(), **settings)


@pytest.mark.parametrize("settings", [{"blok_size": 16}, {"kv_cache_dtype": "q8_0"}, {"device": "abacus"}])
def test_unknown_names_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UnknownName):
        ask(llama(), **settings)


def test_layers_vllm_does_not_run_are_refused() -> None:
    with pytest.raises(UnsupportedArchitecture, match="rwkv"):
        ask(load_model({"model_type": "rwkv"}))


@pytest.mark.parametrize("family", ["bamba", "minicpm3", "youtu", "lfm3", "recurrent_gemma", "deepseek_v4"])
def test_families_it_runs_in_no_known_way_are_refused(family: str) -> None:
    with pytest.raises(UnsupportedArchitecture, match=family):
        ask(load_model({"model_type": family, "torch_dtype": "bfloat16"}))


def test_a_family_that_was_not_checked_is_not_called_exact() -> None:
    predicted = ask(load_model({"model_type": "gemma3n_text", "torch_dtype": "bfloat16"}))
    assert predicted.status == "estimated"
    assert any(entry.what == "architecture" for entry in predicted.unknown)


def test_without_the_manager_a_window_takes_blocks_like_full_attention() -> None:
    # 24 layers, 4,096 tokens, blocks of 128: 32 blocks of 24 pages of 128 × 8 × 128 × 2 B.
    predicted = ask(gpt_oss(), tokens=4096, max_num_batched_tokens=512, disable_hybrid_kv_cache_manager=True)
    assert predicted.cache_bytes == 32 * 24 * 128 * 8 * 128 * 2


def test_a_gguf_file_is_refused(smollm2: ModelSpec) -> None:
    with pytest.raises(UsageError, match="GGUF"):
        ask(smollm2)


def test_settings_are_spelled_one_way() -> None:
    assert canonical_settings({"--max-model-len": "8k", "cache-dtype": "FP8", "--no-enable-prefix-caching": True}) == {
        "max_model_len": 8192, "kv_cache_dtype": "fp8", "enable_prefix_caching": False,
    }  # fmt: skip


def test_another_release_is_not_called_exact() -> None:
    assert predict(llama(), engine="vllm", engine_version="0.32.0").status == "exact"
    other = predict(llama(), engine="vllm", engine_version="0.20.1")
    assert other.status == "estimated"
    assert any(entry.what == "engine_version" for entry in other.unknown)


def test_context_parallel_divides_the_tokens_of_a_latent() -> None:
    # 8,192 tokens over 4 ranks: 2,048 tokens, 128 blocks of 16.
    model = load_model({"model_type": "deepseek_v3", "torch_dtype": "bfloat16"})
    asked = {"device": "cuda", "max_model_len": 8192, "tensor_parallel_size": 8, "decode_context_parallel_size": 4}
    assert ask(model, **asked).effective["sequence_blocks"] == 128


def test_a_window_in_the_config_counts_though_the_model_ignores_it() -> None:
    # vLLM takes sliding_window from the config of a model whose layers it is not told apart.
    pool = pool_of(ask(llama(sliding_window=4096)))
    assert [group.kind for group in pool.groups] == ["sliding_window"]
    assert pool.groups[0].blocks_per_sequence == (4095 + 4096) // 128 + 2


def test_experts_are_spread_over_data_parallel_ranks_and_nothing_else_is() -> None:
    # Each data-parallel rank has a dense model and a pool of its own; experts are cut up or dealt out among them all.
    assert ask(llama(), data_parallel_size=2).component_bytes("weights") == ask(llama()).component_bytes("weights")
    spread = ask(gpt_oss(), data_parallel_size=2)
    assert spread.component_bytes("weights") is None
    assert [stage["weights_bytes"] for stage in spread.effective["stages"]] == [None]
    assert "data-parallel" in next(entry.why for entry in spread.unknown if entry.what == "weights")
    assert spread.cache_bytes == ask(gpt_oss()).cache_bytes


def test_a_setting_whose_effect_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match="mamba_block_size cannot be predicted"):
        ask(qwen35(32, 2), mamba_block_size=128)


def test_no_tokens_are_no_blocks_and_fit_into_a_pool_that_holds_nothing() -> None:
    assert pool_of(ask(llama(), available=1, tokens=0)).num_blocks == 0


def test_gibibytes_beyond_any_number_are_refused() -> None:
    with pytest.raises(UsageError, match="kv_offloading_size"):
        ask(llama(), kv_offloading_size=1e300)


def test_blocks_that_sequences_take_are_a_product_with_all_its_factors() -> None:
    """At most 3 blocks of … × … B × 2 sequences: this multiplies to the bytes beside it."""
    config = Path(__file__).parents[1] / "golden" / "models" / "gemma-3-12b-it" / "config.json"
    found = predict(load_model(config), engine="vllm", tokens=5000, sequences=2)
    pool = [item for item in found.items if item.layer_index is None and item.component == "kv_cache"]
    assert len(pool) > 1
    for item in pool:
        blocks, _, one, sequences = (int(number) for number in re.findall(r"\d+", item.because)[:4])
        assert blocks * one * sequences == item.allocated.bytes_at(5000)
